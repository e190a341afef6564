"""What operators see of a running Edge: /queue, /runs, /explain, /logs and /metrics, over real sockets."""

from __future__ import annotations

import asyncio
import json
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics

from iop_fast import logs
from iop_fast.wire import runtime_pb2 as pb  # imports grpc_env before grpc
from iop_fast.wire.health import NOT_SERVING, SERVING
from tests.integration.edge_harness import LIMIT_S, Bench, bench, config, provider, run
from tests.integration.edge_pages import metrics, page, reader, value

import grpc.aio  # isort: skip


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
