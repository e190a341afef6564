"""The life of a connection: handshake, silence, idleness, draining, closing, being cut; on virtual time."""

from __future__ import annotations

import asyncio

import pytest

from iop_fast.wire.http2 import frames
from iop_fast.wire.http2.connection import Connection
from iop_fast.wire.http2.frames import frame
from iop_fast.wire.http2.life import CHECK
from iop_fast.wire.http2.limits import Limits
from tests.sim.loop import VirtualLoop
from tests.unit.wire.http2.harness import (
    PATH,
    Bench,
    MemoryTransport,
    Pair,
    data,
    headers,
    message,
    play,
    request,
    until,
)

SECOND = 1_000_000_000
PONG = frame(frames.PING, frames.ACK, 0, CHECK)


def test_a_server_says_its_limits_first() -> None:
    async def scene(loop: VirtualLoop) -> None:
        bench = Bench(loop, shakes=False, window_bytes=100_000, max_calls=7)
        settings, update = bench.take()
        assert dict(frames.read_settings(settings.payload)) == {
            frames.INITIAL_WINDOW_SIZE: 100_000,
            frames.MAX_CONCURRENT_STREAMS: 7,
            frames.MAX_FRAME_SIZE: 1024 * 1024 + 16,
            frames.MAX_HEADER_LIST_SIZE: 16 * 1024,
        }
        assert (update.kind, int.from_bytes(update.payload, "big")) == (frames.WINDOW_UPDATE, 4 * 100_000 - 65_535)
        bench.connection.abort("")

    play(scene)


@pytest.mark.parametrize("sent", [b"", frames.PREFACE[:5], frames.PREFACE, frames.PREFACE + frames.settings({})])
def test_a_handshake_has_a_limit(sent: bytes) -> None:
    async def scene(loop: VirtualLoop) -> None:
        bench = Bench(loop, shakes=False, handshake_ns=2 * SECOND, close_ns=SECOND)
        if sent:
            bench.feed(sent)
        await asyncio.sleep(1.9)
        assert bench.goaway is None
        await asyncio.sleep(0.2)
        assert bench.goaway == frames.SETTINGS_TIMEOUT
        assert bench.connection.end_reason == "the peer did not shake hands in time"
        await asyncio.sleep(1)
        assert bench.transport.is_aborted
        assert bench.lost == 1

    play(scene)


def test_a_client_waits_for_settings() -> None:
    async def scene(loop: VirtualLoop) -> None:
        bench = Bench(loop, is_server=False, shakes=False)
        connection = bench.connection
        assert connection.ready is not None
        assert not connection.ready.done()
        with pytest.raises(ConnectionError):
            connection.open_call(PATH, b"x")
        bench.feed(frames.settings({frames.MAX_CONCURRENT_STREAMS: 1}))
        await connection.ready
        assert (connection.is_ready, connection.is_open) == (True, True)
        connection.open_call(PATH, b"x")
        with pytest.raises(ConnectionError, match="at most 1 calls"):
            connection.open_call(PATH, b"x")
        connection.abort("")
        assert not connection.is_open

    play(scene)


def test_a_client_whose_server_leaves_before_its_settings_is_told() -> None:
    async def scene(loop: VirtualLoop) -> None:
        for error, reason in (
            (None, "the peer closed the connection"),
            (OSError("reset"), "the connection was lost: reset"),
        ):
            bench = Bench(loop, is_server=False, shakes=False)
            assert bench.connection.ready is not None
            bench.transport.lose(error)
            with pytest.raises(ConnectionError, match=reason):
                await bench.connection.ready
            assert bench.connection.end_reason == reason

    play(scene)


def test_silence_is_asked_about_and_then_ends_the_connection() -> None:
    async def scene(loop: VirtualLoop) -> None:
        bench = Bench(loop, keepalive_ns=4 * SECOND, ping_timeout_ns=2 * SECOND)
        call = bench.open()
        await asyncio.sleep(8.5)  # something came in the first four seconds
        asked = bench.take()
        assert [(f.kind, f.flags, f.payload) for f in asked] == [(frames.PING, 0, CHECK)]
        bench.feed(PONG)
        await asyncio.sleep(7)
        assert [f.kind for f in bench.take()] == [frames.PING]
        assert bench.connection.is_open
        await asyncio.sleep(2)
        assert bench.transport.is_aborted
        assert (call.is_over, call.details) == (True, "the peer does not answer")
        assert bench.connection.end_reason == "the peer does not answer"

    play(scene)


