"""The HTTP/2 core takes any bytes: it never fails, and they mean the same however they are cut."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iop_fast.wire.http2 import fields, frames
from iop_fast.wire.http2.frames import frame
from tests.sim.loop import VirtualLoop, run_virtual
from tests.unit.wire.http2.harness import Bench, data, headers, message, request

WINDOW_BYTES = 70_000
RECEIVE_BYTES = 20_000

numbers = st.integers(0, 2**32 - 1) | st.sampled_from([0, 1, 3, 5, 65_535, 2**31 - 1, 2**31])
streams = st.sampled_from([0, 1, 1, 1, 2, 3, 5, 7, 9, 2**31 - 1])
flags = st.sampled_from([0, 0, 1, 4, 5, 8, 9, 0x24, 0x2D, 0xFF])
payloads = st.binary(max_size=40) | st.builds(bytes, st.integers(0, 3000))
grpc_bytes = st.lists(st.builds(message, payloads) | payloads, max_size=3).map(b"".join)
valid = st.one_of(
    st.builds(request, streams, ends=st.booleans()),
    st.builds(data, streams, grpc_bytes, ends=st.booleans()),
    st.builds(frames.window_update, streams, numbers),
    st.builds(frames.rst_stream, streams, numbers),
    st.builds(lambda values: frames.settings(values), st.dictionaries(st.integers(0, 8), numbers, max_size=4)),
    st.builds(lambda stream_id: headers(stream_id, (b"a", b"b"), ends=True), streams),
    st.just(frames.SETTINGS_ACK),
    st.builds(lambda payload: frame(frames.PING, 0, 0, payload), st.binary(min_size=8, max_size=8)),
)
anything = st.builds(frame, st.integers(0, 12), flags, streams, st.binary(max_size=60))
sessions = st.lists(st.one_of(valid, valid, valid, anything, st.binary(max_size=30)), max_size=25)
cuts = st.integers(1, 40) | st.just(10_000)


def run(is_server: bool, pieces: list[bytes]) -> tuple[list[object], int | None]:
    """Feed a connection; return what was sent and the code it ended by."""
    loop = VirtualLoop()
    sent: list[object] = []
    code: list[int | None] = []

    async def scene() -> None:
        bench = Bench(loop, is_server=is_server, window_bytes=WINDOW_BYTES, max_receive_bytes=RECEIVE_BYTES)
        if not is_server:
            bench.calls.append(bench.connection.open_call(b"/a/b", b"x"))
            bench.calls.append(bench.connection.open_call(b"/a/b", b"x"))
        for piece in pieces:
            bench.feed(piece)
        code.append(bench.goaway)
        sent.extend(f for f in bench.take())
        sent.append([(call.id, call.is_over, call.status) for call in bench.calls])
        # Whatever came, what is whole can be read, and everything ends.
        bench.connection.abort("the end")
        for call in bench.calls:
            while (got := await call.read()) is not None:
                assert len(got) <= RECEIVE_BYTES
                sent.append(got)
            assert call.is_over
        await asyncio.sleep(0)
        assert (bench.lost, bench.connection.calls) == (1, 0)

    run_virtual(scene(), loop)
    return sent, code[0]


def split(whole: bytes, size: int) -> list[bytes]:
    return [whole[at : at + size] for at in range(0, len(whole), size)]


@given(sessions, cuts, st.booleans())
def test_any_frames_mean_the_same_however_they_are_cut(session: list[bytes], cut: int, is_server: bool) -> None:
    whole = b"".join(session)
    assert run(is_server, split(whole, cut)) == run(is_server, [whole] if whole else [])


@given(st.binary(max_size=400), st.booleans())
def test_any_bytes_are_taken(noise: bytes, is_server: bool) -> None:
    run(is_server, [noise])


@given(st.binary(max_size=200))
def test_any_header_block_is_fields_or_an_error(block: bytes) -> None:
    try:
        got = fields.BlockReader().read(block)
    except frames.ProtocolError:
        return
    readers: list[Callable[[], object]] = [
        lambda: fields.read_request(got),
        lambda: fields.read_response(got, False),
        lambda: fields.read_trailers(got),
    ]
    for read in readers:
        try:
            read()
        except fields.MalformedError:
            continue


@given(st.text(max_size=300), st.integers(0, 16))
def test_a_status_comes_back_as_it_was_written(details: str, status: int) -> None:
    block = fields.trailers_block(status, details, False)
    ending = fields.read_trailers(fields.BlockReader().read(block))
    expected = details.encode("utf-8", "replace")[: fields.DETAILS_BYTES_MAX].strip(b" ").decode("utf-8", "replace")
    assert ending == (status, "".join(c if c.isprintable() else "?" for c in expected))


def valid_session() -> bytes:
    """A client's side of a session with everything in it that is allowed."""
    padded = frame(frames.DATA, frames.PADDED, 1, b"\x04" + message(b"padded")[:7] + bytes(4))
    block = fields.request_block(b"/a/b", b"host", b"http")
    return b"".join(
        (
            request(1),
            data(1, message(b"first") + message(b"") + message(b"second")[:4]),
            data(1, message(b"second")[4:]),
            padded,
            frame(frames.PING, 0, 0, b"12345678"),
            data(1, message(b"padded")[7:]),
            frame(frames.HEADERS, frames.END_STREAM | frames.PADDED, 3, b"\x02" + block[:10] + bytes(2)),
            frame(frames.CONTINUATION, 0, 3, block[10:20]),
            frame(frames.CONTINUATION, frames.END_HEADERS, 3, block[20:]),
            frame(frames.HEADERS, frames.END_HEADERS | frames.PRIORITY_FIELDS, 5, b"\x80\0\0\x03\x10" + block),
            frames.settings({frames.INITIAL_WINDOW_SIZE: 100_000, 99: 5}),
            frame(99, 7, 1, bytes(50)),
            frames.window_update(0, 1000),
            data(5, b"", ends=True),
            frame(frames.PRIORITY, 0, 9, bytes(5)),
            data(1, message(bytes(300)), ends=True),
            frames.goaway(0, 0, "bye"),
        )
    )


def test_a_valid_session_is_the_same_at_every_split() -> None:
    whole = valid_session()
    expected = run(True, [whole])
    assert expected[1] is None
    messages = [item for item in expected[0] if type(item) is bytes]
    assert messages == [b"first", b"", b"second", b"padded", bytes(300)]
    assert run(True, split(whole, 1)) == expected
    for at in range(1, len(whole)):
        assert run(True, [whole[:at], whole[at:]]) == expected, f"split at {at}"


@pytest.mark.parametrize("round_number", range(4))
def test_mutated_sessions_end_in_order(round_number: int) -> None:
    """Bytes of a valid session changed, dropped, doubled; the seed is in the failure's message."""
    for number in range(250):
        seed = round_number * 1000 + number
        rng = random.Random(seed)
        session = bytearray(valid_session())
        for _ in range(rng.randint(1, 6)):
            at = rng.randrange(len(session))
            change = rng.randrange(4)
            if change == 0:
                session[at] = rng.randrange(256)
            elif change == 1:
                session[at] ^= 1 << rng.randrange(8)
            elif change == 2:
                del session[at : at + rng.randint(1, 9)]
            else:
                session[at:at] = session[at : at + rng.randint(1, 40)]
        whole = bytes(session)
        pieces = []
        while whole:
            size = rng.randint(1, 200)
            pieces.append(whole[:size])
            whole = whole[size:]
        try:
            assert run(True, pieces) == run(True, [bytes(session)]), "cut otherwise it means something else"
        except BaseException:
            print(f"seed {seed}")
            raise
