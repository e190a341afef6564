"""What operators see of a running Edge: /queue, /runs, /explain, /logs, /events and /metrics, over real sockets.

The incident tells one story by all of them at once: whatever one page says, the others and the log say too.
"""

from __future__ import annotations

import asyncio
import io
import json
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import jsonschema
import pytest
import yaml
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from iop_fast import logs
from iop_fast.cli import explain as explain_command
from iop_fast.cli import queue as queue_command
from iop_fast.cli import runs as runs_command
from iop_fast.cli import top
from iop_fast.cli.status import provider_state
from iop_fast.edge.feed import READERS_MAX
from iop_fast.wire import runtime_pb2 as pb  # imports grpc_env before grpc
from iop_fast.wire.health import NOT_SERVING, SERVING
from tests.fakes.fake_node import FakeNode
from tests.integration.edge_harness import LIMIT_S, Bench, bench, config, provider, run, until

import grpc.aio  # isort: skip

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


async def page(b: Bench, path: str, status: int = 200) -> Any:
    async with b.client.get(b.admin(path)) as answer:
        assert answer.status == status, await answer.text()
        return await answer.json()


async def metrics(b: Bench) -> Samples:
    """Every sample of /metrics by its name and labels."""
    async with b.client.get(b.admin("/metrics")) as answer:
        assert answer.status == 200
        text = await answer.text()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float | None:
    return samples.get((name, frozenset(labels.items())))


def access_lines(text: str) -> list[dict[str, Any]]:
    """The access lines in what was written to standard error."""
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == "request"]


# The incident


def shown_by_top(status: Any, queue: Any) -> str:
    """The frame of `iop top` as plain text."""
    console = Console(width=120, file=io.StringIO(), record=True)
    console.print(top.frame(top.Sample(0.0, status, queue), None))
    return console.export_text()


class Incident:
    """An Edge with two Nodes of one slot each, both taken, and two who wait."""

    def __init__(self, b: Bench, file: Path, one: FakeNode, two: FakeNode) -> None:
        self.b, self.file, self.one, self.two = b, file, one, two
        self.calls: list[asyncio.Task[aiohttp.ClientResponse]] = []

    def call(self) -> asyncio.Task[aiohttp.ClientResponse]:
        self.calls.append(asyncio.create_task(self.b.chat()))
        return self.calls[-1]

    async def look(self) -> tuple[Any, Any, Any, Any, Samples]:
        """Queue, explanation, runs, status and metrics of one moment."""
        b = self.b
        told = [await page(b, path) for path in ("/queue", "/explain?model=m", "/runs", "/status")]
        return told[0], told[1], told[2], told[3], await metrics(b)

    async def assert_alike(self, *, running: dict[str, int], waiting: int) -> None:
        """Every page tells the same numbers."""
        queue, explained, runs, status, samples = await self.look()
        assert queue["waiting"] == len(queue["waiters"]) == waiting
        assert sum(line["waiting"] for line in queue["lines"]) == waiting
        assert status["queue"]["waiting"] == waiting
        assert value(samples, "iop_queue_waiting") == waiting
        assert value(samples, "iop_model_waiting", **{"model": "m", "class": "normal"}) == waiting
        found = dict.fromkeys(running, 0)
        for row in runs["runs"]:
            found[row["provider_id"]] += 1
        assert (found, runs["total"]) == (running, sum(running.values()))
        candidates = {row["provider_id"]: row for row in explained["candidates"]}
        for row in status["providers"]:
            name, labels = row["provider_id"], {"node": row["node_id"], "provider": row["provider_id"]}
            assert row["effective"]["in_flight"] == candidates[name]["in_flight"] == running[name]
            assert value(samples, "iop_provider_in_flight", **labels) == running[name]
            assert value(samples, "iop_provider_queued", **labels) == row["effective"]["queued"]
            assert value(samples, "iop_provider_configured_capacity", **labels) == candidates[name]["capacity"]
            assert value(samples, "iop_provider_up", **labels) == (provider_state(row) == "up")
        for node in status["nodes"]:
            assert value(samples, "iop_node_up", node=node["node_id"]) == node["connected"]
            assert value(samples, "iop_node_payload_revision", node=node["node_id"]) == node["payload"]["revision"]
        self.assert_shown(queue, explained, runs, status)

    def assert_shown(self, queue: Any, explained: Any, runs: Any, status: Any) -> None:
        """`iop queue`, `explain`, `runs` and `top` show people what the pages said."""
        listed = "\n".join(queue_command.render(queue))
        assert listed.startswith(f"{queue['waiting']} of {queue['max_queue']} waiting")
        frame = shown_by_top(status, queue)
        total = sum(row["effective"]["in_flight"] for row in status["providers"])
        assert f"running {total}  waiting {queue['waiting']} of {queue['max_queue']}" in frame
        for row in queue["waiters"]:
            assert row["why"] in listed
            assert row["why"] in frame
        reasons = explain_command.render(explained)
        for row in explained["candidates"]:
            (line,) = (line for line in reasons if line.startswith(row["provider_id"]))
            assert f" {row['in_flight']}/{row['capacity']} " in line
            assert line.endswith(row["reason"])
        for row in status["providers"]:
            (line,) = (line for line in frame.splitlines() if line.startswith(row["provider_id"]))
            assert f" {row['effective']['in_flight']}/{row['configured']['capacity']} " in line
            assert line.rstrip().endswith(provider_state(row))
        at_work = runs_command.render(runs)
        for row in runs["runs"]:
            (line,) = (line for line in at_work if line.endswith(row["request"]))
            assert line.startswith(row["provider_id"])


