"""The spans of a request: their parents, their times, and what they say, whatever became of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from hashlib import sha256
from random import Random
from typing import Any

import pytest

from iop_fast.config.catalog import CatalogProvider
from iop_fast.edge.traces import RequestTraces
from iop_fast.seams import End, RunFinish, RunOpening, RunText, TunnelRequest, Usage
from iop_fast.tracing.context import Place, Sampler, find_place, read_place
from iop_fast.tracing.spans import Kind, Span
from iop_fast.wire.runtime_pb2 import RunEnd
from tests.fakes.span_sink import SpanList
from tests.unit.edge.exchange_world import JSON_HEAD, OK, SSE_HEAD, ExchangeWorld, provider_spec

UNIX_NS = 1_700_000_000_000_000_000
PARENT = Place(0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331, True)
SECRET = "caller-token"


class Traced:
    """A world that makes spans."""

    def __init__(self, ratio: float = 1.0, providers: Sequence[CatalogProvider] | None = None, **config: Any) -> None:
        self.world = ExchangeWorld(providers, **config)
        self.sink = SpanList()
        clock = self.world.loop.clock
        self.traces = RequestTraces(self.sink, Sampler(ratio, Random(5)), "http", lambda: UNIX_NS + clock.now_ns())
        self.world.edge.books.traces = self.traces

    def check(self) -> None:
        """Whatever happened: nothing is kept, every span is of one trace and within its parent."""
        self.world.assert_idle()
        assert self.traces.open_count == 0
        spans = {span.place.span_id: span for span in self.sink.spans}
        assert len(spans) == len(self.sink.spans)
        for span in spans.values():
            assert span.place.is_sampled
            assert UNIX_NS <= span.start_ns <= span.end_ns
            if span.kind is not Kind.SERVER:
                parent = spans[span.parent.span_id] if span.parent is not None else None
                assert parent is not None
                assert parent.place.trace_id == span.place.trace_id
                assert parent.start_ns <= span.start_ns
                assert span.end_ns <= parent.end_ns
            assert not any(SECRET in str(value) or "hi there" in str(value) for value in span.attributes.values())

    def sent_place(self, run_id: int = 1, link: Any = None) -> Place:
        """What the Node was told as the caller of a run."""
        opening = (link or self.world.link).openings[run_id]
        place = read_place(opening.traceparent) if isinstance(opening, RunOpening) else find_place(opening.headers)
        assert place is not None
        return place


@pytest.fixture
def traced() -> Iterator[Traced]:
    made = Traced()
    with made.world:
        yield made
        made.check()


def seconds(span: Span) -> tuple[float, float]:
    """When a span began and ended, on the world's clock from its first request on."""
    return ((span.start_ns - UNIX_NS) / 1e9, (span.end_ns - UNIX_NS) / 1e9)


def test_a_whole_answer(traced: Traced) -> None:
    world = traced.world
    began = world.loop.clock.now_ns()
    call = world.post()
    world.loop.run_for(0.25)
    world.link.answer(1, JSON_HEAD, b'{"a"')
    world.loop.run_for(0.75)
    world.link.answer(1, None, b":1}", end=End(RunEnd.OK, "", Usage(30, 5, 10)))
    request, run = traced.sink.spans
    assert (request.name, request.kind, request.parent) == ("POST /v1/chat/completions", Kind.SERVER, None)
    assert (request.start_ns, request.end_ns) == (UNIX_NS + began, UNIX_NS + began + 1_000_000_000)
    assert request.attributes == {
        "http.request.method": "POST",
        "http.route": "/v1/chat/completions",
        "url.path": "/v1/chat/completions",
        "url.scheme": "http",
        "http.response.status_code": 200,
        "http.request.body.size": call.exchange.bytes_in,
        "http.response.body.size": 7,
        "iop.request_id": call.exchange.request.id.decode(),
        "iop.principal": "anonymous",
        "iop.model": "m",
        "iop.outcome": "ok",
        "iop.end": "--",
        "iop.class": "normal",
        "iop.estimated_tokens": call.exchange.estimated_tokens,
    }
    assert (run.name, run.kind, run.parent, run.is_error) == ("chat served-m", Kind.CLIENT, request.place, False)
    assert run.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "vllm",
        "gen_ai.request.model": "served-m",
        "gen_ai.request.stream": False,
        "gen_ai.usage.input_tokens": 30,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.usage.cache_read.input_tokens": 10,
        "http.response.status_code": 200,
        "iop.model": "m",
        "iop.node": "n1",
        "iop.provider": "p1",
    }
    sent, head = run.moments
    assert (sent.name, head.name, head.at_ns - run.start_ns) == ("sent", "head", 250_000_000)
    assert traced.sent_place() == run.place


