"""Clients that leave: what becomes of their requests, their runs and their slots."""

from __future__ import annotations

from typing import Any

import pytest

from iop_fast.edge.exchange import State
from iop_fast.wire.runtime_pb2 import RunEnd
from tests.unit.edge.exchange_world import JSON_HEAD, OK, SSE_HEAD, ExchangeWorld, provider_spec


def test_a_client_that_leaves_while_sending_leaves_nothing() -> None:
    with ExchangeWorld() as world:
        call = world.open(length=100)
        call.receiver.on_body(b'{"model"')
        call.leave()
        call.leave()
        assert call.exchange.outcome == "client_gone"
        call.receiver.on_body(b"x")
        call.receiver.on_body_complete()
        assert call.downstream.sends == []
        world.assert_idle()


def test_a_client_that_leaves_the_queue_gives_its_place_up() -> None:
    with ExchangeWorld() as world:
        running, first, second = world.post(), world.post(), world.post()
        first.leave()
        assert first.exchange.is_done
        world.link.answer(1, JSON_HEAD, end=OK)
        assert running.exchange.is_done
        assert second.exchange.state is State.DISPATCHED
        assert first.downstream.sends == []


def test_a_client_that_leaves_before_the_run_was_sent_takes_it_back() -> None:
    with ExchangeWorld() as world:
        world.link.sends_at_once = False
        call = world.post()
        call.leave()
        assert world.link.withdrawn == [1]
        assert world.link.cancelled == []
        assert call.exchange.outcome == "client_gone"
        world.assert_idle()


@pytest.mark.parametrize("is_streaming", [False, True])
def test_the_slot_is_held_until_the_node_confirms_the_cancel(is_streaming: bool) -> None:
    """B01 (a) and (b): neither lost nor given back while the provider still works."""
    with ExchangeWorld() as world:
        call, waiting = world.post(), world.post()
        if is_streaming:
            world.link.answer(1, SSE_HEAD, b"data: 1\n\n")
        call.leave()
        assert world.link.cancelled == [1]
        assert call.exchange.state is State.CANCELLING
        assert (world.in_flight, waiting.exchange.state) == (1, State.QUEUED)
        world.link.answer(1, None if is_streaming else SSE_HEAD, b"data: late\n\n")
        assert world.in_flight == 1
        world.link.answer(1, status=RunEnd.CANCELLED)
        assert call.exchange.outcome == "client_gone"
        assert waiting.exchange.state is State.DISPATCHED
        world.link.answer(2, JSON_HEAD, end=OK)
        world.assert_idle()
        assert world.edge.counters["released_unconfirmed"] == 0


def test_a_cancel_that_nobody_confirms_holds_the_slot_for_five_seconds(caplog: pytest.LogCaptureFixture) -> None:
    with ExchangeWorld() as world:
        call, waiting = world.post(), world.post()
        call.leave()
        world.loop.run_for(4.9)
        world.edge.cancelling.sweep(world.loop.clock.now_ns())
        assert call.exchange.state is State.CANCELLING
        world.loop.run_for(0.2)
        world.edge.cancelling.sweep(world.loop.clock.now_ns())
        assert call.exchange.is_done
        assert world.link.forgotten == [1]
        assert waiting.exchange.state is State.DISPATCHED
        assert world.edge.counters["released_unconfirmed"] == 1
        assert "cancel_unconfirmed" in caplog.text
        # What still comes of it changes nothing.
        call.exchange.on_answer(True, SSE_HEAD, [b"x"], OK)
        call.exchange.on_link_lost()
        call.exchange.on_confirm_expired()
        assert world.in_flight == 1
        waiting.leave()
        world.link.answer(2, status=RunEnd.CANCELLED)
        world.assert_idle()


def test_cut_streams_and_early_leavers_never_use_a_slot_up() -> None:
    """B01: 200 rounds of cuts before, at and after the first byte; then a request goes through without waiting."""
    with ExchangeWorld([provider_spec("n1", "p1", capacity=2)]) as world:
        for number in range(200):
            calls = [world.post() for _ in range(3)]
            runs = world.link.run_ids
            assert len(runs) == 2
            world.link.answer(runs[0], SSE_HEAD, b"data: 1\n\n")
            for call in calls if number % 2 else reversed(calls):
                call.leave()
            for run in list(world.link.run_ids):
                world.link.answer(run, status=RunEnd.CANCELLED if number % 3 else RunEnd.OK)
            world.assert_idle()
        call = world.post()
        world.link.answer(world.link.last, JSON_HEAD, end=OK)
        assert call.downstream.field(b"x-iop-queue-ms") == b"0"
        assert world.edge.counters["client_gone"] == 600


def test_a_grant_that_crosses_the_client_s_leaving_is_given_back() -> None:
    with ExchangeWorld() as world:
        running, gone, waiting = world.post(), world.post(), world.post()
        gone.downstream.is_gone = True  # known to the connection, not told yet
        world.link.answer(1, JSON_HEAD, end=OK)
        assert running.exchange.is_done
        assert gone.exchange.outcome == "client_gone"
        assert gone.exchange.is_done
        gone.receiver.on_client_gone()
        assert waiting.exchange.state is State.DISPATCHED
        assert list(world.link.openings) == [1, 3]


def test_a_client_that_leaves_while_another_s_grant_is_delivered_is_served_no_more() -> None:
    """The waiter has ended in the core and its call is on the way: the slot comes back by itself."""
    with ExchangeWorld([provider_spec("n1", "p1", capacity=2)]) as world:
        first, second, third, fourth, last = (world.post() for _ in range(5))
        assert [call.exchange.state for call in (third, fourth, last)] == [State.QUEUED] * 3
        # Both slots come free in one step; the third's answer makes the fourth's client leave before its own call.
        opened: list[int] = []
        original = world.link.open

        def open_and_leave(run_id: int, run: Any, request: Any) -> None:
            original(run_id, run, request)
            opened.append(run_id)
            if len(opened) == 1:
                fourth.leave()

        world.link.open = open_and_leave  # type: ignore[method-assign]
        world.refresh([provider_spec("n1", "p1", capacity=4)], {"m": {"p1": "s"}})
        assert third.exchange.state is State.DISPATCHED
        assert fourth.exchange.outcome == "client_gone"
        assert last.exchange.state is State.DISPATCHED
        assert world.in_flight == 4
        for call in (first, second, third, last):
            call.leave()


def test_a_client_that_leaves_during_our_own_write_ends_once() -> None:
    with ExchangeWorld() as world:
        call = world.post()
        call.downstream.on_send = call.receiver.on_client_gone
        world.link.answer(1, JSON_HEAD, b"{}", end=OK)
        assert call.exchange.outcome == "ok"
        call = world.post()
        call.downstream.on_send = call.receiver.on_client_gone
        world.link.answer(2, SSE_HEAD, b"data: 1\n\n")
        assert call.exchange.state is State.CANCELLING
        world.link.answer(2, status=RunEnd.CANCELLED)
        call = world.post(b"[]")
        world.assert_idle()


def test_the_node_lost_while_cancelling_ends_the_request() -> None:
    with ExchangeWorld() as world:
        call = world.post()
        call.leave()
        world.link.lose()
        assert call.exchange.outcome == "client_gone"
        world.assert_idle()
