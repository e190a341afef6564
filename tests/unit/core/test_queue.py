"""Waiting: bound, order, overtaking, deadlines."""

import pytest

from iop_fast._core.admission import Lease, Outcome, Waiter

from .dialogue import MS, Caller, Desk, ends, plan, provider

TIMEOUT = Outcome.EVICTED_TIMEOUT
FULL = Outcome.REJECTED_QUEUE_FULL


def two_models(**rest: int) -> Desk:
    return Desk(plan(provider("pa"), provider("pb"), models={"a": ["pa"], "b": ["pb"]}, **rest))


def test_a_full_model_does_not_hold_up_another() -> None:
    """B06: three of A wait behind a stream; B is served at once."""
    desk = two_models()
    desk.ask("a")
    desk.queue(3, "a")
    assert desk.key(desk.ask("b")) == "pb"


def test_the_servable_waiter_is_taken_from_the_middle() -> None:
    """B06: A2, B2, A3 wait; a slot of B goes to B2 and the A's keep their order."""
    desk = two_models()
    a1, b1 = desk.ask("a"), desk.ask("b")
    (a2,), (b2,), (a3,) = desk.queue(1, "a"), desk.queue(1, "b"), desk.queue(1, "a")
    desk.release(b1)
    assert ends([a2, b2, a3]) == [None, "lease", None]
    desk.release(a1)
    assert ends([a2, b2, a3]) == ["lease", "lease", None]


def test_admission_is_quiet_while_nobody_waits() -> None:
    desk = Desk(plan(provider("p")))
    held = desk.ask()
    assert desk.core.is_quiet
    (waiting,) = desk.queue(1)
    assert not desk.core.is_quiet
    desk.release(held)
    assert ends([waiting]) == ["lease"]
    assert desk.core.is_quiet


def test_a_short_request_passes_a_long_one_that_cannot_be_placed() -> None:
    """B06: the head needs a long slot, all are taken; the short one behind it goes first. When the head's client
    leaves, nothing is left waiting."""
    desk = Desk(plan(provider("p", 2, long=1)))
    desk.ask(long=True)
    short = desk.ask()
    head = desk.ask(long=True)
    (follower,) = desk.queue(1)
    assert isinstance(head, Waiter)
    desk.release(short)
    assert isinstance(follower.ended, Lease)
    assert desk.core.cancel(desk.now, head)
    assert desk.core.waiting == 0


def test_nobody_overtakes_a_waiter_that_could_have_used_the_slot() -> None:
    desk = Desk(plan(provider("p", 2, long=1)))
    held = desk.ask(long=True)
    other = desk.ask()
    long, short = *desk.queue(1, long=True), *desk.queue(1)
    desk.release(held)
    assert ends([long, short]) == ["lease", None]
    desk.release(other)
    assert ends([long, short]) == ["lease", "lease"]


def test_exactly_max_queue_wait_over_all_models() -> None:
    """B07: one runs, three wait, the fifth is refused; two models share the bound."""
    desk = two_models(queue=3)
    desk.ask("a")
    desk.ask("b")
    desk.queue(2, "a")
    desk.queue(1, "b")
    assert desk.ask("a") is FULL
    assert desk.ask("b") is FULL
    assert desk.core.waiting == desk.core.max_queue == 3


def test_a_burst_at_one_instant() -> None:
    """B07: fifty at once on capacity 1 and queue 3: one runs, three wait, forty-six are refused."""
    desk = Desk(plan(provider("p"), queue=3))
    answers = [desk.ask() for _ in range(50)]
    assert [sum(isinstance(answer, kind) for answer in answers) for kind in (Lease, Waiter, Outcome)] == [1, 3, 46]


def test_a_cancelled_waiter_makes_room_for_exactly_one() -> None:
    """B07."""
    desk = Desk(plan(provider("p"), queue=2))
    desk.ask()
    first, second = desk.ask(), desk.ask()
    assert desk.core.cancel(desk.now, first)
    assert isinstance(desk.ask(), Waiter)
    assert desk.ask() is FULL
    assert desk.core.cancel(desk.now, second)
    assert not desk.core.cancel(desk.now, second)
    assert [caller.calls for caller in desk.callers] == [0] * 5