@asynccontextmanager
async def incident(file: Path) -> AsyncIterator[Incident]:
    settings = config(
        {"n1": [provider("p1")], "n2": [provider("p2")]}, provider_pool={"max_queue": 2, "queue_timeout_ms": 0}
    )
    async with bench(settings, file) as b:
        made = Incident(b, file, await b.ready("n1"), await b.ready("n2", "i2"))
        try:
            yield made
        finally:
            await asyncio.gather(*made.calls)


def test_an_incident_is_told_alike_by_every_page_and_the_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "iop_fast")

    async def work() -> None:
        async with incident(tmp_path / "edge.yaml") as i:
            await full(i)
            await node_gone(i)
            await raised(i)
            await over(i)

    async def full(i: Incident) -> None:
        """Both providers are full, the queue too."""
        i.call()
        i.first = await i.one.next_run()
        i.call()
        i.second = await i.two.next_run()
        for count in (1, 2):
            i.call()
            await i.b.waiting(count)
        refused = await i.call()
        assert (refused.status, refused.headers["x-iop-reason"]) == (429, "queue_full")
        await i.assert_alike(running={"p1": 1, "p2": 1}, waiting=2)
        queue, explained, runs, _, samples = await i.look()
        assert [row["why"] for row in queue["waiters"]] == ["2 full", "2 full"]
        assert [row["place"] for row in queue["waiters"]] == [1, 2]
        assert (explained["decision"], explained["position"]) == ("queue_full", 3)
        assert explained["retry_after_s"] == int(refused.headers["retry-after"])
        assert [row["verdict"] for row in explained["candidates"]] == ["full", "full"]
        assert {row["state"] for row in runs["runs"]} == {"dispatched"}
        labels = {"model": "m", "node": "none", "provider": "none", "outcome": "queue_full"}
        assert value(samples, "iop_requests_total", **labels) == 1
        assert value(samples, "iop_admission_total", model="m", outcome="rejected_queue_full") == 1

    async def node_gone(i: Incident) -> None:
        """One Node goes: its request fails, the others wait on."""
        await i.two.close()
        lost = await i.calls[1]
        assert (lost.status, lost.headers["x-iop-reason"]) == (502, "upstream_error")
        await i.assert_alike(running={"p1": 1, "p2": 0}, waiting=2)
        queue, explained, _, status, samples = await i.look()
        assert [row["why"] for row in queue["waiters"]] == ["1 full, 1 on a node that is offline"] * 2
        assert [row["verdict"] for row in explained["candidates"]] == ["full", "node_offline"]
        assert [node["link"] for node in status["nodes"]] == ["ready", "offline"]
        assert value(samples, "iop_link_events_total", event="runs_lost") == 1
        labels = {"model": "m", "node": "n2", "provider": "p2", "outcome": "upstream_error"}
        assert value(samples, "iop_requests_total", **labels) == 1
        assert any(record.message == "link_closed" and record.fields["node"] == "n2" for record in caplog.records)

    async def raised(i: Incident) -> None:
        """A refresh raises the capacity that is left: who waited runs."""
        settings = yaml.safe_load(await asyncio.to_thread(i.file.read_text))
        settings["nodes"][0]["providers"][0]["capacity"] = 3
        await asyncio.to_thread(i.file.write_text, yaml.safe_dump(settings))
        asking = asyncio.ensure_future(i.b.client.post(i.b.admin("/refresh"), json={"mode": "apply"}))
        asked = (await i.one.frame("refresh_request")).refresh_request
        answer = pb.NodeConfigRefreshResponse(payload_revision=asked.payload_revision, applied=True)
        await i.one.send(pb.Frame(refresh_response=answer))
        report = await (await asking).json()
        assert (report["status"], report["revision"], report["impact"]["waiters_granted"]) == ("applied", 2, 2)
        await i.assert_alike(running={"p1": 3, "p2": 0}, waiting=0)
        _, explained, _, status, samples = await i.look()
        assert (explained["decision"], explained["position"]) == ("wait", 1)
        assert status["config"]["revision"] == value(samples, "iop_config_revision") == 2
        assert value(samples, "iop_refresh_total", mode="apply", status="applied") == 1
        assert value(samples, "iop_refresh_last_apply_successful") == 1
        assert value(samples, "iop_node_observed_payload_revision", node="n1") == 2
        refreshed = [record for record in caplog.records if record.message == "refreshed"]
        assert [(record.fields["status"], record.fields["revision"]) for record in refreshed] == [("applied", 2)]

    async def over(i: Incident) -> None:
        """All end well, and every number adds up."""
        for each in (i.first, await i.one.next_run(), await i.one.next_run()):
            await each.answer(b"{}")
        assert [call.status for call in await asyncio.gather(*i.calls)] == [200, 502, 200, 200, 429]
        await i.b.idle()
        await i.assert_alike(running={"p1": 0, "p2": 0}, waiting=0)
        samples = await metrics(i.b)
        i.b.edge.state.books.access.close()  # its lines are written now
        lines = access_lines(capfd.readouterr().err)
        counted = {key: count for key, count in samples.items() if key[0] == "iop_requests_total"}
        for key, count in counted.items():
            labels = dict(key[1])
            alike = [
                line
                for line in lines
                if (line["outcome"], line["provider"] or "none") == (labels["outcome"], labels["provider"])
            ]
            assert len(alike) == count, labels
        assert sum(counted.values()) == len(lines) == 5
        assert [line["end"] for line in lines] == ["RQ", "SH", "--", "--", "--"]
        assert all(line["queue_ms"] >= 0 for line in lines)
        assert value(samples, "iop_request_queue_seconds_count", **{"model": "m", "class": "normal"}) == 4
        faults = {dict(key[1])["kind"]: count for key, count in samples.items() if key[0] == "iop_faults_total"}
        assert set(faults.values()) == {0}

    run(work())


