"""Reconfigure: what a new plan changes for leases, waiters, rotation and deadlines, and what it leaves alone."""

from __future__ import annotations

from typing import Any

import pytest

from iop_fast._core.admission import Admission, Lease, Outcome, Plan

from .dialogue import MS, Desk, ends, plan, provider

UNAVAILABLE = Outcome.EVICTED_UNAVAILABLE


def test_a_lease_of_a_provider_that_left_counts_when_it_returns() -> None:
    """B03: one stream on P1, P1 leaves and returns, seven more: P1 never runs more than four, nothing is negative."""
    both = plan(provider("p1", 4), provider("p2", 4))
    desk = Desk(both)
    stream = desk.ask()
    assert desk.key(stream) == "p1"
    desk.change(plan(provider("p2", 4)))
    assert [row.provider_id for row in desk.core.snapshot()] == ["p2"]
    desk.change(both)
    assert desk.row("p1").in_flight == 1
    more = [desk.ask() for _ in range(7)]
    assert (desk.row("p1").in_flight, desk.row("p2").in_flight) == (4, 4)
    for lease in (stream, *more):
        assert desk.release(lease)
    assert (desk.row("p1").in_flight, desk.row("p2").in_flight) == (0, 0)
    taken = [desk.key(desk.ask()) for _ in range(8)]
    assert (taken.count("p1"), taken.count("p2")) == (4, 4)


def test_a_lease_may_end_while_its_provider_is_gone() -> None:
    """B03, variant: the stream ends while P1 is absent."""
    both = plan(provider("p1", 4), provider("p2", 4))
    desk = Desk(both)
    stream = desk.ask()
    desk.change(plan(provider("p2", 4)))
    assert desk.release(stream)
    desk.change(both)
    assert desk.row("p1").in_flight == 0


def test_lowering_cuts_nobody_and_grants_nothing_until_there_is_room() -> None:
    """B04: capacity 4 with 4 streams and 3 waiters, to 2, streams end one by one, back to 4."""
    four, two = plan(provider("p", 4)), plan(provider("p", 2))
    desk = Desk(four)
    streams = [desk.ask() for _ in range(4)]
    waiting = desk.queue(3)
    desk.change(two)
    assert (desk.row("p").in_flight, desk.row("p").capacity) == (4, 2)
    desk.release(streams[0])
    desk.release(streams[1])
    assert ends(waiting) == [None] * 3
    desk.release(streams[2])
    assert ends(waiting) == ["lease", None, None]
    desk.change(four)
    assert ends(waiting) == ["lease"] * 3
    assert desk.row("p").in_flight == 4


def test_the_same_plan_again_changes_nothing() -> None:
    """B04: a hundred equal plans, the same objects and equal others, under load: order, turn and deadlines stay."""
    desk = Desk(plan(provider("a"), provider("b"), timeout_ms=100))
    leases = [desk.ask(), desk.ask()]
    waiting = desk.at(3).queue(3)
    before = (desk.core.snapshot(), desk.core.counters(), desk.core.next_deadline_ns)
    for number in range(100):
        desk.at(10).change(desk.plan if number % 2 else plan(provider("a"), provider("b"), timeout_ms=100))
    assert (desk.core.snapshot(), desk.core.counters(), desk.core.next_deadline_ns) == before
    desk.release(leases[1])
    assert ends(waiting) == ["lease", None, None]
    assert desk.key(waiting[0].ended) == "b"


def test_a_plan_takes_back_what_only_the_node_had_said() -> None:
    """`healthy` of a plan is the last word, even when the spec is the object of the plan before."""
    desk = Desk(plan(provider("a")))
    desk.core.health(0, "n1", 1, {"a": False})
    assert desk.core.live_candidates("m", False, 1) == 0
    desk.change(desk.plan)
    assert desk.core.live_candidates("m", False, 1) == 1


