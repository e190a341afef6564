"""Links between real processes: lost packets, frozen sides, long silence, large payloads, stalled providers."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

from tests.chaos.proxy import FaultProxy
from tests.fakes.openai_backend import Exchange, FakeBackend, OpenAIScript, Script, sse
from tests.integration.edge_harness import provider, run, until
from tests.integration.fleet import Fleet, fleet
from tests.integration.test_process_life import DONE, EVENTS, Gate, error_code, named, queue_up

LINK = {"heartbeat_ms": 200, "silence_ms": 1000}


@asynccontextmanager
async def proxied(f: Fleet) -> AsyncIterator[FaultProxy]:
    """A fault proxy in front of the Edge's listener for Nodes."""
    proxy = FaultProxy(f.link_port)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()


async def start_node(f: Fleet, proxy: FaultProxy | None = None, node_id: str = "n1") -> None:
    """Start a Node that notices silence as soon as the Edge does."""
    through = {} if proxy is None else {"edge": {"address": f"127.0.0.1:{proxy.port}"}}
    await f.start_node(node_id, limits=LINK, **through)


async def generation(f: Fleet, node_id: str = "n1") -> int:
    """The number of a Node's session, 0 without one."""
    node = next(node for node in (await f.status())["nodes"] if node["node_id"] == node_id)
    return int(node["session"]["generation"]) if node["session"] else 0


async def refresh(f: Fleet, settings: dict[str, Any]) -> dict[str, Any]:
    """Write the Edge's file and apply it."""
    f.settings = settings
    f.write_settings()
    async with f.client.post(f"http://127.0.0.1:{f.admin_port}/refresh", json={"mode": "apply"}) as answer:
        assert answer.status == 200, await answer.text()
        report: dict[str, Any] = await answer.json()
        return report


def test_lost_packets_end_a_session_and_its_late_close_harms_no_newer_one(tmp_path: Path) -> None:
    """B12, B10: nothing gets through and nobody is told; later the old connection's end comes after all."""

    async def work() -> None:
        script = Gate()
        pool = {"queue_timeout_ms": 0}
        async with FakeBackend(script) as backend:
            nodes = {"n1": [provider("p1", 1, endpoint=backend.url)]}
            async with fleet(tmp_path, nodes, edge={"link": LINK}, provider_pool=pool) as f, proxied(f) as proxy:
                await start_node(f, proxy)
                running = asyncio.create_task(f.chat(user="runs"))
                await until(lambda: backend.running == 1, "one runs")
                waiting = await queue_up(f, 2)
                first = await generation(f)
                old = list(proxy.lines)
                proxy.lose()
                status, body, _ = await running
                assert (status, error_code(body)) == (502, "upstream_error")
                for task in waiting:
                    status, body, _ = await task
                    assert (status, error_code(body)) == (503, "provider_unavailable")
                proxy.find()
                await until(lambda: f.has_link("n1", "ready"), "it rejoins")
                second = await generation(f)
                assert second > first
                again = asyncio.create_task(f.chat(user="again"))
                await until(lambda: script.names[-1] == "again", "the new session serves")
                for line in old:
                    line.reset()
                assert await f.has_link("n1", "ready")
                script.let(2)
                assert named(*(await again)[:2]) == "again"
                assert await generation(f) == second
                assert backend.highest == 1
                await f.idle()

    run(work())


def test_an_edge_that_stands_still_is_back_with_its_nodes(tmp_path: Path) -> None:
    """B12: a short stop costs nothing, its own timers are late, not its Nodes; after a long one they register again."""

    async def work() -> None:
        script = Gate()
        link = {"heartbeat_ms": 300, "silence_ms": 3000}
        async with FakeBackend(script) as backend:
            nodes = {"n1": [provider("p1", 1, endpoint=backend.url)]}
            async with fleet(tmp_path, nodes, edge={"link": LINK}) as f:
                await f.start_node("n1", limits=link)
                assert f.edge is not None
                running = asyncio.create_task(f.chat(user="short"))
                await until(lambda: backend.running == 1, "one runs")
                f.edge.signal(signal.SIGSTOP)
                await asyncio.sleep(1.5)  # longer than the Edge's own limit, shorter than the Node's
                f.edge.signal(signal.SIGCONT)
                assert await generation(f) == 1
                script.let()
                assert named(*(await running)[:2]) == "short"
                assert await generation(f) == 1

                running = asyncio.create_task(f.chat(user="long"))
                await until(lambda: backend.running == 1, "one runs")
                f.edge.signal(signal.SIGSTOP)
                await until(lambda: backend.running == 0, "the Node has given the session up")
                f.edge.signal(signal.SIGCONT)
                status, body, _ = await running
                assert (status, error_code(body)) == (502, "upstream_error")

                async def is_back() -> bool:
                    return await f.has_link("n1", "ready") and await generation(f) > 1

                await until(is_back, "it registers again")
                script.let()
                assert named(*(await f.chat(user="after"))[:2]) == "after"
                assert backend.highest == 1
                await f.idle()

    run(work())


