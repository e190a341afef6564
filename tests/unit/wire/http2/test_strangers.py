"""What a client may make of memory and of the loop before, and after, the owner knows it."""

from __future__ import annotations

import asyncio

import pytest

from iop_fast.wire.http2 import frames
from iop_fast.wire.http2.call import Call
from iop_fast.wire.http2.fields import GRPC_RESOURCE_EXHAUSTED
from iop_fast.wire.http2.limits import HEAVY_ALLOWANCE, MESSAGE_OVERHEAD_BYTES, READS_A_TURN
from iop_fast.wire.options import STRANGER_BYTES_MAX
from tests.sim.loop import VirtualLoop
from tests.unit.wire.http2.harness import Bench, data, message, play, request


def test_a_stranger_is_given_memory_for_a_registration_and_no_more() -> None:
    async def scene(loop: VirtualLoop) -> None:
        bench = Bench(loop, is_known=False)
        call = bench.open(1)
        bench.feed(data(1, message(bytes(STRANGER_BYTES_MAX))))
        assert await call.read() == bytes(STRANGER_BYTES_MAX)
        bench.feed(data(1, message(bytes(STRANGER_BYTES_MAX + 1))[:5]))
        assert (call.is_over, call.status) == (True, GRPC_RESOURCE_EXHAUSTED)
        assert call.details == "message too large: 32769 bytes, at most 32768 are taken"
        bench.connection.abort("")

    play(scene)


@pytest.mark.parametrize("size", [0, 1, 1000, STRANGER_BYTES_MAX])
def test_what_a_stranger_leaves_unread_is_bounded_whatever_its_parts(size: int) -> None:
    async def scene(loop: VirtualLoop) -> None:
        bench = Bench(loop, is_known=False)
        call = bench.open(1)
        taken = 0
        while not call.is_over:
            assert taken * (size + MESSAGE_OVERHEAD_BYTES) <= STRANGER_BYTES_MAX + size
            bench.feed(data(1, message(bytes(size))))
            taken += 1
        assert taken >= 2
        assert call.status == GRPC_RESOURCE_EXHAUSTED
        assert await call.read() is None
        assert bench.connection.is_open
        bench.connection.abort("")

    play(scene)


def test_a_known_peer_may_send_what_the_limits_say() -> None:
    async def scene(loop: VirtualLoop) -> None:
        bench = Bench(loop, is_known=False)
        call = bench.open(1)
        bench.feed(data(1, message(b"who I am")))
        assert await call.read() == b"who I am"
        bench.connection.on_known()
        bench.feed(data(1, message(bytes(200_000))) + data(1, message(b"") * 1000))
        assert await call.read() == bytes(200_000)
        for _ in range(1000):
            assert await call.read() == b""
        bench.connection.abort("")

    play(scene)


def test_a_stranger_has_few_calls() -> None:
    async def scene(loop: VirtualLoop) -> None:
        bench = Bench(loop, is_known=False)
        bench.feed(b"".join(request(number) for number in (1, 3, 5, 7, 9)))
        assert bench.connection.calls == 4
        refused = [f.stream_id for f in bench.take() if f.kind == frames.RST_STREAM]
        assert refused == [9]
        bench.connection.abort("")

    play(scene)


def test_calls_that_messages_pay_for_are_as_few_as_others() -> None:
    async def scene(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        number = 1
        while bench.goaway is None:
            assert number < HEAVY_ALLOWANCE
            bench.feed(request(number) + data(number, message(b"") * 50) + frames.rst_stream(number, frames.CANCEL))
            number += 2
        assert len(bench.calls) <= HEAVY_ALLOWANCE // 30
        bench.connection.abort("")

    play(scene)


def test_padding_alone_gives_its_window_back() -> None:
    async def scene(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        call = bench.open(1)
        padded = frames.frame(frames.DATA, frames.PADDED, 1, bytes((255,)) + bytes(255))
        returned = 0
        for sent in range(1, 3000):
            bench.feed(padded)
            returned += sum(f.kind == frames.WINDOW_UPDATE and f.stream_id == 1 for f in bench.take())
            if not sent % 500:
                await asyncio.sleep(1.1)  # the allowance of the next second
        assert returned >= 2
        assert not call.is_over
        bench.feed(data(1, message(b"last")))
        assert await call.read() == b"last"
        bench.connection.abort("")

    play(scene)


def test_a_reader_that_always_finds_a_message_lets_others_have_their_turn() -> None:
    async def scene(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        call = bench.open(1)
        bench.feed(data(1, message(b"") * 3000))
        read = 0

        async def reader(call: Call) -> None:
            nonlocal read
            for _ in range(3000):
                assert await call.read() == b""
                read += 1

        task = loop.create_task(reader(call))
        turns = before = 0
        while not task.done():
            await asyncio.sleep(0)
            assert read - before <= READS_A_TURN
            before = read
            turns += 1
        assert turns >= 3000 // READS_A_TURN
        await task
        bench.connection.abort("")

    play(scene)
