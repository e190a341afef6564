"""The health rule: down at once, up after two seconds of holding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from iop_fast.edge.health import REASON_CHARS_MAX, UNREPORTED, ProviderHealth, Report, is_healthy
from iop_fast.wire import runtime_pb2 as pb
from tests.unit.edge.worlds import VirtualLoop

State = pb.ProviderState


def state(provider_id: str, value: int, reason: str = "") -> pb.ProviderState:
    return pb.ProviderState(provider_id=provider_id, state=value, reason=reason)  # type: ignore[arg-type]


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    with VirtualLoop() as virtual:
        yield virtual


@pytest.fixture
def changes() -> list[tuple[float, Mapping[str, bool]]]:
    return []


@pytest.fixture
def health(loop: VirtualLoop, changes: list[tuple[float, Mapping[str, bool]]]) -> ProviderHealth:
    start = loop.time()
    known = frozenset("abc")
    return ProviderHealth(
        loop.clock, loop, known, lambda change: changes.append((round(loop.time() - start, 3), change))
    )


@pytest.mark.parametrize(
    ("file_health", "is_up", "healthy"),
    [
        ("auto", True, True),
        ("auto", False, False),
        ("up", False, True),
        ("up", True, True),
        ("down", True, False),
        ("down", False, False),
    ],
)
def test_the_files_word_stands_before_the_report(file_health: str, is_up: bool, healthy: bool) -> None:
    assert is_healthy(file_health, is_up) is healthy


def test_the_ready_ack_counts_at_once_and_silently(
    loop: VirtualLoop, health: ProviderHealth, changes: list[object]
) -> None:
    health.start([state("a", State.UP), state("b", State.UNREACHABLE, "connection refused")])
    assert health.is_up("a")
    assert not health.is_up("b")
    assert not health.is_up("never heard of")
    assert health.last_report("b") == Report("unreachable", "connection refused")
    assert health.last_report("never heard of") == UNREPORTED
    loop.run_for(10)
    assert changes == []


@pytest.mark.parametrize("value", [State.LOADING, State.UNREACHABLE, State.BROKEN, State.STATE_UNSPECIFIED, 99])
def test_down_counts_at_once(loop: VirtualLoop, health: ProviderHealth, changes: list[object], value: int) -> None:
    health.start([state("a", State.UP), state("b", State.UP)])
    health.report([state("a", value)])
    assert changes == [(0.0, {"a": False})]
    assert not health.is_up("a")
    assert health.is_up("b")


def test_up_counts_after_holding(loop: VirtualLoop, health: ProviderHealth, changes: list[object]) -> None:
    health.start([state("a", State.UNREACHABLE)])
    health.report([state("a", State.UP)])
    loop.run_for(1.9)
    assert changes == []
    assert health.last_report("a").state == "up"
    loop.run_for(0.2)
    assert changes == [(2.0, {"a": True})]
    assert health.is_up("a")


def test_a_fall_while_holding_starts_the_wait_again(
    loop: VirtualLoop, health: ProviderHealth, changes: list[object]
) -> None:
    health.start([state("a", State.LOADING)])
    for _ in range(5):
        health.report([state("a", State.UP)])
        loop.run_for(1.5)
        health.report([state("a", State.UNREACHABLE)])
    assert changes == []
    health.report([state("a", State.UP)])
    loop.run_for(3)
    assert changes == [(9.5, {"a": True})]


def test_repeated_reports_do_not_prolong_the_wait(
    loop: VirtualLoop, health: ProviderHealth, changes: list[object]
) -> None:
    health.start([])
    for _ in range(4):
        health.report([state("a", State.UP)])
        loop.run_for(0.6)
    assert changes == [(2.0, {"a": True})]


def test_several_rise_each_in_its_own_time(loop: VirtualLoop, health: ProviderHealth, changes: list[object]) -> None:
    health.start([])
    health.report([state("a", State.UP), state("b", State.UP)])
    loop.run_for(1)
    health.report([state("c", State.UP)])
    health.report([state("a", State.BROKEN)])
    loop.run_for(5)
    assert changes == [(2.0, {"b": True}), (3.0, {"c": True})]


def test_stop_forgets_what_rises(loop: VirtualLoop, health: ProviderHealth, changes: list[object]) -> None:
    health.start([])
    health.report([state("a", State.UP)])
    health.stop()
    health.stop()
    loop.run_for(5)
    assert changes == []


def test_what_is_said_about_others_is_not_kept(
    loop: VirtualLoop, health: ProviderHealth, changes: list[object]
) -> None:
    health.start([state(f"x{number}", State.UP) for number in range(10)])
    health.report([state(f"y{number}", State.UP) for number in range(10)])
    loop.run_for(5)
    assert changes == []
    assert health.last_report("x1") == UNREPORTED
    assert not health.is_up("x1")


def test_a_long_reason_is_cut(health: ProviderHealth) -> None:
    health.report([state("a", State.BROKEN, "x" * 100_000)])
    assert len(health.last_report("a").reason) == REASON_CHARS_MAX