def test_raising_wakes_waiters_in_order_over_models() -> None:
    desk = Desk(plan(provider("p"), models={"x": ["p"], "y": ["p"]}))
    desk.ask("x")
    waiting = [desk.queue(1, model)[0] for model in "yxyx"]
    desk.change(plan(provider("p", 4), models={"x": ["p"], "y": ["p"]}))
    assert ends(waiting) == ["lease", "lease", "lease", None]


def test_lowering_max_queue_evicts_nobody() -> None:
    desk = Desk(plan(provider("p"), queue=5))
    lease = desk.ask()
    waiting = desk.queue(5)
    desk.change(plan(provider("p"), queue=2))
    assert ends(waiting) == [None] * 5
    for _ in range(3):
        assert desk.ask() is Outcome.REJECTED_QUEUE_FULL
        desk.release(lease)
        lease = next(caller.ended for caller in reversed(waiting) if caller.ended is not None)
    assert desk.core.waiting == 2
    assert desk.ask() is Outcome.REJECTED_QUEUE_FULL


@pytest.mark.parametrize(
    "after",
    [
        plan(provider("p", enabled=False), provider("q", node="n2"), models={"m": ["p"], "x": ["q"]}),
        plan(provider("p", 0), provider("q", node="n2"), models={"m": ["p"], "x": ["q"]}),
        plan(provider("p", healthy=False), provider("q", node="n2"), models={"m": ["p"], "x": ["q"]}),
        plan(provider("p", can=2), provider("q", node="n2"), models={"m": ["p"], "x": ["q"]}),
        plan(provider("q", node="n2"), models={"x": ["q"]}),
        plan(provider("p"), provider("q", node="n2"), models={"x": ["q", "p"]}),
    ],
    ids=["disabled", "no capacity", "unhealthy", "able no more", "provider gone", "model gone"],
)
def test_waiters_left_without_a_candidate_end_at_once(after: Plan) -> None:
    """B09: a provider or a model leaves by refresh while its requests wait."""
    desk = Desk(plan(provider("p"), provider("q", node="n2"), models={"m": ["p"], "x": ["q"]}))
    desk.ask("m")
    desk.ask("x")
    waiting = desk.queue(3, "m")
    desk.queue(1, "x")
    desk.change(after)
    assert ends(waiting) == [UNAVAILABLE] * 3
    assert desk.core.waiting == 1


def test_a_new_provider_of_a_model_serves_its_waiters() -> None:
    desk = Desk(plan(provider("p"), provider("q"), models={"m": ["p"], "x": ["q"]}))
    desk.ask()
    waiting = desk.queue(2)
    desk.change(plan(provider("p"), provider("q"), models={"m": ["p", "q"], "x": ["q"]}))
    assert ends(waiting) == ["lease", None]
    assert desk.key(waiting[0].ended) == "q"
    desk.release(waiting[0].ended)
    assert ends(waiting) == ["lease", "lease"]


def test_a_provider_that_learns_serves_the_needy() -> None:
    desk = Desk(plan(provider("p", can=0b11), provider("q", can=0b01)))
    desk.ask(needs=0b11)
    waiting = desk.queue(1, needs=0b11)
    desk.change(plan(provider("p", can=0b11), provider("q", can=0b11)))
    assert desk.key(waiting[0].ended) == "q"


def test_rows_of_models_that_left_are_used_again() -> None:
    desk = Desk(plan(provider("p"), models={"old": ["p"], "m": ["p"]}))
    for round_number in range(5):
        names = {f"new{round_number}": ["p"], f"other{round_number}": ["p"], "m": ["p"]}
        desk.change(plan(provider("p"), models=names))
        lease = desk.ask(f"new{round_number}")
        desk.release(lease)
        with pytest.raises(KeyError):
            desk.ask("old")


def test_a_model_that_left_does_not_pass_its_waiters_to_the_next() -> None:
    desk = Desk(plan(provider("p"), models={"old": ["p"]}))
    desk.ask("old")
    waiting = desk.queue(2, "old")
    desk.change(plan(provider("p", 9), models={"new": ["p"]}))
    assert ends(waiting) == [UNAVAILABLE] * 2


