"""Steps of Nodes: ready, draining, down, health, generations, re-admission."""

import pytest

from iop_fast._core.admission import Lease, Outcome, Waiter

from .dialogue import Caller, Desk, ends, plan, provider

UNAVAILABLE = Outcome.EVICTED_UNAVAILABLE


def two_nodes(**rest: int) -> Desk:
    return Desk(plan(provider("p1"), provider("p2", node="n2"), **rest))


def test_the_last_node_dies_with_waiters_in_the_queue() -> None:
    """B09: one runs, three wait; the Node dies: all three end unavailable in that step, the lease is lost."""
    desk = Desk(plan(provider("p")))
    lease = desk.ask()
    waiting = desk.queue(3)
    assert desk.core.node_down(0, "n1", 1)
    assert ends(waiting) == [UNAVAILABLE] * 3
    assert not lease.is_held
    assert desk.core.waiting == 0
    assert desk.ask() is Outcome.REJECTED_UNAVAILABLE


def test_waiters_stay_while_another_node_lives_even_full() -> None:
    """B09, variant: n2 serves the model too but is full: they keep waiting, in order."""
    desk = two_nodes()
    leases = [desk.ask(), desk.ask()]
    waiting = desk.queue(3)
    desk.core.node_down(0, "n1", 1)
    assert ends(waiting) == [None] * 3
    desk.release(leases[1])
    assert ends(waiting) == ["lease", None, None]


def test_a_configured_node_that_never_came_is_no_candidate() -> None:
    """B09, variant: n2 is in the plan but was never connected."""
    desk = two_nodes()
    desk.core.node_down(0, "n2", 1)
    desk.ask()
    waiting = desk.queue(2)
    desk.core.node_down(0, "n1", 1)
    assert ends(waiting) == [UNAVAILABLE] * 2


def test_a_fresh_request_works_after_the_node_returned() -> None:
    """B09, variant: n1 is back a second later."""
    desk = Desk(plan(provider("p")))
    old = desk.ask()
    desk.core.node_down(0, "n1", 1)
    assert desk.core.node_ready(desk.at(1000).now, "n1", 2, {})
    fresh = desk.ask()
    assert isinstance(fresh, Lease)
    assert (old.generation, fresh.generation) == (1, 2)
    assert desk.row("p").in_flight == 1
    assert not desk.release(old)
    assert desk.row("p").in_flight == 1


def test_nothing_is_granted_onto_a_sibling_of_a_dying_node() -> None:
    desk = Desk(plan(provider("a"), provider("b"), provider("c", node="n2"), models={"m": ["a", "b"], "x": ["b", "c"]}))
    a, _b, _c = desk.ask("m"), desk.ask("m"), desk.ask("x")
    waiting = [desk.queue(1, "m")[0], desk.queue(1, "x")[0]]
    desk.core.node_down(0, "n1", 1)
    assert ends(waiting) == [UNAVAILABLE, None]
    assert not a.is_held
    assert desk.core.counters()["granted"] == 3


def test_stale_generations_change_nothing() -> None:
    """The close of an old session, its drain and its report come after the new session is ready."""
    desk = Desk(plan(provider("p")))
    desk.core.node_down(0, "n1", 1)
    assert desk.core.node_ready(0, "n1", 5, {})
    lease = desk.ask()
    for generation in (1, 4, 6):
        assert not desk.core.node_down(0, "n1", generation)
        assert not desk.core.node_draining(0, "n1", generation)
        assert not desk.core.health(0, "n1", generation, {"p": False})
    for generation in (1, 4, 5):
        assert not desk.core.node_ready(0, "n1", generation, {"p": False})
    assert lease.is_held
    assert desk.row("p").healthy
    assert desk.core.node_down(0, "n1", 5)
    assert not desk.core.node_down(0, "n1", 5)
    assert not desk.core.health(0, "n1", 5, {})


def test_unknown_nodes() -> None:
    desk = Desk(plan(provider("p")))
    assert not desk.core.node_down(0, "nobody", 1)
    assert not desk.core.node_draining(0, "nobody", 1)
    assert not desk.core.health(0, "nobody", 1, {})
    assert desk.core.node_ready(0, "early", 1, {"x": False})
    desk.change(plan(provider("p"), provider("x", node="early"), models={"m": ["p"], "x": ["x"]}))
    assert isinstance(desk.ask("x"), Lease)


