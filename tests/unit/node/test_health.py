"""The state of a backend follows connects and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from iop_fast.node.health import Health, State
from tests.unit.edge.worlds import VirtualLoop


class Backend:
    """What connect attempts meet, and when they came."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.answer: str | Exception | None = "connection refused"
        self.takes_s = 0.0
        self.attempts: list[float] = []
        self.started_s = loop.time()
        self.changes: list[tuple[State, str]] = []
        self.health = Health(loop, self.probe)
        self.health.on_change = lambda: self.changes.append((self.health.state, self.health.reason))

    async def probe(self) -> str | None:
        self.attempts.append(round(self.loop.time() - self.started_s, 3))
        if self.takes_s:
            await asyncio.sleep(self.takes_s)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def backend() -> Iterator[Backend]:
    with VirtualLoop() as loop:
        yield Backend(loop)


def test_it_is_up_until_a_connect_fails(backend: Backend) -> None:
    assert (backend.health.state, backend.health.reason) == (State.UP, "")
    backend.loop.run_for(100)
    assert backend.attempts == []
    backend.health.unreachable("connection refused")
    assert backend.changes == [(State.UNREACHABLE, "connection refused")]


def test_it_tries_after_one_second_doubling_to_ten(backend: Backend) -> None:
    backend.health.unreachable("connection refused")
    backend.loop.run_for(60)
    assert backend.attempts == [1, 3, 7, 15, 25, 35, 45, 55]
    assert len(backend.changes) == 1
    backend.answer = None
    backend.loop.run_for(10)
    assert backend.changes[-1] == (State.UP, "")
    backend.loop.run_for(60)
    assert backend.attempts[-1] == 65


def test_the_doubling_starts_anew_after_each_recovery(backend: Backend) -> None:
    backend.health.unreachable("x")
    backend.loop.run_for(8)
    backend.health.reachable()
    backend.started_s, backend.attempts = backend.loop.time(), []
    backend.health.unreachable("x")
    backend.loop.run_for(4)
    assert backend.attempts == [1, 3]


def test_a_run_that_connects_brings_it_back_and_stops_the_attempts(backend: Backend) -> None:
    backend.health.unreachable("x")
    backend.health.reachable()
    backend.health.reachable()
    backend.loop.run_for(30)
    assert backend.attempts == []
    assert [state for state, _ in backend.changes] == [State.UNREACHABLE, State.UP]


def test_reports_that_change_nothing_are_not_told_and_another_reason_is(backend: Backend) -> None:
    for reason in ("refused", "refused", "timed out"):
        backend.health.unreachable(reason)
    assert [reason for _, reason in backend.changes] == ["refused", "timed out"]
    backend.loop.run_for(1.5)
    assert backend.attempts == [1]


def test_a_probe_that_fails_itself_is_tried_again(backend: Backend) -> None:
    backend.answer = ZeroDivisionError()
    backend.health.unreachable("x")
    backend.loop.run_for(8)
    assert backend.attempts == [1, 3, 7]
    assert backend.health.reason == "the connect attempt failed"


def test_a_broken_backend_stays_broken() -> None:
    with VirtualLoop() as loop:
        health = Health(loop, broken="variable KEY is not set")
        health.unreachable("x")
        health.reachable()
        assert (health.state, health.reason) == (State.BROKEN, "variable KEY is not set")
        assert health.look() is None


def test_a_look_is_one_attempt_at_a_time(backend: Backend) -> None:
    backend.takes_s = 2
    first = backend.health.look()
    assert first is not None
    assert backend.health.look() is first
    backend.health.unreachable("no connection yet")
    backend.loop.run_for(2.5)
    assert backend.attempts == [0]
    backend.loop.run_for(3)
    assert backend.attempts == [0, 3]


def test_nothing_happens_after_the_close(backend: Backend) -> None:
    backend.takes_s = 5
    backend.health.unreachable("x")
    backend.loop.run_for(2)
    backend.health.close()
    backend.health.close()
    backend.health.unreachable("y")
    backend.loop.run_for(100)
    assert backend.attempts == [1]
    assert len(backend.changes) == 1
    assert backend.health.look() is None