def test_a_provider_that_thinks_for_long_keeps_its_session(tmp_path: Path) -> None:
    """B12: no traffic but heartbeats for many times the silence limit, and the late answer arrives."""
    link = {"heartbeat_ms": 50, "silence_ms": 300}

    async def work() -> None:
        async with FakeBackend(OpenAIScript(head_delay_s=1.5)) as backend:
            nodes = {"n1": [provider("p1", 1, endpoint=backend.url)]}
            async with fleet(tmp_path, nodes, edge={"link": link}) as f:
                await f.start_node("n1", limits=link)
                status, _, _ = await f.chat()
                assert status == 200
                assert (await f.status())["counters"]["links"]["silent"] == 0
                assert await generation(f) == 1
                await f.idle()

    run(work())


def test_a_payload_of_2000_providers_travels_in_pieces_beside_a_stream(tmp_path: Path) -> None:
    """B13: over 4 MiB at the registration and again at a refresh; nobody's frames wait for it to be whole."""
    count = 2000
    served = [f"{'a-model-with-a-long-name-' * 4}{number}" for number in range(20)]

    async def work() -> None:
        async with FakeBackend() as backend:
            entries = [provider(f"p{number}", 1, endpoint=backend.url) for number in range(count)]
            for entry in entries[1:]:
                entry["models"] = ["served", *served]
            models = [
                {"id": "m", "providers": {"p0": "served"}},
                {"id": "last", "providers": {f"p{count - 1}": "served"}},
            ]
            async with fleet(tmp_path, {"n1": entries}, models=models) as f:
                await f.start_node("n1", ready=False)

                async def is_served() -> bool:  # the status of so many providers is too dear to be polled
                    return (await f.chat("last"))[0] == 200

                await until(is_served, "the Node is ready")
                backend.scripts = [sse(EVENTS * 10, delay_s=0.02)]
                small = asyncio.create_task(f.chat(stream=True))
                await until(lambda: backend.running == 1, "a stream runs")
                settings = deepcopy(f.settings)
                settings["nodes"][0]["providers"][count - 1]["capacity"] = 7
                report = await refresh(f, settings)
                assert report["status"] == "applied"
                assert [push["status"] for push in report["node_pushes"]] == ["acked"]
                status, body, _ = await small
                assert (status, body) == (200, b"".join(EVENTS * 10))
                status_now = await f.status()
                assert status_now["nodes"][0]["session"]["generation"] == 1
                assert status_now["nodes"][0]["payload"]["observed"] == 2
                assert status_now["providers"][-1]["effective"]["capacity"] == 7
                assert not any(row["effective"]["in_flight"] for row in status_now["providers"])

    run(work())


# B21: providers that stall, each in its own way, all at once.


async def first_chunk_alone(exchange: Exchange) -> None:
    await exchange.head(200, [(b"Content-Type", b"text/event-stream"), (b"Transfer-Encoding", b"chunked")])
    await exchange.chunk(EVENTS[0])
    await exchange.until_gone()


async def nothing_at_all(exchange: Exchange) -> None:
    await exchange.until_gone()


async def head_alone(exchange: Exchange) -> None:
    await exchange.head(200, [(b"Content-Type", b"text/event-stream"), (b"Transfer-Encoding", b"chunked")])
    await exchange.until_gone()


STALLS: dict[str, Script] = {"chunk": first_chunk_alone, "nothing": nothing_at_all, "head": head_alone}
# These live: what counts is a byte, and a comment is bytes.
SLOW: dict[str, Script] = {
    "comments": sse([b": still here\n\n"] * 3 + [EVENTS[0], DONE], delay_s=0.3),
    "bytes": sse([bytes([byte]) for byte in EVENTS[0][:5]], delay_s=0.3),
}