@pytest.mark.parametrize("left", [0, 1, 2])
def test_those_around_a_cancelled_waiter_keep_their_order(left: int) -> None:
    desk = Desk(plan(provider("p")))
    held = desk.ask()
    waiters = [desk.ask() for _ in range(3)]
    assert desk.core.cancel(desk.now, waiters[left])
    for place in (place for place in range(3) if place != left):
        assert desk.release(held)
        held = desk.callers[1 + place].ended
        assert isinstance(held, Lease)
    assert desk.core.waiting == 0


def test_with_no_queue_nothing_waits_but_a_free_slot_serves() -> None:
    """B07: the core takes the number as it is; the file's 0 never gets here."""
    desk = Desk(plan(provider("p"), queue=0))
    lease = desk.ask()
    assert desk.ask() is FULL
    desk.release(lease)
    assert isinstance(desk.ask(), Lease)


def test_a_free_slot_serves_when_the_queue_is_full_of_others() -> None:
    desk = two_models(queue=1)
    desk.ask("a")
    desk.queue(1, "a")
    assert isinstance(desk.ask("b"), Lease)


def test_each_waiter_ends_at_its_own_deadline() -> None:
    """B08: 50 waiters 10 ms apart, 500 ms each."""
    desk = Desk(plan(provider("p"), queue=50, timeout_ms=500))
    desk.ask()
    for number in range(50):
        desk.at(number * 10).queue(1)
    waiting = desk.callers[1:]
    for number in range(50):
        assert desk.core.next_deadline_ns == (number * 10 + 500) * MS
        desk.core.tick(desk.at(number * 10 + 499).now)
        assert ends(waiting[number:]) == [None] * (50 - number)
        desk.core.tick(desk.at(number * 10 + 500).now)
        assert ends(waiting[: number + 1]) == [TIMEOUT] * (number + 1)
    assert desk.core.next_deadline_ns == 0


def test_no_timeout_means_none() -> None:
    """B08: 0."""
    desk = Desk(plan(provider("p")))
    desk.ask()
    (waiting,) = desk.queue(1)
    assert desk.core.next_deadline_ns == 0
    desk.core.tick(desk.at(10**9).now)
    assert waiting.ended is None


def test_a_refresh_moves_the_deadlines_of_those_waiting() -> None:
    """B08: to a longer one, to none, back, and to one that has passed; counted from the enqueue time each time."""
    start = plan(provider("p"), timeout_ms=100)
    desk = Desk(start)
    desk.ask()
    desk.at(10).queue(1)
    desk.at(20).queue(1)
    waiting = desk.callers[1:]
    for timeout_ms, deadline_ms in ((200, 210), (0, 0), (300, 310)):
        desk.change(start._replace(queue_timeout_ns=timeout_ms * MS))
        assert desk.core.next_deadline_ns == deadline_ms * MS
    desk.at(60).change(start._replace(queue_timeout_ns=45 * MS))
    assert ends(waiting) == [TIMEOUT, None]
    desk.core.tick(desk.at(65).now)
    assert ends(waiting) == [TIMEOUT, TIMEOUT]


def test_every_step_ends_who_is_due_before_it_grants() -> None:
    desk = Desk(plan(provider("p"), timeout_ms=10))
    lease = desk.ask()
    due = desk.queue(1)[0]
    later = desk.at(5).queue(1)[0]
    desk.at(10).release(lease)
    assert ends([due, later]) == [TIMEOUT, "lease"]


def test_a_due_waiter_makes_room_in_the_same_step() -> None:
    desk = Desk(plan(provider("p"), queue=1, timeout_ms=10))
    desk.ask()
    (due,) = desk.queue(1)
    assert isinstance(desk.at(10).ask(), Waiter)
    assert ends([due]) == [TIMEOUT]


