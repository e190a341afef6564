"""A whole Node over real gRPC, against a scripted Edge and model server; in this process and as a process."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from iop_fast.config.loader import load_node_text
from iop_fast.config.payload import NodePayload, ProviderPayload, RuntimeSettings
from iop_fast.node import metric_rows
from iop_fast.node.app import Node
from iop_fast.seams import RunOpening
from iop_fast.wire import runtime_pb2 as pb
from iop_fast.wire.options import RUN_WINDOW_BYTES
from tests.fakes.fake_edge import FakeEdge, FakeLink
from tests.fakes.openai_backend import Exchange, FakeBackend, OpenAIScript, answer, raw, sse
from tests.integration.node_bench import (
    adapter_settings,
    on_uvloop,
    provider_payload,
    tunnel,
    until,
)

RunEnd = pb.RunEnd
OK_JSON = b'{"ok":true}'
CHUNKED_HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def payload(*providers: ProviderPayload, drain_limit_ms: int = 0) -> NodePayload:
    return NodePayload(RuntimeSettings(drain_limit_ms, 0), (), providers)


def echo_provider(**changes: Any) -> ProviderPayload:
    settings = adapter_settings("", type="native", profile="echo")
    return provider_payload("echo", settings=settings, adapter_type="native", **changes)


def chat_opening(text: str, first_bytes: int | None = None) -> tuple[RunOpening, bytes]:
    """The opening of a chat with the echo model, and what is left of its input behind the first piece."""
    asked = pb.RunMessage(role="user", parts=[pb.RunPart(text=text)])
    data = pb.RunInput(messages=[asked]).SerializeToString()
    first, rest = (data, b"") if first_bytes is None else (data[:first_bytes], data[first_bytes:])
    return RunOpening("echo", "m", pb.RunRequest.CHAT, True, first, not rest, len(data)), rest


@asynccontextmanager
async def node_of(edge: FakeEdge, limits: str = "") -> AsyncIterator[Node]:
    text = f"id: n1\nedge: {{address: '{edge.address}'}}\ntoken_env: TOKEN\nlimits: {{reconnect_ms_min: 10{limits}}}\n"
    node = Node(load_node_text(text, "node.yaml").config, "the-token", environ={})
    await node.start()
    try:
        yield node
    finally:
        await node.stop()


async def ready(edge: FakeEdge, given: NodePayload, **accept: int) -> FakeLink:
    """Take the next registration to its ready ack."""
    link = await edge.next_link()
    link.accept(given, **accept)
    await link.until("ready_ack")
    return link


@on_uvloop
async def test_a_node_registers_serves_and_leaves() -> None:
    async with FakeEdge() as edge, FakeBackend(answer(OK_JSON)) as backend, node_of(edge) as node:
        link = await edge.next_link()
        assert (link.request.node_id, link.request.token, link.request.protocol) == ("n1", "the-token", "1.0")
        assert link.request.software.startswith("iop ")
        assert len(link.request.instance_id) == 32
        assert not node.is_ready
        link.accept(payload(provider_payload("p1", backend.url), provider_payload("p2", adapter_type="ollama")))
        ack = (await link.until("ready_ack")).ready_ack
        assert [state.state for state in ack.providers] == [pb.ProviderState.UP, pb.ProviderState.BROKEN]
        assert node.is_ready
        run = link.open(tunnel(b'{"a":1}'))
        end = await run.ended()
        assert (end.status, run.kinds, bytes(run.body)) == (RunEnd.OK, ["taken", "head", "data", "end"], OK_JSON)
        assert bytes(backend.requests[0].body) == b'{"a":1}'


@on_uvloop
async def test_a_provider_that_refuses_connections_is_reported_and_comes_back() -> None:
    async with FakeEdge() as edge, node_of(edge, ", probe_ms_min: 20, probe_ms_max: 50"):
        backend = FakeBackend(answer(OK_JSON))
        await backend.start()
        link = await ready(edge, payload(provider_payload("p1", backend.url)))
        port = backend.port
        await backend.stop()
        end = await link.open(tunnel()).ended()
        assert end.status == RunEnd.CONNECT_FAILED
        states = (await link.until("provider_states")).provider_states.providers
        assert [(state.provider_id, state.state) for state in states] == [("p1", pb.ProviderState.UNREACHABLE)]
        again = FakeBackend(answer(OK_JSON))
        await again.start(port)
        states = (await link.until("provider_states", 2)).provider_states.providers
        assert [state.state for state in states] == [pb.ProviderState.UP]
        assert (await link.open(tunnel()).ended()).status == RunEnd.OK
        await again.stop()


@on_uvloop
async def test_what_a_node_did_is_counted_over_its_sessions() -> None:
    async with FakeEdge() as edge, FakeBackend(answer(OK_JSON)) as backend, node_of(edge) as node:
        link = await ready(edge, payload(provider_payload("p1", backend.url), provider_payload("p2")))
        assert (await link.open(tunnel()).ended()).status == RunEnd.OK
        before = dict(read_metrics(node))
        assert before["iop_node_runs_total", ("p1", "ok")] == 1
        assert before["iop_node_provider_runs", ("p1",)] == before["iop_node_runs", ()] == 0
        assert (before["iop_node_ready", ()], before["iop_node_session_generation", ()]) == (1, node_generation(node))
        assert before["iop_node_provider_state", ("p1", "up")] == 1
        assert before["iop_node_provider_state", ("p1", "broken")] == 0
        assert node.checks() == {"session": True, "session_ready": True}
        link.close()
        link = await ready(edge, payload(provider_payload("p2")))
        after = dict(read_metrics(node))
        assert after["iop_node_sessions_total", ()] == before["iop_node_sessions_total", ()] + 1
        for family in ("bytes", "messages", "frames"):
            for direction in ("sent", "received"):
                key = (f"iop_node_link_{family}_total", (direction,))
                assert after[key] > before[key] > 0
        assert not any(labels[:1] == ("p1",) for _, labels in after)  # it has left the configuration


def node_generation(node: Node) -> int:
    """Number of the current session."""
    assert node.dialer.session is not None
    return node.dialer.session.generation


def read_metrics(node: Node) -> Iterator[tuple[tuple[str, tuple[str, ...]], float]]:
    """Every value under its family's name and labels."""
    for family, rows in metric_rows.read(node):
        for labels, value in rows:
            assert isinstance(value, int | float)
            yield (family.name, labels), value


