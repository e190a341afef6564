"""Read-outs: outcomes per model, meters per provider, explain, the estimate behind Retry-After."""

import pytest

from iop_fast._core.admission import Outcome
from iop_fast._core.ledger import DURATION_BOUNDS_NS

from .dialogue import MS, Desk, plan, provider


def bucket(ms: float) -> int:
    """The bucket that a duration is counted in."""
    return next((place for place, bound in enumerate(DURATION_BOUNDS_NS) if ms * 1e6 <= bound), len(DURATION_BOUNDS_NS))


def test_outcomes_are_counted_by_model() -> None:
    desk = Desk(plan(provider("p"), provider("q"), models={"m": ["p"], "x": ["q"]}, queue=2, timeout_ms=5))
    desk.ask("m")
    desk.queue(2, "m")
    desk.ask("m")
    desk.ask("x")
    desk.core.tick(desk.at(5).now)
    waiter = desk.ask("x")
    desk.core.cancel(desk.now, waiter)
    counts = desk.core.model_outcomes()
    assert counts["m"] == (1, 1, 0, 2, 0, 0, 0)
    assert counts["x"] == (1, 0, 0, 0, 0, 1, 0)
    assert len(counts["m"]) == len(Outcome)
    desk.change(plan(provider("p"), provider("q"), models={"x": ["q"]}))
    assert list(desk.core.model_outcomes()) == ["x"]
    desk.change(plan(provider("p"), provider("q"), models={"x": ["q"], "new": ["p"], "m": ["p"]}))
    assert desk.core.model_outcomes()["new"] == desk.core.model_outcomes()["m"] == (0,) * 7


def test_waits_and_leases_are_metered_by_provider() -> None:
    desk = Desk(plan(provider("p"), provider("q", node="n2", priority=1)))
    first = desk.ask()
    desk.ask()
    (waiting,) = desk.at(10).queue(1)
    desk.at(40).release(first)
    desk.at(700_000)
    desk.core.node_down(desk.now, "n1", 1)
    row, other = desk.core.meters()
    assert (row.node_id, row.provider_id) == ("n1", "p")
    assert row.wait_counts[0] == 1
    assert row.wait_counts[bucket(30)] == 1
    assert row.wait_sum_ns == 30_000_000
    assert row.lease_counts[bucket(40)] == 1
    assert row.lease_counts[-1] == 1
    assert row.lease_sum_ns == 700_000_000_000
    assert sum(other.wait_counts) == 1
    assert sum(other.lease_counts) == 0
    assert len(row.wait_counts) == len(DURATION_BOUNDS_NS) + 1
    assert waiting.calls == 1


def test_a_bound_is_inclusive() -> None:
    desk = Desk(plan(provider("p")))
    lease = desk.ask()
    desk.core.release(DURATION_BOUNDS_NS[3], lease)
    assert desk.core.meters()[0].lease_counts[3] == 1


def test_explain_names_the_lasting_reason() -> None:
    specs = (
        provider("next", 2, long=1),
        provider("free", 2, long=1),
        provider("short", 9),
        provider("full", 0, long=1),
        provider("cannot", 9, can=0),
        provider("off", 9, enabled=False, healthy=False),
        provider("ill", 9, healthy=False, node="leaving"),
        provider("unknown", 9, healthy=False, node="away"),
        provider("away", 9, node="away"),
        provider("leaving", 9, node="leaving"),
    )
    desk = Desk(plan(*specs))
    desk.core.node_down(0, "away", 1)
    desk.core.node_draining(0, "leaving", 1)
    position, candidates = desk.core.explain("m", True, 1)
    assert position == 0
    assert dict(candidates) == {
        ("n1", "next"): "taken_next",
        ("n1", "free"): "free",
        ("n1", "short"): "no_long_slot",
        ("n1", "full"): "full",
        ("n1", "cannot"): "cannot",
        ("n1", "off"): "disabled",
        ("leaving", "ill"): "unhealthy",
        ("away", "unknown"): "node_offline",
        ("away", "away"): "node_offline",
        ("leaving", "leaving"): "draining",
    }
    assert desk.key(desk.ask(long=True)) == "next"


def test_explain_says_the_place_among_those_that_compete() -> None:
    desk = Desk(plan(provider("p"), provider("q"), models={"m": ["p"], "x": ["q"], "both": ["p", "q"]}))
    desk.ask("m")
    desk.ask("x")
    desk.queue(2, "m")
    desk.queue(1, "x")
    assert [desk.core.explain(model, False, 1).position for model in ("m", "x", "both")] == [3, 2, 4]
    desk.core.node_down(0, "n1", 1)
    assert desk.core.explain("m", False, 1).position is None