def test_providers_that_stall_are_given_up_and_delay_nobody(tmp_path: Path) -> None:
    """B21: two run and two wait on each; what stalls ends in time, what is slow lives, the good one never waits."""
    timeouts = {"first_byte_ms": 700, "idle_ms": 700, "connect_ms": 1000}

    async def served_meanwhile(f: Fleet, stopped: asyncio.Event) -> int:
        """Ask the good provider all the time."""
        count = 0
        while not stopped.is_set():
            status, _, answer = await f.chat("good")
            assert (status, answer.headers["x-iop-queue-ms"]) == (200, "0")
            count += 1
            await asyncio.sleep(0.02)
        return count

    async def stall(f: Fleet, name: str, backend: FakeBackend) -> None:
        answers = await asyncio.gather(*(f.stream(name) for _ in range(4)))
        for answer in answers:
            whole = True
            try:
                body = await answer.read()
            except Exception:  # noqa: BLE001 - any break is a cut answer
                whole, body = False, b""
            if name == "nothing":
                assert (answer.status, error_code(body)) == (504, "upstream_timeout")
            else:
                assert (answer.status, whole) == (200, False)
        assert backend.highest == 2
        await until(lambda: backend.running == 0, f"the connections of {name} are closed")

    async def live(f: Fleet, name: str, backend: FakeBackend) -> None:
        for status, _, _ in await asyncio.gather(*(f.chat(name, stream=True) for _ in range(4))):
            assert status == 200
        assert backend.highest == 2

    async def work() -> None:
        backends = {name: FakeBackend(script) for name, script in {**STALLS, **SLOW, "good": OpenAIScript()}.items()}
        for backend in backends.values():
            await backend.start()
        entries = [
            provider(f"p-{name}", 2, endpoint=backend.url, timeouts=timeouts) for name, backend in backends.items()
        ]
        models = [{"id": name, "providers": {f"p-{name}": "served"}} for name in backends]
        async with fleet(tmp_path, {"n1": entries}, ["n1"], models=models, provider_pool={"queue_timeout_ms": 0}) as f:
            stopped = asyncio.Event()
            good = asyncio.create_task(served_meanwhile(f, stopped))
            await asyncio.gather(
                *(stall(f, name, backends[name]) for name in STALLS), *(live(f, name, backends[name]) for name in SLOW)
            )
            stopped.set()
            assert await good > 10
            await f.idle()
        for backend in backends.values():
            await backend.stop()

    run(work())


def test_nothing_is_offered_before_it_serves_nor_after_its_model_left(tmp_path: Path) -> None:
    """B11: until a Node is ready each answer is a 503, then none is. B09: a model that leaves ends its waiters."""

    async def work() -> None:
        script = Gate()
        async with FakeBackend() as backend:
            nodes = {"n1": [provider("p1", 1, endpoint=backend.url)]}
            models = [{"id": name, "providers": {"p1": "served"}} for name in ("m", "leaves")]
            async with fleet(tmp_path, nodes, models=models, provider_pool={"queue_timeout_ms": 0}) as f:
                starting = asyncio.create_task(f.start_node("n1"))
                seen = []
                while not starting.done() or 200 not in seen:
                    status, body, _ = await f.chat()
                    assert status == 200 or (status, error_code(body)) == (503, "provider_unavailable")
                    seen.append(status)
                await starting
                assert seen == sorted(seen, reverse=True), "once it serves it serves"

                backend.script = script
                running = asyncio.create_task(f.chat("leaves", user="runs"))
                await until(lambda: backend.running == 1, "one runs")
                waiting = await queue_up(f, 2, model="leaves")
                settings = deepcopy(f.settings)
                settings["models"] = [entry for entry in settings["models"] if entry["id"] != "leaves"]
                await refresh(f, settings)
                for task in waiting:
                    status, body, _ = await task
                    assert (status, error_code(body)) == (503, "provider_unavailable")
                status, body, _ = await f.chat("leaves")
                assert (status, error_code(body)) == (404, "model_not_found")
                script.let()
                assert json.loads((await running)[1])["user"] == "runs"
                await f.idle()

    run(work())