def test_a_peer_that_speaks_is_not_asked() -> None:
    async def scene(loop: VirtualLoop) -> None:
        bench = Bench(loop, keepalive_ns=SECOND)
        bench.open()
        for _ in range(50):
            bench.feed(data(1, message(b"x")))
            await asyncio.sleep(0.5)
        assert [f for f in bench.take() if f.kind == frames.PING] == []
        bench.connection.abort("")

    play(scene)


def test_a_server_closes_a_connection_without_calls() -> None:
    async def scene(loop: VirtualLoop) -> None:
        bench = Bench(loop, keepalive_ns=SECOND, idle_ns=10 * SECOND)
        call = bench.open()
        for _ in range(30):
            bench.feed(PONG)
            await asyncio.sleep(0.5)
        assert bench.connection.is_open
        call.finish(0)
        for _ in range(18):
            bench.feed(PONG)
            await asyncio.sleep(0.5)
        assert bench.connection.is_open
        for _ in range(5):
            bench.feed(PONG)
            await asyncio.sleep(0.5)
        assert bench.goaway == frames.NO_ERROR
        assert bench.connection.end_reason == "no call for long"
        bench.connection.abort("")

    play(scene)


def test_a_header_block_has_a_limit_of_time() -> None:
    async def scene(loop: VirtualLoop) -> None:
        bench = Bench(loop, keepalive_ns=SECOND, handshake_ns=5 * SECOND)
        bench.feed(frame(frames.HEADERS, 0, 1, b"\x83"))
        for _ in range(20):
            if bench.transport.is_aborted:
                break
            bench.feed(frame(frames.CONTINUATION, 0, 1, b"\x84"))
            await asyncio.sleep(0.5)
        assert bench.transport.is_aborted
        assert bench.connection.end_reason == "a header block did not become whole in time"

    play(scene)


def test_draining_lets_calls_end_and_takes_no_new_one() -> None:
    async def scene(loop: VirtualLoop) -> None:
        pair = Pair(loop)
        call = await pair.open()
        await call.write(b"x")
        assert await call.read() == b"x"
        pair.server.drain()
        pair.server.drain()
        await until(lambda: not pair.client.is_open)
        with pytest.raises(ConnectionError):
            pair.client.open_call(PATH, b"host")
        await call.write(b"y")
        assert await call.read() == b"y"
        call.half_close()
        assert await call.read() is None
        assert call.status == 0
        await until(lambda: pair.client.transport is None and pair.server.transport is None)
        assert (pair.client.end_reason, pair.server.end_reason) == ("", "")
        assert not pair.at_server.is_aborted

    play(scene)