def test_explain_changes_nothing_and_knows_its_models() -> None:
    desk = Desk(plan(provider("p")))
    before = desk.core.counters()
    desk.core.explain("m", True, 7)
    assert desk.core.counters() == before
    with pytest.raises(KeyError):
        desk.core.explain("nobody", False, 0)
    with pytest.raises(KeyError):
        desk.core.retry_after_s("nobody")


def test_retry_after_follows_the_measured_rate() -> None:
    """Ten leases end in ten seconds, four wait: five places at one a second."""
    desk = Desk(plan(provider("p")))
    assert desk.core.retry_after_s("m") == 30
    for second in range(10):
        desk.at(second * 1000)
        desk.release(desk.ask())
    desk.ask()
    desk.queue(4)
    assert desk.core.retry_after_s("m") == 5
    desk.core.tick(desk.at(15_000).now)
    assert desk.core.retry_after_s("m") == 10
    desk.core.tick(desk.at(19_999).now)
    assert desk.core.retry_after_s("m") == 30
    desk.core.tick(desk.at(20_000).now)
    assert desk.core.retry_after_s("m") == 30


def test_retry_after_is_at_least_a_second() -> None:
    desk = Desk(plan(provider("p"), provider("dead", node="n2")))
    for _ in range(100):
        desk.release(desk.ask())
    assert desk.core.retry_after_s("m") == 1
    desk.core.node_down(0, "n1", 1)
    desk.core.node_down(0, "n2", 1)
    assert desk.core.retry_after_s("m") == 30


# Who waits


def test_who_waits_is_read_in_order_with_what_it_waits_for() -> None:
    desk = Desk(plan(provider("p", long=1), provider("q"), models={"m": ["p"], "x": ["q"]}))
    desk.ask("m")
    lost = desk.ask("x")
    desk.at(1).ask("m")
    desk.at(2).ask("x")
    desk.at(3).ask("m", long=True)
    desk.at(4).ask("m")
    rows = desk.core.waiters(10)
    assert [(row.model, row.is_long, row.enqueued_at_ns // MS) for row in rows] == [
        ("m", False, 1),
        ("x", False, 2),
        ("m", True, 3),
        ("m", False, 4),
    ]
    assert [row.owner for row in rows] == desk.callers[2:]
    assert {(row.needs, row.excluded, row.is_readmitted) for row in rows} == {(1, None, False)}
    assert desk.core.waiters(2) == rows[:2]
    assert desk.core.waiters(0) == []
    assert desk.core.oldest_enqueued_at_ns == 1 * MS
    assert desk.core.waiting_by_model() == {"m": (2, 1), "x": (1, 0)}
    assert [(line.model, line.is_long, line.waiting, line.enqueued_at_ns // MS) for line in desk.core.lines(10)] == [
        ("m", False, 2, 1),
        ("x", False, 1, 2),
        ("m", True, 1, 3),
    ]
    assert (desk.core.line_count, len(desk.core.lines(1))) == (3, 1)
    desk.release(lost)
    assert desk.core.waiting_by_model() == {"m": (2, 1)}


def test_one_admitted_again_stands_where_it_had_stood_and_says_whom_it_does_not_get() -> None:
    desk = Desk(plan(provider("p"), provider("q", node="n2")))
    first = desk.ask()
    desk.at(1).ask()
    desk.at(2).ask()
    desk.core.node_down(desk.now, "n1", 1)
    caller = desk.callers[0]
    desk.core.readmit(desk.now, caller, "m", 1, first)
    mine, other = desk.core.waiters(5)
    assert (mine.owner, mine.excluded, mine.enqueued_at_ns, mine.is_readmitted) == (caller, ("n1", "p"), 0, True)
    assert (other.excluded, other.is_readmitted) == (None, False)
    assert [line.excluded for line in desk.core.lines(5)] == [("n1", "p"), None]


def test_nobody_waits() -> None:
    desk = Desk(plan(provider("p")))
    assert desk.core.waiters(5) == desk.core.lines(5) == []
    assert desk.core.waiting_by_model() == {}
    assert (desk.core.oldest_enqueued_at_ns, desk.core.line_count) == (None, 0)


def test_verdicts_count_what_explain_names() -> None:
    specs = (provider("a"), provider("b"), provider("c", 1, can=0), provider("d", enabled=False), provider("e", 2))
    desk = Desk(plan(*specs))
    desk.ask()
    assert desk.core.verdicts("m", False, 1) == {"full": 1, "free": 2, "cannot": 1, "disabled": 1}
    with pytest.raises(KeyError):
        desk.core.verdicts("none", False, 1)
