"""Edge and Nodes as real processes: how they start, drain, die, come back, and what their clients see meanwhile."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import signal
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.fakes.openai_backend import BeforeBody, Exchange, FakeBackend, OpenAIScript, sse
from tests.integration.edge_harness import provider, run, until
from tests.integration.fleet import Fleet, fleet, free_ports

EVENTS = [b'data: {"choices":[{"delta":{"content":"w%d"}}]}\n\n' % number for number in range(20)]
DONE = b"data: [DONE]\n\n"


class Gate:
    """A backend script that holds each request until `let` opens it; answers carry the caller's `user` field."""

    def __init__(self) -> None:
        self._open = asyncio.Semaphore(0)
        self.names: list[str] = []

    async def __call__(self, exchange: Exchange) -> None:
        self.names.append(exchange.json.get("user", ""))
        opened, gone = asyncio.ensure_future(self._open.acquire()), asyncio.ensure_future(exchange.until_gone())
        done, waiting = await asyncio.wait({opened, gone}, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()
        if opened not in done:
            raise EOFError
        await exchange.respond(json.dumps({"user": exchange.json.get("user", "")}).encode())

    def let(self, count: int = 1) -> None:
        for _ in range(count):
            self._open.release()


def named(status: int, body: bytes) -> str:
    """The name that an answer carries."""
    assert status == 200, body
    return str(json.loads(body)["user"])


async def queue_up(f: Fleet, count: int, waiting_before: int = 0, **more: Any) -> list[asyncio.Task[Any]]:
    """Send requests one by one, so that their order is known; all of them wait."""
    tasks = []
    for number in range(count):
        tasks.append(asyncio.create_task(f.chat(user=f"w{number}", **more)))
        await until(lambda number=number: f.has_waiting(waiting_before + number + 1), f"w{number} waits")
    return tasks


def error_code(body: bytes) -> str:
    """The machine-readable code of an error answer."""
    return str(json.loads(body)["error"]["code"])


def test_cut_streams_and_clients_that_leave_give_every_slot_back(tmp_path: Path) -> None:
    """B01: streams cut after some chunks, clients that leave before the head; then eight over one slot."""
    seed = 7
    print(f"seed {seed}")
    generator = random.Random(seed)

    async def cut(f: Fleet) -> None:
        answer = await f.stream()
        for _ in range(3):
            await answer.content.readuntil(b"\n\n")
        answer.close()

    async def leave(f: Fleet, backend: FakeBackend) -> None:
        seen = len(backend.requests)
        task = asyncio.create_task(f.chat())
        await until(lambda: len(backend.requests) > seen, "the backend has the request")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def never(exchange: Exchange) -> None:
        await exchange.until_gone()

    async def work() -> None:
        async with (
            FakeBackend() as backend,
            fleet(tmp_path, {"n1": [provider("p1", 2, endpoint=backend.url)]}, ["n1"]) as f,
        ):
            for _ in range(50):
                if generator.random() < 0.5:
                    backend.script = sse([*EVENTS, *EVENTS], delay_s=0.05)
                    await cut(f)
                else:
                    backend.script = never
                    await leave(f, backend)
                await f.idle()
            await until(lambda: backend.running == 0, "the backend's connections are closed")
            backend.script = OpenAIScript()
            status, _, answer = await f.chat()
            assert (status, answer.headers["x-iop-queue-ms"]) == (200, "0")
            assert backend.highest <= 2

        async with (
            FakeBackend(sse([*EVENTS, DONE], delay_s=0.002)) as backend,
            fleet(tmp_path, {"n1": [provider("p1", 1, endpoint=backend.url)]}, ["n1"]) as f,
        ):
            answers = await asyncio.gather(*(f.chat(stream=True) for _ in range(8)))
            assert [body for _, body, _ in answers] == [b"".join([*EVENTS, DONE])] * 8
            assert backend.highest == 1
            await f.idle()

    run(work())


def test_waiters_end_at_their_own_deadline(tmp_path: Path) -> None:
    """B08: no sweep decides when a waiter ends; nothing else happens meanwhile."""

    async def timed(f: Fleet) -> tuple[float, int, str]:
        loop = asyncio.get_running_loop()
        began = loop.time()
        status, body, answer = await f.chat()
        assert answer.headers["x-should-retry"] == "false"
        return loop.time() - began, status, error_code(body)

    async def work() -> None:
        script = Gate()
        pool = {"max_queue": 60, "queue_timeout_ms": 500}
        async with (
            FakeBackend(script) as backend,
            fleet(tmp_path, {"n1": [provider("p1", 1, endpoint=backend.url)]}, ["n1"], provider_pool=pool) as f,
        ):
            running = asyncio.create_task(f.chat(user="runs"))
            await until(lambda: backend.running == 1, "one runs")
            ended = await asyncio.gather(*(timed(f) for _ in range(50)))
            assert {(status, code) for _, status, code in ended} == {(504, "queue_timeout")}
            # Never early; how late is the machine's business, and a benchmark's.
            assert min(waited for waited, _, _ in ended) >= 0.5
            assert await f.has_waiting(0)
            script.let()
            assert named(*(await running)[:2]) == "runs"
            await f.idle()

    run(work())


def test_the_last_candidates_death_ends_its_waiters_at_once(tmp_path: Path) -> None:
    """B09: one runs and three wait on a Node that is killed; nothing waits for the queue's timeout."""

    async def work() -> None:
        script = Gate()
        nodes = {"n1": [provider("p1", 1, endpoint="")], "n2": [provider("p2", 1, endpoint="http://127.0.0.1:1")]}
        async with FakeBackend(script) as backend:
            nodes["n1"][0]["endpoint"] = backend.url
            async with fleet(tmp_path, nodes, ["n1"], provider_pool={"queue_timeout_ms": 0}) as f:
                running = asyncio.create_task(f.chat(user="runs"))
                await until(lambda: backend.running == 1, "one runs")
                waiting = await queue_up(f, 3)
                await f.nodes["n1"].kill()
                status, body, _ = await running
                assert (status, error_code(body)) == (502, "upstream_error")
                for task in waiting:
                    status, body, answer = await task
                    assert (status, error_code(body)) == (503, "provider_unavailable")
                    assert answer.headers["x-iop-reason"] == "unavailable"
                await f.idle()
                await f.start_node("n1")
                again = asyncio.create_task(f.chat(user="fresh"))
                script.let(2)
                assert named(*(await again)[:2]) == "fresh"
                await f.idle()

    run(work())


def test_waiters_stay_in_order_while_a_full_sibling_lives(tmp_path: Path) -> None:
    """B09, variant: another Node serves the model and is full; its line goes on waiting in order."""

    async def work() -> None:
        script = Gate()
        async with FakeBackend(script) as backend:
            nodes = {name: [provider(f"p-{name}", 1, endpoint=backend.url)] for name in ("n1", "n2")}
            async with fleet(tmp_path, nodes, ["n1", "n2"], provider_pool={"queue_timeout_ms": 0}) as f:
                running = [asyncio.create_task(f.chat(user=f"r{number}")) for number in range(2)]
                await until(lambda: backend.running == 2, "both are full")
                waiting = await queue_up(f, 3)
                await f.nodes["n1"].kill()
                await until(lambda: backend.running == 1, "the dead node's request is gone")
                assert await f.has_waiting(3)
                script.let(4)
                answers = [await task for task in running]
                assert sorted(status for status, _, _ in answers) == [200, 502]
                assert [named(*(await task)[:2]) for task in waiting] == ["w0", "w1", "w2"]
                assert script.names[2:] == ["w0", "w1", "w2"]
                await f.idle()

    run(work())


def test_a_waiter_is_granted_once_when_its_second_candidate_comes_back(tmp_path: Path) -> None:
    """The Node of the second candidate is away when the request queues; its return serves the waiter to the end."""

    async def work() -> None:
        script = Gate()
        async with FakeBackend(script) as busy, FakeBackend() as free:
            nodes = {"n1": [provider("p1", 1, endpoint=busy.url)], "n2": [provider("p2", 1, endpoint=free.url)]}
            async with fleet(tmp_path, nodes, ["n1", "n2"], provider_pool={"queue_timeout_ms": 0}) as f:
                await f.nodes["n2"].kill()
                await until(lambda: f.has_link("n2", "offline"), "n2 is away")
                holder = asyncio.create_task(f.chat(user="holds"))
                await until(lambda: busy.running == 1, "n1 is full")
                free.script = sse([*EVENTS, DONE], delay_s=0.005)
                waiter = asyncio.create_task(f.chat(stream=True))
                await until(lambda: f.has_waiting(1), "one waits")
                await f.start_node("n2")
                status, body, answer = await waiter
                assert (status, body) == (200, b"".join([*EVENTS, DONE]))
                assert answer.headers["x-iop-node"] == "n2"
                assert len(free.requests) == 1
                script.let()
                assert named(*(await holder)[:2]) == "holds"
                assert len(busy.requests) == 1
                admission = (await f.status())["counters"]["admission"]
                assert (admission["submitted"], admission["granted"]) == (2, 2)
                await f.idle()

    run(work())


def test_a_node_drains_on_sigterm(tmp_path: Path) -> None:
    """What runs is finished, what comes goes elsewhere, and the program leaves with 0."""

    async def work() -> None:
        script = Gate()
        async with FakeBackend(script) as first, FakeBackend() as second:
            nodes = {
                "n1": [provider("p1", 4, endpoint=first.url)],
                "n2": [provider("p2", 4, endpoint=second.url, priority=1)],
            }
            async with fleet(tmp_path, nodes, ["n1", "n2"]) as f:
                running = asyncio.create_task(f.chat(user="runs"))
                await until(lambda: first.running == 1, "one runs on the first")
                f.nodes["n1"].signal(signal.SIGTERM)
                await until(lambda: f.has_link("n1", "draining"), "the edge knows")
                status, _, answer = await f.chat()
                assert (status, answer.headers["x-iop-node"]) == (200, "n2")
                assert f.nodes["n1"].running.returncode is None
                script.let()
                assert named(*(await running)[:2]) == "runs"
                assert await f.nodes["n1"].end() == 0
                await until(lambda: f.has_link("n1", "offline"), "the session is closed")
                await f.idle()

    run(work())


def test_an_edge_restart_under_load_never_exceeds_a_providers_capacity(tmp_path: Path) -> None:
    """The Edge is killed while both slots run; the Node ends its old runs before it is ready for the new Edge."""

    async def hold(exchange: Exchange) -> None:
        await exchange.until_gone()

    async def work() -> None:
        async with FakeBackend(hold) as backend:
            nodes = {"n1": [provider("p1", 2, endpoint=backend.url)]}
            async with fleet(tmp_path, nodes, ["n1"]) as f:
                old = [asyncio.create_task(f.chat(user=f"old{number}")) for number in range(6)]
                await until(lambda: backend.running == 2, "both slots run")
                assert f.edge is not None
                await f.edge.kill()
                for task in old:
                    with pytest.raises(aiohttp.ClientError):
                        await task
                backend.script = sse([*EVENTS, DONE], delay_s=0.01)
                await f.start_edge()
                await until(lambda: f.has_link("n1", "ready"), "the node is back")
                answers = await asyncio.gather(*(f.chat(stream=True) for _ in range(8)))
                assert [status for status, _, _ in answers] == [200] * 8
                assert backend.highest == 2
                await f.idle()

    run(work())


def test_a_frozen_node_is_lost_and_rejoins(tmp_path: Path) -> None:
    """B12: SIGSTOP; the session ends within its silence limit, and after SIGCONT a new one begins."""

    async def work() -> None:
        script = Gate()
        link = {"heartbeat_ms": 200, "silence_ms": 1000}
        async with FakeBackend(script) as backend:
            nodes = {"n1": [provider("p1", 1, endpoint=backend.url)]}
            async with fleet(tmp_path, nodes, edge={"link": link}, provider_pool={"queue_timeout_ms": 0}) as f:
                await f.start_node("n1", limits={"heartbeat_ms": 200, "silence_ms": 1000})
                running = asyncio.create_task(f.chat(user="runs"))
                await until(lambda: backend.running == 1, "one runs")
                waiting = await queue_up(f, 2)
                f.nodes["n1"].signal(signal.SIGSTOP)
                status, body, _ = await running
                assert (status, error_code(body)) == (502, "upstream_error")
                for task in waiting:
                    status, body, _ = await task
                    assert (status, error_code(body)) == (503, "provider_unavailable")
                f.nodes["n1"].signal(signal.SIGCONT)
                await until(lambda: f.has_link("n1", "ready"), "it rejoins")
                script.let(5)
                assert named(*(await f.chat(user="again"))[:2]) == "again"
                await f.idle()

    run(work())


@pytest.mark.parametrize("window", [16_384, 262_144, 2_097_152])
def test_large_bodies_and_answers_pass_whole_beside_a_small_stream(tmp_path: Path, window: int) -> None:
    """B13: 10 MB up, 6 MB down, one event of 5 MB; a small stream on the same Node goes on meanwhile. The Node takes
    the window that the Edge's file gives."""
    image = "".join(random.Random(13).choices("ABCDEFGHIJKLMNOP", k=10_000_000))
    reply = json.dumps({"text": "x" * 6_000_000}).encode()
    event = b'data: {"text":"' + b"y" * 5_000_000 + b'"}\n\n'

    async def whole(exchange: Exchange) -> None:
        await exchange.respond(reply)

    async def work() -> None:
        async with FakeBackend() as backend:
            nodes = {"n1": [provider("p1", 8, endpoint=backend.url)]}
            async with fleet(tmp_path, nodes, ["n1"], edge={"link": {"run_window_bytes": window}}) as f:
                backend.scripts = [sse(EVENTS * 10, delay_s=0.01)]
                small = asyncio.create_task(f.chat(stream=True))
                await until(lambda: len(backend.requests) == 1, "the small stream runs")

                backend.scripts = [whole]
                content = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}}]
                status, body, _ = await f.chat(messages=[{"role": "user", "content": content}])
                assert status == 200
                assert hashlib.sha256(body).digest() == hashlib.sha256(reply).digest()
                sent = json.loads(bytes(backend.requests[1].body))
                assert sent["messages"][0]["content"][0]["image_url"]["url"].endswith(image)
                assert sent["model"] == "served"

                backend.scripts = [sse([event, DONE])]
                status, body, _ = await f.chat(stream=True)
                assert (status, body) == (200, event + DONE)

                status, body, _ = await small
                assert (status, body) == (200, b"".join(EVENTS * 10))
                await f.idle()

                seen = len(backend.requests)
                status, body, _ = await f.chat(messages=[{"role": "user", "content": "z" * 34_000_000}])
                assert (status, error_code(body)) == (413, "request_too_large")
                assert len(backend.requests) == seen
                assert f.nodes["n1"].running.returncode is None
                await f.idle()

    run(work())


