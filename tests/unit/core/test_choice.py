"""Who gets a request: eligibility, liveness, lowest in_flight, priority, rotation."""

from collections import Counter
from itertools import pairwise

import pytest

from iop_fast._core.admission import Lease, Outcome

from .dialogue import Desk, plan, provider


def spread(desk: Desk, models: list[str], count: int) -> list[str]:
    """One request after the other, each ended before the next."""
    taken = []
    for number in range(count):
        lease = desk.ask(models[number % len(models)])
        taken.append(desk.key(lease))
        desk.release(lease)
    return taken


def five(**changes: list[int]) -> list:
    return [provider(f"p{place}", 4, **{name: values[place] for name, values in changes.items()}) for place in range(5)]


def test_takes_the_provider_with_fewest_in_flight() -> None:
    desk = Desk(plan(provider("a", 9), provider("b", 9), provider("c", 9)))
    held = [desk.ask() for _ in range(7)]
    desk.release(held[1])
    desk.release(held[4])
    assert desk.key(held[1]) == desk.key(held[4]) == "b"
    assert desk.key(desk.ask()) == "b"


def test_idle_equals_take_turns() -> None:
    """B05: a hundred requests one by one over five idle equals: twenty each."""
    assert Counter(spread(Desk(plan(*five())), ["m"], 100)) == dict.fromkeys((f"p{n}" for n in range(5)), 20)


def test_turns_are_shared_by_all_models() -> None:
    """B05: two names for the same providers, in turn: still twenty each, and never one twice in a row."""
    names = [f"p{n}" for n in range(5)]
    taken = spread(Desk(plan(*five(), models={"x": names, "y": names})), ["x", "y"], 100)
    assert Counter(taken) == dict.fromkeys(names, 20)
    assert all(one != other for one, other in pairwise(taken))


def test_priority_decides_among_equally_loaded() -> None:
    """B05: with priorities 0,0,1,1,1 the two preferred alternate while idle, the others come when less loaded."""
    desk = Desk(plan(*five(priority=[0, 0, 1, 1, 1])))
    assert spread(desk, ["m"], 10) == ["p0", "p1"] * 5
    assert [desk.key(desk.ask()) for _ in range(5)] == ["p0", "p1", "p2", "p3", "p4"]


def test_rotation_goes_on_when_one_leaves_and_returns() -> None:
    """B05: with one provider gone the others go on in turn; it returns to the place it had."""
    desk = Desk(plan(*five()))
    assert spread(desk, ["m"], 4) == ["p0", "p1", "p2", "p3"]
    whole = desk.plan
    desk.change(plan(*[spec for spec in whole.providers if spec.provider_id != "p2"]))
    assert spread(desk, ["m"], 5) == ["p4", "p0", "p1", "p3", "p4"]
    desk.change(whole)
    assert spread(desk, ["m"], 3) == ["p2", "p0", "p1"]


def test_a_full_provider_is_passed_over_and_keeps_its_turn() -> None:
    """B05: one of five is full: the others take turns."""
    desk = Desk(plan(*five(), models={"m": [f"p{n}" for n in range(5)], "only": ["p3"]}))
    for _ in range(4):
        assert desk.key(desk.ask("only")) == "p3"
    assert Counter(spread(desk, ["m"], 40)) == {"p0": 10, "p1": 10, "p2": 10, "p4": 10}


def test_never_granted_comes_first_in_file_order() -> None:
    desk = Desk(plan(provider("z"), provider("a"), models={"m": ["z", "a"]}))
    assert desk.key(desk.ask()) == "z"
    assert desk.key(desk.ask()) == "a"