@on_uvloop
async def test_a_refresh_changes_numbers_and_keeps_the_connections() -> None:
    """B04: a push of another capacity restarts nothing."""
    async with FakeEdge() as edge, FakeBackend(answer(OK_JSON)) as backend, node_of(edge):
        link = await ready(edge, payload(provider_payload("p1", backend.url)))
        for revision in range(2, 12):
            assert (await link.open(tunnel()).ended()).status == RunEnd.OK
            link.push(payload(provider_payload("p1", backend.url, capacity=revision)), revision)
            answered = (await link.until("refresh_response", revision - 1)).refresh_response
            assert (answered.payload_revision, answered.applied) == (revision, True)
        assert backend.connections == 2  # the first look, and the one that serves


@on_uvloop
async def test_a_stream_and_its_usage_pass() -> None:
    async with FakeEdge() as edge, FakeBackend(OpenAIScript(words=40)) as backend, node_of(edge):
        link = await ready(edge, payload(provider_payload("p1", backend.url)))
        body = json.dumps({"model": "m", "stream": True, "stream_options": {"include_usage": True}}).encode()
        run = link.open(tunnel(body))
        end = await run.ended()
        assert bytes(run.body).endswith(b"data: [DONE]\n\n")
        assert end.usage == pb.Usage(prompt_tokens=7, completion_tokens=40)


@on_uvloop
async def test_a_client_that_does_not_read_pauses_its_own_provider_and_nobody_elses() -> None:
    body = random.Random(1).randbytes(8_000_000)
    async with FakeEdge() as edge, FakeBackend(answer(body)) as backend, node_of(edge):
        link = await ready(edge, payload(provider_payload("p1", backend.url)))
        stalled = link.open(tunnel())
        stalled.holds_window = True
        await link.wait(lambda: len(stalled.body) == RUN_WINDOW_BYTES, "a whole window")
        others = [link.open(tunnel()) for _ in range(4)]
        for other in others:
            await other.ended()
            assert bytes(other.body) == body
        assert len(stalled.body) == RUN_WINDOW_BYTES
        assert stalled.end is None
        assert backend.running == 1
        stalled.holds_window = False
        link.say(pb.Frame(run_id=stalled.run_id, window=pb.WindowUpdate(bytes=RUN_WINDOW_BYTES)))
        assert (await stalled.ended()).status == RunEnd.OK
        assert bytes(stalled.body) == body


