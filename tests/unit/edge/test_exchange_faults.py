"""Bugs of ours behind any door end one request alone, and finished requests leave nothing behind."""

from __future__ import annotations

import gc
import json
import logging
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from iop_fast.edge.exchange import Exchange, State
from iop_fast.errors import Failure
from iop_fast.wire.runtime_pb2 import RunEnd
from tests.unit.edge.exchange_world import JSON_HEAD, OK, SSE_HEAD, Call, ExchangeWorld, assert_error
from tests.unit.edge.worlds import OpenGate

DONE_EVENT = b"data: [DONE]\n\n"


def test_a_bug_in_a_callback_ends_that_request_with_a_500(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError("scripted")

    with ExchangeWorld(provider_pool={"max_queue": 5}) as world:
        monkeypatch.setattr("iop_fast.edge.exchange.prepare_run", fail)
        call = world.post()
        assert_error(call, 500, "internal")
        assert "scripted" not in call.downstream.body.decode()
        assert world.in_flight == 0
        monkeypatch.undo()
        running, waiting = world.post(), world.post()
        monkeypatch.setattr("iop_fast.edge.exchange.passed_on", fail)
        world.link.answer(world.link.last, JSON_HEAD, b"{}")
        assert_error(running, 500, "internal")
        # It is stopped, and its slot is held until the Node says so.
        assert running.exchange.state is State.CANCELLING
        assert waiting.exchange.state is State.QUEUED
        monkeypatch.undo()
        world.link.answer(world.link.last, status=RunEnd.CANCELLED)
        assert waiting.exchange.state is State.DISPATCHED
        assert [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR] == [
            "exchange_failed",
            "exchange_failed",
        ]
        assert world.edge.counters["broken"] == 2
        assert world.edge.counters["internal"] == 2


def scripted_bug(*_: Any, **__: Any) -> None:
    raise ZeroDivisionError("scripted")


def break_body(world: ExchangeWorld, patch: pytest.MonkeyPatch) -> Call:
    call = world.open()
    call.receiver.on_body(scripted_bug)  # type: ignore[arg-type]
    return call


def break_body_complete(world: ExchangeWorld, patch: pytest.MonkeyPatch) -> Call:
    patch.setattr("iop_fast.edge.exchange.needs_of", scripted_bug)
    return world.post()


def break_client_gone(world: ExchangeWorld, patch: pytest.MonkeyPatch) -> Call:
    world.post()
    call = world.post()
    patch.setattr(OpenGate, "cancel", scripted_bug)
    call.leave()  # its waiter stays behind: what it is granted comes back
    return call


def break_writable(world: ExchangeWorld, patch: pytest.MonkeyPatch) -> Call:
    call = world.post()
    call.downstream.is_writable = False
    world.link.answer(1, SSE_HEAD, bytes(200_000))
    call.downstream.is_writable = True
    patch.setattr(world.link, "grant", scripted_bug)
    call.receiver.on_writable()
    return call


def break_evicted(world: ExchangeWorld, patch: pytest.MonkeyPatch) -> Call:
    patch.setattr(OpenGate, "retry_after_s", scripted_bug)
    return [world.post() for _ in range(3)][-1]


def break_window(world: ExchangeWorld, patch: pytest.MonkeyPatch) -> Call:
    call = world.post(json.dumps({"model": "m", "x": "y" * 400_000}).encode())
    patch.setattr(world.link, "send_body", scripted_bug)
    world.link.runs[1].on_window(1000)
    return call


def break_link_lost(world: ExchangeWorld, patch: pytest.MonkeyPatch) -> Call:
    world.link.sends_at_once = False
    call = world.post()
    patch.setattr(OpenGate, "readmit", scripted_bug)
    world.link.lose()
    return call


@pytest.mark.parametrize(
    "break_it",
    [
        break_body,
        break_body_complete,
        break_client_gone,
        break_writable,
        break_evicted,
        break_window,
        break_link_lost,
    ],
)
def test_a_bug_behind_any_door_ends_that_request_alone(
    break_it: Callable[[ExchangeWorld, pytest.MonkeyPatch], Call],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with ExchangeWorld(provider_pool={"max_queue": 1}) as world:
        with monkeypatch.context() as patch:
            call = break_it(world, patch)
        if call.exchange.state is State.CANCELLING:
            world.link.answer(1, status=RunEnd.CANCELLED)
        assert call.exchange.is_done
        assert call.exchange.outcome == ("client_gone" if call.downstream.is_gone else "internal")
        if call.downstream.sends:
            assert call.downstream.status in (200, 500)
            assert call.downstream.is_aborted or call.downstream.is_ended
        assert "exchange_failed" in caplog.text
        assert world.edge.counters["broken"] == 1
        if "n1" not in world.links:
            world.connect()
        while world.link.run_ids:
            world.link.answer(world.link.run_ids[0], JSON_HEAD, end=OK)
        del world.edge.counters["broken"]
        world.assert_idle()
        assert world.post().exchange.state is State.DISPATCHED


def test_a_bug_while_ending_still_gives_everything_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("scripted")

    with ExchangeWorld() as world:
        call = world.post()
        monkeypatch.setattr("iop_fast.edge.exchange.passed_on", fail)
        monkeypatch.setattr("iop_fast.edge.reply.answers.error_answer", fail)
        world.link.answer(1, JSON_HEAD, b"{}")
        assert call.exchange.is_done
        assert call.exchange.outcome == "internal"
        assert world.in_flight == 0
        assert world.edge.budget.used == 0
        assert world.link.forgotten == [1]
        assert "exchange_failed_again" in caplog.text


def test_an_illegal_move_names_event_and_state() -> None:
    with ExchangeWorld() as world:
        call = world.post()
        call.leave()
        world.link.answer(1, status=RunEnd.CANCELLED)
        with pytest.raises(RuntimeError, match=r"DONE m>: no move on FINISHED"):
            call.exchange.finish("again")


def finished_ways(world: ExchangeWorld) -> list[Exchange]:
    """Exchanges that ended in each of the usual ways."""
    calls = []
    calls.append(world.post())
    world.link.answer(world.link.last, SSE_HEAD, b"data: 1\n\n")
    world.link.answer(world.link.last, None, DONE_EVENT, end=OK)
    calls.append(world.post(b"[]"))
    calls.append(world.post())
    world.link.answer(world.link.last, status=RunEnd.UPSTREAM_ERROR)
    calls.append(world.post())
    calls[-1].leave()
    world.link.answer(world.link.last, status=RunEnd.CANCELLED)
    calls.append(world.post())
    waiting = world.post()
    waiting.leave()
    calls.append(waiting)
    calls[-2].leave()
    world.link.answer(world.link.last, status=RunEnd.OK)
    return [call.exchange for call in calls]


def test_a_finished_request_is_part_of_no_cycle() -> None:
    gc.collect()
    gc.disable()
    try:
        with ExchangeWorld() as world:
            world.link.openings.clear()
            exchanges = finished_ways(world)
            assert all(exchange.is_done for exchange in exchanges)
            markers = []
            for exchange in exchanges:
                marker = Marker()
                exchange.clamped = [marker]  # type: ignore[list-item]
                markers.append(weakref.ref(marker))
            del exchange, exchanges, marker
            assert [marker() for marker in markers] == [None] * len(markers)
    finally:
        gc.enable()


class Marker:
    """Something that can be seen to die."""


def test_outcomes_are_counted() -> None:
    with ExchangeWorld() as world:
        finished_ways(world)
        counters = world.edge.counters
        assert (counters["ok"], counters["invalid_request"], counters["upstream_error"]) == (1, 1, 1)
        assert counters["client_gone"] == 3
        assert Failure.INTERNAL.reason in counters