@pytest.mark.parametrize(
    "dead",
    [
        provider("dead", 9, enabled=False),
        provider("dead", 9, healthy=False),
        provider("dead", 0),
        provider("dead", 9, can=0),
        provider("dead", 9, node="away"),
    ],
    ids=["disabled", "unhealthy", "no capacity", "cannot", "node offline"],
)
def test_who_is_no_candidate(dead: object) -> None:
    desk = Desk(plan(dead, provider("good", 2), models={"m": ["dead", "good"], "alone": ["dead", "good"]}))  # type: ignore[arg-type]
    if dead.node_id == "away":  # type: ignore[attr-defined]
        desk.core.node_down(0, "away", 1)
    assert desk.core.live_candidates("m", False, 1) == 1
    assert [desk.key(desk.ask()) for _ in range(2)] == ["good", "good"]


def test_no_live_candidate_is_unavailable_even_when_the_queue_is_full() -> None:
    desk = Desk(plan(provider("a"), provider("b", node="n2"), models={"m": ["a"], "x": ["b"]}, queue=1))
    desk.ask()
    desk.queue(1)
    desk.core.node_down(0, "n2", 1)
    assert desk.ask("x") is Outcome.REJECTED_UNAVAILABLE
    assert desk.ask("m") is Outcome.REJECTED_QUEUE_FULL


def test_needs_select_the_able() -> None:
    desk = Desk(plan(provider("text", 9, can=0b01), provider("vision", 9, can=0b11)))
    assert {desk.key(desk.ask(needs=0b11)) for _ in range(3)} == {"vision"}
    assert desk.key(desk.ask(needs=0b01)) == "text"


def test_what_the_shell_refuses_before_raises_and_changes_nothing() -> None:
    """B02: an unknown model and needs that nobody of the model can have no effect on any count."""
    desk = Desk(plan(provider("a", can=1)))
    before = desk.core.counters()
    with pytest.raises(KeyError):
        desk.ask("nobody")
    with pytest.raises(ValueError, match="can do the needs"):
        desk.ask(needs=2)
    with pytest.raises(KeyError):
        desk.core.live_candidates("nobody", False, 0)
    assert desk.core.counters() == before
    assert isinstance(desk.ask(), Lease)


def test_time_that_falls_is_refused_and_changes_nothing() -> None:
    desk = Desk(plan(provider("a")))
    lease = desk.at(5).ask()
    for step in (
        lambda: desk.core.submit(0, desk.callers[0], "m", False, 1),
        lambda: desk.core.release(0, lease),
        lambda: desk.core.tick(0),
        lambda: desk.core.reconfigure(0, desk.plan),
    ):
        with pytest.raises(ValueError, match="time never falls"):
            step()
    assert lease.is_held
    desk.core.verify()


def test_a_long_request_takes_both_slots_where_a_provider_has_long_ones() -> None:
    desk = Desk(plan(provider("a", 3, long=1), provider("b", 3)))
    lease = desk.ask(long=True)
    assert (desk.key(lease), lease.is_long, lease.took_long) == ("a", True, True)
    assert (desk.row("a").in_flight, desk.row("a").long_in_flight) == (1, 1)
    desk.queue(1, long=True)
    short = desk.ask()
    assert (desk.key(short), short.is_long, short.took_long) == ("b", False, False)
    desk.release(lease)
    assert (desk.row("a").in_flight, desk.row("a").long_in_flight) == (1, 1)


def test_a_long_request_is_ordinary_where_no_provider_has_long_slots() -> None:
    desk = Desk(plan(provider("a", 3)))
    lease = desk.ask(long=True)
    assert (lease.is_long, lease.took_long) == (True, False)
    assert desk.row("a").long_in_flight == 0


def test_a_long_request_needs_a_normal_slot_too() -> None:
    desk = Desk(plan(provider("a", 1, long=5)))
    desk.ask()
    (waiting,) = desk.queue(1, long=True)
    assert waiting.ended is None


def test_a_long_request_that_only_a_provider_without_long_slots_can_do_is_unavailable() -> None:
    desk = Desk(plan(provider("tools", 1, can=0b11), provider("wide", 1, long=1, can=0b01)))
    assert desk.ask(long=True, needs=0b11) is Outcome.REJECTED_UNAVAILABLE
    assert desk.core.live_candidates("m", True, 0b11) == 0
    assert desk.core.live_candidates("m", True, 0b01) == 1
