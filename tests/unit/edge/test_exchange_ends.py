"""How a request ends when not everything goes well: refusals, failures, clients that leave, Nodes that are lost."""

from __future__ import annotations

import gc
import json
import logging
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from iop_fast.edge.exchange import Exchange, State
from iop_fast.edge.outcomes import ENDS, UNSEEN_ENDS
from iop_fast.edge.runtime import Runtime
from iop_fast.errors import Failure
from iop_fast.logs import JsonFormatter
from iop_fast.seams import End, Head
from iop_fast.wire.runtime_pb2 import RunEnd
from tests.unit.edge.exchange_world import JSON_HEAD, OK, SSE_HEAD, Call, ExchangeWorld, provider_spec
from tests.unit.edge.worlds import OpenGate

TWO_NODES = [provider_spec("n1", "p1"), provider_spec("n2", "p2")]
DONE_EVENT = b"data: [DONE]\n\n"


def assert_error(call: Call, status: int, code: str) -> None:
    """The whole answer is that error."""
    downstream = call.downstream
    assert (downstream.status, downstream.error["code"]) == (status, code)
    assert downstream.is_ended
    assert downstream.field(b"x-request-id") is not None
    assert downstream.field(b"content-length") == b"%d" % len(downstream.body)


# ---------------------------------------------------------------------------------------------------------------------
# Before dispatch


@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [
        (b'{"model":"nope"}', 404, "model_not_found", "model"),
        (b'{"model":"m"', 400, "invalid_request", None),
        (b'{"model":"m"}}', 400, "invalid_request", None),
        (b"[1,2]", 400, "invalid_request", None),
        (b"", 400, "invalid_request", None),
        (b"\xef\xbb\xbf{}", 400, "invalid_request", None),
        (b"{}", 400, "invalid_request", "model"),
        (b'{"model":null}', 400, "invalid_request", "model"),
        (b'{"model":1}', 400, "invalid_request", "model"),
        (b'{"model":{}}', 400, "invalid_request", "model"),
        (b'{"model":"' + b"x" * 1_000_000 + b'"}', 400, "invalid_request", "model"),
        (b'{"model":"m","model":"m"}', 400, "invalid_request", "model"),
        (b'{"model":"m","\\u006dodel":"m"}', 400, "invalid_request", "model"),
        (b'{"model":"m","x":1,"x":2}', 400, "invalid_request", "x"),
        (b'{"model":"m","stream":"yes"}', 400, "invalid_request", "stream"),
        (b'{"model":"m","x":"\xff"}', 400, "invalid_request", None),
        (b'{"model":"m","x":' + b"[" * 5000 + b"]" * 5000 + b"}", 400, "invalid_request", None),
    ],
)
def test_a_bad_request_is_refused_and_leaves_nothing(body: bytes, status: int, code: str, param: str | None) -> None:
    """B02, B23: each kind has its own answer; no slot and no place was ever taken; a good request goes through."""
    with ExchangeWorld() as world:
        for _ in range(50 if len(body) < 10_000 else 2):
            call = world.open(length=len(body))
            call.receiver.on_body(body)
            call.receiver.on_body_complete()
            assert_error(call, status, code)
            if param is not None:
                assert call.downstream.error["param"] == param
            world.assert_idle()
        assert world.gate.counters()["submitted"] == 0
        assert world.post().exchange.state is State.DISPATCHED


def test_a_fault_is_answered_as_soon_as_it_is_read() -> None:
    with ExchangeWorld() as world:
        call = world.open(length=1000)
        call.receiver.on_body(b'{"model":"m","model"')
        assert call.exchange.is_done
        assert call.downstream.status == 400
        call.receiver.on_body(b":1}")
        call.receiver.on_body_complete()
        call.leave()
        assert len(call.downstream.sends) == 1
        world.assert_idle()


def test_an_unknown_model_is_told_its_near_names_and_not_at_length() -> None:
    with ExchangeWorld(models={"qwen3-8b": {"p1": "s"}, "llama": {"p1": "s"}}) as world:
        call = world.post(model="qwen3-8")
        assert call.downstream.error["message"] == "the model 'qwen3-8' does not exist, did you mean 'qwen3-8b'?"
        call = world.post(model="x" * 1000)
        assert len(call.downstream.error["message"]) < 200


def test_what_no_provider_of_the_model_can_is_named() -> None:
    with ExchangeWorld([provider_spec("n1", "p1", adapter_type="ollama", type="ollama")]) as world:
        call = world.post(path=b"/v1/responses")
        assert_error(call, 400, "unsupported_by_model")
        assert "/v1/responses" in call.downstream.error["message"]
        world.assert_idle()