def test_a_thousand_aborted_streams_leave_nothing(tmp_path: Path) -> None:
    """Streams of the echo model, each left at a moment of its own; counters, files and memory return."""
    seed = 1000
    print(f"seed {seed}")
    generator = random.Random(seed)
    echo = {"id": "echo-1", "type": "native", "profile": "echo", "models": ["served"], "capacity": 32}

    async def one(f: Fleet, chunks: int) -> None:
        answer = await f.stream(messages=[{"role": "user", "content": "one two three four five six seven eight"}])
        assert answer.status == 200
        for _ in range(chunks):
            if not await answer.content.readline():
                break
        answer.close()

    async def batch(f: Fleet, count: int) -> None:
        await asyncio.gather(*(one(f, generator.randrange(20)) for _ in range(count)))
        await f.idle()

    async def work() -> None:
        nodes = {"n1": [echo]}
        models = [{"id": "m", "providers": {"echo-1": "served"}}]
        pool = {"max_queue": 1000, "queue_timeout_ms": 0}
        async with fleet(tmp_path, nodes, models=models, provider_pool=pool) as f:
            echo_model = [{"id": "echo", "adapter": "echo", "options": {"chunk_ms": 1}}]
            (observe_port,) = free_ports(1)
            observe = {"listen": f"127.0.0.1:{observe_port}"}
            node = await f.start_node("n1", native_models=echo_model, observe=observe)
            edge = f.edge
            assert edge is not None

            async def held() -> tuple[int, int, int, int]:
                """Files and tasks of the Edge and of the Node."""
                async with f.client.get(f"http://127.0.0.1:{observe_port}/metrics") as answer:
                    lines = (await answer.text()).splitlines()
                node_tasks = next(int(float(line.split()[1])) for line in lines if line.startswith("iop_node_tasks "))
                return edge.open_files, (await f.status())["tasks"], node.open_files, node_tasks

            await batch(f, 100)
            before = await held()
            for _ in range(10):
                await batch(f, 100)

            async def is_back() -> bool:
                return all(now <= then + 2 for now, then in zip(await held(), before, strict=True))

            await until(is_back, f"files and tasks are back at {before}")
            status = await f.status()
            assert status["counters"]["requests"].get("released_unconfirmed", 0) == 0
            assert status["nodes"][0]["session"]["generation"] == 1

    run(work())