def test_a_new_session_ends_what_the_old_one_held() -> None:
    """A session superseded without a word of its end: its leases are lost in the step that makes the new one ready,
    and the slots serve those waiting."""
    desk = Desk(plan(provider("p")))
    old = desk.ask()
    waiting = desk.queue(2)
    assert desk.core.node_ready(0, "n1", 2, {})
    assert not old.is_held
    assert ends(waiting) == ["lease", None]
    assert waiting[0].ended.generation == 2  # type: ignore[union-attr]
    assert not desk.core.node_down(0, "n1", 1)


def test_ready_tells_health_and_keeps_what_is_not_named() -> None:
    desk = Desk(plan(provider("a"), provider("b", healthy=False), provider("c")))
    desk.core.node_down(0, "n1", 1)
    desk.core.node_ready(0, "n1", 2, {"a": False, "stranger": True})
    assert [row.healthy for row in desk.core.snapshot()] == [False, False, True]


def test_health_moves_candidates_and_waiters() -> None:
    desk = Desk(plan(provider("p", 2), provider("q", node="n2", healthy=False)))
    desk.ask()
    desk.ask()
    waiting = desk.queue(2)
    assert desk.core.health(0, "n2", 1, {"q": True})
    assert ends(waiting) == ["lease", None]
    assert desk.core.health(0, "n1", 1, {"p": False})
    assert ends(waiting) == ["lease", None]
    assert desk.core.health(0, "n2", 1, {"q": False})
    assert ends(waiting) == ["lease", UNAVAILABLE]
    assert desk.row("p").in_flight == 2


def test_draining_takes_nothing_new_and_keeps_leases() -> None:
    desk = two_nodes()
    held = [desk.ask(), desk.ask()]
    waiting = desk.queue(2)
    assert desk.core.node_draining(0, "n1", 1)
    assert desk.release(held[0])
    assert ends(waiting) == [None, None]
    assert desk.core.node_draining(0, "n1", 1)
    assert desk.core.node_draining(0, "n2", 1)
    assert ends(waiting) == [UNAVAILABLE] * 2
    assert held[1].is_held
    assert desk.core.node_down(0, "n2", 1)
    assert not held[1].is_held


def test_a_lost_lease_is_no_double_release() -> None:
    desk = Desk(plan(provider("p")))
    lease = desk.ask()
    desk.core.node_down(0, "n1", 1)
    assert not desk.release(lease)
    assert not desk.release(lease)
    assert desk.core.counters()["double_release"] == 0
    assert desk.core.provider_key(lease) == ("n1", "p")


