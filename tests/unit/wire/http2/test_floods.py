"""Peers that ask for work or memory and bring nothing: each is told to calm down, and cut off, within its allowance.

The names are those of the attacks: CVE-2019-9511 to 9518, CVE-2023-44487 (rapid reset), CVE-2024-27316 (CONTINUATION),
CVE-2025-8671 (resets that the server is made to send).
"""

from __future__ import annotations

import asyncio
import struct
import sys
from collections.abc import Callable

import pytest

from iop_fast.wire.http2 import fields, frames
from iop_fast.wire.http2.frames import frame
from iop_fast.wire.http2.limits import ALLOWANCE, ANSWER_BYTES_MAX, COST_OF_RESET
from tests.sim.loop import VirtualLoop
from tests.unit.wire.http2.harness import HIGH_WATER, Bench, data, headers, message, play, request

PING = frame(frames.PING, 0, 0, bytes(8))
ODD = struct.Struct(">HI")


def stream(number: int) -> int:
    """The `number`-th call, behind the one that is open."""
    return 2 * number + 3


FLOODS: list[tuple[str, Callable[[int], bytes]]] = [
    ("9511 window dribble", lambda _: frames.window_update(1, 1)),
    ("9511 window dribble of the connection", lambda _: frames.window_update(0, 1)),
    ("9512 PING", lambda _: PING),
    ("9512 ACK of no PING", lambda _: frame(frames.PING, frames.ACK, 0, bytes(8))),
    ("9513 PRIORITY", lambda n: frame(frames.PRIORITY, 0, stream(n), bytes(5))),
    ("9515 SETTINGS", lambda _: frames.settings({frames.INITIAL_WINDOW_SIZE: 65_535})),
    ("9515 empty SETTINGS", lambda _: frames.settings({})),
    ("SETTINGS ACK", lambda _: frames.SETTINGS_ACK),
    ("9518 empty DATA", lambda _: data(1, b"")),
    ("9518 DATA of one byte", lambda n: data(1, b"y" if n else message(bytes(5000))[:5])),
    ("9518 DATA of padding", lambda _: frame(frames.DATA, frames.PADDED, 1, b"\x02\x00\x00")),
    (
        "9518 empty DATA of a call that is over",
        lambda n: (b"" if n else request(3) + frames.rst_stream(3, 8)) + data(3, b""),
    ),
    ("unknown frames", lambda _: frame(99, 0, 0)),
    ("GOAWAY", lambda _: frames.goaway(0, 0)),
    ("44487 rapid reset", lambda n: request(stream(n)) + frames.rst_stream(stream(n), frames.CANCEL)),
    (
        "44487 rapid reset that messages pay for",
        lambda n: request(stream(n)) + data(stream(n), message(b"") * 50) + frames.rst_stream(stream(n), frames.CANCEL),
    ),
    (
        "fields of one byte",
        lambda n: (request(3) + frames.rst_stream(3, 8)) * (not n) + frame(frames.HEADERS, 4, 3, b"\x90" * 270),
    ),
    ("9514 reset flood", lambda n: headers(stream(n), (b"bad", b"x"))),
    ("8671 resets by an empty update", lambda n: request(stream(n)) + frames.window_update(stream(n), 0)),
    ("8671 resets by a window too large", lambda n: request(stream(n)) + frames.window_update(stream(n), 2**31 - 1)),
    ("8671 resets by DATA after the end", lambda n: request(stream(n), ends=True) + data(stream(n), b"x")),
    ("ends by a compressed message", lambda n: request(stream(n)) + data(stream(n), b"\x01\0\0\0\0")),
    ("ends by a message too large", lambda n: request(stream(n)) + data(stream(n), b"\0\xff\xff\xff\xff")),
    ("ends within a message", lambda n: request(stream(n)) + data(stream(n), b"\0\0", ends=True)),
    (
        "large header blocks",
        lambda n: headers(stream(n), *[(b"x", b"y" * 100)] * 80) + frames.rst_stream(stream(n), frames.CANCEL),
    ),
]


