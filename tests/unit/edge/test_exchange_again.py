"""Requests that no provider saw are admitted again: once, at their old place, with the first failure kept."""

from __future__ import annotations

from typing import Any

import pytest

from iop_fast.edge.exchange import State
from iop_fast.edge.outcomes import UNSEEN_ENDS
from iop_fast.edge.runtime import Runtime
from iop_fast.wire.runtime_pb2 import RunEnd
from tests.unit.edge.exchange_world import JSON_HEAD, OK, TWO_NODES, ExchangeWorld, assert_error, provider_spec


@pytest.mark.parametrize("status", sorted(UNSEEN_ENDS))
def test_a_request_that_no_provider_saw_goes_to_another_one(status: int) -> None:
    with ExchangeWorld(TWO_NODES) as world:
        call = world.post()
        content = bytes(world.links["n1"].bodies[1])
        world.links["n1"].answer(1, status=status)
        assert call.exchange.state is State.DISPATCHED
        assert bytes(world.links["n2"].bodies[2]) == content
        world.links["n2"].answer(2, JSON_HEAD, b"{}", end=OK)
        assert call.downstream.field(b"x-iop-provider") == b"p2"
        assert world.edge.counters["readmitted"] == 1
        world.assert_idle()


def test_the_forwarded_token_goes_to_the_second_provider_too_and_nothing_else_does() -> None:
    """B17: also after a retry on another one."""
    with ExchangeWorld(TWO_NODES, openai={"provider_auth": {"enabled": True}}) as world:
        world.post(headers=[(b"authorization", b"Bearer gateway"), (b"x-iop-provider-authorization", b"tok")])
        world.links["n1"].answer(1, status=RunEnd.CONNECT_FAILED)
        fields = dict(world.links["n2"].openings[2].headers)
        assert fields[b"authorization"] == b"Bearer tok"
        assert set(fields) == {b"authorization", b"x-request-id"}
        assert world.links["n2"].openings[2].caller_authorized
        world.links["n2"].answer(2, JSON_HEAD, end=OK)


def test_a_node_is_told_whether_the_caller_s_token_is_there() -> None:
    """B17: under a name of its own the Node could not see it, and would add the provider's key."""
    rule = {"enabled": True, "required": False, "target_header": "X-Vendor-Token", "scheme": ""}
    with ExchangeWorld(openai={"provider_auth": rule}) as world:
        for headers, is_there in (([(b"x-iop-provider-authorization", b"tok")], True), ([], False)):
            world.post(headers=headers)
            opening = world.link.openings[world.link.last]
            assert ((b"x-vendor-token", b"tok") in opening.headers) is is_there
            assert opening.caller_authorized is is_there
            world.link.answer(world.link.last, JSON_HEAD, end=OK)


def test_a_request_is_admitted_again_once() -> None:
    with ExchangeWorld([*TWO_NODES, provider_spec("n1", "p3")]) as world:
        call = world.post()
        world.links["n1"].answer(1, status=RunEnd.CONNECT_FAILED)
        world.links["n2"].answer(2, status=RunEnd.CONNECT_FAILED)
        assert_error(call, 502, "upstream_error")
        assert world.edge.counters["readmitted"] == 1
        world.assert_idle()


def test_a_session_lost_before_the_run_was_sent_is_no_end() -> None:
    with ExchangeWorld(TWO_NODES) as world:
        world.links["n1"].sends_at_once = False
        call = world.post()
        world.links["n1"].lose()
        assert list(world.links["n2"].openings) == [2]
        world.links["n2"].answer(2, JSON_HEAD, b"{}", end=OK)
        assert call.downstream.body == b"{}"
        world.connect("n1")
        world.assert_idle()


def test_without_another_candidate_the_first_failure_is_the_answer() -> None:
    with ExchangeWorld() as world:
        call = world.post()
        world.link.answer(1, status=RunEnd.CONNECT_FAILED)
        assert_error(call, 502, "upstream_error")
        assert "reached" in call.downstream.error["message"]
        world.assert_idle()


@pytest.mark.parametrize("is_told", [True, False])
def test_an_error_names_the_provider_that_had_the_request(is_told: bool) -> None:
    """The one that had it last. What no provider got names none, and nothing does where the route is not told."""
    with ExchangeWorld(TWO_NODES, openai={"expose_route": is_told}) as world:
        call = world.post()
        world.links["n1"].answer(1, status=RunEnd.CONNECT_FAILED)
        world.links["n2"].answer(2, status=RunEnd.UPSTREAM_ERROR)
        assert_error(call, 502, "upstream_error")
        named = [call.downstream.field(name) for name in (b"x-iop-provider", b"x-iop-node", b"x-iop-queue-ms")]
        assert named == ([b"p2", b"n2", b"0"] if is_told else [None] * 3)
        call = world.post(b'{"model":"nope"}')
        assert call.downstream.field(b"x-iop-provider") is None
        world.assert_idle()


