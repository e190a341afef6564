"""The writer of a session: order, fairness, pacing, dropping and ending, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from iop_fast.wire.options import BATCH_BYTES, MAX_MESSAGE_BYTES, PIECE_BYTES
from iop_fast.wire.outbox import PROMPT_MAX_BYTES, Outbox
from tests.sim.loop import VirtualLoop, run_virtual
from tests.sim.pipes import Pipe

MS = 1_000_000


class World:
    """An outbox on the Edge's end of a pipe, and what the Node's end has read, with the time in ms."""

    def __init__(self, loop: VirtualLoop, **options: Any) -> None:
        self.loop = loop
        self.closed = 0
        self.sent: list[tuple[int, int]] = []
        self.pipe = Pipe(loop, window_bytes=options.pop("window_bytes", 1 << 30))
        self.outbox = Outbox(self.pipe.edge, loop.clock, loop, on_closed=self._on_closed, **options)
        self.messages: list[bytes] = []
        self.times: list[float] = []
        self.start = loop.time()
        self._reader = loop.create_task(self._read())

    def _on_closed(self) -> None:
        self.closed += 1

    async def _read(self) -> None:
        while (message := await self.pipe.node.read()) is not None:
            self.messages.append(message)
            self.times.append(round((self.loop.time() - self.start) * 1000, 2))

    def on_sent(self, run_id: int, message_number: int) -> None:
        self.sent.append((run_id, message_number))


def play(scene: Callable[[World], Coroutine[None, None, None]], **options: Any) -> None:
    loop = VirtualLoop()

    async def main() -> None:
        world = World(loop, **options)
        world.outbox.start()
        await scene(world)
        world.outbox.close()
        world.pipe.lose()
        await asyncio.sleep(1)
        assert not world.pipe.misuses

    run_virtual(main(), loop)


def test_one_turn_of_the_loop_makes_one_message() -> None:
    async def scene(world: World) -> None:
        world.outbox.send_control(b"c")
        world.loop.call_soon(world.outbox.send_control, b"d")  # the same turn as the writer's wake-up
        await asyncio.sleep(0.01)
        assert world.messages == [b"cd"]
        world.outbox.send_control(b"e")
        await asyncio.sleep(0.01)
        assert world.messages == [b"cd", b"e"]
        assert world.outbox.messages_written == 2
        assert world.outbox.queued_bytes == 0

    play(scene)


def test_control_goes_first_then_prompt_then_bulk() -> None:
    async def scene(world: World) -> None:
        world.outbox.send_run(1, b"B" * 1000)
        world.outbox.send_run(2, b"p", False)
        world.outbox.send_open(3, b"o", world.on_sent)
        world.outbox.send_control(b"c")
        assert world.outbox.queued_bytes == 1003
        await asyncio.sleep(0.01)
        assert world.messages == [b"cpo" + b"B" * 1000]
        assert world.sent == [(3, 1)]

    play(scene)


def test_entries_of_a_run_keep_their_order() -> None:
    async def scene(world: World) -> None:
        world.outbox.send_open(1, b"1a", world.on_sent)
        world.outbox.send_run(1, b"1b")
        world.outbox.send_run(1, b"1c", False)  # behind its own bulk
        world.outbox.send_run(2, b"2a", False)
        world.outbox.send_run(1, b"1d")
        await asyncio.sleep(0.01)
        assert world.messages == [b"1a2a1b1c1d"]
        world.outbox.send_run(1, b"1e", False)  # its queue is empty: prompt again
        world.outbox.send_run(2, b"2b")
        await asyncio.sleep(0.01)
        assert world.messages[1:] == [b"1e2b"]

    play(scene)


def test_a_message_closes_at_its_limit_and_a_larger_entry_goes_alone() -> None:
    async def scene(world: World) -> None:
        world.outbox.send_control(b"c")
        world.outbox.send_control(b"C" * MAX_MESSAGE_BYTES)
        for _ in range(4):
            world.outbox.send_run(1, b"B" * PIECE_BYTES)
        await asyncio.sleep(0.01)
        assert [len(message) for message in world.messages] == [
            1,
            MAX_MESSAGE_BYTES,
            2 * PIECE_BYTES,
            2 * PIECE_BYTES,
        ]

    play(scene)


def test_an_entry_above_the_limit_is_refused() -> None:
    async def scene(world: World) -> None:
        for send in (
            lambda entry: world.outbox.send_control(entry),
            lambda entry: world.outbox.send_run(1, entry),
            lambda entry: world.outbox.send_open(1, entry, world.on_sent),
        ):
            with pytest.raises(ValueError, match="at most 1048576 bytes, got 1048577"):
                send(bytes(MAX_MESSAGE_BYTES + 1))
        assert world.outbox.queued_bytes == 0

    play(scene)


def test_bulk_runs_take_turns_by_bytes() -> None:
    async def scene(world: World) -> None:
        for _ in range(8):
            world.outbox.send_run(1, b"1" * 60_000)
        for _ in range(480):
            world.outbox.send_run(2, b"2" * 1_000)
        await asyncio.sleep(1)
        seen = b"".join(world.messages)
        assert seen.count(b"1") == seen.count(b"2") == 480_000
        for end in range(150_000, 900_000, 50_000):  # neither gets ahead by more than a turn and a piece
            assert abs(seen[:end].count(b"1") - seen[:end].count(b"2")) <= 100_000

    play(scene)


def test_a_small_entry_waits_for_one_message_and_not_for_another_s_queue() -> None:
    async def scene(world: World) -> None:
        world.outbox.send_run(1, b"B" * 60_000)
        for _ in range(20):
            world.outbox.send_run(1, b"B" * 60_000)
        world.loop.call_later(0.001, world.outbox.send_run, 2, b"p", False)
        world.pipe.to_node.stall()
        await asyncio.sleep(0.1)
        world.pipe.to_node.resume()
        await asyncio.sleep(0.1)
        place = next(number for number, message in enumerate(world.messages) if b"p" in message)
        assert world.messages[place].startswith(b"p")
        assert place <= 3
        assert len(world.messages) > 8

    play(scene, window_bytes=256 * 1024)


def test_a_large_opening_takes_its_turn_with_the_bulk() -> None:
    async def scene(world: World) -> None:
        for run_id in range(3):
            world.outbox.send_open(run_id, b"%d" % run_id * (PROMPT_MAX_BYTES + 1), world.on_sent)
        world.outbox.send_open(9, b"small", world.on_sent)
        await asyncio.sleep(0.01)
        assert world.messages[0].startswith(b"small")
        assert sorted(world.sent) == [(0, 1), (1, 1), (2, 1), (9, 1)]

    play(scene)


def test_withdraw_takes_back_what_is_in_no_message() -> None:
    async def scene(world: World) -> None:
        world.outbox.send_open(1, b"1a", world.on_sent)
        world.outbox.send_run(1, b"1b")
        world.outbox.send_open(2, b"2a", world.on_sent)
        assert world.outbox.withdraw(1)
        assert not world.outbox.withdraw(1)
        assert world.outbox.queued_bytes == 2
        await asyncio.sleep(0.01)
        assert world.messages == [b"2a"]
        assert world.sent == [(2, 1)]
        world.outbox.send_run(2, b"2b")
        assert not world.outbox.withdraw(2)  # the Node knows of it
        assert not world.outbox.withdraw(3)
        await asyncio.sleep(0.01)
        assert world.messages == [b"2a", b"2b"]

    play(scene)


def test_a_dropped_run_can_send_anew() -> None:
    async def scene(world: World) -> None:
        world.outbox.send_run(1, b"p", False)
        world.outbox.send_run(1, b"B" * 100)
        world.outbox.send_run(2, b"C" * 100)
        world.outbox.drop_run(1)
        world.outbox.drop_run(7)
        world.outbox.send_run(1, b"new", False)
        await asyncio.sleep(0.01)
        assert world.messages == [b"new" + b"C" * 100]

    play(scene)


def test_everything_withdrawn_writes_nothing() -> None:
    async def scene(world: World) -> None:
        world.outbox.send_open(1, b"1a", world.on_sent)
        assert world.outbox.withdraw(1)
        await asyncio.sleep(0.01)
        assert world.messages == []
        assert world.outbox.messages_written == 0

    play(scene)


def test_one_write_is_in_flight_and_the_rest_gathers() -> None:
    async def scene(world: World) -> None:
        world.pipe.to_node.stall()
        world.outbox.send_control(b"x" * 100)
        await asyncio.sleep(0.01)
        world.outbox.send_control(b"y" * 100)
        await asyncio.sleep(0.01)  # the second waits for the window
        for _ in range(10):
            world.outbox.send_control(b"z")
            await asyncio.sleep(0.01)
        assert world.outbox.queued_bytes == 10
        world.pipe.to_node.resume()
        await asyncio.sleep(0.01)
        assert world.messages == [b"x" * 100, b"y" * 100, b"z" * 10]

    play(scene, window_bytes=150)


# Pacing.


def test_mid_stream_data_is_paced_and_an_isolated_piece_is_not_delayed() -> None:
    async def scene(world: World) -> None:
        for _ in range(8):
            world.outbox.send_run(1, b"d")
            await asyncio.sleep(0.0005)
        await asyncio.sleep(0.01)
        assert world.messages == [b"d", b"dddd", b"ddd"]
        assert [round(time) for time in world.times] == [0, 2, 4]
        await asyncio.sleep(0.02)
        world.start = world.loop.time()
        world.outbox.send_run(1, b"e")
        await asyncio.sleep(0.001)
        assert world.messages[-1] == b"e"
        assert world.times[-1] == 0

    play(scene, pace_ns=2 * MS)


@pytest.mark.parametrize("urgent", ["control", "prompt", "behind bulk", "opening"])
def test_anything_but_mid_stream_data_goes_at_once(urgent: str) -> None:
    async def scene(world: World) -> None:
        world.outbox.send_run(1, b"d")
        await asyncio.sleep(0.0001)
        world.outbox.send_run(1, b"d")
        await asyncio.sleep(0.0005)
        match urgent:
            case "control":
                world.outbox.send_control(b"u")
            case "prompt":
                world.outbox.send_run(2, b"u", False)
            case "behind bulk":
                world.outbox.send_run(1, b"u", False)
            case _:
                world.outbox.send_open(2, b"u", world.on_sent)
        await asyncio.sleep(0.0001)
        assert len(world.messages) == 2
        assert sorted(world.messages[1]) == sorted(b"du")
        assert world.times[1] < 1

    play(scene, pace_ns=2 * MS)


def test_a_dropped_urgent_entry_leaves_the_pace_alone() -> None:
    async def scene(world: World) -> None:
        world.outbox.send_run(1, b"d")
        await asyncio.sleep(0.0001)
        world.outbox.send_run(1, b"d")
        world.outbox.send_run(2, b"u", False)
        world.outbox.drop_run(2)
        await asyncio.sleep(0.001)
        assert world.messages == [b"d"]
        await asyncio.sleep(0.01)
        assert world.messages == [b"d", b"d"]

    play(scene, pace_ns=2 * MS)


def test_a_patient_entry_waits_for_the_pace_or_for_its_own_run() -> None:
    async def scene(world: World) -> None:
        world.outbox.send_patient(1, b"p")
        await asyncio.sleep(0.0001)
        assert world.messages == [b"p"], "an isolated one is not delayed"
        world.outbox.send_patient(2, b"p")
        world.outbox.send_patient(3, b"q")
        await asyncio.sleep(0.001)
        assert len(world.messages) == 1
        world.outbox.send_run(2, b"u", False)
        await asyncio.sleep(0.0001)
        assert world.messages[1:] == [b"pqu"]
        world.outbox.send_patient(4, b"r")
        await asyncio.sleep(0.003)
        assert world.messages[2:] == [b"r"]

    play(scene, pace_ns=2 * MS)


# Ending.


def test_close_drops_everything_and_the_writer_ends_by_itself() -> None:
    async def scene(world: World) -> None:
        world.pipe.to_node.stall()
        world.outbox.send_control(b"x" * 100)
        await asyncio.sleep(0.01)
        world.outbox.send_control(b"y" * 100)
        await asyncio.sleep(0.01)  # in flight: hangs on a peer that does not read
        world.outbox.send_run(1, b"z")
        world.outbox.close()
        world.outbox.close()
        world.outbox.send_control(b"late")
        world.outbox.send_run(1, b"late")
        world.outbox.send_open(2, b"late", world.on_sent)
        assert world.outbox.queued_bytes == 0
        assert not world.outbox.withdraw(2)
        await asyncio.sleep(60)
        world.pipe.edge.abandon()
        world.pipe.to_node.resume()
        await asyncio.sleep(0.01)
        assert world.messages == [b"x" * 100]
        assert world.closed == 0
        assert "closed" in repr(world.outbox)

    play(scene, window_bytes=150)


def test_the_end_of_the_stream_is_told_once() -> None:
    async def scene(world: World) -> None:
        world.pipe.lose()
        await asyncio.sleep(0.01)
        assert world.closed == 0  # nothing was written since
        world.outbox.send_control(b"x")
        await asyncio.sleep(0.01)
        assert world.closed == 1
        world.outbox.send_control(b"y")
        await asyncio.sleep(0.01)
        assert world.closed == 1
        assert world.outbox.queued_bytes == 0

    play(scene)


def test_a_failing_on_sent_does_not_stop_the_writer() -> None:
    loop = VirtualLoop()
    failures: list[Any] = []

    async def main() -> None:
        loop.set_exception_handler(lambda _, context: failures.append(context["exception"]))
        world = World(loop)
        world.outbox.start()

        def fail(run_id: int, message_number: int) -> None:
            raise RuntimeError("no such run")

        world.outbox.send_open(1, b"1", fail)
        world.outbox.send_open(2, b"2", world.on_sent)
        await asyncio.sleep(0.01)
        assert world.messages == [b"12"]
        assert world.sent == [(2, 1)]
        world.outbox.close()
        world.pipe.lose()
        await asyncio.sleep(0.01)

    run_virtual(main(), loop)
    assert [str(error) for error in failures] == ["no such run"]


def test_entries_queued_before_the_start_are_written_and_no_limit_is_passed() -> None:
    loop = VirtualLoop()

    async def main() -> None:
        world = World(loop)
        for number in range(3000):
            world.outbox.send_control(b"%0100d" % number)
        world.outbox.start()
        await asyncio.sleep(0.1)
        assert b"".join(world.messages) == b"".join(b"%0100d" % number for number in range(3000))
        assert all(len(message) <= BATCH_BYTES for message in world.messages)
        assert len(world.messages) == 3
        world.outbox.close()
        world.pipe.lose()
        await asyncio.sleep(0.01)

    run_virtual(main(), loop)
