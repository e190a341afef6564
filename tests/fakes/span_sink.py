"""Where spans end in tests: a list, and a collector that takes them by OTLP over HTTP."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as OtlpSpan

from iop_fast.tracing.spans import Span


class SpanList:
    """A SpanSink that keeps them."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def put(self, span: Span) -> None:
        self.spans.append(span)

    def counts(self) -> Mapping[str, int]:
        return {"exported": len(self.spans), "failed": 0, "dropped": 0}

    def named(self, prefix: str) -> list[Span]:
        """Spans whose name begins so, in the order of their making."""
        return [span for span in self.spans if span.name.startswith(prefix)]

    def one(self, prefix: str) -> Span:
        """The one span whose name begins so."""
        [span] = self.named(prefix)
        return span


class Collector:
    """An OTLP/HTTP collector on a free loopback port, in threads of its own."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self.heads: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.status = 200
        self.may_answer = threading.Event()
        self.may_answer.set()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                collector.may_answer.wait(10)
                if collector.status == 200:
                    collector.requests.append(ExportTraceServiceRequest.FromString(body))
                collector.heads.append({name.lower(): value for name, value in self.headers.items()})
                collector.paths.append(self.path)
                self.send_response(collector.status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                """Tests look at what came."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), name="collector")

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/v1/traces"

    @property
    def spans(self) -> list[OtlpSpan]:
        """Everything that was taken."""
        return [
            span
            for request in list(self.requests)
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    @property
    def services(self) -> set[str]:
        """The names of the programs that sent spans."""
        return {
            str(attributes_of(resource.resource)["service.name"])
            for request in list(self.requests)
            for resource in request.resource_spans
        }

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.may_answer.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@contextmanager
def collector() -> Iterator[Collector]:
    """A running collector."""
    made = Collector()
    made.start()
    try:
        yield made
    finally:
        made.stop()


READERS: Mapping[str, Callable[[Any], object]] = {
    "string_value": str,
    "int_value": int,
    "double_value": float,
    "bool_value": bool,
}


def attributes_of(holder: Any) -> dict[str, object]:
    """The attributes of a span or a resource of OTLP, as plain values."""
    found = {}
    for attribute in holder.attributes:
        kind = attribute.value.WhichOneof("value")
        found[attribute.key] = READERS[kind](getattr(attribute.value, kind))
    return found