@on_uvloop
async def test_a_large_request_goes_out_as_its_window_is_renewed() -> None:
    """B13: 10 MB in pieces, beside a small stream on the same Node."""
    body = random.Random(2).randbytes(10_000_000)
    async with FakeEdge() as edge, FakeBackend() as backend, node_of(edge):
        backend.script = answer(OK_JSON)
        link = await ready(edge, payload(provider_payload("p1", backend.url), echo_provider()))
        sent = 60_000
        run = link.open(tunnel(body[:sent], body_complete=False, body_length=len(body)))
        while sent < len(body):
            allowed = RUN_WINDOW_BYTES + run.window
            await link.wait(lambda allowed=allowed, sent=sent: RUN_WINDOW_BYTES + run.window > sent, "window")
            allowed = min(RUN_WINDOW_BYTES + run.window, len(body))
            while sent < allowed:
                size = min(60_000, allowed - sent)
                run.feed(body[sent : sent + size], sent + size == len(body))
                sent += size
        assert (await run.ended()).status == RunEnd.OK
        assert bytes(backend.requests[0].body) == body


@on_uvloop
async def test_a_cancel_closes_the_providers_connection() -> None:
    async with FakeEdge() as edge, FakeBackend(raw([], then="hold")) as backend, node_of(edge):
        link = await ready(edge, payload(provider_payload("p1", backend.url)))
        run = link.open(tunnel())
        await until(lambda: len(backend.requests) == 1, "the request")
        run.cancel()
        assert (await run.ended()).status == RunEnd.CANCELLED
        async with asyncio.timeout(2):
            await backend.requests[0].closed.wait()


@on_uvloop
async def test_nothing_is_left_of_runs_that_came_and_went() -> None:
    """B01: cut at every moment, refused, failed and whole ones, round after round: no task, file or run stays."""
    chance = random.Random(4)
    print("seed 4")

    async def script(exchange: Exchange) -> None:
        await asyncio.sleep(chance.choice((0, 0, 0.02)))
        kind = chance.randrange(4)
        if kind == 0:
            exchange.reset()
        elif kind == 1:
            await raw([CHUNKED_HEAD, b"5\r\nhello\r\n"], 0.005)(exchange)
        else:
            await OpenAIScript(words=5, chunk_delay_s=0.004)(exchange)

    async with FakeEdge() as edge, FakeBackend(script) as backend, node_of(edge) as node:
        link = await ready(edge, payload(provider_payload("p1", backend.url), echo_provider()))
        body = json.dumps({"model": "m", "stream": True, "messages": [{"role": "user", "content": "a b c"}]}).encode()
        counts: list[tuple[int, int]] = []
        for _ in range(4):
            runs = []
            for _ in range(40):
                provider = chance.choice(("p1", "p1", "echo", "none"))
                asked = tunnel(body, provider_id=provider)
                runs.append(link.open_run(chat_opening("a b c")[0]) if provider == "echo" else link.open(asked))
                await asyncio.sleep(chance.choice((0, 0, 0.001, 0.004)))
                if chance.random() < 0.5:
                    chance.choice(runs).cancel()
            for run in runs:
                await run.ended()
            assert not any(relay.runs for relay in node.dialer.relays)
            await until(lambda: backend.running == 0, "the server runs nothing")
            # Connections of the pool stay open for a while; the server's ends of them are in this process too.
            files = len(os.listdir("/dev/fd")) - 2 * backend.open_connections
            counts.append((len(asyncio.all_tasks()) - backend.open_connections, files))
        assert max(counts[1:]) <= counts[0]