# What a request sends is no label


@asynccontextmanager
async def connection(b: Bench) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", b.edge.http_port)
    try:
        yield reader, writer
    finally:
        writer.close()
        await writer.wait_closed()


def hostile(draw: random.Random) -> bytes:
    """A request full of made-up names that leaves its connection open."""
    word = f"{draw.getrandbits(64):x}"
    fields = f"Host: {word}\r\nUser-Agent: {word}\r\nAuthorization: Bearer {word}\r\nX-{word}: {word}\r\n"
    body = f'{{"model": "{word}", "user": "{word}"}}'
    kind = draw.randrange(4)
    if kind == 0:
        return f"GET /v1/{word}?{word} HTTP/1.1\r\n{fields}\r\n".encode()
    if kind == 1:
        return f"DELETE /v1/models/{word} HTTP/1.1\r\n{fields}\r\n".encode()
    if kind == 2:
        return f"GET /v1/models/{word} HTTP/1.1\r\n{fields}\r\n".encode()
    length = f"Content-Length: {len(body)}\r\n"
    return f"POST /v1/chat/completions HTTP/1.1\r\n{fields}{length}\r\n{body}".encode()


async def pipeline(b: Bench, draw: random.Random, count: int) -> None:
    """Send so many, eight at a time."""
    async with connection(b) as (reader, writer):
        for _ in range(count // 8):
            writer.write(b"".join(hostile(draw) for _ in range(8)))
            answered = 0
            while answered < 8:
                read = await asyncio.wait_for(reader.read(65536), LIMIT_S)
                assert read, "the connection was closed"
                answered += read.count(b"HTTP/1.1 ")


async def cut(b: Bench, draw: random.Random) -> None:
    """Send a request whose method is none of HTTP's."""
    async with connection(b) as (reader, writer):
        writer.write(f"M{draw.getrandbits(32):X} /{draw.getrandbits(32):x} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        assert await asyncio.wait_for(reader.read(), LIMIT_S)


def test_what_clients_make_up_makes_no_series(tmp_path: Path) -> None:
    """B27: 20,000 requests of made-up models, paths, methods, principals; then models that come and go."""
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    file = tmp_path / "edge.yaml"
    plain = config(openai={"listen": "127.0.0.1:0"}, edge={"listen": "127.0.0.1:0", "log": {"access": False}})
    swollen = {
        **plain,
        "models": [*plain["models"], *({"id": f"x{n}", "providers": {"p1": "served"}} for n in range(1000))],
    }

    async def refresh(b: Bench, settings: dict[str, Any]) -> None:
        await asyncio.to_thread(file.write_text, yaml.safe_dump(settings))
        async with b.client.post(b.admin("/refresh"), json={"mode": "apply"}) as answer:
            assert (await answer.json())["status"] == "applied"

    async def work() -> None:
        async with bench(plain, file) as b:
            await pipeline(b, draw, 64)
            await cut(b, draw)
            await refresh(b, swollen)  # each kind of thing has happened once: from here on nothing new may show
            await refresh(b, plain)
            before = set(await metrics(b))
            await asyncio.gather(*(pipeline(b, draw, 4960) for _ in range(4)))
            for _ in range(160):
                await cut(b, draw)
            assert set(await metrics(b)) == before
            await refresh(b, swollen)
            assert len(await metrics(b)) > len(before) + 1000
            assert (await b.chat("x7")).status == 503
            await refresh(b, plain)
            after = await metrics(b)
            assert set(after) == before
            assert len(b.edge.state.books.meters.models()) == 1
            assert sum(count for key, count in after.items() if key[0] == "iop_requests_total") >= 20_000

    run(work())


# The pages one by one


def test_lists_are_as_long_as_they_may_be_and_say_how_much_there_is() -> None:
    async def work() -> None:
        async with bench(config(provider_pool={"max_queue": 50, "queue_timeout_ms": 0})) as b:
            node = await b.ready()
            calls = [asyncio.create_task(b.chat()) for _ in range(21)]
            first = await node.next_run()
            await b.waiting(20)
            queue = await page(b, "/queue?limit=3")
            assert (queue["waiting"], len(queue["waiters"]), queue["lines_total"]) == (20, 3, 1)
            ages = [row["age_ms"] for row in queue["waiters"]]
            assert ages == sorted(ages, reverse=True)
            assert queue["oldest_ms"] >= ages[0]
            assert (await page(b, "/queue?limit=0"))["waiters"] == []
            runs = await page(b, "/runs?limit=0")
            assert (runs["total"], runs["runs"]) == (1, [])
            assert len((await page(b, "/explain?model=m&limit=0"))["candidates"]) == 0
            text = json.dumps([await page(b, path) for path in ("/queue", "/runs", "/explain?model=m")])
            assert "hi" not in text
            await first.answer(b"{}")
            for _ in range(20):
                await (await node.next_run()).answer(b"{}")
            await asyncio.gather(*calls)
            await b.idle()

    run(work())


def test_a_normalized_run_is_shown_like_a_tunnel() -> None:
    async def work() -> None:
        settings = config({"n1": [provider("p1"), {**provider("o"), "type": "ollama"}]})
        async with bench(settings) as b:
            node = await b.ready()
            calls = [asyncio.create_task(b.chat()) for _ in range(2)]
            runs = {one.is_normalized: one for one in (await node.next_run(), await node.next_run())}
            rows = {row["provider_id"]: row for row in (await page(b, "/runs"))["runs"]}
            assert set(rows) == {"p1", "o"}
            assert set(rows["o"]) == set(rows["p1"])
            assert rows["o"]["state"] == "dispatched"
            await runs[False].answer(b"{}")
            await runs[True].end(pb.RunEnd.UPSTREAM_ERROR)
            assert sorted(call.status for call in await asyncio.gather(*calls)) == [200, 502]
            await b.idle()

    run(work())


def test_explain_tells_a_long_request_from_a_short_one_and_what_nobody_can() -> None:
    async def work() -> None:
        nodes = {"n1": [provider("short", 2), provider("long", 2, long_context_capacity=1)]}
        async with bench(config(nodes)) as b:
            explained = await page(b, "/explain?model=m")
            assert (explained["decision"], explained["position"]) == ("provider_unavailable", None)
            assert explained["why"] == "2 on a node that is offline"
            await b.ready()
            explained = await page(b, "/explain?model=m&tokens=99999")
            assert (explained["decision"], explained["class"], explained["why"]) == ("run", "normal", "")
            assert [row["verdict"] for row in explained["candidates"]] == ["taken_next", "free"]
            explained = await page(b, "/explain?model=m&tokens=100000&needs=tools,images")
            assert (explained["decision"], explained["class"]) == ("run", "long")
            assert explained["needs"] == ["/v1/chat/completions", "tools", "images"]
            reasons = {row["provider_id"]: row["reason"] for row in explained["candidates"]}
            assert reasons == {"short": "without a free long slot", "long": "taken next"}
            explained = await page(b, "/explain?model=m&api=/v1/embeddings")
            assert explained["needs"] == ["/v1/embeddings"]

    run(work())


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/queue?limit=501", 400, "limit: expected a number from 0 to 500"),
        ("/runs?limit=x", 400, "limit: expected a number"),
        ("/explain", 400, "model: expected the id of a model"),
        ("/explain?model=mm", 404, "did you mean 'm'?"),
        ("/explain?model=m&tokens=-5", 400, "tokens: expected a number"),
        ("/explain?model=m&tokens=²", 400, "tokens: expected a number"),
        ("/explain?model=m&needs=wings", 400, "needs: expected some of audio, "),
        ("/explain?model=m&api=chat", 400, "api: expected one of /v1/audio/"),
    ],
)
def test_what_makes_no_sense_is_said_plainly(path: str, status: int, said: str) -> None:
    async def work() -> None:
        async with bench() as b:
            assert said in (await page(b, path, status))["error"]["message"]

    run(work())


