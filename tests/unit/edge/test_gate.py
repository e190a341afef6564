"""The gate: admission's time, its one timer, and what is cleaned up behind owners."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from iop_fast._core.admission import Outcome, Plan, ProviderSpec
from iop_fast._core.ledger import Lease
from iop_fast._core.wait_queue import Waiter
from iop_fast.edge.gate import Gate
from tests.unit.edge.worlds import NS_PER_S, VirtualLoop

CHAT = 1


def plan_of(capacity: int = 1, max_queue: int = 16, timeout_s: float = 30) -> Plan:
    spec = ProviderSpec("n", "p", capacity, 0, 0, True, True, CHAT)
    return Plan([spec], {"m": [("n", "p")]}, max_queue, round(timeout_s * NS_PER_S))


class Asker:
    """An owner that keeps what it is told, and when."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.told: list[tuple[object, int]] = []
        self.fails = False

    def on_granted(self, lease: Lease) -> None:
        self.told.append((lease, self.loop.clock.now_ns()))
        if self.fails:
            raise ValueError("scripted")

    def on_evicted(self, outcome: Outcome) -> None:
        self.told.append((outcome, self.loop.clock.now_ns()))

    @property
    def lease(self) -> Lease:
        assert isinstance(self.told[-1][0], Lease)
        return self.told[-1][0]


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    with VirtualLoop() as loop:
        yield loop


def gate_of(loop: VirtualLoop, plan: Plan) -> Gate:
    gate = Gate(plan, loop.clock, loop, verify=True)
    assert gate.node_ready("n", 1, {})
    return gate


def submit(gate: Gate, asker: Asker) -> Lease | Waiter | Outcome:
    return gate.submit(asker, "m", False, CHAT)


def timers(loop: VirtualLoop) -> int:
    return sum(not timer.cancelled() for timer in loop._scheduled)  # type: ignore[attr-defined]


def test_a_waiter_ends_at_its_own_deadline(loop: VirtualLoop) -> None:
    """B08: counted from each one's own enqueue, with nothing else happening."""
    gate = gate_of(loop, plan_of(timeout_s=0.5, max_queue=50))
    held = submit(gate, Asker(loop))
    assert isinstance(held, Lease)
    askers, starts = [], []
    for _ in range(50):
        asker = Asker(loop)
        assert isinstance(submit(gate, asker), Waiter)
        askers.append(asker)
        starts.append(loop.clock.now_ns())
        loop.run_for(0.010)
    loop.run_for(1)
    for asker, start in zip(askers, starts, strict=True):
        [(outcome, ended)] = asker.told
        assert outcome == Outcome.EVICTED_TIMEOUT
        assert 500_000_000 <= ended - start <= 502_000_000
    assert gate.waiting == 0
    assert held.is_held


def test_there_is_one_timer_and_load_does_not_set_it_anew(loop: VirtualLoop) -> None:
    gate = gate_of(loop, plan_of(timeout_s=30))
    assert timers(loop) == 0
    first = submit(gate, Asker(loop))
    assert isinstance(first, Lease)
    assert timers(loop) == 0
    held = first
    waiting = Asker(loop)
    submit(gate, waiting)
    assert timers(loop) == 1
    [timer] = [timer for timer in loop._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]
    for _ in range(100):
        following = Asker(loop)
        submit(gate, following)
        gate.release(held)
        held, waiting = waiting.lease, following
    assert [entry for entry in loop._scheduled if not entry.cancelled()] == [timer]  # type: ignore[attr-defined]
    gate.close()
    gate.close()
    assert timers(loop) == 0


def test_a_refresh_that_shortens_the_timeout_moves_the_timer(loop: VirtualLoop) -> None:
    gate = gate_of(loop, plan_of(timeout_s=30))
    held = submit(gate, Asker(loop))
    assert isinstance(held, Lease)
    asker = Asker(loop)
    submit(gate, asker)
    start = loop.clock.now_ns()
    loop.run_for(1)
    gate.reconfigure(plan_of(timeout_s=2))
    loop.run_for(3)
    [(outcome, ended)] = asker.told
    assert outcome == Outcome.EVICTED_TIMEOUT
    assert 2 * NS_PER_S <= ended - start <= 2 * NS_PER_S + 2_000_000


