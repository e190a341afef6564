"""Delivery: owners are called at a fixed point, may step again, and what they raise stays inside."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from iop_fast._core.admission import Lease, Outcome, Waiter

from .dialogue import Caller, Desk, ends, plan, provider


def test_an_owner_sees_all_decisions_of_its_step_made() -> None:
    desk = Desk(plan(provider("p", 2)))
    desk.ask()
    desk.ask()
    seen: list[tuple[int, int]] = []

    def look(caller: Caller) -> None:
        seen.append((desk.core.waiting, desk.row("p").in_flight))

    for _ in range(3):
        desk.ask(then=look)
    desk.change(plan(provider("p", 4)))
    assert seen == [(1, 4), (1, 4)]


def test_steps_in_callbacks_do_not_nest() -> None:
    """Each granted request is released in its own callback: a chain of a thousand at constant stack depth."""
    desk = Desk(plan(provider("p"), queue=1000))
    depths: set[int] = set()

    def release(caller: Caller) -> None:
        depth, frame = 0, sys._getframe()
        while frame is not None:
            depth, frame = depth + 1, frame.f_back  # type: ignore[assignment]
        depths.add(depth)
        assert isinstance(caller.ended, Lease)
        desk.release(caller.ended)

    lease = desk.ask()
    for _ in range(1000):
        desk.ask(then=release)
    desk.release(lease)
    assert ends(desk.callers[1:]) == ["lease"] * 1000
    assert len(depths) == 1
    assert desk.row("p").in_flight == 0


def test_a_step_in_a_callback_decides_at_once_and_is_delivered_later() -> None:
    desk = Desk(plan(provider("p"), provider("q"), models={"m": ["p"], "x": ["q"]}))
    held_p, held_q = desk.ask(), desk.ask("x")
    order: list[str] = []

    def free_other(caller: Caller) -> None:
        order.append("first begins")
        desk.release(held_q)
        assert desk.core.waiting == 1  # the request on "x" is decided
        order.append("first ends")

    desk.ask(then=free_other)
    desk.ask("x", then=lambda caller: order.append("second"))
    desk.queue(1)
    desk.release(held_p)
    assert order == ["first begins", "first ends", "second"]


def test_a_decided_waiter_cannot_be_cancelled() -> None:
    desk = Desk(plan(provider("p", 2)))
    held = [desk.ask(), desk.ask()]
    answers: list[bool] = []
    desk.ask(then=lambda caller: answers.append(desk.core.cancel(desk.now, second)))
    second: Any = desk.ask()
    desk.change(plan(provider("p", 4)))
    assert answers == [False]
    assert ends(desk.callers[2:]) == ["lease", "lease"]
    assert all(lease.is_held for lease in held)


def test_a_lease_may_be_lost_before_its_owner_hears_of_it() -> None:
    desk = Desk(plan(provider("p")))
    desk.ask()
    desk.ask(then=lambda caller: desk.core.node_down(desk.now, "n1", 1))
    desk.ask()
    desk.change(plan(provider("p", 3)))
    first, second = (caller.ended for caller in desk.callers[1:])
    assert isinstance(second, Lease)
    assert not second.is_held
    assert second.generation == 1
    assert not desk.release(second)
    assert desk.core.counters()["double_release"] == 0
    del first


def test_the_generation_of_a_lease_is_that_of_its_grant() -> None:
    desk = Desk(plan(provider("p")))
    desk.ask()
    desk.ask(then=lambda caller: desk.core.node_ready(desk.now, "n1", 2, {}))
    desk.ask()
    desk.change(plan(provider("p", 3)))
    late = desk.callers[2].ended
    assert isinstance(late, Lease)
    assert (late.generation, late.is_held) == (1, False)


def test_a_waiter_may_end_before_its_submit_returns() -> None:
    """The submit's own step evicts one whose owner frees a slot, which goes to the request just queued."""
    desk = Desk(plan(provider("p"), queue=2, timeout_ms=10))
    held = desk.ask()
    desk.ask(then=lambda caller: desk.release(held))
    answer = desk.at(10).ask()
    assert isinstance(answer, Waiter)
    assert not answer.is_waiting
    assert ends(desk.callers[1:]) == [Outcome.EVICTED_TIMEOUT, "lease"]


class Refusal(BaseException):
    """Not even an Exception."""


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, Refusal])
def test_what_an_owner_raises_stays_inside_and_its_lease_comes_back(kind: type[BaseException]) -> None:
    desk = Desk(plan(provider("p")))
    held = desk.ask()

    def fail(caller: Caller) -> None:
        raise kind(caller.name)

    desk.ask(then=fail)
    (after,) = desk.queue(1)
    assert desk.release(held)
    assert ends([after]) == ["lease"]
    assert desk.row("p").in_flight == 1
    assert not desk.core.is_quiet
    (failure,) = desk.core.take_failures()
    assert isinstance(failure, kind)
    assert desk.core.take_failures() == []
    assert desk.core.is_quiet
    assert desk.core.counters()["callback_failed"] == 1


def test_a_failing_owner_that_had_released_is_not_released_again() -> None:
    desk = Desk(plan(provider("p")))
    held = desk.ask()

    def release_and_fail(caller: Caller) -> None:
        assert isinstance(caller.ended, Lease)
        desk.release(caller.ended)
        raise ValueError

    desk.ask(then=release_and_fail)
    desk.release(held)
    assert desk.row("p").in_flight == 0
    assert desk.core.counters()["double_release"] == 0


def test_a_failing_eviction_does_not_stop_the_others() -> None:
    desk = Desk(plan(provider("p"), timeout_ms=1))
    desk.ask()

    def fail(caller: Caller) -> None:
        raise ValueError(caller.name)

    desk.ask(then=fail)
    (other,) = desk.queue(1)
    desk.core.tick(desk.at(1).now)
    assert other.ended is Outcome.EVICTED_TIMEOUT
    assert len(desk.core.take_failures()) == 1


def test_failures_kept_are_bounded_and_all_counted() -> None:
    desk = Desk(plan(provider("p"), queue=100, timeout_ms=1))
    desk.ask()

    def fail(caller: Caller) -> None:
        raise ValueError(caller.name)

    for _ in range(100):
        desk.ask(then=fail)
    desk.core.tick(desk.at(1).now)
    assert len(desk.core.take_failures()) == 64
    assert desk.core.counters()["callback_failed"] == 100


def test_an_owner_without_the_methods_is_a_failure_of_its_own() -> None:
    desk = Desk(plan(provider("p")))
    held = desk.ask()
    assert isinstance(desk.core.submit(desk.now, object(), "m", False, 1), Waiter)  # type: ignore[arg-type]
    desk.release(held)
    assert desk.row("p").in_flight == 0
    assert isinstance(desk.core.take_failures()[0], AttributeError)


def test_a_finalizer_that_steps_while_a_waiter_is_made() -> None:
    """Dropping the last reference of a cancelled request's owner runs foreign code at the end of the step only."""
    desk = Desk(plan(provider("p")))
    held = desk.ask()

    class Leaver:
        def on_granted(self, lease: Lease) -> None:
            raise AssertionError("cancelled")

        def on_evicted(self, outcome: Outcome) -> None:
            raise AssertionError("cancelled")

        def __del__(self) -> None:
            desk.core.verify()
            desk.release(held)

    waiter = desk.core.submit(desk.now, Leaver(), "m", False, 1)
    (after,) = desk.queue(1)
    assert isinstance(waiter, Waiter)
    assert desk.core.cancel(desk.now, waiter)
    assert ends([after]) == ["lease"]