@on_uvloop
async def test_finished_runs_hold_no_cycles() -> None:
    """Memory of an answered run is free when it ends: nothing of it waits for a collection."""

    async def script(exchange: Exchange) -> None:
        if exchange.request.target.endswith(b"/drops"):
            exchange.close()
        else:
            await sse([b"data: 1\n\n", b"data: [DONE]\n\n"])(exchange)

    async with FakeEdge() as edge, FakeBackend(script) as backend, node_of(edge):
        link = await ready(edge, payload(provider_payload("p1", backend.url), echo_provider()))

        async def round_of_runs() -> None:
            for path in (b"/v1/answers", b"/v1/drops"):
                await link.open(tunnel(path=path)).ended()
            end = await link.open_run(chat_opening("a b c")[0]).ended()
            assert end.status == RunEnd.OK

        await round_of_runs()
        gc.collect()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            for _ in range(5):
                await round_of_runs()
            await asyncio.sleep(0.05)
            gc.collect()
            left = [type(each) for each in gc.garbage if type(each).__module__.startswith("iop_fast.node")]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
        assert left == []


@on_uvloop
async def test_a_lost_session_ends_its_runs_and_the_next_one_is_soon_there() -> None:
    async with FakeEdge() as edge, FakeBackend(raw([], then="hold")) as backend, node_of(edge) as node:
        first = await ready(edge, payload(provider_payload("p1", backend.url)))
        first.open(tunnel())
        await until(lambda: len(backend.requests) == 1, "the request")
        first.close()
        second = await ready(edge, payload(provider_payload("p1", backend.url)), generation=2)
        assert second.request.instance_id == first.request.instance_id
        async with asyncio.timeout(2):
            await backend.requests[0].closed.wait()
        backend.script = answer(OK_JSON)
        assert (await second.open(tunnel()).ended()).status == RunEnd.OK
        assert node.is_ready


@on_uvloop
async def test_a_drained_node_finishes_what_runs_and_says_its_end() -> None:
    events = [b"data: %d\n\n" % number for number in range(20)]
    async with FakeEdge() as edge, FakeBackend(sse(events, delay_s=0.02)) as backend:
        text = f"id: n1\nedge: {{address: '{edge.address}'}}\ntoken_env: TOKEN\n"
        node = Node(load_node_text(text, "node.yaml").config, "t", environ={})
        await node.start()
        link = await ready(edge, payload(provider_payload("p1", backend.url)))
        run = link.open(tunnel())
        await link.wait(lambda: bool(run.body), "the first event")
        draining = asyncio.ensure_future(node.drain())
        await link.until("draining")
        late = link.open(tunnel())
        assert (await late.ended()).status == RunEnd.NODE_DRAINING
        assert (await run.ended()).status == RunEnd.OK
        assert bytes(run.body) == b"".join(events)
        await link.over()
        await draining


