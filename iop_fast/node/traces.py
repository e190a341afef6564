"""The span of a run on the Node, made when the run is over: CLIENT, from its opening frame to its end.

It stands below the Edge's span of the run, which a tunnel's headers name or the opening of a normalized run; where the
Edge makes none, below that of a tunnel's caller. What the provider does is below it: it gets this span as its caller.

How many tokens a run took stands in the Edge's span alone, so that nobody who adds up a trace counts them twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from iop_fast.node.adapters.http_backend import HttpBackend
from iop_fast.node.backends import Provider
from iop_fast.seams import Clock, RunOpening, TunnelRequest
from iop_fast.tracing import spans as names
from iop_fast.tracing.context import Place, Sampler, find_place, read_place, renamed
from iop_fast.tracing.spans import Kind, Span, SpanSink, Value, operation_of
from iop_fast.wire import runtime_pb2 as pb

OPERATION_OF_KIND: Mapping[int, str] = {
    pb.RunRequest.CHAT: names.CHAT,
    pb.RunRequest.COMPLETION: names.TEXT_COMPLETION,
    pb.RunRequest.EMBEDDING: names.EMBEDDINGS,
}

# Ends that are no error of a provider's: CANCELLED is what the Edge or this Node wanted.
NO_ERRORS = frozenset({pb.RunEnd.OK, pb.RunEnd.CANCELLED})


class RunTrace:
    """The span of a run that is not over. `close` it once."""

    __slots__ = ("_facts", "_name", "_parent", "_place", "_start_ns", "_traces")

    def __init__(
        self, traces: RunTraces, parent: Place | None, place: Place, name: str, facts: dict[str, Value], start_ns: int
    ) -> None:
        self._traces = traces
        self._parent = parent
        self._place = place
        self._name = name
        self._facts = facts
        self._start_ns = start_ns

    def close(self, status: int) -> None:
        """The run has ended."""
        facts = self._facts
        name = facts[names.RUN_STATUS] = status_name(status)
        is_error = status not in NO_ERRORS
        if is_error:
            facts[names.ERROR_TYPE] = name
        self._traces.put(self._name, self._parent, self._place, facts, self._start_ns, is_error)


class RunTraces:
    """Makes the spans of runs. `unix_ns` tells nanoseconds since 1970."""

    __slots__ = ("_clock", "_node_id", "_sampler", "_sink", "_unix_ns")

    def __init__(
        self, sink: SpanSink, sampler: Sampler, node_id: str, clock: Clock, unix_ns: Callable[[], int]
    ) -> None:
        self._sink = sink
        self._sampler = sampler
        self._node_id = node_id
        self._clock = clock
        self._unix_ns = unix_ns

    def counts(self) -> Mapping[str, int]:
        """Spans by what became of them."""
        return self._sink.counts()

    def tunnel(self, provider: Provider, request: TunnelRequest) -> tuple[RunTrace | None, TunnelRequest]:
        """Begin the span of a tunnel, None where none is recorded; return the request with it as the caller."""
        parent = find_place(request.headers)
        operation = operation_of(request.path.partition(b"?")[0])
        trace, place = self._begin(provider, parent, operation, request.model, request.stream)
        return trace, request._replace(headers=renamed(request.headers, parent, place))

    def normalized(self, provider: Provider, opening: RunOpening) -> tuple[RunTrace | None, RunOpening]:
        """Begin the span of a normalized run, as `tunnel` does."""
        parent = read_place(opening.traceparent)
        operation = OPERATION_OF_KIND.get(opening.kind, names.OTHER_OPERATION)
        trace, place = self._begin(provider, parent, operation, opening.model, opening.stream)
        return trace, opening._replace(traceparent=place.render())

    def _begin(
        self, provider: Provider, parent: Place | None, operation: str, model: str, stream: bool
    ) -> tuple[RunTrace | None, Place]:
        place = self._sampler.begin(parent)
        if not place.is_sampled:
            return None, parent or place
        payload = provider.payload
        facts: dict[str, Value] = {
            names.OPERATION: operation,
            names.PROVIDER_NAME: payload.label or payload.type,
            names.REQUEST_MODEL: model,
            names.REQUEST_STREAM: stream,
            names.NODE: self._node_id,
            names.PROVIDER: payload.id,
        }
        adapter = provider.backend.adapter
        if isinstance(adapter, HttpBackend):
            endpoint = adapter.backend.endpoint
            facts[names.SERVER_ADDRESS], facts[names.SERVER_PORT] = endpoint.host, endpoint.port
        return RunTrace(self, parent, place, f"{operation} {model}", facts, self._clock.now_ns()), place

    def put(
        self, name: str, parent: Place | None, place: Place, facts: dict[str, Value], start_ns: int, is_error: bool
    ) -> None:
        """Make the span of a run that is over (called by its RunTrace)."""
        now_ns = self._clock.now_ns()
        shift_ns = self._unix_ns() - now_ns
        self._sink.put(
            Span(
                name,
                Kind.CLIENT,
                place,
                parent,
                True,
                start_ns + shift_ns,
                now_ns + shift_ns,
                facts,
                is_error=is_error,
            )
        )


def status_name(status: int) -> str:
    """Name a run's end as metrics do; a status that this version does not know keeps its number."""
    try:
        return pb.RunEnd.Status.Name(status).lower()  # type: ignore[arg-type]
    except ValueError:
        return f"status_{status}"