def test_draining_ends_everybody_in_order() -> None:
    desk = two_models()
    order: list[str] = []
    for model in "abab":
        desk.ask(model, then=lambda caller: order.append(caller.name))
    desk.core.drain(desk.now)
    assert ends(desk.callers[2:]) == [Outcome.EVICTED_DRAINING] * 2
    assert order == ["2", "3"]
    assert desk.core.waiting == 0


def test_the_waiter_of_another_queue_is_refused() -> None:
    one, other = Desk(plan(provider("p"))), Desk(plan(provider("p")))
    one.ask()
    waiter = one.ask()
    with pytest.raises(ValueError, match="another queue"):
        other.core.cancel(0, waiter)
    other.ask()
    other.queue(1)
    with pytest.raises(ValueError, match="another queue"):
        other.core.cancel(0, waiter)
    assert waiter.is_waiting


def test_what_a_waiter_says_of_itself() -> None:
    desk = Desk(plan(provider("p")))
    desk.ask()
    waiter = desk.at(7).ask()
    assert (waiter.is_waiting, waiter.enqueued_at_ns, waiter.sequence) == (True, 7 * MS, 2)
    assert repr(waiter) == "<Waiter waiting sequence=2>"
    desk.core.cancel(desk.now, waiter)
    assert repr(waiter) == "<Waiter ended sequence=2>"


def test_many_kinds_of_waiters_keep_the_global_order() -> None:
    """More lines than the table starts with, each with its own needs; a freed slot goes to the oldest each time."""
    desk = Desk(plan(provider("p", can=2**40 - 1), queue=1000))
    held = desk.ask()
    waiting = [desk.queue(1, needs=1 << (number % 40))[0] for number in range(200)]
    for caller in waiting:
        assert caller.ended is None
        desk.release(held)
        held = caller.ended
        assert isinstance(held, Lease)


def test_kinds_that_meet_in_one_bucket_stay_apart() -> None:
    """Lines that differ in the label or in the excluded provider alone: over 200 needs some share a hash bucket."""
    for needs in range(1, 201):
        away = provider("p1", can=255, healthy=False)
        here = [provider("p2", node="n2", can=255), provider("p3", node="n2", can=255)]
        desk = Desk(plan(away._replace(healthy=True), *here))
        lost, *_ = [desk.ask() for _ in range(3)]
        desk.core.node_down(0, "n1", 1)
        desk.core.node_ready(0, "n1", 2, {"p1": False})
        desk.queue(1, needs=needs)
        assert isinstance(desk.core.readmit(0, desk.callers[0], "m", needs, lost), Waiter)
        assert [row.queued for row in desk.core.snapshot()] == [1, 2, 2], needs
        desk.queue(1, needs=needs, long=True)
        desk.change(plan(away, here[0]._replace(long_capacity=1), here[1]))
        assert [row.queued for row in desk.core.snapshot()] == [1, 3, 2], needs


def test_callers_are_called_once() -> None:
    desk = Desk(plan(provider("p"), timeout_ms=10))
    lease = desk.ask()
    callers: list[Caller] = desk.queue(3)
    desk.release(lease)
    desk.core.tick(desk.at(10).now)
    desk.core.drain(desk.now)
    assert [caller.calls for caller in callers] == [1, 1, 1]


def test_a_readmitted_request_that_waits_alone_keeps_its_deadline() -> None:
    desk = Desk(plan(provider("p1"), provider("p2", node="n2"), timeout_ms=100))
    lost = desk.ask()
    assert desk.key(lost) == "p1"
    assert isinstance(desk.at(10).ask(), Lease)
    assert desk.core.node_down(desk.now, "n1", 1)
    again = Caller()
    assert isinstance(desk.at(20).core.readmit(desk.now, again, "m", 1, lost), Waiter)
    assert desk.core.next_deadline_ns == 100 * MS
    desk.at(100).core.tick(desk.now)
    assert again.ended is TIMEOUT
    assert desk.core.next_deadline_ns == 0
