"""What a peer may not send, by the sections of RFC 9113, and what ends by it: the connection, the call, or nothing."""

from __future__ import annotations

import asyncio
import struct

import pytest

from iop_fast.wire.http2 import fields, frames
from iop_fast.wire.http2.frames import frame
from tests.sim.loop import VirtualLoop
from tests.unit.wire.http2.harness import Bench, data, headers, message, play, request

WORD = struct.Struct(">I")
SETTING = struct.Struct(">HI")

GRPC = ((b"te", b"trailers"), (b"content-type", b"application/grpc"))
PSEUDO = ((b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/a/b"), (b":authority", b"x"))


def setting(name: int, value: int) -> bytes:
    return frame(frames.SETTINGS, 0, 0, SETTING.pack(name, value))


# Call 1 is open, call 3 is open and its client has ended its side, call 5 is over by the client's reset.
BROKEN: list[tuple[str, bytes, int]] = [
    ("4.2 frame too large", frame(frames.DATA, 0, 1, bytes(1024 * 1024 + 17)), frames.FRAME_SIZE_ERROR),
    ("4.3 broken header block", frame(frames.HEADERS, 4, 7, b"\xff\xff\xff\xff\xff\xff\xff"), frames.COMPRESSION_ERROR),
    ("4.3 index of nothing", frame(frames.HEADERS, 4, 7, b"\xbe"), frames.COMPRESSION_ERROR),
    ("4.3 table update too large", frame(frames.HEADERS, 4, 7, b"\x3f\xe2\x1f\x88"), frames.COMPRESSION_ERROR),
    ("HPACK 4.2 three updates", frame(frames.HEADERS, 4, 7, b"\x20\x3f\xe1\x1f\x20\x88"), frames.COMPRESSION_ERROR),
    ("5.1 DATA on idle", data(7, b"x"), frames.PROTOCOL_ERROR),
    ("5.1 RST_STREAM on idle", frames.rst_stream(7, 0), frames.PROTOCOL_ERROR),
    ("5.1 WINDOW_UPDATE on idle", frames.window_update(7, 1), frames.PROTOCOL_ERROR),
    ("5.1 CONTINUATION without HEADERS", frame(frames.CONTINUATION, 4, 1, b"\x88"), frames.PROTOCOL_ERROR),
    ("5.1.1 even stream", request(8), frames.PROTOCOL_ERROR),
    ("5.1.1 DATA on an even stream", data(2, b"x"), frames.PROTOCOL_ERROR),
    ("6.1 DATA on stream 0", data(0, b"x"), frames.PROTOCOL_ERROR),
    ("6.1 padding of all and more", frame(frames.DATA, 8, 1, b"\x05abcd"), frames.PROTOCOL_ERROR),
    ("6.1 padding without length", frame(frames.DATA, 8, 1), frames.FRAME_SIZE_ERROR),
    ("6.2 HEADERS on stream 0", request(0), frames.PROTOCOL_ERROR),
    ("6.2 padding longer than the block", frame(frames.HEADERS, 12, 7, b"\x09\x88"), frames.PROTOCOL_ERROR),
    ("6.2 padding without length", frame(frames.HEADERS, 12, 7), frames.FRAME_SIZE_ERROR),
    ("6.2 priority cut short", frame(frames.HEADERS, 0x24, 7, b"\x00\x00"), frames.PROTOCOL_ERROR),
    ("5.3.1 depends on itself", frame(frames.HEADERS, 0x24, 7, WORD.pack(7) + b"\x10\x88"), frames.PROTOCOL_ERROR),
    ("6.2 a frame within a block", frame(frames.HEADERS, 0, 7, b"\x88") + frame(frames.PING, 0, 0, bytes(8)), 1),
    ("6.2 DATA within a block", frame(frames.HEADERS, 0, 7, b"\x88") + data(1, b"x"), frames.PROTOCOL_ERROR),
    ("6.2 unknown within a block", frame(frames.HEADERS, 0, 7, b"\x88") + frame(99, 0, 1), frames.PROTOCOL_ERROR),
    ("6.10 another stream's CONTINUATION", frame(frames.HEADERS, 0, 7, b"\x88") + frame(9, 4, 1, b"\x88"), 1),
    ("6.3 PRIORITY on stream 0", frame(frames.PRIORITY, 0, 0, bytes(5)), frames.PROTOCOL_ERROR),
    ("6.3 PRIORITY of another size", frame(frames.PRIORITY, 0, 1, bytes(4)), frames.FRAME_SIZE_ERROR),
    ("6.4 RST_STREAM on stream 0", frames.rst_stream(0, 0), frames.PROTOCOL_ERROR),
    ("6.4 RST_STREAM of another size", frame(frames.RST_STREAM, 0, 1, bytes(5)), frames.FRAME_SIZE_ERROR),
    ("6.5 SETTINGS on a stream", frame(frames.SETTINGS, 0, 1, bytes(6)), frames.PROTOCOL_ERROR),
    ("6.5 SETTINGS of another size", frame(frames.SETTINGS, 0, 0, bytes(5)), frames.FRAME_SIZE_ERROR),
    ("6.5 ACK that brings something", frame(frames.SETTINGS, 1, 0, bytes(6)), frames.FRAME_SIZE_ERROR),
    ("6.5.2 push neither on nor off", setting(frames.ENABLE_PUSH, 2), frames.PROTOCOL_ERROR),
    ("6.5.2 window too large", setting(frames.INITIAL_WINDOW_SIZE, 2**31), frames.FLOW_CONTROL_ERROR),
    ("6.5.2 frame size too small", setting(frames.MAX_FRAME_SIZE, 16_383), frames.PROTOCOL_ERROR),
    ("6.5.2 frame size too large", setting(frames.MAX_FRAME_SIZE, 2**24), frames.PROTOCOL_ERROR),
    (
        "6.9.2 window of a call too large by SETTINGS",
        frames.window_update(1, 2**31 - 1 - 65_535) + setting(frames.INITIAL_WINDOW_SIZE, 65_536),
        frames.FLOW_CONTROL_ERROR,
    ),
    ("6.5 too many settings", frame(frames.SETTINGS, 0, 0, bytes(6 * 65)), frames.ENHANCE_YOUR_CALM),
    ("6.6 PUSH_PROMISE", frame(frames.PUSH_PROMISE, 4, 1, WORD.pack(2) + b"\x88"), frames.PROTOCOL_ERROR),
    ("6.7 PING on a stream", frame(frames.PING, 0, 1, bytes(8)), frames.PROTOCOL_ERROR),
    ("6.7 PING of another size", frame(frames.PING, 0, 0, bytes(7)), frames.FRAME_SIZE_ERROR),
    ("6.8 GOAWAY on a stream", frame(frames.GOAWAY, 0, 1, bytes(8)), frames.PROTOCOL_ERROR),
    ("6.8 GOAWAY cut short", frame(frames.GOAWAY, 0, 0, bytes(7)), frames.FRAME_SIZE_ERROR),
    ("6.9 WINDOW_UPDATE of another size", frame(frames.WINDOW_UPDATE, 0, 0, bytes(3)), frames.FRAME_SIZE_ERROR),
    ("6.9 update of nothing", frames.window_update(0, 0), frames.PROTOCOL_ERROR),
    ("6.9.1 connection's window too large", frames.window_update(0, 2**31 - 1), frames.FLOW_CONTROL_ERROR),
    ("6.9.1 more than a call's window", data(1, bytes(65_535)) + data(1, b"x"), frames.FLOW_CONTROL_ERROR),
    ("10.5.1 header block too large", frame(frames.HEADERS, 4, 7, bytes(16 * 1024 + 1)), frames.ENHANCE_YOUR_CALM),
    ("large control frame", frame(frames.GOAWAY, 0, 0, bytes(16 * 1024 + 1)), frames.ENHANCE_YOUR_CALM),
]


def open_world(bench: Bench) -> None:
    bench.feed(request(1) + request(3, ends=True) + request(5) + frames.rst_stream(5, frames.CANCEL))
    bench.take()


@pytest.mark.parametrize(("name", "sent", "code"), BROKEN, ids=lambda v: str(v)[:40])
@pytest.mark.parametrize("cut", [0, 1])
def test_a_connection_ends_by_its_error(name: str, sent: bytes, code: int, cut: int) -> None:
    async def scene(loop: VirtualLoop) -> None:
        if cut and len(sent) > 5000:
            return
        bench = Bench(loop, window_bytes=65_535)
        open_world(bench)
        for piece in [sent[at : at + 1] for at in range(len(sent))] if cut else [sent]:
            bench.feed(piece)
        assert bench.goaway == code
        assert bench.connection.end_reason.startswith("the peer broke HTTP/2: ")
        assert all(call.is_over for call in bench.calls)
        assert bench.transport.has_eof
        bench.feed(frame(frames.PING, 0, 0, bytes(8)))  # dropped
        assert bench.transport.sent.endswith(bench.connection.end_reason.partition(": ")[2].encode())
        bench.connection.abort("")

    play(scene)


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", frames.PROTOCOL_ERROR),
        (frames.PREFACE[:-1] + b"x", frames.PROTOCOL_ERROR),
        (frames.PREFACE + frame(frames.PING, 0, 0, bytes(8)), frames.PROTOCOL_ERROR),
        (frames.PREFACE + frames.SETTINGS_ACK, frames.PROTOCOL_ERROR),
        (frames.PREFACE + request(1), frames.PROTOCOL_ERROR),
    ],
)
@pytest.mark.parametrize("cut", [1, 7, 1000])
def test_a_handshake_begins_with_preface_and_settings(sent: bytes, code: int, cut: int) -> None:
    async def scene(loop: VirtualLoop) -> None:
        bench = Bench(loop, shakes=False)
        for at in range(0, len(sent), cut):
            bench.feed(sent[at : at + cut])
        assert bench.goaway == code
        assert bench.calls == []
        bench.connection.abort("")

    play(scene)