def test_a_caller_s_trace_goes_through(traced: Traced) -> None:
    world = traced.world
    fields = [(b"traceparent", PARENT.render()), (b"tracestate", b"a=1,b=2")]
    world.post(headers=fields)
    opening = world.link.openings[1]
    assert (b"tracestate", b"a=1,b=2") in opening.headers
    assert [name for name, _ in opening.headers].count(b"traceparent") == 1
    world.link.answer(1, JSON_HEAD, b"{}", end=OK)
    request, run = traced.sink.spans
    assert (request.parent, request.is_parent_remote, request.place.trace_id) == (PARENT, True, PARENT.trace_id)
    assert traced.sent_place() == run.place


def test_a_malformed_one_begins_a_new_trace(traced: Traced) -> None:
    world = traced.world
    world.post(headers=[(b"traceparent", PARENT.render() + b"0"), (b"tracestate", b"a=1")])
    world.link.answer(1, JSON_HEAD, b"{}", end=OK)
    request, run = traced.sink.spans
    assert request.parent is None
    assert traced.sent_place() == run.place
    assert b"tracestate" not in dict(world.link.openings[1].headers)


def test_a_caller_that_does_not_record_is_followed(traced: Traced) -> None:
    world = traced.world
    given = PARENT._replace(is_sampled=False)
    world.post(headers=[(b"traceparent", given.render()), (b"tracestate", b"a=1")])
    assert traced.sent_place() == given
    assert dict(world.link.openings[1].headers)[b"tracestate"] == b"a=1"
    world.link.answer(1, JSON_HEAD, b"{}", end=OK)
    assert traced.sink.spans == []


def test_what_is_not_sampled_is_not_sampled_further_down() -> None:
    traced = Traced(ratio=0.0)
    with traced.world as world:
        world.post()
        assert not traced.sent_place().is_sampled
        world.link.answer(1, JSON_HEAD, b"{}", end=OK)
        world.post(headers=[(b"traceparent", PARENT.render())])
        world.link.answer(2, JSON_HEAD, b"{}", end=OK)
        assert {span.place.trace_id for span in traced.sink.spans} == {PARENT.trace_id}
        traced.check()


def test_a_wait_is_a_span_of_its_own(traced: Traced) -> None:
    world = traced.world
    world.post()
    began = world.loop.clock.now_ns()
    world.post()
    world.loop.run_for(0.5)
    world.link.answer(1, JSON_HEAD, b"{}", end=OK)
    world.loop.settle()
    world.loop.run_for(0.25)
    world.link.answer(2, JSON_HEAD, b"{}", end=OK)
    first, _, second, queue, run = traced.sink.spans
    assert first.place.trace_id != second.place.trace_id
    assert (queue.name, queue.kind, queue.parent) == ("queue", Kind.INTERNAL, second.place)
    assert (queue.start_ns - UNIX_NS, queue.end_ns - queue.start_ns) == (began, 500_000_000)
    assert (run.start_ns, run.end_ns - run.start_ns) == (queue.end_ns, 250_000_000)
    assert queue.attributes == {"iop.class": "normal", "iop.model": "m"}


