"""One set of providers replaces another while runs go on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from iop_fast.config.payload import NodePayload
from iop_fast.node.registry import RegistryError, key_of
from tests.unit.edge.worlds import VirtualLoop
from tests.unit.node.worlds import NodeWorld, names, payload, provider, settings


class FakeRun:
    """A run that notes being cut and leaves when told to."""

    def __init__(self) -> None:
        self.cuts: list[str] = []

    def cut(self, detail: str) -> None:
        self.cuts.append(detail)


@pytest.fixture
def world() -> Iterator[NodeWorld]:
    with VirtualLoop() as loop:
        yield NodeWorld(loop)


def enter(world: NodeWorld, provider_id: str = "p1") -> Any:
    """Start a run on a provider; returns what ends it."""
    target = world.router.route(provider_id)
    assert target is not None
    run = FakeRun()
    target.backend.enter(run)

    def leave() -> FakeRun:
        target.backend.leave(run)
        world.loop.settle()
        return run

    leave.run = run  # type: ignore[attr-defined]
    return leave


def test_an_equal_payload_replaces_nothing(world: NodeWorld) -> None:
    """B04: a reload of the same file keeps the very objects."""
    assert world.apply(payload(provider("p1"), provider("p2", "http://b")))
    before = world.router.current
    for _ in range(100):
        assert not world.apply(payload(provider("p1"), provider("p2", "http://b")))
    assert world.router.current is before
    assert len(world.adapters) == 2


def test_numbers_change_and_adapters_stay(world: NodeWorld) -> None:
    world.apply(payload(provider("p1")))
    (made,) = world.adapters
    world.apply(payload(provider("p1", capacity=1, priority=3, models=("other",), enabled=False), drain_limit_ms=5))
    assert world.adapters == [made]
    assert not made.is_closed
    assert world.router.current.providers["p1"].payload.capacity == 1
    assert world.router.retired_count == 0


def test_providers_with_equal_settings_share_one_adapter(world: NodeWorld) -> None:
    shared = settings("http://a", name="shared")
    world.apply(
        payload(provider("p1"), provider("p2"), provider("p3", settings=None, adapter="shared"), adapters=[shared])
    )
    assert len(world.adapters) == 1
    backends = {entry.backend for entry in world.router.current.providers.values()}
    assert len(backends) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"endpoint": "http://b"},
        {"endpoint_env": "E"},
        {"api_key_env": "K"},
        {"profile": "p"},
        {"options": (("a", "b"),)},
    ],
)
def test_each_setting_makes_another_adapter(changes: dict[str, Any]) -> None:
    assert key_of(
        "x", settings("http://a", **changes) if "endpoint" not in changes else settings("http://b")
    ) != key_of("x", settings("http://a"))
    assert key_of("y", settings("http://a")) != key_of("x", settings("http://a"))
    assert key_of("x", settings("http://a", name="n")) == key_of("x", settings("http://a"))


def test_an_idle_adapter_that_is_not_used_any_more_is_closed(world: NodeWorld) -> None:
    world.apply(payload(provider("p1"), provider("p2", "http://b")))
    world.apply(payload(provider("p1")))
    assert [made.is_closed for made in world.adapters] == [False, True]
    assert world.router.retired_count == 0
    assert world.router.route("p2") is None


def test_a_replaced_adapter_goes_on_until_its_last_run_has_ended(world: NodeWorld) -> None:
    world.apply(payload(provider("p1")))
    first, second = enter(world), enter(world)
    world.apply(payload(provider("p1", "http://b")))
    old, new = world.adapters
    assert world.router.retired_count == 1
    first()
    world.loop.run_for(3600)
    assert not old.is_closed
    assert second().cuts == []
    assert old.is_closed
    assert not new.is_closed
    assert world.router.retired_count == 0


def test_runs_left_past_the_drain_limit_are_cut(world: NodeWorld) -> None:
    world.apply(payload(provider("p1")))
    leave = enter(world)
    world.apply(payload(provider("p1", "http://b"), drain_limit_ms=2_000))
    world.loop.run_for(1.9)
    assert leave.run.cuts == []
    world.loop.run_for(0.2)
    assert leave.run.cuts == ["its provider was replaced 2000 ms ago"]
    assert not world.adapters[0].is_closed
    leave()
    assert world.adapters[0].is_closed


def test_a_run_on_an_adapter_that_stays_is_never_cut(world: NodeWorld) -> None:
    world.apply(payload(provider("p1"), provider("p2", "http://b")))
    leave = enter(world, "p1")
    world.apply(payload(provider("p1", capacity=1), drain_limit_ms=1))
    world.loop.run_for(10)
    assert leave().cuts == []


def test_a_third_replaced_set_waits_for_one_of_the_two_to_end(world: NodeWorld) -> None:
    world.apply(payload(provider("p1", "http://0")))
    ends = []
    for number in (1, 2):
        ends.append(enter(world))
        world.apply(payload(provider("p1", f"http://{number}")))
    ends.append(enter(world))
    waiting = [
        world.loop.create_task(world.router.apply(payload(provider("p1", f"http://{number}")))) for number in (3, 4)
    ]
    world.loop.settle()
    assert not any(task.done() for task in waiting)
    assert world.router.route("p1").payload.settings.endpoint == "http://2"  # type: ignore[union-attr]
    ends[1]()
    assert [task.done() for task in waiting] == [True, False]
    assert world.router.retired_count == 2
    ends[0]()
    assert [task.done() for task in waiting] == [True, True]
    assert world.router.route("p1").payload.settings.endpoint == "http://4"  # type: ignore[union-attr]
    ends[2]()
    assert world.router.retired_count == 0


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (payload(provider("p1"), provider("p1")), "p1 stands in the payload twice"),
        (payload(provider("p1", settings=None, adapter="none")), "names adapter 'none'"),
        (
            payload(provider("p1"), adapters=[settings(name="a"), settings(name="a")]),
            "adapter a stands in the payload twice",
        ),
    ],
)
def test_a_payload_that_is_wrong_as_a_whole_changes_nothing(world: NodeWorld, bad: NodePayload, why: str) -> None:
    world.apply(payload(provider("p0", "http://0")))
    before = world.router.current
    with pytest.raises(RegistryError, match=why):
        world.apply(bad)
    assert world.router.current is before
    assert not world.adapters[0].is_closed


def test_what_was_made_for_a_failed_apply_is_closed_again(world: NodeWorld) -> None:
    with pytest.raises(RegistryError):
        world.apply(payload(provider("p1"), provider("p2", settings=None, adapter="none")))
    assert [made.is_closed for made in world.adapters] == [True]


def test_broken_providers_leave_the_others_alone(world: NodeWorld) -> None:
    """B17: a variable that is unset breaks one provider, with the reason."""
    world.broken["http://b"] = "variable KEY is not set"
    world.apply(payload(provider("p1"), provider("p2", "http://b"), provider("p3", adapter_type="ollama")))
    assert names(world.router.current.states()) == {
        "p1": ("UP", ""),
        "p2": ("BROKEN", "variable KEY is not set"),
        "p3": ("BROKEN", "adapter type ollama is not part of this build"),
    }
    assert world.router.route("p1").upstream is not None  # type: ignore[union-attr]
    assert world.router.route("p2").upstream is None  # type: ignore[union-attr]


def test_health_is_told_of_providers_that_are_served_and_of_no_others(world: NodeWorld) -> None:
    told: list[dict[str, tuple[str, str]]] = []
    world.router.on_states = lambda states: told.append(dict(names(states)))
    world.apply(payload(provider("p1"), provider("p2"), provider("p3", "http://b")))
    old = world.adapter("http://a")
    old.health.unreachable("connection refused")
    refused = ("UNREACHABLE", "connection refused")
    assert told == [{"p1": refused, "p2": refused}]
    enter(world, "p1")
    world.apply(payload(provider("p3", "http://b")))
    old.health.reachable()
    assert len(told) == 1


def test_closing_closes_what_is_served_and_what_is_retired(world: NodeWorld) -> None:
    world.apply(payload(provider("p1"), provider("p2", "http://b")))
    leave = enter(world)
    world.apply(payload(provider("p2", "http://b"), drain_limit_ms=5_000))
    world.loop.run_until_complete(world.router.close())
    assert [made.is_closed for made in world.adapters] == [True, True]
    assert world.router.route("p2") is None
    assert leave.run.cuts == []
