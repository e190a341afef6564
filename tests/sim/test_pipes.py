"""The in-memory session behaves as the gRPC stream that it stands for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import pytest

from iop_fast.seams import MessageStream
from iop_fast.wire.options import MAX_MESSAGE_BYTES
from tests.sim.loop import VirtualLoop, run_virtual
from tests.sim.pipes import Misuse, Pipe

Scene = Callable[[VirtualLoop], Coroutine[None, None, None]]


def play(scene: Scene) -> None:
    loop = VirtualLoop()
    run_virtual(scene(loop), loop)


async def read_all(stream: MessageStream) -> list[bytes]:
    got = []
    while (message := await stream.read()) is not None:
        got.append(message)
    return got


def test_messages_arrive_in_order_after_the_delay() -> None:
    async def scene(loop: VirtualLoop) -> None:
        pipe = Pipe(loop, delay_s=0.5)
        await pipe.edge.write(b"a")
        pipe.to_node.delay_s = 0.1  # would overtake
        await pipe.edge.write(b"b")
        start = loop.time()
        assert [await pipe.node.read(), await pipe.node.read()] == [b"a", b"b"]
        assert loop.time() - start == pytest.approx(0.5, abs=1e-6)
        assert pipe.to_node.bytes_in_flight == 0
        assert not pipe.misuses

    play(scene)


def test_a_rate_spreads_arrivals() -> None:
    async def scene(loop: VirtualLoop) -> None:
        pipe = Pipe(loop, bytes_per_s=1000)
        start = loop.time()
        for _ in range(3):
            await pipe.edge.write(bytes(100))
        for number in range(1, 4):
            assert await pipe.node.read() == bytes(100)
            assert loop.time() - start == pytest.approx(0.1 * number, abs=1e-6)

    play(scene)


def test_a_write_waits_for_the_window_and_a_read_makes_room() -> None:
    async def scene(loop: VirtualLoop) -> None:
        pipe = Pipe(loop, window_bytes=100)
        await pipe.node.write(bytes(60))
        writing = asyncio.ensure_future(pipe.node.write(bytes(60)))
        await asyncio.sleep(5)
        assert not writing.done()
        assert pipe.to_edge.bytes_in_flight == 60
        await pipe.edge.read()
        await writing
        assert await pipe.edge.read() == bytes(60)
        await pipe.node.write(bytes(500))  # larger than the window: alone
        assert await pipe.edge.read() == bytes(500)

    play(scene)


def test_a_stalled_lane_holds_everything_the_end_too() -> None:
    async def scene(loop: VirtualLoop) -> None:
        pipe = Pipe(loop)
        pipe.to_edge.stall()
        await pipe.node.write(b"a")
        pipe.node.abandon()
        reading = asyncio.ensure_future(read_all(pipe.edge))
        await asyncio.sleep(60)
        assert not reading.done()
        pipe.to_edge.resume()
        assert await reading == [b"a"]

    play(scene)


def test_abandon_lets_through_what_was_written_and_ends_both_ends() -> None:
    async def scene(loop: VirtualLoop) -> None:
        pipe = Pipe(loop, delay_s=0.2, window_bytes=100)
        await pipe.edge.write(b"last")
        pending_read = asyncio.ensure_future(pipe.edge.read())
        pending_write = asyncio.ensure_future(pipe.edge.write(bytes(99)))
        await asyncio.sleep(0.01)
        pipe.edge.abandon()
        pipe.edge.abandon()
        assert await pending_read is None
        with pytest.raises(ConnectionError, match="given up"):
            await pending_write
        with pytest.raises(ConnectionError, match="given up"):
            await pipe.edge.write(b"x")
        assert await pipe.edge.read() is None
        assert await read_all(pipe.node) == [b"last"]
        with pytest.raises(ConnectionError, match="has ended"):
            await pipe.node.write(b"x")
        assert not pipe.misuses

    play(scene)


def test_a_cancelled_call_loses_its_tail() -> None:
    async def scene(loop: VirtualLoop) -> None:
        pipe = Pipe(loop, delay_s=0.2)
        pipe.to_edge.loses_tail = True
        await pipe.node.write(b"lost")
        pipe.node.abandon()
        assert await read_all(pipe.edge) == []

    play(scene)


def test_writes_to_an_end_that_gave_up_do_not_hang() -> None:
    async def scene(loop: VirtualLoop) -> None:
        pipe = Pipe(loop, delay_s=1.0, window_bytes=10)
        pipe.to_edge.delay_s = 0.1
        await pipe.node.write(bytes(10))
        pipe.edge.abandon()
        await pipe.node.write(bytes(10))  # there is room again: the first was thrown away on arrival
        assert loop.time() - 1.0 == pytest.approx(0.1, abs=1e-3)
        await asyncio.sleep(1)
        with pytest.raises(ConnectionError):
            await pipe.node.write(bytes(10))

    play(scene)


def test_a_loss_takes_what_is_on_its_way_and_each_end_learns_in_its_own_time() -> None:
    async def scene(loop: VirtualLoop) -> None:
        pipe = Pipe(loop, delay_s=0.1, window_bytes=10)
        await pipe.node.write(b"arrived")
        await asyncio.sleep(0.2)
        await pipe.edge.write(b"lost")
        pipe.lose(node_after_s=3.0)
        assert await read_all(pipe.edge) == [b"arrived"]
        with pytest.raises(ConnectionError):
            await pipe.edge.write(b"x")
        start = loop.time()
        await pipe.node.write(b"vanishes")
        with pytest.raises(ConnectionError):
            await pipe.node.write(b"no room, then news")
        assert loop.time() - start == pytest.approx(3.0, abs=1e-6)
        assert await read_all(pipe.node) == []

    play(scene)


def test_silence_tells_nobody() -> None:
    async def scene(loop: VirtualLoop) -> None:
        pipe = Pipe(loop)
        await pipe.node.write(b"lost")
        pipe.silence()
        reading = asyncio.ensure_future(pipe.edge.read())
        await pipe.node.write(b"vanishes")
        await asyncio.sleep(3600)
        assert not reading.done()
        pipe.lose()
        assert await reading is None

    play(scene)


def test_what_breaks_a_grpc_stream_is_noted() -> None:
    async def scene(loop: VirtualLoop) -> None:
        pipe = Pipe(loop, window_bytes=10)
        reading = asyncio.ensure_future(pipe.edge.read())
        await asyncio.sleep(0)
        with pytest.raises(Misuse):
            await pipe.edge.read()
        reading.cancel()
        await pipe.edge.write(bytes(10))
        writing = asyncio.ensure_future(pipe.edge.write(bytes(10)))
        await asyncio.sleep(0.1)
        with pytest.raises(Misuse):
            await pipe.edge.write(b"x")
        writing.cancel()
        await asyncio.sleep(0.1)
        assert pipe.misuses == [
            "edge: two reads at once",
            "edge: a read was cancelled",
            "edge: two writes at once",
            "edge: a write was cancelled",
        ]

    play(scene)


def test_messages_above_the_sender_s_limit_are_refused() -> None:
    async def scene(loop: VirtualLoop) -> None:
        pipe = Pipe(loop)
        with pytest.raises(ValueError, match="at most 1048576 bytes, got 1048577"):
            await pipe.edge.write(bytes(MAX_MESSAGE_BYTES + 1))
        with pytest.raises(TypeError):
            await pipe.edge.write(bytearray(1))  # type: ignore[arg-type]

    play(scene)