def test_calls_that_come_behind_a_goaway_are_dropped() -> None:
    async def scene(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        bench.open(1)
        bench.connection.drain()
        goaway = bench.take()[-1]
        assert (goaway.kind, goaway.payload[:4]) == (frames.GOAWAY, b"\0\0\0\1")
        bench.feed(request(3) + data(3, b"x") + frames.window_update(3, 5) + frames.rst_stream(3, 8))
        assert (len(bench.calls), bench.take()) == (1, [])
        bench.calls[0].finish(0)
        await asyncio.sleep(0)
        assert bench.transport.has_eof
        bench.connection.abort("")

    play(scene)


def test_a_client_of_a_server_that_leaves_ends_the_calls_that_were_not_taken() -> None:
    async def scene(loop: VirtualLoop) -> None:
        bench = Bench(loop, is_server=False)
        first, second = bench.connection.open_call(PATH, b"x"), bench.connection.open_call(PATH, b"x")
        bench.feed(frames.goaway(2**31 - 1, frames.NO_ERROR))
        assert (first.is_over, second.is_over) == (False, False)
        bench.feed(frames.goaway(1, frames.NO_ERROR))
        assert (first.is_over, second.is_over, second.status) == (False, True, 14)
        bench.feed(headers(1, (b":status", b"200"), (b"grpc-status", b"0"), ends=True))
        await asyncio.sleep(0)
        assert (first.status, bench.transport.has_eof) == (0, True)
        assert bench.connection.end_reason == ""
        bench.connection.abort("")

    play(scene)


def test_closing_sends_what_is_left_and_waits_for_the_peer_but_not_for_ever() -> None:
    async def scene(loop: VirtualLoop) -> None:
        bench = Bench(loop, close_ns=3 * SECOND)
        call = bench.open()
        await call.write(b"last words")
        bench.connection.close("we stop")
        bench.connection.close("again")
        kinds = [f.kind for f in bench.take()]
        assert kinds == [frames.HEADERS, frames.DATA, frames.HEADERS, frames.RST_STREAM, frames.GOAWAY]
        assert (call.is_over, call.status, call.details) == (True, 14, "we stop")
        assert bench.transport.has_eof
        bench.feed(data(1, b"dropped"))
        await call_fails(call.write(b"late"))
        await asyncio.sleep(2.9)
        assert not bench.transport.is_aborted
        await asyncio.sleep(0.2)
        assert (bench.transport.is_aborted, bench.lost, bench.connection.end_reason) == (True, 1, "we stop")

    async def call_fails(writing: object) -> None:
        with pytest.raises(ConnectionError, match="we stop"):
            await writing  # type: ignore[misc]

    play(scene)


def test_a_connection_that_was_closed_before_it_was_made_ends_at_once() -> None:
    async def scene(loop: VirtualLoop) -> None:
        lost: list[Connection] = []
        connection = Connection(loop, Limits(), is_server=False, on_lost=lost.append)
        connection.close("changed our mind")
        transport = MemoryTransport(loop, connection)
        await asyncio.sleep(0)
        assert (transport.is_aborted, bytes(transport.sent), lost) == (True, b"", [connection])

    play(scene)


def test_a_transport_that_fails_in_a_write_ends_its_connection_alone() -> None:
    async def scene(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        call = bench.open()
        bench.transport.has_eof = True  # uvloop raises before connection_lost is called
        await call.write(b"x")
        assert call.is_over
        assert "the connection is gone" in bench.connection.end_reason
        await asyncio.sleep(0)
        assert bench.lost == 1

    play(scene)


def test_an_end_of_the_peers_direction_is_the_end() -> None:
    async def scene(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        call = bench.open()
        assert not bench.connection.eof_received()
        bench.transport.close()
        await asyncio.sleep(0)
        assert (call.is_over, await call.read()) == (True, None)
        assert bench.connection.end_reason == "the peer closed the connection"

    play(scene)


def test_an_end_without_calls_needs_no_reason() -> None:
    async def scene(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        bench.open().finish(0)
        bench.transport.lose()
        await asyncio.sleep(0)
        assert (bench.connection.end_reason, bench.lost) == ("", 1)

    play(scene)


def test_a_loop_that_was_held_up_reads_before_it_judges() -> None:
    async def scene(loop: VirtualLoop) -> None:
        bench = Bench(loop, keepalive_ns=4 * SECOND, ping_timeout_ns=2 * SECOND)
        await asyncio.sleep(4.5)
        assert [f.kind for f in bench.take()] == [frames.PING]
        loop.clock.advance_to(loop.clock.now_ns() + 60 * SECOND)  # and the answer waits in the socket
        loop.call_later(0.05, bench.feed, PONG)
        await asyncio.sleep(3)
        assert bench.connection.is_open
        await asyncio.sleep(8)
        assert bench.transport.is_aborted

    play(scene)


def test_a_server_that_closes_tells_its_clients_by_a_status_or_a_reset() -> None:
    async def scene(loop: VirtualLoop) -> None:
        pair = Pair(loop, client=Limits(window_bytes=1000))
        told, stuck = await pair.open(), await pair.open()
        await stuck.write(bytes(5000))
        await stuck.write(bytes(5000))  # its echo waits for the window until the first is read
        await until(lambda: len(pair.calls) == 2)
        await asyncio.sleep(0.1)
        pair.server.close("we stop")
        assert await told.read() is None
        assert (told.status, told.details) == (14, "we stop")
        await until(lambda: stuck.is_over)
        assert stuck.status == 1
        await until(lambda: pair.client.transport is None and pair.server.transport is None)
        await asyncio.gather(*pair.tasks)

    play(scene)