@pytest.mark.parametrize(("name", "make"), FLOODS, ids=[name for name, _ in FLOODS])
def test_a_flood_ends_its_connection(name: str, make: Callable[[int], bytes]) -> None:
    async def scene(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        bench.open(1)
        await asyncio.sleep(0.5)
        sent = 0
        while bench.goaway is None:
            assert sent <= 2 * ALLOWANCE + 1, "the flood goes on"
            bench.feed(make(sent))
            sent += 1
        assert bench.goaway == frames.ENHANCE_YOUR_CALM
        assert bench.connection.end_reason == "the peer broke HTTP/2: too many frames that bring nothing"
        bench.connection.abort("")

    play(scene)


def test_calls_beyond_the_limit_are_refused_and_paid_for() -> None:
    async def scene(loop: VirtualLoop) -> None:
        bench = Bench(loop, max_calls=2)
        bench.feed(request(1) + request(3) + request(5))
        assert [(f.kind, f.stream_id, f.payload[-1]) for f in bench.take()] == [
            (frames.RST_STREAM, 5, frames.REFUSED_STREAM)
        ]
        assert (len(bench.calls), bench.connection.calls) == (2, 2)
        bench.calls[0].finish(0)
        bench.feed(request(7))
        assert len(bench.calls) == 3
        number = 9
        while bench.goaway is None:
            bench.feed(request(number))
            number += 2
        assert number < 9 + 2 * (2 * ALLOWANCE // COST_OF_RESET + 2)
        assert bench.goaway == frames.ENHANCE_YOUR_CALM
        bench.connection.abort("")

    play(scene)


@pytest.mark.parametrize("part", [b"", b"\x00", b"x" * 1000])
def test_a_continuation_flood_ends_early(part: bytes) -> None:
    async def scene(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        bench.feed(frame(frames.HEADERS, 0, 1, b"\x83"))
        sent = 0
        while bench.goaway is None:
            assert sent <= 2 * ALLOWANCE
            bench.feed(frame(frames.CONTINUATION, 0, 1, part))
            sent += 1
        assert bench.goaway == frames.ENHANCE_YOUR_CALM
        assert sent * len(part) <= fields.BLOCK_BYTES_MAX + len(part)
        bench.connection.abort("")

    play(scene)


def test_fields_that_unpack_to_much_end_the_connection() -> None:
    async def scene(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        # One large field goes into the table; then each byte is that field once more.
        block = b"\x40" + fields._string(b"a") + fields._string(b"b" * 3000) + b"\xbe" * 1000
        bench.feed(frame(frames.HEADERS, frames.END_HEADERS, 1, block))
        assert bench.goaway == frames.ENHANCE_YOUR_CALM
        bench.connection.abort("")

    play(scene)


def test_updates_of_the_header_table_are_few() -> None:
    async def scene(loop: VirtualLoop) -> None:
        for update in (b"\x20", b"\x3f\xe1\x1f"):
            bench = Bench(loop)
            flags = frames.END_HEADERS
            bench.feed(frame(frames.HEADERS, flags, 1, update * 2 + fields.request_block(b"/a", b"h", b"http")[1:]))
            assert len(bench.calls) == 1
            bench.feed(frame(frames.HEADERS, flags, 3, update * 3 + fields.request_block(b"/a", b"h", b"http")[1:]))
            assert bench.goaway == frames.COMPRESSION_ERROR
            bench.connection.abort("")

    play(scene)


def test_numbers_of_any_length_are_not_read() -> None:
    async def scene(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        bench.feed(frame(frames.HEADERS, frames.END_HEADERS, 1, b"\xff" + b"\x80" * 16_000 + b"\x00"))
        assert bench.goaway == frames.COMPRESSION_ERROR
        bench.connection.abort("")

    play(scene)


def test_a_peer_that_asks_and_does_not_read_is_cut() -> None:
    async def scene(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        call = bench.open()
        bench.feed(frames.window_update(0, 2**30) + frames.window_update(1, 2**30))
        bench.transport.is_held = True
        for _ in range(5):
            writing = loop.create_task(call.write(bytes(100_000)))
            await asyncio.sleep(0)
            if not writing.done():
                break
        assert not writing.done()
        assert bench.transport.get_write_buffer_size() < HIGH_WATER + 2 * 100_000
        sent = 0
        while bench.connection.transport is not None and not bench.transport.is_aborted:
            bench.feed(PING * 50)
            sent += 50
            await asyncio.sleep(0.2)  # so slowly that the allowance is never spent
        assert sent * len(PING) <= ANSWER_BYTES_MAX + 50 * len(PING)
        assert bench.connection.end_reason == "the peer does not read"
        with pytest.raises(ConnectionError, match="does not read"):
            await writing

    play(scene)


def test_a_peer_that_asks_and_reads_later_is_kept() -> None:
    async def scene(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        call = bench.open()
        bench.feed(frames.window_update(0, 2**30) + frames.window_update(1, 2**30))
        for _ in range(10):
            bench.transport.is_held = True
            await call.write(bytes(100_000))
            bench.feed(PING * 100)
            assert not bench.connection.is_writable
            bench.transport.release()
            await asyncio.sleep(0.5)
        assert bench.connection.is_open
        bench.connection.abort("")

    play(scene)


def test_small_messages_are_no_flood() -> None:
    async def scene(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        call = bench.open()
        for n in range(5000):
            bench.feed(data(1, message(b"m")) + frames.window_update(0, 6) + frames.window_update(1, 6) + PING)
            assert await call.read() == b"m"
            await call.write(b"m")
            if n % 500 == 0:
                bench.transport.sent.clear()
        assert bench.connection.is_open
        bench.connection.abort("")

    play(scene)


def test_an_allowance_comes_back_with_time() -> None:
    async def scene(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        bench.open()
        for _ in range(20):
            bench.feed(PING * (ALLOWANCE // 2 - 20))
            await asyncio.sleep(1.1)
        assert bench.connection.is_open
        bench.connection.abort("")

    play(scene)


def test_small_parts_of_a_message_are_held_without_an_object_each() -> None:
    async def scene(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        call = bench.open()
        payload = bytes(i % 256 for i in range(3000))
        whole = message(payload)
        for at in range(0, len(whole), 2):
            bench.feed(data(1, whole[at : at + 2]))
            if at % 800 == 0:
                await asyncio.sleep(1.1)
        assert await call.read() == payload
        bench.connection.abort("")

    play(scene)


@pytest.mark.skipif(not hasattr(sys, "getrefcount"), reason="counts references")
def test_a_small_part_does_not_hold_the_large_read_that_brought_it() -> None:
    async def scene(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        call = bench.open()
        chunk = data(1, message(bytes(100_000))[:5005]) + frame(99, 0, 0, bytes(200_000))
        before = sys.getrefcount(chunk)
        bench.feed(chunk)
        assert sys.getrefcount(chunk) == before
        for _ in range(19):
            bench.feed(data(1, bytes(5000)))
        assert await call.read() == bytes(100_000)
        bench.connection.abort("")

    play(scene)


@pytest.mark.parametrize("stream_id", [0, 1])
def test_a_window_that_opens_by_single_bytes_before_a_message_ends_the_connection(stream_id: int) -> None:
    async def scene(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        call = bench.open()
        bench.feed(frames.window_update(1 - stream_id, 2**20))
        writing = loop.create_task(call.write(bytes(500_000)))
        await asyncio.sleep(0)
        for _ in range(2 * ALLOWANCE):
            bench.feed(frames.window_update(stream_id, 1))
        assert bench.goaway == frames.ENHANCE_YOUR_CALM
        with pytest.raises(ConnectionError):
            await writing
        bench.connection.abort("")

    play(scene)


def test_empty_messages_in_single_bytes_end_the_connection() -> None:
    async def scene(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        call = bench.open()
        for _ in range(10 * ALLOWANCE):
            if bench.goaway is not None:
                break
            bench.feed(b"".join(data(1, b"\x00") for _ in range(5)))
            if not call.is_over:
                assert await call.read() == b""
        assert bench.goaway == frames.ENHANCE_YOUR_CALM
        bench.connection.abort("")

    play(scene)