@on_uvloop
async def test_a_provider_that_stalls_delays_nobody_else() -> None:
    """B21: one silent backend, one live one; the silent run ends at its limit, the others never wait."""
    silent = raw([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n"], then="hold")
    async with FakeEdge() as edge, FakeBackend(silent) as bad, FakeBackend(answer(OK_JSON)) as good, node_of(edge):
        slow = provider_payload("p1", bad.url)
        limits = slow.timeouts.__class__(5_000, 60_000, 400)
        link = await ready(
            edge, payload(provider_payload("p1", bad.url, timeouts=limits), provider_payload("p2", good.url))
        )
        stalled = [link.open(tunnel()) for _ in range(2)]
        loop = asyncio.get_running_loop()
        served = 0
        while any(run.end is None for run in stalled):
            started = loop.time()
            assert (await link.open(tunnel(provider_id="p2")).ended()).status == RunEnd.OK
            assert loop.time() - started < 5
            served += 1
        assert served > 5
        assert [run.end.status for run in stalled if run.end] == [RunEnd.UPSTREAM_TIMEOUT] * 2
        await until(lambda: bad.open_connections == 0, "the silent connections are closed")


@on_uvloop
async def test_a_native_model_answers_by_events() -> None:
    async with FakeEdge() as edge, node_of(edge):
        link = await ready(edge, payload(echo_provider()))
        opening, rest = chat_opening("hello there " * 10_000, first_bytes=50_000)
        run = link.open_run(opening)
        run.feed(rest, True)
        end = await run.ended()
        assert run.kinds == ["taken", "run_event", "end"]
        assert "".join(event.text for event in run.events) == "hello there " * 10_000
        assert run.events[-1].finish_reason == "stop"
        assert len(run.events) < 20_000, "what is said in one turn of the loop is not one event"
        assert end.usage == pb.Usage(prompt_tokens=20_000, completion_tokens=20_000)


# As a process.


@asynccontextmanager
async def node_process(tmp_path: Path, edge: FakeEdge, limits: str = "") -> AsyncIterator[asyncio.subprocess.Process]:
    file = tmp_path / "node.yaml"
    file.write_text(f"id: n1\nedge: {{address: '{edge.address}'}}\ntoken_env: TOKEN\n{limits}")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "iop_fast.cli",
        "node",
        "-c",
        str(file),
        env={**os.environ, "TOKEN": "process-token"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def output_of(process: asyncio.subprocess.Process) -> str:
    async with asyncio.timeout(15):
        output, _ = await process.communicate()
    return output.decode()


@on_uvloop
async def test_sigterm_drains_a_node_process(tmp_path: Path) -> None:
    async with (
        FakeEdge() as edge,
        FakeBackend(sse([b"data: 1\n\n"] * 10, delay_s=0.05)) as backend,
        node_process(tmp_path, edge) as process,
    ):
        link = await ready(edge, payload(provider_payload("p1", backend.url)))
        run = link.open(tunnel())
        await link.wait(lambda: bool(run.body), "the first event")
        process.send_signal(signal.SIGTERM)
        assert (await run.ended()).status == RunEnd.OK
        await link.over()
        output = await output_of(process)
        assert process.returncode == 0, output
        assert "Traceback" not in output
        assert "process-token" not in output
        assert "node_stopped" in output


@on_uvloop
async def test_a_second_signal_stops_a_node_process_at_once(tmp_path: Path) -> None:
    async with (
        FakeEdge() as edge,
        FakeBackend(raw([], then="hold")) as backend,
        node_process(tmp_path, edge) as process,
    ):
        link = await ready(edge, payload(provider_payload("p1", backend.url)))
        link.open(tunnel())
        await until(lambda: len(backend.requests) == 1, "the request")
        process.send_signal(signal.SIGTERM)
        await link.until("draining")
        process.send_signal(signal.SIGTERM)
        output = await output_of(process)
        assert process.returncode == 1, output
        assert "Traceback" not in output
        await backend.requests[0].closed.wait()


@pytest.mark.parametrize(
    ("refusal", "name"),
    [(pb.BAD_TOKEN, "bad_token"), (pb.UNKNOWN_NODE, "unknown_node"), (pb.NODE_ID_IN_USE, "node_id_in_use")],
)
@on_uvloop
async def test_a_refused_node_process_says_why_once_and_tries_again(
    tmp_path: Path, refusal: pb.Refusal.ValueType, name: str
) -> None:
    limits = "limits: {reconnect_ms_min: 5, reconnect_ms_max: 20}\n"
    async with FakeEdge() as edge, node_process(tmp_path, edge, limits) as process:
        for _ in range(4):
            (await edge.next_link()).refuse(refusal, "what to do about it")
        process.send_signal(signal.SIGTERM)
        output = await output_of(process)
        assert process.returncode == 0, output
        lines = [json.loads(line) for line in output.splitlines()]
        said = [line for line in lines if line["event"] == "registration_refused"]
        assert [(line["reason"], line["detail"]) for line in said] == [(name, "what to do about it")]
        assert "Traceback" not in output


@on_uvloop
async def test_a_node_process_whose_edge_is_away_waits_and_stops_when_told(tmp_path: Path) -> None:
    edge = FakeEdge()
    await edge.start()
    address = edge.address
    await edge.stop()
    async with node_process(tmp_path, edge, "") as process:
        assert process.stdout is not None
        async with asyncio.timeout(15):
            while "edge_unreachable" not in (await process.stdout.readline()).decode():
                pass
        again = FakeEdge()
        await again.start(int(address.rpartition(":")[2]))
        link = await ready(again, payload(echo_provider()))
        process.send_signal(signal.SIGTERM)
        await link.until("draining")
        output = await output_of(process)
        assert process.returncode == 0, output
        await again.stop()
