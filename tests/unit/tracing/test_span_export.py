"""Spans on their way out: what OpenTelemetry gets of them, what is lost and how that is told."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable, Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from iop_fast.tracing import export as module
from iop_fast.tracing.context import Place
from iop_fast.tracing.export import SpanExport
from iop_fast.tracing.spans import Kind, Moment, Span
from tests.fakes.span_sink import attributes_of, collector

LIMIT_S = 10.0
ENDPOINT = "http://127.0.0.1:9/v1/traces"
PARENT, PLACE = Place(7, 8, True), Place(7, 9, True)


def a_span(**changes: object) -> Span:
    made = Span("chat m", Kind.CLIENT, PLACE, PARENT, True, 1_000, 2_000, {"a": "b", "n": 3, "yes": True})
    return made._replace(**changes)  # type: ignore[arg-type]


def until(look: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not look():
        assert time.monotonic() < deadline, f"not seen within {LIMIT_S} s: {what}"
        time.sleep(0.005)


class HeldExporter(SpanExporter):
    """Takes nothing until it may, or for ever."""

    def __init__(self, result: SpanExportResult = SpanExportResult.SUCCESS) -> None:
        self.may = threading.Event()
        self.result = result
        self.shutdowns = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.may.wait(LIMIT_S)
        return self.result

    def shutdown(self) -> None:
        self.shutdowns += 1
        self.may.set()


def test_what_opentelemetry_gets_of_a_span() -> None:
    memory = InMemorySpanExporter()
    export = SpanExport(ENDPOINT, "iop-edge", "edge", exporter=memory, delay_ms=5)
    export.put(a_span(moments=[Moment("head", 1_500)]))
    export.put(a_span(kind=Kind.SERVER, parent=None, is_error=True))
    asyncio.run(export.close())
    first, second = memory.get_finished_spans()
    assert (first.name, first.kind, first.start_time, first.end_time) == ("chat m", SpanKind.CLIENT, 1_000, 2_000)
    assert (first.context.trace_id, first.context.span_id, first.context.is_remote) == (7, 9, False)
    assert first.parent is not None
    assert (first.parent.trace_id, first.parent.span_id, first.parent.is_remote) == (7, 8, True)
    assert dict(first.attributes or {}) == {"a": "b", "n": 3, "yes": True}
    assert [(event.name, event.timestamp) for event in first.events] == [("head", 1_500)]
    assert first.status.status_code is StatusCode.UNSET
    assert first.resource.attributes["service.name"] == "iop-edge"
    assert first.resource.attributes["service.instance.id"] == "edge"
    assert (second.kind, second.parent, second.status.status_code) == (SpanKind.SERVER, None, StatusCode.ERROR)
    assert export.counts() == {"exported": 2, "failed": 0, "dropped": 0}


def test_its_thread_gives_the_interpreter_up_soon() -> None:
    before = sys.getswitchinterval()
    export = SpanExport(ENDPOINT, "s", "i", exporter=InMemorySpanExporter())
    assert sys.getswitchinterval() <= 0.001
    asyncio.run(export.close())
    assert sys.getswitchinterval() == before


def test_a_collector_gets_them_by_otlp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=secret")
    with collector() as sink:
        export = SpanExport(sink.endpoint, "iop-node", "n1", delay_ms=5)
        export.put(a_span(moments=[Moment("head", 1_500)], is_error=True))
        asyncio.run(export.close())
        [span] = sink.spans
        assert (sink.paths, sink.services, sink.heads[0]["x-key"]) == (["/v1/traces"], {"iop-node"}, "secret")
    assert (span.name, span.trace_id, span.span_id) == ("chat m", (7).to_bytes(16, "big"), (9).to_bytes(8, "big"))
    assert (span.parent_span_id, span.kind) == ((8).to_bytes(8, "big"), span.SPAN_KIND_CLIENT)
    assert attributes_of(span) == {"a": "b", "n": 3, "yes": True}
    assert (span.start_time_unix_nano, span.end_time_unix_nano, span.status.code) == (1_000, 2_000, 2)


def test_what_is_too_much_is_dropped_and_counted() -> None:
    held = HeldExporter()
    export = SpanExport(ENDPOINT, "s", "i", exporter=held, queue_spans=4, delay_ms=5)
    for _ in range(10):
        export.put(a_span())
    assert (export.pending, export.dropped) == (4, 6)
    held.may.set()
    until(lambda: export.pending == 0, "all taken")
    export.put(a_span())
    until(lambda: export.exported == 5, "one more taken")
    asyncio.run(export.close())
    export.put(a_span())
    assert export.counts() == {"exported": 5, "failed": 0, "dropped": 7}


def test_a_collector_that_refuses_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    with collector() as sink:
        sink.status = 400
        export = SpanExport(sink.endpoint, "s", "i", delay_ms=5)
        for number in range(1, 4):
            export.put(a_span())
            until(lambda number=number: export.failed == number, "refused")  # type: ignore[misc]
        sink.status = 200
        export.put(a_span())
        until(lambda: export.exported == 1, "taken again")
        asyncio.run(export.close())
    assert [record.getMessage() for record in caplog.records] == ["spans_not_sent", "spans_lost"]
    said = caplog.records[0].fields  # type: ignore[attr-defined]
    assert said["spans"] == 1
    assert "400" in said["error"]


def test_no_collector_at_all_loses_spans_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "0.2")  # no second try
    export = SpanExport(ENDPOINT, "s", "i", delay_ms=5)
    export.put(a_span())
    asyncio.run(export.close())
    assert (export.pending, export.failed, export.exported) == (0, 1, 0)


def test_an_exporter_that_raises_fails_its_spans() -> None:
    class Broken(HeldExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            raise OSError("no such thing")

    export = SpanExport(ENDPOINT, "s", "i", exporter=Broken(), delay_ms=5)
    export.put(a_span())
    until(lambda: export.failed == 1, "failed")
    asyncio.run(export.close())


def test_what_the_sdk_cannot_take_is_dropped() -> None:
    export = SpanExport(ENDPOINT, "s", "i", exporter=InMemorySpanExporter(), delay_ms=5)
    export.put(a_span(kind=17))
    assert (export.pending, export.dropped) == (0, 1)
    asyncio.run(export.close())


def test_a_collector_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CLOSE_LIMIT_S", 0.05)
    held = HeldExporter()
    export = SpanExport(ENDPOINT, "s", "i", exporter=held, delay_ms=5)
    export.put(a_span())
    asyncio.run(export.close())
    assert held.shutdowns == 1
    until(lambda: export.pending == 0, "its thread goes on when it may")
    until(lambda: not any(thread.name == "spans-close" for thread in threading.enumerate()), "no thread is left")
