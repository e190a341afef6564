"""Spans of an Edge and its Node at a collector: one trace from the caller to the provider; nothing of it while off."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from iop_fast.config.loader import load_node_text
from iop_fast.node.app import Node
from tests.fakes.openai_backend import FakeBackend, answer
from tests.fakes.span_sink import Collector, attributes_of, collector
from tests.integration.edge_harness import CHAT, LIMIT_S, TOKEN, Bench, bench, config, provider, run, until

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OFF = """
import asyncio
import sys

import iop_fast.cli.main
import iop_fast.node.app
from tests.integration.edge_harness import bench, run

async def serve_one():
    async with bench() as made:
        node = await made.ready()
        asked = asyncio.create_task(made.chat())
        await (await node.next_run()).answer(b"{}")
        assert (await asked).status == 200
        async with made.client.get(made.admin("/metrics")) as page:
            assert "iop_trace_spans_total" not in await page.text()

run(serve_one())
print(sorted(name for name in sys.modules if name.startswith("opentelemetry")))
"""


def tracing(sink: Collector) -> dict[str, Any]:
    return {"enabled": True, "endpoint": sink.endpoint}


@asynccontextmanager
async def node_of(made: Bench, sink: Collector) -> AsyncIterator[Node]:
    """A real Node of the Edge, which makes spans too."""
    text = (
        f"id: n1\nedge: {{address: '127.0.0.1:{made.edge.link_port}'}}\ntoken_env: TOKEN\n"
        f"limits: {{reconnect_ms_min: 10}}\ntracing: {{enabled: true, endpoint: '{sink.endpoint}'}}\n"
    )
    node = Node(load_node_text(text, "node.yaml").config, TOKEN, environ={})
    await node.start()
    try:
        await until(lambda: node.is_ready, "the Node is ready")
        await until(
            lambda: all(row.link == "ready" for row in made.edge.gate.snapshot()), "its providers are candidates"
        )
        yield node
    finally:
        await node.stop()


async def metrics(made: Bench) -> str:
    async with made.client.get(made.admin("/metrics")) as page:
        return await page.text()


def spans_of(sink: Collector, kind: int) -> list[Span]:
    return sorted((span for span in sink.spans if span.kind == kind), key=lambda span: span.start_time_unix_nano)


def test_one_trace_from_the_caller_to_the_providers() -> None:
    """A tunnel and a normalized run; the provider of the tunnel sees the Node's span as its caller."""

    async def work() -> None:
        async with FakeBackend(answer(b'{"usage":{"prompt_tokens":3,"completion_tokens":1}}')) as backend:
            entries = [
                provider("p1", endpoint=backend.url),
                {"id": "p2", "type": "native", "profile": "echo", "models": ["served"], "capacity": 1},
            ]
            models = [{"id": "m", "providers": {"p1": "served"}}, {"id": "e", "providers": {"p2": "served"}}]
            async with bench(config({"n1": entries}, models=models, tracing=tracing(sink))) as made:
                async with node_of(made, sink):
                    for model in ("m", "e"):
                        body = {"model": model, "messages": [{"role": "user", "content": "hi"}]}
                        fields = {"traceparent": CALLER, "tracestate": "a=1"}
                        async with made.client.post(made.http(CHAT), json=body, headers=fields) as got:
                            assert got.status == 200
                            await got.read()
                    await made.idle()
                counts = made.edge.state.books.traces
                assert counts is not None
                await until(lambda: counts.counts()["exported"] == 4, "the Edge's spans are sent")
                assert 'iop_trace_spans_total{result="exported"} 4.0' in await metrics(made)
            [seen] = backend.requests
            provider_s_caller.append(seen.values(b"traceparent")[0].decode())
            assert seen.values(b"tracestate") == [b"a=1"]

    provider_s_caller: list[str] = []
    with collector() as sink:
        run(work())
        assert sink.services == {"iop-edge", "iop-node"}
        servers, clients = spans_of(sink, Span.SPAN_KIND_SERVER), spans_of(sink, Span.SPAN_KIND_CLIENT)
    assert {span.trace_id.hex() for span in (*servers, *clients)} == {CALLER.split("-")[1]}
    assert [span.parent_span_id.hex() for span in servers] == [CALLER.split("-")[2]] * 2
    edge_s = [span for span in clients if span.parent_span_id in {one.span_id for one in servers}]
    node_s = [span for span in clients if span.parent_span_id in {one.span_id for one in edge_s}]
    assert (len(edge_s), len(node_s), len(clients)) == (2, 2, 4)
    told = attributes_of(edge_s[0])
    assert (told["gen_ai.usage.input_tokens"], told["gen_ai.provider.name"]) == (3, "vllm")
    tunnel, echo = (attributes_of(span) for span in node_s)
    assert (tunnel["iop.provider"], tunnel["server.address"], echo["iop.provider"]) == ("p1", "127.0.0.1", "p2")
    assert provider_s_caller == [f"{CALLER[:35]}-{node_s[0].span_id.hex()}-01"]


def test_a_collector_that_is_away_changes_nothing_for_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "0.2")  # no second try

    async def work() -> None:
        settings = config(tracing={"enabled": True, "endpoint": "http://127.0.0.1:9/v1/traces"})
        async with bench(settings) as made:
            node = await made.ready()
            asked = asyncio.create_task(made.chat())
            await (await node.next_run()).answer(b"{}")
            assert (await asked).status == 200
            traces = made.edge.state.books.traces
            assert traces is not None
            await until(lambda: traces.counts()["failed"] == 2, "the spans are lost")
            assert 'iop_trace_spans_total{result="failed"} 2.0' in await metrics(made)

    run(work())


def test_a_node_that_is_lost_ends_the_spans_of_its_runs() -> None:
    async def work() -> None:
        async with bench(config(tracing=tracing(sink))) as made:
            node = await made.ready()
            asked = asyncio.create_task(made.chat())
            told = await node.next_run()
            caller = {field.name: field.value for field in told.request.headers}[b"traceparent"]
            await node.close()
            assert (await asked).status == 502
            await made.idle()
        [span] = spans_of(sink, Span.SPAN_KIND_CLIENT)
        assert caller == f"00-{span.trace_id.hex()}-{span.span_id.hex()}-01".encode()
        assert (attributes_of(span)["error.type"], span.status.code) == ("upstream_error", 2)

    with collector() as sink:
        run(work())


def test_nothing_of_opentelemetry_is_loaded_while_tracing_is_off() -> None:
    """An Edge serves a request and its metrics, and the Node and the commands are loaded."""
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-c", OFF]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=6 * LIMIT_S, check=False)
    assert (done.stdout.splitlines()[-1:], done.returncode) == (["[]"], 0), done.stderr
