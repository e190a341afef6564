"""Leases: ended once, dropped ones found, lives longer than its ledger."""

import gc

import pytest

from iop_fast._core.admission import Admission, Lease, Waiter
from iop_fast._core.ledger import Lease as LedgerLease

from .dialogue import MS, Desk, ends, plan, provider


def test_a_second_release_is_refused_counted_and_without_effect() -> None:
    desk = Desk(plan(provider("p", 2)))
    lease, other = desk.ask(), desk.ask()
    assert desk.release(lease)
    assert not desk.release(lease)
    assert not desk.release(lease)
    assert desk.core.counters()["double_release"] == 2
    assert desk.row("p").in_flight == 1
    assert other.is_held


def test_what_a_lease_says_of_itself() -> None:
    desk = Desk(plan(provider("p", 2)))
    desk.ask()
    lease = desk.at(3).ask(long=True)
    assert (lease.is_held, lease.lease_id, lease.generation, lease.sequence) == (True, 2, 1, 2)
    assert (lease.took_long, lease.is_long) == (False, True)
    assert (lease.enqueued_at_ns, lease.granted_at_ns) == (3 * MS, 3 * MS)
    assert repr(lease) == "<Lease 2 held generation=1 sequence=2>"
    desk.release(lease)
    assert repr(lease) == "<Lease 2 ended generation=1 sequence=2>"


def test_a_granted_waiter_keeps_its_enqueue_time() -> None:
    desk = Desk(plan(provider("p")))
    lease = desk.ask()
    (waiting,) = desk.at(2).queue(1)
    desk.at(9).release(lease)
    assert isinstance(waiting.ended, Lease)
    assert (waiting.ended.enqueued_at_ns, waiting.ended.granted_at_ns) == (2 * MS, 9 * MS)


def test_every_dropped_lease_is_found_through_recycling() -> None:
    """The finalizer works each time: a thousand leases one after the other through the freelist."""
    desk = Desk(plan(provider("p", 1)))
    for number in range(1000):
        desk.ask()
        assert desk.core.has_dropped, number
        assert not desk.core.is_quiet
        assert desk.core.reclaim(desk.now) == [("n1", "p")]
        assert not desk.core.has_dropped
        assert desk.core.is_quiet
        desk.callers.clear()
    assert desk.core.counters()["reclaimed"] == 1000
    assert desk.row("p").in_flight == 0


def test_reclaim_grants_what_it_frees() -> None:
    desk = Desk(plan(provider("p"), provider("q")))
    leases = [desk.ask(), desk.ask()]
    waiting = desk.queue(3)
    del leases[1], leases[0]
    assert ends(waiting) == [None] * 3
    assert desk.core.reclaim(desk.now) == [("n1", "q"), ("n1", "p")]
    assert ends(waiting) == ["lease", "lease", None]


def test_reclaim_with_nothing_dropped_is_no_step() -> None:
    desk = Desk(plan(provider("p"), timeout_ms=1))
    lease = desk.ask()
    (waiting,) = desk.queue(1)
    assert desk.core.reclaim(desk.at(5).now) == []
    assert waiting.ended is None
    assert lease.is_held


def test_dropped_and_then_lost_with_its_node_is_counted_once() -> None:
    desk = Desk(plan(provider("p", 3)))
    leases = [desk.ask() for _ in range(3)]
    del leases[1]
    assert desk.core.has_dropped
    desk.core.node_down(0, "n1", 1)
    assert not desk.core.has_dropped
    assert desk.core.reclaim(0) == []
    assert desk.core.counters()["reclaimed"] == 0
    del leases
    desk.core.verify()


def test_a_lost_lease_may_be_dropped_or_released_in_any_order() -> None:
    desk = Desk(plan(provider("p", 4)))
    leases = [desk.ask() for _ in range(4)]
    desk.core.node_down(0, "n1", 1)
    desk.release(leases.pop(2))
    leases.pop(0)
    desk.core.verify()
    desk.core.node_ready(0, "n1", 2, {})
    fresh = [desk.ask() for _ in range(4)]
    assert all(lease.is_held for lease in fresh)
    assert not any(lease.is_held for lease in leases)


def test_a_lease_outlives_its_ledger() -> None:
    desk = Desk(plan(provider("p", 3)))
    held, ended, dropped = desk.ask(), desk.ask(), desk.ask()
    desk.release(ended)
    del desk, dropped
    gc.collect()
    assert (held.is_held, ended.is_held) == (True, False)
    assert held.lease_id == 1
    del held, ended


def test_a_waiter_outlives_its_queue() -> None:
    desk = Desk(plan(provider("p")))
    desk.ask()
    waiter = desk.ask()
    del desk
    gc.collect()
    assert waiter.sequence == 2


def test_nobody_else_makes_leases_and_waiters() -> None:
    with pytest.raises(TypeError, match="by admission only"):
        Lease()
    with pytest.raises(TypeError, match="by admission only"):
        Waiter()
    bare = Lease.__new__(Lease)
    assert not bare.is_held
    assert Lease is LedgerLease


def test_wrong_things_are_refused() -> None:
    core = Admission(plan(provider("p")))
    for wrong in (None, "lease"):
        with pytest.raises(TypeError):
            core.release(0, wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            core.cancel(0, wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            core.provider_key(wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="another ledger"):
        core.release(0, Lease.__new__(Lease))


def test_thousands_of_leases_and_waiters() -> None:
    """Tables grow and shrink in use; every count is right at each end."""
    desk = Desk(plan(provider("p", 700), queue=1500))
    desk.core = Admission(desk.plan)
    desk.core.node_ready(0, "n1", 1, {})
    leases = [desk.ask() for _ in range(700)]
    waiting = desk.queue(1500)
    desk.core.verify()
    for lease in leases:
        desk.release(lease)
    assert ends(waiting) == ["lease"] * 700 + [None] * 800
    desk.core.node_down(0, "n1", 1)
    desk.core.verify()
    assert desk.core.waiting == 0
