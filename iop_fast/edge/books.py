"""The end of every request, written down once: counters, meters, usage, one access line.

`Books` is where a request's facts leave it. An exchange calls `close` in its `finish`; requests that were answered from
their head alone, or by the front, come by `note`. Counters and meters are always kept; lines go to the writers that the
program sets (`access`, `usage_log`), and without one none is rendered.

The access line. One a request, whatever became of it:

    request principal token model node provider path status outcome end class queue_ms ttfb_ms total_ms
    estimated_tokens prompt_tokens completion_tokens cached_tokens usage bytes_in bytes_out

`outcome` is `ok`, `client_gone` or a reason of the error table. `end` is two letters, read as HAProxy's termination
state: who ended the request, and how far it had come.

    first    - nobody, it ended by itself       C the client left        c the client was too slow
             P the gateway refused it           S provider or Node       s the provider was silent past its limit
             R a limit of the gateway           K the gateway shuts down I a bug of the gateway
    second   R its body was arriving   Q it waited   H its answer had not begun   D in its answer   - after all of it

Durations are milliseconds; `ttfb_ms` runs to the head of a provider's answer, and is absent (as every field is that the
request did not come to) without one. Names come from the configuration, so no field holds a client's text or a secret,
and the meters have as many rows as the configuration has names: a request for no model of it counts under OTHER, one
that no provider got under NOBODY.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import orjson

from iop_fast import logs
from iop_fast._hot.meters import RequestMeters
from iop_fast.edge.access_line import AccessLines
from iop_fast.edge.lines import LineWriter
from iop_fast.edge.outcomes import CLIENT_GONE, SUCCESS
from iop_fast.edge.usage import UsageBook, usage_state
from iop_fast.errors import Failure

if TYPE_CHECKING:
    from iop_fast.edge.record import Record
    from iop_fast.edge.runtime import Runtime
    from iop_fast.edge.traces import RequestTraces

NS_PER_MS = 1_000_000

# What meters count under where there is no model of the configuration, and no provider.
OTHER, NOBODY = "other", "none"

# Who ended a request, by its outcome; a failure that is not named here is a refusal of the gateway's.
ENDED_BY: Mapping[str, str] = {
    SUCCESS: "-",
    CLIENT_GONE: "C",
    Failure.REQUEST_TIMEOUT.reason: "c",
    Failure.UPSTREAM_ERROR.reason: "S",
    Failure.UNAVAILABLE.reason: "S",
    Failure.UPSTREAM_TIMEOUT.reason: "s",
    Failure.QUEUE_FULL.reason: "R",
    Failure.QUEUE_TIMEOUT.reason: "R",
    Failure.OVERLOADED.reason: "R",
    Failure.DRAINING.reason: "K",
    Failure.INTERNAL.reason: "I",
}
# How far it had come, by the value of `exchange.State` that it ended in.
STAGES = "RQHD"

Render = Callable[[str, Mapping[str, object]], bytes]


class Books:
    """Takes in what became of requests. `counters` counts them by outcome, and what should not happen, `meters` by
    names, with how long their parts took. `traces` makes spans of them where tracing is on."""

    __slots__ = ("_lines", "_render", "access", "counters", "meters", "traces", "usage", "usage_log")

    def __init__(self) -> None:
        self.counters: dict[str, int] = {"released_unconfirmed": 0, "readmitted": 0, "internal": 0}
        self.meters = RequestMeters()
        self.usage = UsageBook()
        self.access: LineWriter | None = None
        self.usage_log: LineWriter | None = None
        self.traces: RequestTraces | None = None
        self._render: Render = logs.line_renderer(__name__)
        self._lines: AccessLines | None = None

    def write_access(self, writer: LineWriter) -> None:
        """Write an access line for every request from here on, in the form that `logs.setup` chose."""
        self.access = writer
        self._render = logs.line_renderer(__name__)
        self._lines = AccessLines(__name__) if logs.is_json() else None

    def write_usage(self, writer: LineWriter) -> None:
        """Write a line of usage for every booked request from here on."""
        self.usage_log = writer

    def forget(self, runtime: Runtime) -> None:
        """Drop what the meters count of models and providers that a configuration does not have."""
        models, providers = runtime.models, runtime.can
        self.meters.forget(
            lambda model: model in models or model == OTHER,
            lambda key: key in providers or key == (NOBODY, NOBODY),
        )

    def count(self, name: str) -> None:
        """Add one to a counter."""
        self.counters[name] = self.counters.get(name, 0) + 1

    def close(self, record: Record, now_ns: int) -> None:
        """Write down a finished record. Called once, when everything about it is known."""
        outcome = record.outcome
        self.count(outcome)
        self._measure(record, now_ns)
        state = ""
        # Of what no provider can have seen, nothing was used.
        if (record.is_sent or record.is_taken) and record.request.is_metered:
            state = usage_state(outcome == SUCCESS, record.usage)
            provider = (record.node_id, record.provider_id)
            self.usage.book(
                record.request.principal, record.model, provider, state, record.usage, record.estimated_tokens
            )
            if self.usage_log is not None:
                self.usage_log.put(usage_line(record, state))
        if self._lines is not None and self.access is not None:
            self.access.put(self._lines.render(record, end_state(record), state, now_ns))
        elif self.access is not None:
            self.access.put(self._render("request", access_fields(record, state, now_ns)))
        if self.traces is not None:
            self.traces.close(record, end_state(record), now_ns)

    def _measure(self, record: Record, now_ns: int) -> None:
        """Count the request under its names; a duration that it did not come to is -1."""
        head_ns, provider_id, queue_ns = record.head_ns, record.provider_id, record.queue_ns
        self.meters.close(
            record.model or OTHER,
            record.node_id or NOBODY,
            provider_id or NOBODY,
            record.outcome,
            record.is_long,
            queue_ns if provider_id or queue_ns else -1,
            head_ns - record.began_ns if head_ns else -1,
            head_ns - record.granted_ns if head_ns else -1,
            now_ns - record.began_ns,
            record.sent_ns - record.granted_ns if head_ns else -1,
        )

    def note(self, request_id: bytes, outcome: str, status: int, path: bytes = b"", principal: str = "") -> None:
        """Write an access line for a request that never became an record. `path` is one that the Edge serves."""
        self.meters.close(OTHER, NOBODY, NOBODY, outcome, False, -1, -1, -1, -1, -1)
        if self.access is None:
            return
        fields: dict[str, object] = {"request": request_id.decode()}
        if principal:
            fields["principal"] = principal
        if path:
            fields["path"] = path.decode()
        fields |= {"status": status, "outcome": outcome, "end": ENDED_BY.get(outcome, "P") + "-R"[outcome != SUCCESS]}
        self.access.put(self._render("request", fields))


def access_fields(record: Record, state: str, now_ns: int) -> dict[str, object]:
    """Put together the fields of an access line."""
    request, reply, began_ns = record.request, record.reply, record.began_ns
    outcome, usage = record.outcome, record.usage
    fields: dict[str, object] = {
        "request": request.id.decode(),
        "principal": request.principal[0],
        "token": request.principal[1],
        "model": record.model,
        "node": record.node_id,
        "provider": record.provider_id,
        "path": request.path.decode(),
        "status": reply.status,
        "outcome": outcome,
        "end": end_state(record),
        "class": "long" if record.is_long else "normal",
        "queue_ms": record.queue_ns // NS_PER_MS,
        "total_ms": (now_ns - began_ns) // NS_PER_MS,
        "estimated_tokens": record.estimated_tokens,
        "bytes_in": record.bytes_in,
        "bytes_out": reply.bytes_out,
    }
    if record.head_ns:
        fields["ttfb_ms"] = (record.head_ns - began_ns) // NS_PER_MS
    if state:
        fields["usage"] = state
    if usage is not None:
        fields["prompt_tokens"], fields["completion_tokens"], fields["cached_tokens"] = usage
    return fields


def end_state(record: Record) -> str:
    """Return who ended a request, and how far it had come; see the module's head."""
    if record.outcome == SUCCESS:
        return "--"
    return ENDED_BY.get(record.outcome, "P") + STAGES[record.ended_in or 0]


def usage_line(record: Record, state: str) -> bytes:
    """Render a line of the usage log. A count that was not reported is null, never 0."""
    request = record.request
    prompt, completion, cached = record.usage or (None, None, None)
    fields = {
        "request": request.id.decode(),
        "principal": request.principal[0],
        "token_ref": request.principal[1],
        "model": record.model,
        "node_id": record.node_id,
        "provider_id": record.provider_id,
        "path": request.path.decode(),
        "outcome": record.outcome,
        "state": state,
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "cached_tokens": cached,
        "estimated_tokens": record.estimated_tokens,
    }
    return b'{"time":"%b",%b' % (logs.stamp(), orjson.dumps(fields, None, logs.LINE)[1:])
