"""Age lists and the tick that sweeps them."""

from __future__ import annotations

import logging

import pytest

from iop_fast._core.clock import VirtualClock
from iop_fast.edge.ages import NO_HANDLE, AgeList, Ticker
from tests.unit.edge.front.harness import TurnLoop

LIMIT_NS = 1_000


class Timers(TurnLoop):
    """A loop whose timers fire when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.due: list[object] = []

    def call_later(self, delay: float, callback: object, *args: object) -> Timers:  # type: ignore[override]
        assert delay == 0.25
        self.due.append(callback)
        return self

    def cancel(self) -> None:
        self.due.clear()

    def fire(self) -> None:
        callback = self.due.pop(0)
        callback()  # type: ignore[operator]


def made() -> tuple[VirtualClock, list[str], AgeList[str]]:
    clock = VirtualClock(5)
    expired: list[str] = []
    return clock, expired, AgeList(clock, LIMIT_NS, expired.append)


def test_entries_expire_oldest_first_and_never_early() -> None:
    clock, expired, ages = made()
    ages.add("a")
    clock.advance_to(10)
    ages.add("b")
    ages.add("c")
    assert ages.sweep(1_004) == 0
    assert ages.sweep(1_005) == 1
    assert ages.items() == ["b", "c"]
    assert ages.sweep(5_000) == 2
    assert expired == ["a", "b", "c"]
    assert ages.sweep(9_000) == 0


def test_a_removed_entry_does_not_expire_and_can_be_removed_again() -> None:
    _, expired, ages = made()
    first, second = ages.add("a"), ages.add("b")
    assert NO_HANDLE not in (first, second)
    ages.remove(first)
    ages.remove(first)
    assert len(ages) == 1
    ages.sweep(2_000)
    ages.remove(second)
    assert expired == ["b"]


def test_one_item_may_stand_in_a_list_twice() -> None:
    _, expired, ages = made()
    handle = ages.add("a")
    ages.add("a")
    ages.remove(handle)
    ages.sweep(2_000)
    assert expired == ["a"]


def test_what_an_expiry_removes_does_not_expire_in_the_same_sweep() -> None:
    clock = VirtualClock()
    handles: dict[str, int] = {}
    expired: list[str] = []

    def on_expired(item: str) -> None:
        expired.append(item)
        ages.remove(handles["b"])

    ages: AgeList[str] = AgeList(clock, LIMIT_NS, on_expired)
    handles = {item: ages.add(item) for item in "abc"}
    assert ages.sweep(LIMIT_NS) == 2
    assert expired == ["a", "c"]


def test_an_expiry_may_add_its_item_again() -> None:
    clock = VirtualClock()
    ages: AgeList[str] = AgeList(clock, LIMIT_NS, lambda item: ages.add(item))
    ages.add("a")
    clock.advance_to(LIMIT_NS)
    assert ages.sweep(LIMIT_NS) == 1
    assert ages.sweep(LIMIT_NS) == 0
    assert ages.sweep(2 * LIMIT_NS) == 1
    assert ages.items() == ["a"]


def test_a_failing_expiry_is_logged_and_does_not_keep_others_from_theirs(caplog: pytest.LogCaptureFixture) -> None:
    expired: list[str] = []

    def on_expired(item: str) -> None:
        if item == "a":
            raise RuntimeError("a fault")
        expired.append(item)

    ages: AgeList[str] = AgeList(VirtualClock(), LIMIT_NS, on_expired)
    ages.add("a")
    ages.add("b")
    with caplog.at_level(logging.ERROR):
        assert ages.sweep(LIMIT_NS) == 2
    assert expired == ["b"]
    assert [record.message for record in caplog.records] == ["expiry_failed"]


@pytest.mark.parametrize("limit_ns", [0, -1])
def test_a_limit_that_is_no_time_is_refused(limit_ns: int) -> None:
    with pytest.raises(ValueError, match="limit_ns must be positive"):
        AgeList(VirtualClock(), limit_ns, print)


def test_the_ticker_sweeps_in_order_of_registration_until_it_is_stopped() -> None:
    loop, clock = Timers(), VirtualClock(7)
    ticker = Ticker(clock, loop)  # type: ignore[arg-type]
    swept: list[tuple[str, int]] = []
    ticker.register(lambda now_ns: swept.append(("a", now_ns)))
    ticker.register(lambda now_ns: swept.append(("b", now_ns)))
    ticker.start()
    assert ticker.is_running
    loop.fire()
    clock.advance_to(9)
    loop.fire()
    assert swept == [("a", 7), ("b", 7), ("a", 9), ("b", 9)]
    ticker.stop()
    ticker.stop()
    assert not ticker.is_running
    assert loop.due == []
    ticker.start()
    assert len(loop.due) == 1


def test_a_failing_sweep_is_logged_and_the_tick_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    loop = Timers()
    ticker = Ticker(VirtualClock(3), loop)  # type: ignore[arg-type]
    swept: list[int] = []

    def fail(now_ns: int) -> None:
        raise RuntimeError("a fault")

    ticker.register(fail)
    ticker.register(swept.append)
    ticker.start()
    with caplog.at_level(logging.ERROR):
        loop.fire()
        loop.fire()
    assert swept == [3, 3]
    assert [record.message for record in caplog.records] == ["tick_failed"] * 2