def test_the_last_long_slot_leaves_and_long_waiters_become_ordinary() -> None:
    desk = Desk(plan(provider("a", 1, long=1), provider("b", 2)))
    lease = desk.ask(long=True)
    waiting = desk.queue(2, long=True)
    desk.change(plan(provider("a", 1), provider("b", 2)))
    assert [desk.key(caller.ended) for caller in waiting] == ["b", "b"]
    assert [caller.ended.took_long for caller in waiting] == [False, False]
    assert desk.row("a").long_in_flight == 1
    desk.release(lease)
    assert desk.row("a").long_in_flight == 0


def test_the_first_long_slot_constrains_those_waiting() -> None:
    desk = Desk(plan(provider("a"), provider("b")))
    first, second = desk.ask(), desk.ask()
    waiting = desk.queue(1, long=True)
    desk.change(plan(provider("a", long=1), provider("b")))
    desk.release(second)
    assert waiting[0].ended is None
    desk.release(first)
    assert desk.key(waiting[0].ended) == "a"
    assert waiting[0].ended.took_long


def test_a_lease_gives_back_what_it_took_whatever_the_plan_says_by_then() -> None:
    desk = Desk(plan(provider("a", 2)))
    ordinary = desk.ask(long=True)
    desk.change(plan(provider("a", 2, long=1)))
    constrained = desk.ask(long=True)
    desk.change(plan(provider("a", 2)))
    assert desk.row("a").long_in_flight == 1
    desk.release(ordinary)
    assert desk.row("a").long_in_flight == 1
    desk.release(constrained)
    assert desk.row("a").long_in_flight == 0