def test_refusals_have_a_span_without_a_run() -> None:
    traced = Traced(provider_pool={"max_queue": 1, "queue_timeout_ms": 1_000})
    with traced.world as world:
        world.post(model="nobody's")
        [unknown] = traced.sink.spans
        assert (unknown.attributes["iop.outcome"], unknown.attributes["error.type"]) == ("model_not_found",) * 2
        assert "iop.model" not in unknown.attributes  # a client's text
        assert (unknown.attributes["http.response.status_code"], unknown.is_error) == (404, False)
        world.post()
        world.post()
        world.post()
        full = traced.sink.spans[-1]
        assert (full.attributes["error.type"], full.attributes["iop.end"], full.is_error) == ("queue_full", "RQ", False)
        world.loop.run_for(1.5)
        late, queue = traced.sink.spans[2:]
        assert (late.attributes["error.type"], late.is_error) == ("queue_timeout", True)
        assert (queue.name, queue.parent, queue.end_ns - queue.start_ns) == ("queue", late.place, 1_000_000_000)
        world.link.answer(1, JSON_HEAD, b"{}", end=OK)
        traced.check()


def test_a_client_that_leaves_is_nobody_s_error(traced: Traced) -> None:
    world = traced.world
    running = world.post(headers=[(b"authorization", f"Bearer {SECRET}".encode())])
    waiting = world.post(json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi there"}]}).encode())
    world.loop.run_for(0.25)
    waiting.leave()
    request, queue = traced.sink.spans
    assert (request.attributes["iop.outcome"], request.attributes["iop.end"]) == ("client_gone", "CQ")
    assert "http.response.status_code" not in request.attributes
    assert queue.end_ns - queue.start_ns == 250_000_000
    world.link.answer(1, SSE_HEAD, b"data: 1\n\n")
    running.leave()
    world.loop.run_for(0.25)
    world.link.answer(1, end=End(RunEnd.CANCELLED, "", Usage(3, 1, 0)))
    request, run = traced.sink.spans[2:]
    assert (request.attributes["iop.end"], request.is_error, run.is_error) == ("CD", False, False)
    assert "error.type" not in run.attributes
    assert (run.attributes["gen_ai.usage.output_tokens"], run.end_ns - run.start_ns) == (1, 500_000_000)


def test_a_lost_node_is_an_error_of_the_run_and_of_the_request(traced: Traced) -> None:
    world = traced.world
    world.post()
    world.loop.settle()
    world.link.lose()
    request, run = traced.sink.spans
    assert (request.attributes["error.type"], request.attributes["http.response.status_code"]) == (
        "upstream_error",
        502,
    )
    assert (run.attributes["error.type"], run.is_error, request.is_error) == ("upstream_error", True, True)
    assert "http.response.status_code" not in run.attributes
    assert [moment.name for moment in run.moments] == ["sent"]
    world.connect()


def test_an_answer_that_breaks_off_is_an_error_of_this_side(traced: Traced) -> None:
    world = traced.world
    world.post()
    world.link.answer(1, SSE_HEAD, b"data: 1\n\n")
    world.link.answer(1, status=RunEnd.UPSTREAM_ERROR)
    request, run = traced.sink.spans
    assert (request.attributes["http.response.status_code"], request.is_error) == (200, True)
    assert (request.attributes["iop.end"], run.attributes["error.type"]) == ("SD", "upstream_error")


@pytest.mark.parametrize(("status", "is_own"), [(400, False), (503, True)])
def test_a_provider_s_own_error_is_called_by_its_status(traced: Traced, status: int, is_own: bool) -> None:
    traced.world.post()
    traced.world.link.answer(1, JSON_HEAD._replace(status=status), b"{}", end=OK)
    request, run = traced.sink.spans
    assert (request.attributes["iop.outcome"], request.attributes["error.type"]) == ("ok", str(status))
    assert (request.is_error, run.is_error, run.attributes["error.type"]) == (is_own, True, str(status))


def test_each_provider_that_was_tried_has_its_span() -> None:
    traced = Traced(providers=[provider_spec("n1", "p1"), provider_spec("n2", "p2")])
    with traced.world as world:
        first, second = world.links["n1"], world.links["n2"]
        world.post()
        world.post()
        world.loop.run_for(0.25)
        first.answer(first.last, status=RunEnd.CONNECT_FAILED)
        world.loop.settle()
        world.loop.run_for(0.5)
        second.answer(second.last, JSON_HEAD, b"{}", end=OK)
        world.loop.settle()
        world.loop.run_for(0.25)
        second.answer(second.last, JSON_HEAD, b"{}", end=OK)
        request = next(span for span in traced.sink.named("POST") if traced_runs(traced, span) == ["p1", "p2"])
        failed, served = (span for span in traced.sink.named("chat") if span.parent == request.place)
        [queue] = (span for span in traced.sink.named("queue") if span.parent == request.place)
        assert (failed.attributes["error.type"], failed.is_error) == ("upstream_error", True)
        assert "error.type" not in served.attributes
        assert not request.is_error
        assert (failed.end_ns, queue.end_ns) == (queue.start_ns, served.start_ns)
        assert (queue.end_ns - queue.start_ns, served.end_ns - served.start_ns) == (500_000_000, 250_000_000)
        assert traced.sent_place(second.last, second) == served.place
        traced.check()


def traced_runs(traced: Traced, request: Span) -> list[object]:
    return [span.attributes["iop.provider"] for span in traced.sink.named("chat") if span.parent == request.place]


def test_a_normalized_run_is_told_its_caller() -> None:
    provider = provider_spec("n1", "p1", type="ollama", adapter_type="ollama", label="mini")
    traced = Traced(providers=[provider])
    with traced.world as world:
        world.post(headers=[(b"traceparent", PARENT.render())])
        opening = world.link.openings[1]
        assert isinstance(opening, RunOpening)
        world.link.say(1, RunText("ho", 0), RunFinish("stop", 0), taken=True, end=End(RunEnd.OK, "", Usage(3, 1, 0)))
        request, run = traced.sink.spans
        assert (request.parent, traced.sent_place()) == (PARENT, run.place)
        assert (run.attributes["gen_ai.provider.name"], run.attributes["gen_ai.usage.input_tokens"]) == ("mini", 3)
        assert (run.name, run.attributes["http.response.status_code"]) == ("chat served-m", 200)
        traced.check()


def test_who_pays_is_named_and_no_token() -> None:
    token = {
        "token_ref": "prod",
        "token_hash_sha256": sha256(SECRET.encode()).hexdigest(),
        "principal_ref": "team-a",
    }
    traced = Traced(openai={"principal_tokens": [token]})
    with traced.world as world:
        world.post(headers=[(b"authorization", f"Bearer {SECRET}".encode())])
        world.link.answer(1, JSON_HEAD, b"{}", end=OK)
        assert traced.sink.one("POST").attributes["iop.principal"] == "team-a"
        traced.check()


def test_a_refreshed_provider_is_called_by_its_new_name(traced: Traced) -> None:
    world = traced.world
    world.refresh([provider_spec("n1", "p1", label="new")], {"m": {"p1": "served-m"}})
    world.post()
    world.link.answer(1, JSON_HEAD, b"{}", end=OK)
    assert traced.sink.one("chat").attributes["gen_ai.provider.name"] == "new"


def test_while_tracing_is_off_a_caller_s_fields_are_passed_as_they_came() -> None:
    with ExchangeWorld() as world:
        fields = [(b"traceparent", b"whatever"), (b"tracestate", b"a=1")]
        world.post(headers=fields)
        opening = world.link.openings[1]
        assert isinstance(opening, TunnelRequest)
        assert list(opening.headers)[:2] == fields
        world.link.answer(1, JSON_HEAD, b"{}", end=OK)
        world.assert_idle()