def test_one_clients_reset_at_any_point_leaves_fifty_others_whole(tmp_path: Path) -> None:
    """A client that resets its connection before, in and after a stream never ends a session."""

    async def slow_head(exchange: Exchange) -> None:
        await exchange.read_body()
        await sse([*EVENTS, DONE], delay_s=0.01)(exchange)

    async def reset_after(f: Fleet, byte_count: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", f.http_port)
        body = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}'
        request = (
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        writer.write(request[: len(request) if byte_count else 60])
        await writer.drain()
        if byte_count:
            await reader.readexactly(byte_count)
        transport = writer.transport
        transport.get_extra_info("socket").setsockopt(1, 13, b"\x01\x00\x00\x00\x00\x00\x00\x00")  # SO_LINGER 0: RST
        transport.abort()

    async def work() -> None:
        async with FakeBackend(BeforeBody(slow_head)) as backend:
            nodes = {"n1": [provider("p1", 200, endpoint=backend.url)]}
            async with fleet(tmp_path, nodes, ["n1"]) as f:
                good = [asyncio.create_task(f.chat(stream=True)) for _ in range(50)]
                await until(lambda: len(backend.requests) == 50, "fifty run")
                await asyncio.gather(*(reset_after(f, count) for count in [0, 1, 17, 200, 300, 400, 600, 900, 1200]))
                for task in good:
                    status, body, _ = await task
                    assert (status, body) == (200, b"".join([*EVENTS, DONE]))
                await f.idle()
                assert (await f.status())["nodes"][0]["session"]["generation"] == 1

    run(work())