class TestReadmission:
    """A request whose provider cannot have seen it gets another one, in its old place."""

    def again(self, desk: Desk, lease: Lease, model: str = "m", needs: int = 1) -> object:
        caller = Caller("again")
        desk.callers.append(caller)
        return desk.core.readmit(desk.now, caller, model, needs, lease)

    def test_it_goes_elsewhere_at_once(self) -> None:
        desk = two_nodes()
        lease = desk.ask()
        desk.core.node_down(0, "n1", 1)
        again = self.again(desk, lease)
        assert desk.key(again) == "p2"
        assert again.sequence == lease.sequence  # type: ignore[attr-defined]

    def test_not_to_the_same_provider(self) -> None:
        desk = two_nodes()
        lease = desk.ask()
        desk.release(lease)
        assert desk.key(self.again(desk, lease)) == "p2"

    def test_it_waits_in_its_old_place(self) -> None:
        desk = two_nodes()
        first, second = desk.ask(), desk.ask()
        waiting = desk.queue(2)
        desk.core.node_down(0, "n1", 1)
        again = self.again(desk, first)
        assert isinstance(again, Waiter)
        assert (again.sequence, again.enqueued_at_ns) == (first.sequence, 0)
        desk.release(second)
        assert ends([desk.callers[-1], *waiting]) == ["lease", None, None]

    def test_it_does_not_count_in_the_queue_limit(self) -> None:
        desk = two_nodes(queue=1)
        first, _second = desk.ask(), desk.ask()
        desk.queue(1)
        desk.core.node_down(0, "n1", 1)
        assert isinstance(self.again(desk, first), Waiter)
        assert desk.core.waiting == 2
        assert desk.ask() is Outcome.REJECTED_QUEUE_FULL
        desk.core.verify()

    def test_past_its_deadline_it_ends(self) -> None:
        desk = two_nodes(timeout_ms=10)
        lease = desk.ask()
        desk.core.node_down(0, "n1", 1)
        desk.at(10)
        assert self.again(desk, lease) is Outcome.EVICTED_TIMEOUT

    def test_its_deadline_is_the_first_one(self) -> None:
        desk = two_nodes(timeout_ms=10)
        first, second = desk.ask(), desk.ask()
        (fresh,) = desk.at(4).queue(1)
        desk.core.node_down(desk.now, "n1", 1)
        assert isinstance(self.again(desk.at(5), first), Waiter)
        again = desk.callers[-1]
        assert desk.core.next_deadline_ns == 10_000_000
        desk.core.tick(desk.at(10).now)
        assert ends([again, fresh]) == [Outcome.EVICTED_TIMEOUT, None]
        assert desk.core.next_deadline_ns == 14_000_000
        assert second.is_held

    def test_the_oldest_goes_first_out_of_both_kinds(self) -> None:
        """A fresh one that is older than a re-admitted one, and one that is younger."""
        desk = Desk(plan(provider("p1"), provider("p2", node="n2"), models={"m": ["p1", "p2"], "x": ["p2"]}))
        order: list[str] = []
        desk.ask("x")
        desk.ask("x", then=lambda caller: order.append("older"))
        lost = desk.ask("m")
        desk.ask("m", then=lambda caller: order.append("younger"))
        desk.core.node_down(0, "n1", 1)
        assert isinstance(self.again(desk, lost), Waiter)
        desk.callers[-1].then = lambda caller: order.append("again")
        desk.core.drain(0)
        assert order == ["older", "again", "younger"]

    @pytest.mark.parametrize("model", ["m", "gone"])
    def test_with_nobody_else_it_ends(self, model: str) -> None:
        desk = Desk(plan(provider("p")))
        lease = desk.ask()
        desk.release(lease)
        assert self.again(desk, lease, model) is Outcome.EVICTED_UNAVAILABLE

    def test_needs_that_nobody_can_any_more(self) -> None:
        desk = two_nodes()
        lease = desk.ask()
        desk.release(lease)
        assert self.again(desk, lease, needs=8) is Outcome.EVICTED_UNAVAILABLE

    def test_many_come_back_in_any_order(self) -> None:
        desk = Desk(plan(provider("a", 6), provider("b", node="n2", priority=9), models={"m": ["a", "b"], "x": ["b"]}))
        block = desk.ask("x")
        leases = [desk.ask() for _ in range(6)]
        desk.core.node_down(0, "n1", 1)
        callers = {}
        for place in (3, 0, 5, 1, 4, 2):
            assert isinstance(self.again(desk, leases[place]), Waiter)
            callers[place] = desk.callers[-1]
        held = block
        for place in range(6):
            desk.release(held)
            held = callers[place].ended  # type: ignore[assignment]
            assert isinstance(held, Lease)

    def test_a_held_lease_and_a_second_time_are_refused(self) -> None:
        desk = two_nodes()
        lease = desk.ask()
        with pytest.raises(ValueError, match="is held"):
            self.again(desk, lease)
        desk.release(lease)
        self.again(desk, lease)
        with pytest.raises(ValueError, match="before"):
            self.again(desk, lease)
        other = two_nodes()
        with pytest.raises(ValueError, match="another ledger"):
            self.again(other, lease)


def test_a_health_report_that_ends_its_own_session_changes_nothing() -> None:
    """The report is the caller's mapping: reading it may run anything."""
    desk = Desk(plan(provider("p")))

    class Report(dict[str, bool]):
        def get(self, key: str, default: object = None) -> bool:  # type: ignore[override]
            desk.core.node_down(desk.now, "n1", 1)
            return False

    assert not desk.core.health(desk.now, "n1", 1, Report())
    assert desk.core.node_ready(desk.now, "n1", 2, {})
    assert desk.row("p").healthy
