"""The span of a run on the Node: its parent, what it says, and what the provider is told."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from iop_fast.node.adapters.openai_compat import make_openai_compat
from iop_fast.node.backends import Backend, Provider
from iop_fast.node.traces import RunTraces, status_name
from iop_fast.tracing.context import Place, Sampler, find_place, read_place
from iop_fast.tracing.spans import Kind
from iop_fast.wire import runtime_pb2 as pb
from tests.fakes.span_sink import SpanList
from tests.unit.edge.worlds import VirtualLoop
from tests.unit.node.worlds import JSON_HEAD, RelayWorld, RunEnd, request, settings

UNIX_NS = 1_700_000_000_000_000_000
PARENT = Place(7, 8, True)


class Traced:
    """A relay that makes spans."""

    def __init__(self, loop: VirtualLoop, ratio: float = 1.0) -> None:
        self.loop = loop
        self.sink = SpanList()
        clock = loop.clock
        self.traces = RunTraces(self.sink, Sampler(ratio, Random(3)), "n1", clock, lambda: UNIX_NS + clock.now_ns())
        self.world = RelayWorld(loop, traces=self.traces)


@pytest.fixture
def traced() -> Iterator[Traced]:
    with VirtualLoop() as loop:
        yield Traced(loop)


def test_a_tunnel(traced: Traced) -> None:
    began = traced.loop.clock.now_ns()
    given = [(b"traceparent", PARENT.render()), (b"tracestate", b"a=1"), (b"x", b"y")]
    run = traced.world.open(1, request(headers=given, path=b"/v1/chat/completions?a=b", stream=True))
    traced.loop.run_for(0.5)
    run.sink.on_head(JSON_HEAD)
    assert traced.sink.spans == []
    run.end()
    [span] = traced.sink.spans
    assert (span.name, span.kind, span.parent, span.is_parent_remote) == ("chat served", Kind.CLIENT, PARENT, True)
    assert (span.start_ns, span.end_ns) == (UNIX_NS + began, UNIX_NS + began + 500_000_000)
    assert span.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "vllm",
        "gen_ai.request.model": "served",
        "gen_ai.request.stream": True,
        "iop.node": "n1",
        "iop.provider": "p1",
        "iop.run_status": "ok",
    }
    assert list(run.request.headers) == [(b"tracestate", b"a=1"), (b"x", b"y"), (b"traceparent", span.place.render())]
    assert span.place.trace_id == PARENT.trace_id


def test_a_normalized_run(traced: Traced) -> None:
    task = traced.world.open_run(1, kind=pb.RunRequest.CHAT, traceparent=PARENT.render())
    task.end()
    [span] = traced.sink.spans
    assert (span.name, span.parent, task.task.traceparent) == ("chat served", PARENT, span.place.render().decode())
    traced.world.open_run(2).end()
    root = traced.sink.spans[1]
    assert (root.parent, root.place.is_sampled) == (None, True)


@pytest.mark.parametrize(
    ("status", "is_error"),
    [(RunEnd.OK, False), (RunEnd.UPSTREAM_ERROR, True), (RunEnd.CONNECT_FAILED, True), (RunEnd.UPSTREAM_TIMEOUT, True)],
)
def test_an_end_and_what_it_is_called(traced: Traced, status: int, is_error: bool) -> None:
    traced.world.open(1).end(status)
    [span] = traced.sink.spans
    assert span.is_error is is_error
    assert span.attributes["iop.run_status"] == status_name(status)
    assert span.attributes.get("error.type") == (status_name(status) if is_error else None)


def test_a_cancelled_run_is_no_error(traced: Traced) -> None:
    traced.world.open(1)
    traced.loop.run_for(0.5)
    traced.world.take(pb.Frame(run_id=1, cancel=pb.CancelRequest()))
    [span] = traced.sink.spans
    assert (span.is_error, span.attributes["iop.run_status"]) == (False, "cancelled")
    assert span.end_ns - span.start_ns == 500_000_000


def test_a_run_that_is_refused_has_no_span(traced: Traced) -> None:
    traced.world.take(pb.Frame(run_id=1, tunnel_request=pb.ProviderTunnelRequest(provider_id="nobody")))
    assert traced.sink.spans == []


def test_what_the_edge_does_not_record_is_not_recorded_here(traced: Traced) -> None:
    given = PARENT._replace(is_sampled=False)
    run = traced.world.open(1, request(headers=[(b"traceparent", given.render())]))
    run.end()
    assert (traced.sink.spans, find_place(run.request.headers)) == ([], given)


def test_without_a_caller_the_share_decides() -> None:
    with VirtualLoop() as loop:
        traced = Traced(loop, ratio=0.0)
        run = traced.world.open(1)
        run.end()
        place = find_place(run.request.headers)
        assert place is not None
        assert (traced.sink.spans, place.is_sampled) == ([], False)
        task = traced.world.open_run(2, traceparent=b"what is this")
        task.end()
        assert read_place(task.task.traceparent.encode()) is not None
        assert traced.sink.spans == []


def test_where_a_provider_stands_is_said_where_it_is_reached_by_http(traced: Traced) -> None:
    adapter = make_openai_compat(settings("http://10.1.2.3:8000/v1"), traced.world.surroundings)
    payload = traced.world.router.current.providers["p1"].payload
    provider = Provider(payload, Backend("key", adapter, adapter.health))
    trace, _ = traced.traces.tunnel(provider, request())
    assert trace is not None
    trace.close(RunEnd.OK)
    [span] = traced.sink.spans
    assert (span.attributes["server.address"], span.attributes["server.port"]) == ("10.1.2.3", 8000)
    traced.loop.run_until_complete(adapter.close())


def test_a_later_version_s_end_keeps_its_number() -> None:
    assert status_name(999) == "status_999"


def test_while_tracing_is_off_fields_pass_untouched() -> None:
    with VirtualLoop() as loop:
        world = RelayWorld(loop)
        given = [(b"traceparent", b"whatever")]
        run = world.open(1, request(headers=given))
        run.end()
        assert list(run.request.headers) == given
        task = world.open_run(2, traceparent=b"passed")
        task.end()
        assert task.task.traceparent == "passed"