@pytest.mark.parametrize("path", ["/queue", "/runs", "/explain?model=m", "/metrics", "/events", "/logs"])
def test_the_guard_stands_before_these_pages_too(path: str) -> None:
    async def work() -> None:
        async with bench() as b, b.client.get(b.admin(path), headers={"Host": "evil.example"}) as answer:
            assert answer.status == 403

    run(work())


def test_metrics_stand_on_both_listeners_and_in_both_forms() -> None:
    async def work() -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        async with bench(config(observe={"listen": f"127.0.0.1:{port}"})) as b:
            url = f"http://127.0.0.1:{port}/metrics"
            async with b.client.get(url, headers={"Accept-Encoding": "gzip"}) as answer:
                assert (answer.status, answer.headers["content-encoding"]) == (200, "gzip")
                assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
                assert 'iop_provider_up{node="n1",provider="p1"} 0.0' in await answer.text()
            headers = {"Accept": "application/openmetrics-text; version=1.0.0", "Accept-Encoding": "identity"}
            async with b.client.get(url, headers=headers) as answer:
                assert "content-encoding" not in answer.headers
                assert answer.headers["content-type"].startswith("application/openmetrics-text")
                text = await answer.text()
            assert text.endswith("# EOF\n")
            assert len(list(parse_openmetrics(text))) > 60
            async with b.client.get(f"http://127.0.0.1:{port}/queue") as answer:
                assert answer.status == 404

    run(work())


