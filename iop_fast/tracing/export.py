"""Spans on their way out: OpenTelemetry's SDK batches them and sends them by OTLP over HTTP, in its own thread.

The one module that imports OpenTelemetry, so it is imported only where tracing is on.

Bounds. At most QUEUE_SPANS spans are in memory; what comes beyond is dropped and counted, so that the SDK's own queue,
which drops without counting, is never full. What the collector did not take is lost and counted. `close` gives the rest
CLOSE_LIMIT_S.

The SDK writes a batch in Python, 50 us a span, and its thread would keep the interpreter from the loop for 5 ms at a
time. So threads give it up sooner while there is an export (`SWITCH_INTERVAL_S`).

The SDK reads its own variables of the environment (OTEL_EXPORTER_OTLP_HEADERS, OTEL_EXPORTER_OTLP_CERTIFICATE,
OTEL_RESOURCE_ATTRIBUTES ...): what a collector demands beyond an address, keys above all, is given there.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Mapping, Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

import iop_fast
from iop_fast import logs
from iop_fast.considerate import SWITCH_INTERVAL_S
from iop_fast.tracing.context import Place
from iop_fast.tracing.spans import Kind, Span

log = logs.get(__name__)

QUEUE_SPANS = 8192
BATCH_SPANS = 512
# Time between two batches that are not full.
DELAY_MS = 1_000
CLOSE_LIMIT_S = 3.0
CLOSE_LOOK_S = 0.02

# What the schema of the conventions in `spans` is called.
SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"

SDK_LOGGER = "opentelemetry"
REASON_CHARACTERS = 300

KINDS: Mapping[Kind, SpanKind] = {
    Kind.INTERNAL: SpanKind.INTERNAL,
    Kind.SERVER: SpanKind.SERVER,
    Kind.CLIENT: SpanKind.CLIENT,
}
FLAGS = {False: TraceFlags(TraceFlags.DEFAULT), True: TraceFlags(TraceFlags.SAMPLED)}
UNSET, ERROR = Status(StatusCode.UNSET), Status(StatusCode.ERROR)


class SpanExport:
    """A SpanSink. `put` is the loop's; sending happens in the SDK's thread, and counters are only read elsewhere."""

    def __init__(
        self,
        endpoint: str,
        service_name: str,
        instance_id: str,
        *,
        exporter: SpanExporter | None = None,
        queue_spans: int = QUEUE_SPANS,
        delay_ms: float = DELAY_MS,
    ) -> None:
        """Start the thread. `exporter` takes the place of OTLP to `endpoint`."""
        self._resource = Resource.create(
            {
                "service.name": service_name,
                "service.version": iop_fast.__version__,
                "service.instance.id": instance_id,
            },
            SCHEMA_URL,
        )
        self._scope = InstrumentationScope("iop_fast", iop_fast.__version__, SCHEMA_URL)
        self._counting = CountingExporter(OTLPSpanExporter(endpoint) if exporter is None else exporter)
        self._queue_spans = queue_spans
        self._given = 0
        self._processor = BatchSpanProcessor(
            self._counting,
            max_queue_size=queue_spans,
            schedule_delay_millis=delay_ms,
            max_export_batch_size=min(BATCH_SPANS, queue_spans),
        )
        self._is_closed = False
        self._interval_s = sys.getswitchinterval()
        sys.setswitchinterval(min(self._interval_s, SWITCH_INTERVAL_S))
        self.dropped = 0

    @property
    def exported(self) -> int:
        """Spans that the collector has taken."""
        return self._counting.exported

    @property
    def failed(self) -> int:
        """Spans that it has not."""
        return self._counting.failed

    @property
    def pending(self) -> int:
        """Spans that are under way."""
        return self._given - self.exported - self.failed

    def counts(self) -> dict[str, int]:
        """Spans by what became of them."""
        return {"exported": self.exported, "failed": self.failed, "dropped": self.dropped}

    def put(self, span: Span) -> None:
        """Take a span; drop it when too many are under way."""
        if self._is_closed or self.pending >= self._queue_spans:
            self.dropped += 1
            return
        self._given += 1
        try:
            self._processor.on_end(self._readable(span))
        except Exception as error:  # noqa: BLE001 - what a library cannot take is a lost span and no failed request
            log.failure("span_not_taken", error)
            self._given -= 1
            self.dropped += 1

    def _readable(self, span: Span) -> ReadableSpan:
        """Make what processors get of a span: the SDK's own spans can neither have begun before nor have ids given."""
        return ReadableSpan(
            span.name,
            context=context_of(span.place, is_remote=False),
            parent=None if span.parent is None else context_of(span.parent, span.is_parent_remote),
            resource=self._resource,
            attributes=span.attributes,
            events=[Event(moment.name, None, moment.at_ns) for moment in span.moments],
            kind=KINDS[span.kind],
            status=ERROR if span.is_error else UNSET,
            start_time=span.start_ns,
            end_time=span.end_ns,
            instrumentation_scope=self._scope,
        )

    async def close(self) -> None:
        """Send what is under way and end the thread; a collector that hangs is given up."""
        self._is_closed = True
        thread = threading.Thread(target=self._processor.shutdown, name="spans-close", daemon=True)
        thread.start()
        deadline = asyncio.get_running_loop().time() + CLOSE_LIMIT_S
        while thread.is_alive() and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110 - a thread sets no event
            await asyncio.sleep(CLOSE_LOOK_S)
        self._counting.shutdown()
        sys.setswitchinterval(self._interval_s)
        if self.pending or self.failed or self.dropped:
            log.warning("spans_lost", dropped=self.dropped, failed=self.failed, left=self.pending)