def test_a_request_admitted_again_waits_for_the_other_provider_and_keeps_its_place() -> None:
    with ExchangeWorld(TWO_NODES, provider_pool={"queue_timeout_ms": 2000, "max_queue": 2}) as world:
        first, second, third = world.post(), world.post(), world.post()
        assert [call.exchange.state for call in (first, second, third)] == [
            State.DISPATCHED,
            State.DISPATCHED,
            State.QUEUED,
        ]
        world.links["n1"].answer(1, status=RunEnd.CONNECT_FAILED)
        # p1 came free for the third; the first waits for p2, before anybody who came later.
        assert third.exchange.state is State.DISPATCHED
        assert first.exchange.state is State.QUEUED
        world.links["n2"].answer(2, JSON_HEAD, end=OK)
        assert second.exchange.is_done
        assert first.exchange.state is State.DISPATCHED
        world.links["n2"].answer(4, JSON_HEAD, end=OK)
        assert first.downstream.status == 200
        third.leave()


@pytest.mark.parametrize("cause", ["timeout", "unavailable", "draining", "client"])
def test_a_request_admitted_again_that_finds_no_provider_ends_with_the_first_failure(cause: str) -> None:
    with ExchangeWorld(TWO_NODES, provider_pool={"queue_timeout_ms": 2000}) as world:
        first, second = world.post(), world.post()
        world.links["n1"].answer(1, status=RunEnd.CONNECT_FAILED)
        assert first.exchange.state is State.QUEUED
        if cause == "timeout":
            world.loop.run_for(2.1)
        elif cause == "unavailable":
            world.links["n2"].lose()
        elif cause == "draining":
            world.edge.start_draining()
        else:
            first.leave()
        if cause == "client":
            assert first.downstream.sends == []
            assert first.exchange.outcome == "client_gone"
        elif cause == "draining":
            assert_error(first, 503, "draining")
        else:
            assert_error(first, 502, "upstream_error")
        second.leave()


def test_nobody_is_admitted_again_to_wait_in_an_edge_that_shuts_down() -> None:
    with ExchangeWorld(TWO_NODES) as world:
        first, second = world.post(), world.post()
        world.edge.start_draining()
        world.links["n1"].answer(1, status=RunEnd.CONNECT_FAILED)
        assert_error(first, 502, "upstream_error")
        assert world.gate.waiting == 0
        world.links["n2"].answer(2, JSON_HEAD, b"{}", end=OK)
        assert second.downstream.status == 200
        world.assert_idle()


def test_an_edge_that_shuts_down_still_uses_another_free_provider() -> None:
    with ExchangeWorld(TWO_NODES) as world:
        call = world.post()
        world.edge.start_draining()
        world.links["n1"].answer(1, status=RunEnd.CONNECT_FAILED)
        assert call.exchange.state is State.DISPATCHED
        world.links["n2"].answer(2, JSON_HEAD, b"{}", end=OK)
        assert call.downstream.status == 200
        world.assert_idle()


def test_a_plan_that_admission_refuses_leaves_the_configuration_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with ExchangeWorld() as world:
        before = world.edge.runtime
        monkeypatch.setattr(Runtime, "plan", lambda self, is_reported_up: "no plan")
        with pytest.raises((TypeError, ValueError, AttributeError)):
            world.refresh([provider_spec("n1", "p1")], {"m": {"p1": "renamed"}})
        assert world.edge.runtime is before
        assert world.post().exchange.state is State.DISPATCHED


def test_what_the_provider_took_is_not_sent_again() -> None:
    with ExchangeWorld(TWO_NODES) as world:
        call = world.post()
        world.links["n1"].answer(1, taken=True)
        world.links["n1"].answer(1, status=RunEnd.CONNECT_FAILED)
        assert_error(call, 502, "upstream_error")
        assert world.links["n2"].openings == {}
        world.assert_idle()


def test_a_lease_lost_on_its_way_to_the_owner_is_admitted_again() -> None:
    """The Node goes in the very step that grants: the owner gets a lease that is lost already."""
    with ExchangeWorld(TWO_NODES) as world:
        calls = [world.post() for _ in range(4)]
        lost: list[bool] = []
        original = world.links["n1"].open

        def open_and_lose(run_id: int, run: Any, request: Any) -> None:
            original(run_id, run, request)
            if not lost:
                lost.append(True)
                world.links["n2"].lose()

        world.links["n1"].open = open_and_lose  # type: ignore[method-assign]
        specs = [provider_spec("n1", "p1", capacity=2), provider_spec("n2", "p2", capacity=2)]
        world.refresh(specs, {"m": {"p1": "s", "p2": "s"}})
        assert lost
        # The third runs on p1, the fourth's grant on p2 was lost and it waits for p1; the second's run was sent.
        assert [call.exchange.state for call in calls] == [State.DISPATCHED, State.DONE, State.DISPATCHED, State.QUEUED]
        assert_error(calls[1], 502, "upstream_error")
        assert world.edge.counters["readmitted"] == 1
        for call in calls:
            call.leave()