def test_readiness_names_its_checks_and_is_the_first_to_go() -> None:
    async def work() -> None:
        async with bench() as b:
            await b.ready()
            checks = {"not_draining": True, "listeners_bound": True, "node_was_ready": True}
            assert await page(b, "/readyz?verbose") == {"ready": True, "reasons": [], "checks": checks}
            options = [("grpc.use_local_subchannel_pool", 1)]
            async with grpc.aio.insecure_channel(f"127.0.0.1:{b.edge.link_port}", options=options) as channel:
                check = channel.unary_unary("/grpc.health.v1.Health/Check")
                assert await check(b"") == SERVING
                await b.edge.drain()
                assert await check(b"") == NOT_SERVING
            ready = await page(b, "/readyz?verbose", 503)
            assert (ready["reasons"], ready["checks"]["not_draining"]) == (["draining"], False)
            assert value(await metrics(b), "iop_ready") == 0

    run(work())


def test_the_document_of_this_listener_is_true() -> None:
    async def work() -> None:
        async with bench() as b:
            node = await b.ready()
            calls = [asyncio.create_task(b.chat()) for _ in range(2)]
            first = await node.next_run()
            await b.waiting(1)
            document = await page(b, "/openapi-admin.json")
            for path, operations in document["paths"].items():
                for method in operations:
                    if path == "/events":
                        continue  # it does not end
                    send = b.client.post(b.admin(path), json={}) if method == "post" else b.client.get(b.admin(path))
                    async with send as answer:
                        assert answer.status in (200, 400), path
                        assert str(answer.status) in operations[method]["responses"], path
            for path, name in (("/queue", "Queue"), ("/runs", "Runs"), ("/explain?model=m", "Explanation")):
                schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
                jsonschema.validate(await page(b, path), schema)
            async with reader(b) as one:
                _, snapshot = await one.next() or ("", {})
            schema = {"$ref": "#/components/schemas/Snapshot", "components": document["components"]}
            jsonschema.validate(snapshot, schema)
            await first.answer(b"{}")
            await (await node.next_run()).answer(b"{}")
            await asyncio.gather(*calls)

    run(work())