def test_a_refresh_to_no_timeout_lets_them_wait(loop: VirtualLoop) -> None:
    gate = gate_of(loop, plan_of(timeout_s=1))
    held = submit(gate, Asker(loop))
    assert isinstance(held, Lease)
    asker = Asker(loop)
    submit(gate, asker)
    gate.reconfigure(plan_of(timeout_s=0))
    loop.run_for(100)
    assert asker.told == []
    assert timers(loop) == 0
    gate.drain()
    assert asker.told[0][0] == Outcome.EVICTED_DRAINING


def test_a_lease_dropped_unreleased_comes_back_in_the_next_turn(
    loop: VirtualLoop, caplog: pytest.LogCaptureFixture
) -> None:
    gate = gate_of(loop, plan_of())
    lease = submit(gate, Asker(loop))
    waiting = Asker(loop)
    submit(gate, waiting)
    del lease
    other = Asker(loop)
    submit(gate, other)  # the step that notices
    with caplog.at_level(logging.ERROR, "iop_fast.edge.gate"):
        loop.settle()
    assert isinstance(waiting.told[0][0], Lease)
    assert gate.counters()["reclaimed"] == 1
    [record] = caplog.records
    assert record.getMessage() == "lease_dropped_unreleased"
    assert record.fields == {"node": "n", "provider": "p"}  # type: ignore[attr-defined]


def test_an_owner_that_raises_is_logged_and_its_slot_comes_back(
    loop: VirtualLoop, caplog: pytest.LogCaptureFixture
) -> None:
    gate = gate_of(loop, plan_of())
    lease = submit(gate, Asker(loop))
    assert isinstance(lease, Lease)
    broken, after = Asker(loop), Asker(loop)
    broken.fails = True
    submit(gate, broken)
    submit(gate, after)
    with caplog.at_level(logging.ERROR, "iop_fast.edge.gate"):
        gate.release(lease)
    assert isinstance(after.told[0][0], Lease)
    [record] = caplog.records
    assert record.getMessage() == "owner_failed"
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ValueError)


def test_retry_after_follows_the_rate_at_which_slots_come_back(loop: VirtualLoop) -> None:
    gate = gate_of(loop, plan_of(capacity=1, max_queue=10))
    assert gate.retry_after_s("m") == 30
    for _ in range(20):
        lease = submit(gate, Asker(loop))
        assert isinstance(lease, Lease)
        loop.run_for(2)
        gate.release(lease)
    empty_s = gate.retry_after_s("m")
    assert isinstance(submit(gate, Asker(loop)), Lease)
    for _ in range(4):
        submit(gate, Asker(loop))
    # Each of the four waits for a slot that comes back every two seconds.
    assert 1 <= empty_s <= 3
    assert 8 <= gate.retry_after_s("m") <= 12


def test_the_steps_and_read_outs_are_admission_s(loop: VirtualLoop) -> None:
    gate = gate_of(loop, plan_of(capacity=1, max_queue=1))
    lease = submit(gate, Asker(loop))
    assert isinstance(lease, Lease)
    assert gate.provider_key(lease) == ("n", "p")
    waiter = submit(gate, Asker(loop))
    assert isinstance(waiter, Waiter)
    assert submit(gate, Asker(loop)) == Outcome.REJECTED_QUEUE_FULL
    assert (gate.waiting, gate.max_queue) == (1, 1)
    assert gate.cancel(waiter)
    assert not gate.cancel(waiter)
    assert gate.live_candidates("m", False, CHAT) == 1
    assert gate.node_draining("n", 1)
    assert submit(gate, Asker(loop)) == Outcome.REJECTED_UNAVAILABLE
    assert [row.link for row in gate.snapshot()] == ["draining"]
    assert gate.rehearse(plan_of(capacity=1, max_queue=1)).waiting == 0
    assert gate.node_down("n", 1)
    assert not gate.node_down("n", 1)
    assert not gate.release(lease)
    assert gate.node_ready("n", 2, {"p": False})
    assert gate.live_candidates("m", False, CHAT) == 0
    assert gate.health("n", 2, {"p": True})
    assert gate.live_candidates("m", False, CHAT) == 1
    assert gate.counters()["submitted"] == 4
