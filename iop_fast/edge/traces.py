"""The spans of a request on the Edge, made when it is over from its record.

    POST /v1/chat/completions   SERVER    from its head to its end; below the caller's span, if it names one
      queue                     INTERNAL  each time that it waited for a slot
      chat SERVED               CLIENT    each run on a provider; what the Node and the provider do is below this one

Only what cannot be known afterwards is kept while a request runs: the ids that its provider was given, and when a run
ended after which the request was admitted again. `RequestTraces` stands in the books where tracing is on. Everything is
called on the event loop's thread: `open` for each run before its opening is queued, `readmitted` when such a run was in
vain, `close` once for every exchange. Requests that are answered from their head alone (401, 404, lists of models) have
no span.

A caller's decision not to record is handed on, and so are the traceparent and tracestate that came with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from iop_fast.edge.exchange_states import State
from iop_fast.edge.outcomes import CLIENT_GONE, SUCCESS
from iop_fast.edge.runtime import Key, Runtime
from iop_fast.seams import RunOpening, TunnelRequest
from iop_fast.tracing import spans as names
from iop_fast.tracing.context import Place, Sampler, find_place, renamed
from iop_fast.tracing.spans import Kind, Moment, Span, SpanSink, Value, operation_of

if TYPE_CHECKING:
    from iop_fast.edge.record import Record

ERROR_STATUS = 400
SERVER_ERROR_STATUS = 500


class Attempt:
    """A run of a request on a provider. Moments are those of the record; `end_ns` and `failure` are known where the
    request went on without it."""

    __slots__ = ("end_ns", "failure", "key", "model", "place", "provider_name", "start_ns", "stream")

    def __init__(self, place: Place, key: Key, provider_name: str, model: str, stream: bool, start_ns: int) -> None:
        self.place = place
        self.key = key
        self.provider_name = provider_name
        self.model = model
        self.stream = stream
        self.start_ns = start_ns
        self.end_ns = 0
        self.failure = ""


class Trace:
    """What is kept of one request: where it stands in its trace, its runs, and when it waited."""

    __slots__ = ("attempts", "parent", "place", "waits")

    def __init__(self, parent: Place | None, place: Place) -> None:
        self.parent = parent
        self.place = place
        self.attempts: list[Attempt] = []
        self.waits: list[tuple[int, int]] = []

    def note_wait(self, start_ns: int, end_ns: int) -> None:
        """Note that the request waited. One that waits again has kept its place since its first wait, so what came
        before the end of its last run is no wait."""
        if self.attempts:
            start_ns = max(start_ns, self.attempts[-1].end_ns)
        if end_ns > start_ns:
            self.waits.append((start_ns, end_ns))


class RequestTraces:
    """Makes the spans of requests. `scheme` is that of the Edge's listener; `unix_ns` tells nanoseconds since 1970."""

    __slots__ = ("_named", "_named_of", "_open", "_sampler", "_scheme", "_sink", "_unix_ns")

    def __init__(self, sink: SpanSink, sampler: Sampler, scheme: str, unix_ns: Callable[[], int]) -> None:
        self._sink = sink
        self._sampler = sampler
        self._scheme = scheme
        self._unix_ns = unix_ns
        self._open: dict[bytes, Trace] = {}  # by request id: those that were given to a Node and are not over
        self._named: Mapping[Key, str] = {}
        self._named_of: Runtime | None = None

    def counts(self) -> Mapping[str, int]:
        """Spans by what became of them."""
        return self._sink.counts()

    @property
    def open_count(self) -> int:
        """Requests that something is kept of."""
        return len(self._open)

    def open(self, record: Record, opening: TunnelRequest | RunOpening, runtime: Runtime) -> TunnelRequest | RunOpening:
        """Note a run that begins; return its opening with our span as the caller."""
        request_id = record.request.id
        trace = self._open.get(request_id)
        if trace is None:
            trace = self._open[request_id] = self._trace_of(record)
        place = trace.parent or trace.place
        if trace.place.is_sampled:
            trace.note_wait(record.granted_ns - record.queue_ns, record.granted_ns)
            place = self._sampler.below(trace.place)
            key = (record.node_id, record.provider_id)
            name = self._names_of(runtime)[key]
            trace.attempts.append(Attempt(place, key, name, opening.model, opening.stream, record.granted_ns))
        if isinstance(opening, RunOpening):
            return opening._replace(traceparent=place.render())
        return opening._replace(headers=renamed(opening.headers, trace.parent, place))

    def readmitted(self, record: Record, reason: str, now_ns: int) -> None:
        """Note that the last run was in vain and the request looks for another provider."""
        trace = self._open.get(record.request.id)
        if trace is not None and trace.attempts and not trace.attempts[-1].end_ns:
            trace.attempts[-1].end_ns = now_ns
            trace.attempts[-1].failure = reason

    def close(self, record: Record, end: str, now_ns: int) -> None:
        """Make the spans of a finished request; `end` is its end state as in the access line."""
        trace = self._open.pop(record.request.id, None) or self._trace_of(record)
        if not trace.place.is_sampled:
            return
        shift_ns = self._unix_ns() - now_ns
        if record.ended_in == State.QUEUED:
            trace.note_wait(now_ns - record.queue_ns, now_ns)
        elif not trace.attempts:
            trace.note_wait(record.granted_ns - record.queue_ns, record.granted_ns)
        self._sink.put(
            Span(
                f"{record.request.head.method.decode('latin-1')} {record.request.surface.path.decode()}",
                Kind.SERVER,
                trace.place,
                trace.parent,
                True,
                record.began_ns + shift_ns,
                now_ns + shift_ns,
                self._request_facts(record, end),
                is_error=is_own_error(record),
            )
        )
        waits = {names.CONTEXT_CLASS: "long" if record.is_long else "normal", names.MODEL: record.model}
        for start_ns, end_ns in trace.waits:
            place = self._sampler.below(trace.place)
            self._sink.put(
                Span("queue", Kind.INTERNAL, place, trace.place, False, start_ns + shift_ns, end_ns + shift_ns, waits)
            )
        for attempt in trace.attempts:
            self._sink.put(self._attempt_span(record, trace, attempt, shift_ns, now_ns))

    def _trace_of(self, record: Record) -> Trace:
        parent = find_place(record.request.passed)
        return Trace(parent, self._sampler.begin(parent))

    def _names_of(self, runtime: Runtime) -> Mapping[Key, str]:
        """What each provider of a configuration is, for gen_ai.provider.name."""
        if self._named_of is not runtime:
            self._named = {provider.key: provider.label or provider.type for provider in runtime.catalog.providers}
            self._named_of = runtime
        return self._named

    def _request_facts(self, record: Record, end: str) -> dict[str, Value]:
        request, reply, outcome = record.request, record.reply, record.outcome
        path = request.surface.path.decode()
        facts: dict[str, Value] = {
            names.HTTP_METHOD: request.head.method.decode("latin-1"),
            names.HTTP_ROUTE: path,
            names.URL_PATH: path,
            names.URL_SCHEME: self._scheme,
            names.REQUEST_ID: request.id.decode(),
            names.PRINCIPAL: request.principal[0],
            names.OUTCOME: outcome,
            names.END: end,
            names.HTTP_REQUEST_SIZE: record.bytes_in,
            names.HTTP_RESPONSE_SIZE: reply.bytes_out,
        }
        if record.model:
            facts[names.MODEL] = record.model
            facts[names.ESTIMATED_TOKENS] = record.estimated_tokens
            facts[names.CONTEXT_CLASS] = "long" if record.is_long else "normal"
        if reply.status:
            facts[names.HTTP_STATUS] = reply.status
        error = error_of(record)
        if error:
            facts[names.ERROR_TYPE] = error
        return facts

    def _attempt_span(self, record: Record, trace: Trace, attempt: Attempt, shift_ns: int, now_ns: int) -> Span:
        operation = operation_of(record.request.surface.path)
        facts: dict[str, Value] = {
            names.OPERATION: operation,
            names.PROVIDER_NAME: attempt.provider_name,
            names.REQUEST_MODEL: attempt.model,
            names.REQUEST_STREAM: attempt.stream,
            names.MODEL: record.model,
            names.NODE: attempt.key[0],
            names.PROVIDER: attempt.key[1],
        }
        error, moments = attempt.failure, []
        if not attempt.end_ns:  # the one that the record is about
            error = error_of(record)
            if record.head_ns:
                facts[names.HTTP_STATUS] = record.reply.status
            if record.usage is not None:
                facts[names.INPUT_TOKENS], facts[names.OUTPUT_TOKENS], facts[names.CACHED_TOKENS] = record.usage
            said = (("sent", record.sent_ns), ("head", record.head_ns))
            moments = [Moment(name, at_ns + shift_ns) for name, at_ns in said if at_ns >= attempt.start_ns]
        if error:
            facts[names.ERROR_TYPE] = error
        return Span(
            f"{operation} {attempt.model}",
            Kind.CLIENT,
            attempt.place,
            trace.place,
            False,
            attempt.start_ns + shift_ns,
            (attempt.end_ns or now_ns) + shift_ns,
            facts,
            moments,
            bool(error),
        )


def error_of(record: Record) -> str:
    """Return what a finished request's error is called: the reason of a failure, the status of a provider's own error
    answer, "" for none. That a client left is nobody's error."""
    if record.outcome not in (SUCCESS, CLIENT_GONE):
        return record.outcome
    return str(record.reply.status) if record.reply.status >= ERROR_STATUS else ""


def is_own_error(record: Record) -> bool:
    """True when a request ended as an error of this side: as HTTP's conventions say for servers, a 4xx is none."""
    if record.outcome not in (SUCCESS, CLIENT_GONE) and record.head_ns:
        return True  # an answer that was broken off
    return record.reply.status >= SERVER_ERROR_STATUS