# Levels of loggers


def test_a_logger_s_level_changes_while_the_edge_runs() -> None:
    async def work() -> None:
        logs.setup("info")
        async with bench() as b:

            async def post(asked: object) -> tuple[int, Any]:
                async with b.client.post(b.admin("/logs"), json=asked) as answer:
                    return answer.status, await answer.json()

            assert not logs.get("iop_fast.edge.link").is_debug
            expected = {"logger": "edge.link", "level": "debug", "is_own": True}
            assert await post({"logger": "edge.link", "level": "debug"}) == (200, expected)
            assert logs.get("iop_fast.edge.link").is_debug
            assert expected in (await page(b, "/logs"))["loggers"]
            assert (await post({"logger": "edge", "level": "debug"}))[1]["is_own"]
            assert (await post({"logger": "edge", "level": "default"}))[1]["level"] == "info"
            assert (await post({"logger": "edge.link", "level": "default"}))[1]["is_own"] is False
            assert (await post({"level": "error"}))[1] == {"logger": "", "level": "error", "is_own": True}
            assert (await post({"level": "default"}))[1] == {"logger": "", "level": "info", "is_own": True}
            for asked, status in (
                ({"logger": "nobody", "level": "info"}, 404),
                ({"logger": "edge.link", "level": "loud"}, 400),
                ({"logger": 5, "level": "info"}, 400),
                ({"level": "info", "more": 1}, 400),
                ([], 400),
                ({"level": "x" * 5000}, 413),
            ):
                assert (await post(asked))[0] == status

    run(work())