ENDS_CALL: list[tuple[str, bytes, int]] = [
    ("5.1 HEADERS after the end", headers(3, (b"a", b"b"), ends=True), frames.STREAM_CLOSED),
    ("5.1 DATA after the end", data(3, b"x"), frames.STREAM_CLOSED),
    ("6.9 update of nothing", frames.window_update(3, 0), frames.PROTOCOL_ERROR),
    ("6.9.1 window too large", frames.window_update(3, 2**31 - 1), frames.FLOW_CONTROL_ERROR),
]


@pytest.mark.parametrize(("name", "sent", "code"), ENDS_CALL, ids=lambda v: str(v)[:30])
def test_a_call_ends_by_its_error_alone(name: str, sent: bytes, code: int) -> None:
    async def scene(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        open_world(bench)
        bench.feed(sent)
        assert [(f.kind, f.stream_id, f.payload) for f in bench.take()] == [(frames.RST_STREAM, 3, WORD.pack(code))]
        assert [call.is_over for call in bench.calls] == [False, True, True]
        assert await bench.calls[1].read() is None
        bench.connection.abort("")

    play(scene)


@pytest.mark.parametrize(
    "pairs",
    [
        PSEUDO[1:] + GRPC,  # no method
        PSEUDO[:1] + PSEUDO[2:] + GRPC,  # no scheme
        PSEUDO[:2] + GRPC,  # no path
        (*PSEUDO[:2], (b":path", b"a/b"), *GRPC),
        (*PSEUDO, PSEUDO[0], *GRPC),
        (*PSEUDO, (b":status", b"200"), *GRPC),
        (*PSEUDO, (b":protocol", b"x"), *GRPC),
        PSEUDO[:2] + GRPC + PSEUDO[2:],
        (*PSEUDO, *GRPC, (b"Upper", b"x")),
        (*PSEUDO, *GRPC, (b"", b"x")),
        (*PSEUDO, *GRPC, (b"a b", b"x")),
        (*PSEUDO, *GRPC, (b"a:b", b"x")),
        (*PSEUDO, *GRPC, (b"a", b"x\r\ny: z")),
        (*PSEUDO, *GRPC, (b"a", b"x\x00y")),
        (*PSEUDO, *GRPC, (b"a", b" x")),
        (*PSEUDO, *GRPC, (b"connection", b"close")),
        (*PSEUDO, *GRPC, (b"transfer-encoding", b"chunked")),
        (*PSEUDO, *GRPC, (b"upgrade", b"h2c")),
        (*PSEUDO, (b"te", b"gzip"), GRPC[1]),
        (*PSEUDO, *GRPC, (b"content-length", b"+1")),
        (*PSEUDO, *GRPC, (b"content-length", b"1"), (b"content-length", b"2")),
    ],
)
def test_a_malformed_request_is_reset(pairs: tuple[tuple[bytes, bytes], ...]) -> None:
    async def scene(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        bench.feed(headers(1, *pairs))
        sent = [(f.kind, f.stream_id, f.payload) for f in bench.take()]
        assert sent == [(frames.RST_STREAM, 1, WORD.pack(frames.PROTOCOL_ERROR))]
        assert bench.calls == []
        bench.feed(headers(3, *PSEUDO, *GRPC))
        assert len(bench.calls) == 1
        bench.connection.abort("")

    play(scene)


@pytest.mark.parametrize(
    ("pairs", "status"),
    [
        (((b":method", b"GET"), *PSEUDO[1:], *GRPC), b"405"),
        ((*PSEUDO, GRPC[0]), b"415"),
        ((*PSEUDO, GRPC[0], (b"content-type", b"application/grpc+json")), b"415"),
        ((*PSEUDO, GRPC[0], (b"content-type", b"application/grpcx")), b"415"),
        ((*PSEUDO, GRPC[1]), b"400"),
        ((*PSEUDO[:2], (b":path", b"/" + bytes(1024).replace(b"\0", b"a")), *GRPC), b"400"),
    ],
)
def test_a_request_that_is_no_grpc_call_is_answered_by_http(
    pairs: tuple[tuple[bytes, bytes], ...], status: bytes
) -> None:
    async def scene(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        bench.feed(headers(1, *pairs))
        sent = bench.take()
        assert [f.kind for f in sent] == [frames.HEADERS, frames.RST_STREAM]
        assert dict(fields.BlockReader().read(sent[0].payload))[b":status"] == status
        assert (bench.calls, bench.connection.calls) == ([], 0)
        bench.connection.abort("")

    play(scene)


@pytest.mark.parametrize("kind", [b"application/grpc", b"application/grpc+proto", b"application/grpc; charset=x"])
def test_kinds_of_grpc_that_are_taken(kind: bytes) -> None:
    async def scene(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        bench.feed(headers(1, *PSEUDO, GRPC[0], (b"content-type", kind), (b"grpc-timeout", b"1S"), (b"x-any", b"")))
        assert [call.path for call in bench.calls] == [b"/a/b"]
        bench.connection.abort("")

    play(scene)


@pytest.mark.parametrize(
    ("length", "sent", "code"),
    [
        (b"9", data(1, message(b"four"), ends=True), None),
        (b"8", data(1, message(b"four"), ends=True), frames.PROTOCOL_ERROR),
        (b"10", data(1, message(b"four"), ends=True), frames.PROTOCOL_ERROR),
        (b"10", headers(1, (b"a", b"b"), ends=True), frames.PROTOCOL_ERROR),
        (b"0", headers(1, (b"a", b"b"), ends=True), None),
    ],
)
def test_a_content_length_must_be_true(length: bytes, sent: bytes, code: int | None) -> None:
    async def scene(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        bench.feed(headers(1, *PSEUDO, *GRPC, (b"content-length", length)) + sent)
        resets = [f.payload for f in bench.take() if f.kind == frames.RST_STREAM]
        assert resets == ([] if code is None else [WORD.pack(code)])
        assert bench.goaway is None
        bench.connection.abort("")

    play(scene)


def test_trailers_of_a_client_end_its_side_and_must_be_the_end() -> None:
    async def scene(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        call = bench.open(1)
        bench.feed(headers(1, (b"x-trailer", b"y"), ends=True))
        assert await call.read() is None
        assert not call.is_over
        call = bench.open(3)
        bench.feed(headers(3, (b"x-trailer", b"y")))
        assert (call.is_over, call.status) == (True, fields.GRPC_INTERNAL)
        call = bench.open(5)
        bench.feed(headers(5, (b":path", b"/other"), ends=True))
        assert (call.is_over, call.status) == (True, fields.GRPC_INTERNAL)
        bench.connection.abort("")

    play(scene)


IGNORED: list[tuple[str, bytes]] = [
    ("DATA of a call that was reset", data(5, b"in flight")),
    ("HEADERS of a call that was reset", headers(5, (b"a", b"b"), ends=True)),
    ("RST_STREAM again", frames.rst_stream(5, frames.CANCEL)),
    ("update of a call that is over", frames.window_update(5, 10)),
    ("unknown type", frame(99, 0xFF, 1, bytes(100_000))),
    ("unknown type on no stream", frame(99, 0, 0)),
    ("PRIORITY", frame(frames.PRIORITY, 0, 99, bytes(5))),
    ("ACK of no PING", frame(frames.PING, frames.ACK, 0, bytes(8))),
    ("unknown flags", frame(frames.WINDOW_UPDATE, 0xFF, 1, WORD.pack(1))),
    ("reserved bits", frame(frames.WINDOW_UPDATE, 0, 1 | 1 << 31, WORD.pack(1 | 1 << 31))),
    ("GOAWAY of a client", frames.goaway(0, 0)),
    ("padding of DATA", frame(frames.DATA, 8, 1, b"\x03" + bytes(3))),
    ("padding of nothing but padding", frame(frames.DATA, 8, 1, b"\x00")),
]


@pytest.mark.parametrize(("name", "sent"), IGNORED, ids=lambda v: str(v)[:30])
@pytest.mark.parametrize("cut", [1, 10_000])
def test_what_is_allowed_changes_nothing(name: str, sent: bytes, cut: int) -> None:
    async def scene(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        open_world(bench)
        for at in range(0, len(sent), cut if len(sent) < 5000 else 10_000):
            bench.feed(sent[at : at + (cut if len(sent) < 5000 else 10_000)])
        assert bench.take() == []
        bench.feed(data(1, message(b"fine")))
        assert await bench.calls[0].read() == b"fine"
        bench.connection.abort("")

    play(scene)


@pytest.mark.parametrize("sent", [data(3, b"x"), headers(3, (b"a", b"b"), ends=True)])
def test_frames_behind_the_peers_own_end_of_a_call_that_is_over(sent: bytes) -> None:
    async def scene(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        open_world(bench)
        bench.calls[1].finish(0)
        bench.take()
        bench.feed(sent)
        assert bench.goaway == frames.STREAM_CLOSED
        bench.connection.abort("")

    play(scene)


def test_settings_and_pings_are_acknowledged_in_one_write() -> None:
    async def scene(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        before = bench.transport.writes
        bench.feed(
            frames.settings({99: 1}) + frame(frames.PING, 0, 0, b"12345678") + frame(frames.PING, 0, 0, bytes(8))
        )
        sent = [(f.kind, f.flags, f.payload) for f in bench.take()]
        assert sent == [(4, 1, b""), (6, 1, b"12345678"), (6, 1, bytes(8))]
        assert bench.transport.writes == before + 1
        bench.connection.abort("")

    play(scene)


def test_a_window_that_settings_made_negative_holds_a_call_back() -> None:
    async def scene(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        call = bench.open()
        await call.write(bytes(60_000))
        bench.feed(setting(frames.INITIAL_WINDOW_SIZE, 0))
        bench.take()
        writing = loop.create_task(call.write(bytes(95)))
        await asyncio.sleep(0)
        bench.feed(frames.window_update(1, 60_005))  # back at nothing
        assert bench.take()[1:] == []
        bench.feed(frames.window_update(1, 1))
        bench.feed(frames.window_update(1, 6))
        bench.feed(frames.window_update(1, 1000))
        await writing
        sent = [f.payload for f in bench.take() if f.kind == frames.DATA]
        assert b"".join(sent) == message(bytes(95))
        assert [len(part) for part in sent] == [1, 6, 93]
        bench.connection.abort("")

    play(scene)


def test_until_it_knows_our_settings_a_peer_may_use_the_default_window() -> None:
    async def scene(loop: VirtualLoop) -> None:
        for is_known in (False, True):
            bench = Bench(loop, shakes=False, window_bytes=1000)
            bench.feed(frames.PREFACE + frames.settings({}) + (frames.SETTINGS_ACK if is_known else b""))
            bench.open()
            bench.feed(data(1, bytes(1001)))
            assert bench.goaway == (frames.FLOW_CONTROL_ERROR if is_known else None)
            bench.connection.abort("")

    play(scene)


def test_a_window_shrinks_for_open_calls_when_our_settings_are_known() -> None:
    async def scene(loop: VirtualLoop) -> None:
        bench = Bench(loop, shakes=False, window_bytes=1000)
        bench.feed(frames.PREFACE + frames.settings({}))
        bench.open()
        bench.feed(data(1, message(bytes(495))) + frames.SETTINGS_ACK)
        bench.feed(data(1, bytes(500)))
        assert bench.goaway is None
        bench.feed(data(1, b"x"))
        assert bench.goaway == frames.FLOW_CONTROL_ERROR
        bench.connection.abort("")

    play(scene)


CLIENT_BROKEN: list[tuple[bytes, int]] = [
    (headers(3, (b":status", b"200")), frames.PROTOCOL_ERROR),  # no such call
    (headers(2, (b":status", b"200")), frames.PROTOCOL_ERROR),
    (data(3, b"x"), frames.PROTOCOL_ERROR),
    (setting(frames.ENABLE_PUSH, 1), frames.PROTOCOL_ERROR),
    (frame(frames.PUSH_PROMISE, 4, 1, WORD.pack(2) + b"\x88"), frames.PROTOCOL_ERROR),
]


@pytest.mark.parametrize(("sent", "code"), CLIENT_BROKEN)
def test_a_server_that_breaks_the_protocol(sent: bytes, code: int) -> None:
    async def scene(loop: VirtualLoop) -> None:
        bench = Bench(loop, is_server=False)
        bench.connection.open_call(b"/a/b", b"x")
        bench.feed(sent)
        assert bench.goaway == code
        bench.connection.abort("")

    play(scene)


@pytest.mark.parametrize(
    "sent",
    [
        headers(1, (b"content-type", b"application/grpc")),
        headers(1, (b":status", b"2000")),
        headers(1, (b":status", b"100"), ends=True),
        headers(1, (b":status", b"200"), (b":path", b"/")),
        headers(1, (b":status", b"200"), (b"content-type", b"application/grpc")) + headers(1, (b"grpc-status", b"0")),
    ],
)
def test_a_malformed_answer_ends_its_call(sent: bytes) -> None:
    async def scene(loop: VirtualLoop) -> None:
        bench = Bench(loop, is_server=False)
        call = bench.connection.open_call(b"/a/b", b"x")
        bench.feed(sent)
        assert (call.is_over, call.status) == (True, fields.GRPC_INTERNAL)
        assert bench.goaway is None
        bench.connection.abort("")

    play(scene)


def test_a_fault_of_ours_ends_the_connection_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object, __: bytes) -> fields.Fields:
        raise IndexError("mine")

    monkeypatch.setattr(fields.BlockReader, "read", fail)

    async def scene(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        bench.feed(request(1))
        assert bench.goaway == frames.INTERNAL_ERROR
        assert [str(f["exception"]) for f in loop.failures] == ["mine"]
        loop.failures.clear()
        bench.connection.abort("")

    play(scene)


def test_the_tables_have_no_case_twice() -> None:
    assert len({case[0] for case in BROKEN} | {case[0] for case in IGNORED}) == len(BROKEN) + len(IGNORED)
