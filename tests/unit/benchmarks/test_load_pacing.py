"""Requests by a schedule: what a stalled server makes others wait for is in the figures."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from benchmarks.load.figures import percentile
from benchmarks.load.pacing import Alarm, Metronome, OpenLoop, now_ns

MS = 1_000_000


class World:
    """A server of one millisecond a request that stalls once, asked over some connections; time is a number."""

    def __init__(self, connections: int, interval_ns: int, stall: tuple[int, int]) -> None:
        self.now = 0
        self.ends: list[tuple[int, int]] = []
        self.stall = stall
        self.latencies: list[int] = []
        self.sent: list[tuple[int, int]] = []
        self.loop: OpenLoop[int] = OpenLoop(0, interval_ns, self._send)
        self._interval = interval_ns
        for connection in range(connections):
            self.loop.on_free(connection, 0)

    def _send(self, connection: int, intended_ns: int) -> None:
        self.sent.append((intended_ns, self.now))
        begin, length = self.stall
        start = begin + length if begin <= self.now < begin + length else self.now
        self.ends.append((start + MS, connection))

    def run(self, until_ns: int) -> None:
        """Let beats and answers happen in their order up to a time."""
        beats = 0
        while True:
            next_end = min(self.ends, default=None)
            next_beat = beats * self._interval
            if next_end is not None and next_end[0] <= next_beat:
                self.ends.remove(next_end)
                self.now = next_end[0]
                self.latencies.append(self.loop.on_end(next_end[1], self.now))
                self.loop.on_free(next_end[1], self.now)
            elif next_beat < until_ns:
                self.now = next_beat
                beats += 1
                self.loop.on_beats(1, self.now)
            else:
                return


def test_a_stall_of_a_second_is_in_the_figures_of_everybody_who_was_due_in_it() -> None:
    world = World(connections=1, interval_ns=10 * MS, stall=(1000 * MS, 1000 * MS))
    world.run(10_000 * MS)
    # 100 of 1000 requests were due while nothing was answered, and waited 500 ms on average.
    waited = [latency for latency in world.latencies if latency > 2 * MS]
    assert 100 <= len(waited) <= 115
    assert max(world.latencies) == 1001 * MS
    assert percentile(world.latencies, 0.99) > 850 * MS
    # What a client sees that asks only after an answer: one slow request of 901.
    closed = [MS] * 900 + [1001 * MS]
    assert percentile(closed, 0.99) == MS


def test_latency_counts_from_the_intended_start_whatever_the_beat_brings() -> None:
    sent: list[tuple[str, int]] = []
    loop: OpenLoop[str] = OpenLoop(100, 10, lambda connection, due: sent.append((connection, due)))
    loop.on_free("a", 0)
    loop.on_beats(3, 125)
    assert sent == [("a", 100)]
    assert loop.on_end("a", 130) == 30
    loop.on_free("a", 131)
    assert sent[-1] == ("a", 110)
    assert loop.on_end("a", 140) == 30
    assert loop.late_ns == [25, 21]
    assert loop.offered == 3


def test_what_has_not_ended_counts_with_its_age() -> None:
    loop: OpenLoop[str] = OpenLoop(0, 10, lambda connection, due: None)
    loop.on_free("a", 0)
    loop.on_beats(3, 20)
    assert sorted(loop.unfinished(100)) == [80, 90, 100]
    loop.on_end("a", 100)
    assert sorted(loop.unfinished(100)) == [80, 90]


def test_requests_are_sent_in_the_order_in_which_they_were_due() -> None:
    world = World(connections=3, interval_ns=MS // 2, stall=(50 * MS, 100 * MS))
    world.run(1000 * MS)
    assert len(world.sent) > 1500
    assert all(before <= after for before, after in pairwise(due for due, _ in world.sent))


def test_the_metronome_beats_by_its_schedule_and_loses_nothing() -> None:
    async def beats_of(seconds: float) -> int:
        came = 0
        enough = asyncio.get_running_loop().create_future()

        def on_beats(number: int) -> None:
            nonlocal came
            came += number
            if now_ns() >= end and not enough.done():
                enough.set_result(None)

        metronome = Metronome(MS, on_beats)
        first = now_ns()
        end = first + round(seconds * 1e9)
        metronome.start(first)
        try:
            await asyncio.wait_for(enough, 20)
        finally:
            metronome.stop()
            metronome.stop()
        # What the clock says now is the most that can have come, what it said at the end the least.
        assert (end - first) // MS <= came <= (now_ns() - first) // MS + 1
        return came

    assert asyncio.run(beats_of(0.05)) >= 50


def test_a_metronome_cannot_be_started_after_its_end() -> None:
    async def work() -> None:
        metronome = Metronome(MS, lambda beats: None)
        metronome.stop()
        with pytest.raises(OSError, match="timerfd_settime"):
            metronome.start(now_ns())

    asyncio.run(work())


def test_an_alarm_calls_in_order_and_never_before_the_time() -> None:
    async def work() -> None:
        alarm = Alarm()
        called: list[str] = []
        early: list[str] = []
        done = asyncio.get_running_loop().create_future()
        start = now_ns()

        def at(name: str, after_ns: int) -> None:
            def call() -> None:
                called.append(name)
                if now_ns() < start + after_ns:
                    early.append(name)
                if name == "last":
                    done.set_result(None)
                elif name == "second":
                    at("made by a call", 4 * MS)

            alarm.at(start + after_ns, call)

        at("last", 9 * MS)
        at("first", 3 * MS)
        at("second", 3 * MS)
        at("overdue", -MS)
        try:
            await asyncio.wait_for(done, 20)
        finally:
            alarm.stop()
        assert called == ["overdue", "first", "second", "made by a call", "last"]
        assert not early

    asyncio.run(work())


def test_a_stopped_alarm_calls_nothing() -> None:
    async def work() -> None:
        alarm = Alarm()
        called: list[int] = []
        alarm.at(now_ns() + MS, lambda: called.append(1))
        alarm.stop()
        other = Alarm()
        passed = asyncio.get_running_loop().create_future()
        other.at(now_ns() + 3 * MS, lambda: passed.set_result(None))
        await asyncio.wait_for(passed, 20)
        other.stop()
        assert not called

    asyncio.run(work())
