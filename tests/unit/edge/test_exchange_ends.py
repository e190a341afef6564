"""How a request ends when not everything goes well: refusals, runs that fail, answers that break off."""

from __future__ import annotations

import json

import pytest

from iop_fast.edge.exchange import State
from iop_fast.edge.outcomes import ENDS, UNSEEN_ENDS
from iop_fast.logs import JsonFormatter
from iop_fast.seams import End, Head
from iop_fast.wire.runtime_pb2 import RunEnd
from tests.unit.edge.exchange_world import (
    JSON_HEAD,
    OK,
    SSE_HEAD,
    TWO_NODES,
    ExchangeWorld,
    assert_error,
    provider_spec,
)

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