def test_a_chunked_body_above_the_limit_is_a_413() -> None:
    with ExchangeWorld(openai={"limits": {"body_bytes": 2048}}) as world:
        call = world.open()
        call.receiver.on_body(b'{"x":"' + b"y" * 2000)
        call.receiver.on_body(b"y" * 100)
        assert_error(call, 413, "request_too_large")
        assert call.downstream.field(b"connection") == b"close"
        world.assert_idle()


def test_a_body_that_the_budget_has_no_room_for_is_a_503() -> None:
    mib = 1024 * 1024
    with ExchangeWorld(openai={"limits": {"buffered_bytes": mib}}) as world:
        first = world.open(length=mib)
        second = world.open(length=10)
        assert_error(second, 503, "overloaded")
        assert second.downstream.field(b"connection") == b"close"
        third = world.open()
        third.receiver.on_body(b"{")
        assert_error(third, 503, "overloaded")
        first.leave()
        world.assert_idle()
        assert world.edge.counters["overloaded"] == 2


def test_without_a_live_candidate_the_request_ends_at_once() -> None:
    with ExchangeWorld(ready=False) as world:
        call = world.post()
        assert_error(call, 503, "provider_unavailable")
        assert call.downstream.field(b"x-iop-reason") == b"unavailable"


def test_the_queue_timeout_is_a_504_that_says_not_to_try_again() -> None:
    """B08, B09."""
    with ExchangeWorld(provider_pool={"queue_timeout_ms": 500}) as world:
        world.post()
        call = world.post()
        world.loop.run_for(0.49)
        assert call.exchange.state is State.QUEUED
        world.loop.run_for(0.02)
        assert_error(call, 504, "queue_timeout")
        assert call.downstream.field(b"x-should-retry") == b"false"
        assert world.gate.waiting == 0


def test_waiters_end_at_once_when_the_last_candidate_goes() -> None:
    """B09: not at the timeout, and each way of going is the same."""

    def disable(world: ExchangeWorld) -> None:
        world.refresh([provider_spec("n1", "p1", enabled=False)], {"m": {"p1": "s"}})

    def fall_ill(world: ExchangeWorld) -> None:
        world.gate.health("n1", 1, {"p1": False})

    def drain(world: ExchangeWorld) -> None:
        world.gate.node_draining("n1", 1)

    for cause in (disable, fall_ill, drain, lambda world: world.link.lose()):
        with ExchangeWorld() as world:
            running, waiting = world.post(), world.post()
            cause(world)
            assert_error(waiting, 503, "provider_unavailable")
            running.leave()


def test_draining_ends_those_who_wait_and_those_who_come_late() -> None:
    with ExchangeWorld() as world:
        running, waiting, sending = world.post(), world.post(), world.open()
        sending.receiver.on_body(b'{"model":"m"}')
        world.edge.start_draining()
        assert_error(waiting, 503, "draining")
        sending.receiver.on_body_complete()
        assert_error(sending, 503, "draining")
        assert running.exchange.state is State.DISPATCHED
        world.link.answer(1, JSON_HEAD, b"{}", end=OK)
        assert running.downstream.body == b"{}"
        world.assert_idle()


# ---------------------------------------------------------------------------------------------------------------------
# After dispatch, before the answer


@pytest.mark.parametrize("status", list(ENDS))
def test_a_run_that_ends_without_an_answer_is_an_error(status: int, caplog: pytest.LogCaptureFixture) -> None:
    with ExchangeWorld() as world:
        call = world.post()
        world.link.answer(1, status=status, taken=status not in UNSEEN_ENDS)
        failure = ENDS[status].failure
        assert_error(call, failure.value.status, failure.value.code)
        assert call.exchange.outcome == failure.reason
        assert "detail for the log" not in call.downstream.body.decode()
        (record,) = [record for record in caplog.records if record.getMessage() == "provider_failed"]
        assert "detail for the log" in JsonFormatter().format(record)
        world.assert_idle()
        assert world.post().exchange.state is State.DISPATCHED


def test_every_end_of_the_protocol_has_a_meaning() -> None:
    assert set(ENDS) == set(RunEnd.Status.values())
    with ExchangeWorld() as world:
        call = world.post()
        world.link.answer(1, end=End(99, "from a later version", None))
        assert_error(call, 502, "upstream_error")
        world.assert_idle()


def test_a_node_lost_after_the_request_was_sent_is_a_502_and_not_sent_again() -> None:
    with ExchangeWorld(TWO_NODES) as world:
        call = world.post()
        world.link.lose()
        assert_error(call, 502, "upstream_error")
        assert world.links["n2"].openings == {}
        world.connect("n1")
        world.assert_idle()


