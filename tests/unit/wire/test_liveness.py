"""Silence and heartbeats on virtual time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from iop_fast.wire.liveness import Beat, Silence
from tests.unit.edge.worlds import VirtualLoop


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    with VirtualLoop() as virtual:
        yield virtual


@pytest.fixture
def silent_at(loop: VirtualLoop) -> list[float]:
    return []


@pytest.fixture
def silence(loop: VirtualLoop, silent_at: list[float]) -> Silence:
    start = loop.time()
    return Silence(loop.clock, loop, lambda: silent_at.append(round(loop.time() - start, 3)))


def test_silence_closes_after_the_limit(loop: VirtualLoop, silence: Silence, silent_at: list[float]) -> None:
    silence.start()
    loop.run_for(14.9)
    assert silence.is_within_limit
    assert silent_at == []
    loop.run_for(60)
    assert silent_at == [15.0]
    assert not silence.is_within_limit


def test_any_message_starts_the_limit_again(loop: VirtualLoop, silence: Silence, silent_at: list[float]) -> None:
    silence.start()
    for _ in range(10):
        loop.run_for(14)
        silence.heard()
    loop.run_for(14.9)
    assert silent_at == []
    loop.run_for(1)
    assert silent_at == [155.0]


def test_a_late_timer_grants_one_more_interval(loop: VirtualLoop, silence: Silence, silent_at: list[float]) -> None:
    """B12: a process that was stopped does not take its own pause for the peer's death."""
    silence.start()
    loop.run_for(10)
    loop.jump(20)
    loop.run_for(14.9)
    assert silent_at == []
    loop.run_for(1)
    assert silent_at == [45.0]


def test_a_message_after_the_pause_keeps_the_session(
    loop: VirtualLoop, silence: Silence, silent_at: list[float]
) -> None:
    silence.start()
    loop.jump(60)
    loop.settle()
    silence.heard()
    loop.run_for(14.9)
    silence.heard()
    loop.run_for(14.9)
    assert silent_at == []


def test_late_is_a_tenth_of_a_short_limit(loop: VirtualLoop) -> None:
    """A process that was stopped for less than a second does not lose its peers, however short the limit."""
    silent_at: list[float] = []
    short = Silence(loop.clock, loop, lambda: silent_at.append(loop.time()), 1_000_000_000)
    short.start()
    began = loop.time()
    loop.jump(1.2)
    loop.settle()
    assert silent_at == []
    loop.run_for(0.9)
    assert silent_at == []
    loop.run_for(0.2)
    assert [round(at - began, 1) for at in silent_at] == [2.2]


def test_a_timer_late_by_less_than_a_second_judges(loop: VirtualLoop, silence: Silence, silent_at: list[float]) -> None:
    silence.start()
    loop.jump(15.9)
    loop.run_for(0)
    assert silent_at == [15.9]


def test_a_limit_below_three_heartbeats_of_the_other_side_is_stretched(
    loop: VirtualLoop, silence: Silence, silent_at: list[float]
) -> None:
    silence.start()
    assert not silence.allow_for(0)
    assert not silence.allow_for(5_000)
    assert silence.limit_ms == 15_000
    assert silence.allow_for(20_000)
    assert silence.limit_ms == 60_000
    loop.run_for(59.9)
    assert silent_at == []
    loop.run_for(0.2)
    assert silent_at == [60.0]
    assert silence.allow_for(10**9)
    assert silence.limit_ms == 3 * 600_000


def test_stopped_silence_never_calls(loop: VirtualLoop, silence: Silence, silent_at: list[float]) -> None:
    silence.start()
    silence.stop()
    silence.stop()
    loop.run_for(100)
    assert silent_at == []


def test_beat_beats_at_once_and_every_interval_until_stopped(loop: VirtualLoop) -> None:
    start, beats = loop.time(), []
    beat = Beat(loop, lambda: beats.append(round(loop.time() - start, 3)))
    beat.start()
    loop.run_for(11)
    assert beats == [0.0, 5.0, 10.0]
    beat.stop()
    beat.stop()
    loop.run_for(30)
    assert len(beats) == 3


def test_beat_can_be_stopped_from_within(loop: VirtualLoop) -> None:
    beats: list[int] = []

    def once() -> None:
        beats.append(1)
        beat.stop()

    beat = Beat(loop, once)
    beat.start()
    loop.run_for(30)
    assert beats == [1]