# The feed


class Reader:
    """One reader of /events: the events, parsed."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self.answer = answer

    async def next(self) -> tuple[str, dict[str, Any]] | None:
        """The next event, None at the end of the stream."""
        kind = ""
        while line := (await asyncio.wait_for(self.answer.content.readline(), LIMIT_S)).decode():
            if line.startswith("event: "):
                kind = line[7:].strip()
            elif line.startswith("data: "):
                return kind, json.loads(line[6:])
        return None


@asynccontextmanager
async def reader(b: Bench) -> AsyncIterator[Reader]:
    async with b.client.get(b.admin("/events"), read_bufsize=2**20) as answer:
        assert (answer.status, answer.content_type) == (200, "text/event-stream")
        yield Reader(answer)


def test_the_feed_says_everything_once_and_then_what_differs() -> None:
    async def work() -> None:
        async with bench() as b, reader(b) as first:
            kind, snapshot = await first.next() or ("", {})
            assert kind == "snapshot"
            assert list(snapshot) == [
                "edge", "config", "nodes", "providers", "models", "queue", "rates", "durations", "refreshes"
            ]  # fmt: skip
            assert (snapshot["providers"]["rows"][0]["state"], snapshot["edge"]["is_ready"]) == ("offline", False)
            node = await b.ready()
            kind, change = await first.next() or ("", {})
            assert (kind, set(change)) == ("change", {"edge", "nodes", "providers"})
            assert change["providers"]["rows"][0]["state"] == "up"
            call = asyncio.create_task(b.chat())
            await (await node.next_run()).answer(b"{}")
            await call
            while "rates" not in change or not change["rates"]["requests"]:
                _, change = await first.next() or ("", {})
            assert change["rates"]["outcomes"] == {"ok": 1}
            assert sum(change["durations"]["total"]["counts"]) == sum(change["durations"]["queue"]["counts"]) == 1
            assert len(change["durations"]["bounds_ms"]) + 1 == len(change["durations"]["ttfb"]["counts"])

    run(work())


def test_readers_are_few_and_a_place_is_free_again_when_one_leaves() -> None:
    async def work() -> None:
        async with bench() as b:
            open_readers = [await b.client.get(b.admin("/events")) for _ in range(READERS_MAX)]
            assert {answer.status for answer in open_readers} == {200}
            await page(b, "/events", 503)
            async with b.client.head(b.admin("/events")) as answer:
                assert answer.status == 503
            open_readers.pop().close()

            async def has_room() -> bool:
                async with b.client.get(b.admin("/events")) as answer:
                    return answer.status == 200

            await until(has_room, "a place")
            for answer in open_readers:
                answer.close()

    run(work())


def test_a_stop_ends_the_stream() -> None:
    async def work() -> None:
        async with bench() as b, reader(b) as one:
            assert await one.next()
            await b.edge.stop()
            assert await one.next() is None

    run(work())