@pytest.mark.parametrize(
    ("head", "data", "status"),
    [
        (Head(101, b"Switching Protocols", []), [], None),
        (Head(0, b"", []), [], None),
        (Head(700, b"", []), [b"x"], RunEnd.OK),
        (None, [b"data before any head"], None),
    ],
)
def test_what_is_no_answer_is_a_502_and_is_stopped(head: Head | None, data: list[bytes], status: int | None) -> None:
    with ExchangeWorld() as world:
        call = world.post()
        world.link.answer(1, head, *data, status=status)
        assert_error(call, 502, "upstream_error")
        if status is None:
            assert world.link.cancelled == [1]
            assert call.exchange.state is State.CANCELLING
            assert world.in_flight == 1
            world.link.answer(1, status=RunEnd.CANCELLED)
        assert call.exchange.outcome == "upstream_error"
        world.assert_idle()


def test_a_head_that_cannot_be_written_is_a_502() -> None:
    with ExchangeWorld() as world:
        call = world.post()
        call.downstream.refuses_heads = True
        world.link.answer(1, Head(200, b"OK", [(b"x", b"a\r\nb")]), b"data")
        assert_error(call, 502, "upstream_error")
        assert world.link.cancelled == [1]
        world.link.answer(1, status=RunEnd.CANCELLED)
        call = world.post()
        call.downstream.refuses_heads = True
        world.link.answer(2, Head(200, b"OK", [(b"x", b"a\r\nb")]), b"data", end=OK)
        assert_error(call, 502, "upstream_error")
        world.assert_idle()


def test_a_broken_answer_of_one_message_is_answered_by_the_error_alone() -> None:
    with ExchangeWorld() as world:
        call = world.post()
        world.link.answer(1, SSE_HEAD, b"data: half", status=RunEnd.UPSTREAM_ERROR)
        assert_error(call, 502, "upstream_error")
        world.assert_idle()


# ---------------------------------------------------------------------------------------------------------------------
# After the first byte


@pytest.mark.parametrize("status", [status for status in ENDS if status != RunEnd.OK])
def test_a_broken_event_stream_ends_with_an_error_event(status: int) -> None:
    """B21: no last chunk, no made-up [DONE]; what the provider sent stands before it untouched."""
    with ExchangeWorld() as world:
        call = world.post()
        world.link.answer(1, SSE_HEAD, b"data: 1\n\n")
        world.link.answer(1, None, b"data: 2\n\n", status=status)
        body = call.downstream.body
        assert body.startswith(b'data: 1\n\ndata: 2\n\ndata: {"error":')
        error = json.loads(body.split(b"data: ")[-1])["error"]
        assert error["code"] == ENDS[status].failure.value.code
        assert b"[DONE]" not in body
        assert call.downstream.is_aborted
        assert not call.downstream.is_ended
        assert call.exchange.outcome == ENDS[status].failure.reason
        world.assert_idle()


def test_an_event_cut_in_the_middle_is_ended_before_the_error() -> None:
    with ExchangeWorld() as world:
        call = world.post(path=b"/v1/messages")
        world.link.answer(1, SSE_HEAD, b"event: ping\ndata: {")
        world.link.lose()
        assert call.downstream.body.startswith(b"event: ping\ndata: {\n\nevent: error\ndata: ")
        assert call.downstream.is_aborted


@pytest.mark.parametrize(
    "head",
    [
        JSON_HEAD,
        Head(200, b"OK", [(b"Content-Type", b"text/event-stream"), (b"Content-Encoding", b"gzip")]),
        Head(200, b"OK", [(b"Content-Type", b"text/event-stream"), (b"Content-Length", b"500")]),
    ],
)
def test_any_other_broken_answer_is_cut_and_nothing_added(head: Head) -> None:
    with ExchangeWorld() as world:
        call = world.post()
        world.link.answer(1, head, b"half")
        world.link.answer(1, status=RunEnd.UPSTREAM_TIMEOUT)
        assert call.downstream.body == b"half"
        assert call.downstream.is_aborted
        assert call.exchange.outcome == "upstream_timeout"
        world.assert_idle()


def test_a_second_head_breaks_the_answer_off_and_stops_the_run() -> None:
    with ExchangeWorld() as world:
        call = world.post()
        world.link.answer(1, SSE_HEAD, b"data: 1\n\n")
        world.link.answer(1, SSE_HEAD, b"data: 2\n\n")
        assert b"data: 2" not in call.downstream.body
        assert call.downstream.is_aborted
        assert call.exchange.state is State.CANCELLING
        world.link.answer(1, status=RunEnd.CANCELLED)
        world.assert_idle()


# ---------------------------------------------------------------------------------------------------------------------
# The client leaves


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


# ---------------------------------------------------------------------------------------------------------------------
# Re-admission


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


# ---------------------------------------------------------------------------------------------------------------------
# Bugs of ours, and what is left behind


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