WRONG: dict[str, Any] = {
    "a provider twice": plan(provider("p"))._replace(providers=(provider("p"), provider("p"))),
    "a stranger in a mapping": plan(provider("p"))._replace(models={"m": (("n1", "q"),)}),
    "twice in a mapping": plan(provider("p"))._replace(models={"m": (("n1", "p"), ("n1", "p"))}),
    "negative capacity": plan(provider("p", -1)),
    "negative long capacity": plan(provider("p", long=-1)),
    "negative queue": plan(provider("p"), queue=-1),
    "negative timeout": plan(provider("p"), timeout_ms=-1),
    "no number": plan(provider("p", "four")),  # type: ignore[arg-type]
    "abilities below zero": plan(provider("p", can=-1)),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_wrong_plan_is_refused_whole(wrong: Plan) -> None:
    desk = Desk(plan(provider("p"), provider("q"), models={"m": ["p", "q"], "x": ["q"]}))
    desk.ask()
    desk.ask()
    waiting = desk.queue(2)
    before = (desk.core.snapshot(), desk.core.counters())
    with pytest.raises((ValueError, OverflowError, TypeError)):
        desk.core.reconfigure(0, wrong)
    assert (desk.core.snapshot(), desk.core.counters()) == before
    assert ends(waiting) == [None, None]
    desk.core.verify()


def test_a_mapping_taken_over_unread_is_checked_against_those_who_left() -> None:
    desk = Desk(plan(provider("p"), provider("q")))
    with pytest.raises(ValueError, match="not in the plan"):
        desk.core.reconfigure(0, desk.plan._replace(providers=desk.plan.providers[:1]))
    assert desk.core.live_candidates("m", False, 1) == 2


def test_reading_a_plan_cannot_be_interrupted_by_another() -> None:
    desk = Desk(plan(provider("p")))

    class Nosy(dict[str, Any]):
        def items(self) -> Any:
            with pytest.raises(RuntimeError, match="being read"):
                desk.core.reconfigure(0, desk.plan)
            return super().items()

    desk.change(desk.plan._replace(models=Nosy(desk.plan.models)))
    assert isinstance(desk.ask(), Lease)


def test_a_dry_run_on_a_copy_counts_and_leaves_the_original_alone() -> None:
    desk = Desk(plan(provider("p"), provider("q"), timeout_ms=100))
    leases = [desk.ask(), desk.ask()]
    waiting = desk.at(50).queue(3)
    twin = desk.core.copy()
    twin.reconfigure(desk.now, plan(provider("p", 2), provider("q", 2), timeout_ms=100))
    assert twin.counters()["granted"] - desk.core.counters()["granted"] == 2
    twin.reconfigure(desk.at(60).now, plan(provider("p", 2), provider("q", 2), timeout_ms=10))
    assert twin.counters()["evicted_timeout"] == 1
    twin.reconfigure(desk.now, plan(provider("p", enabled=False)))
    twin.verify()
    assert ends(waiting) == [None] * 3
    with pytest.raises(ValueError, match="another ledger"):
        twin.release(desk.now, leases[0])
    with pytest.raises(ValueError, match="another ledger"):
        twin.provider_key(leases[0])
    desk.release(leases[0])
    assert ends(waiting) == ["lease", None, None]
    assert (twin.waiting, desk.core.waiting) == (0, 2)


def test_a_copy_of_an_empty_core() -> None:
    core = Admission(Plan((), {}, 0, 0), verify=True)
    twin = core.copy()
    twin.verify()
    assert twin.snapshot() == core.snapshot() == []
    twin.reconfigure(1, plan(provider("p")))
    assert (len(twin.snapshot()), len(core.snapshot())) == (1, 0)


def test_a_copy_made_in_a_callback_has_no_pending_decisions() -> None:
    desk = Desk(plan(provider("p", 3)))
    leases = [desk.ask() for _ in range(3)]
    twins: list[Admission] = []
    desk.ask(then=lambda caller: twins.append(desk.core.copy()))
    desk.queue(2)
    desk.change(plan(provider("p", 6)))
    (twin,) = twins
    assert twin.counters()["granted"] == desk.core.counters()["granted"] == 6
    twin.verify()
    twin.node_down(desk.now, "n1", 1)
    assert all(lease.is_held for lease in leases)


def test_the_snapshot_of_a_provider() -> None:
    desk = Desk(plan(provider("p", 2, long=1, priority=-3, can=0b11), provider("q", can=0b01)))
    desk.ask(long=True, needs=0b11)
    desk.ask(needs=0b11)
    desk.ask()
    desk.queue(2, needs=0b11)
    desk.queue(1, long=True)
    desk.queue(1)
    row = desk.row("p")
    assert row == (
        "n1", "p", "ready", True, True, -3, 2, 1, 2, 1, 2, 1, 4,
    )  # fmt: skip
    assert desk.row("q").queued == 1
    desk.core.node_draining(desk.now, "n1", 1)
    assert desk.row("p").link == "draining"
    assert desk.row("p").in_flight == 2
    desk.core.node_down(desk.now, "n1", 1)
    row = desk.row("p")
    assert (row.link, row.configured_capacity, row.configured_long_capacity) == ("offline", 2, 1)
    assert row[8:] == (0, 0, 0, 0, 0)


def test_pressure_counts_a_disabled_provider_that_could_serve() -> None:
    both = plan(provider("p"), provider("q"), timeout_ms=1)
    desk = Desk(both)
    desk.ask()
    desk.ask()
    desk.queue(2)
    desk.change(plan(provider("p"), provider("q", enabled=False), timeout_ms=1))
    assert (desk.row("p").queued, desk.row("q").queued) == (2, 2)
    desk.change(plan(provider("p"), provider("q", 0), timeout_ms=1))
    assert (desk.row("p").queued, desk.row("q").queued) == (2, 0)
    assert desk.core.next_deadline_ns == MS


def test_a_provider_that_returns_is_not_taken_for_one_that_stayed() -> None:
    """p1 leaves; then p2 leaves and p1 returns, while the mapping still names p2: as many stay as there were."""
    alone = plan(provider("p2"), models={"m": ["p2"]})
    desk = Desk(plan(provider("p1"), provider("p2"), models={"m": ["p2"]}))
    desk.change(alone)
    with pytest.raises(ValueError, match=r"names provider \('n1', 'p2'\), which is not in the plan"):
        desk.change(Plan((provider("p1"),), alone.models, 16, 0))
    assert desk.core.live_candidates("m", False, 1) == 1