class CountingExporter(SpanExporter):
    """Counts what another exporter does, and says once what fails again and again."""

    def __init__(self, exporter: SpanExporter) -> None:
        self.exported = 0
        self.failed = 0
        self._exporter = exporter
        self._is_failing = False
        self._reasons = Reasons()
        self._reasons.attach()
        self._is_shut = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """See SpanExporter (called in the SDK's thread)."""
        try:
            result = self._exporter.export(spans)
        except Exception as error:  # noqa: BLE001 - whatever fails in a library, its spans are lost and counted
            self._reasons.last, result = str(error), SpanExportResult.FAILURE
        if result is SpanExportResult.SUCCESS:
            self.exported += len(spans)
            self._is_failing = False
        else:
            self.failed += len(spans)
            if not self._is_failing:
                self._is_failing = True
                log.error("spans_not_sent", spans=len(spans), error=self._reasons.last[:REASON_CHARACTERS])
        return result

    def shutdown(self) -> None:
        """Let go of the connection; what waits to be tried again is given up. Idempotent."""
        if not self._is_shut:
            self._is_shut = True
            self._exporter.shutdown()
            self._reasons.detach()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Nothing is kept here."""
        return True


class Reasons(logging.Handler):
    """Keeps the last that the SDK logged about a failure, which it does for each try of each batch."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.last = ""

    def emit(self, record: logging.LogRecord) -> None:
        """See logging.Handler."""
        self.last = record.getMessage()

    def attach(self) -> None:
        """Take the SDK's lines instead of the program's log."""
        logger = logging.getLogger(SDK_LOGGER)
        logger.addHandler(self)
        logger.propagate = False

    def detach(self) -> None:
        """Leave its lines to the program's log again."""
        logger = logging.getLogger(SDK_LOGGER)
        logger.removeHandler(self)
        logger.propagate = not logger.handlers


def context_of(place: Place, is_remote: bool) -> SpanContext:
    """Return a place as OpenTelemetry has it."""
    return SpanContext(place.trace_id, place.span_id, is_remote, FLAGS[place.is_sampled])
