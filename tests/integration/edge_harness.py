"""A real Edge in this process, on free loopback ports, with what tests need around it."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import uvloop
import yaml

from iop_fast.config.loader import load_edge_text
from iop_fast.edge.app import Edge
from tests.fakes.fake_node import FakeNode

LIMIT_S = 10.0
TOKEN = "node-token"
TOKEN_HASH = sha256(TOKEN.encode()).hexdigest()
CHAT = "/v1/chat/completions"

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a test's coroutine on uvloop, as production does; what the loop could only report fails the test."""
    failures: list[dict[str, Any]] = []

    async def watched() -> T:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: failures.append(context))
        return await work

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        result = runner.run(watched())
    assert failures == []
    return result


def provider(provider_id: str, capacity: int = 1, **more: object) -> dict[str, object]:
    """A provider of the configuration, serving `served`."""
    return {
        "id": provider_id,
        "type": "vllm",
        "endpoint": "http://127.0.0.1:1",
        "models": ["served"],
        "capacity": capacity,
        **more,
    }


def config(nodes: dict[str, list[dict[str, object]]] | None = None, **sections: Any) -> dict[str, Any]:
    """A configuration whose model `m` every provider serves; `sections` are merged in."""
    nodes = {"n1": [provider("p1")]} if nodes is None else nodes
    made: dict[str, Any] = {
        "edge": {"listen": "127.0.0.1:0"},
        "openai": {"listen": "127.0.0.1:0"},
        "admin": {"listen": "127.0.0.1:0"},
        "models": [
            {"id": "m", "providers": {str(entry["id"]): "served" for entries in nodes.values() for entry in entries}}
        ],
        "nodes": [
            {"id": node_id, "token_hash_sha256": TOKEN_HASH, "providers": entries} for node_id, entries in nodes.items()
        ],
    }
    for name, section in sections.items():
        made[name] = {**made.get(name, {}), **section} if isinstance(section, dict) else section
    return made


class Bench:
    """A running Edge, a client of its HTTP listeners, and the Nodes made here."""

    def __init__(self, edge: Edge, client: aiohttp.ClientSession) -> None:
        self.edge = edge
        self.client = client
        self.nodes: list[FakeNode] = []

    def node(self, node_id: str = "n1", instance_id: str = "i1") -> FakeNode:
        """A Node that has not connected yet."""
        node = FakeNode(self.edge.link_port, node_id, TOKEN, instance_id=instance_id)
        self.nodes.append(node)
        return node

    async def ready(self, node_id: str = "n1", instance_id: str = "i1") -> FakeNode:
        """A Node that is a candidate."""
        node = self.node(node_id, instance_id)
        await node.register()
        await node.ack()
        link = self.edge.links
        await until(lambda: link.for_lease(node_id, node.response.generation) is not None, f"{node_id} ready")
        return node

    async def chat(self, model: str = "m", *, stream: bool = False, **more: Any) -> aiohttp.ClientResponse:
        """Post a chat request and read the whole answer."""
        body = {"model": model, "stream": stream, "messages": [{"role": "user", "content": "hi"}], **more}
        answer = await self.client.post(self.http(CHAT), json=body)
        await answer.read()
        return answer

    def http(self, path: str) -> str:
        return f"http://127.0.0.1:{self.edge.http_port}{path}"

    def admin(self, path: str) -> str:
        return f"http://127.0.0.1:{self.edge.admin_port}{path}"

    async def status(self) -> Any:
        async with self.client.get(self.admin("/status")) as answer:
            assert answer.status == 200
            return await answer.json()

    async def row(self, provider_id: str = "p1") -> dict[str, Any]:
        """One provider of the snapshot."""
        rows: list[dict[str, Any]] = (await self.status())["providers"]
        return next(row for row in rows if row["provider_id"] == provider_id)

    @property
    def in_flight(self) -> int:
        return sum(row.in_flight for row in self.edge.gate.snapshot())

    async def waiting(self, count: int) -> None:
        await until(lambda: self.edge.gate.waiting == count, f"{count} waiting")

    async def idle(self) -> None:
        """The idle invariant: no lease, no waiter, no run, no request body in memory."""
        await until(lambda: self.in_flight == 0 and self.edge.gate.waiting == 0, "no lease and no waiter")
        await until(lambda: self.edge.links.run_count == 0, "no run")
        assert self.edge.gate.counters()["double_release"] == 0
        assert self.edge.gate.counters()["reclaimed"] == 0
        assert self.edge.links.counters.runs_failed == 0


@asynccontextmanager
async def bench(settings: dict[str, Any] | None = None, file: Path | None = None) -> AsyncIterator[Bench]:
    """Start an Edge; stop everything at the end. With `file`, its configuration stands there."""
    text = yaml.safe_dump(config() if settings is None else settings)
    if file is not None:
        await asyncio.to_thread(file.write_text, text)
    edge = Edge(load_edge_text(text, "edge.yaml" if file is None else str(file)))
    await edge.start()
    client = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(LIMIT_S))
    made = Bench(edge, client)
    try:
        yield made
    finally:
        await client.close()
        for node in made.nodes:
            await node.close()
        await edge.stop()


async def until(look: Callable[[], bool] | Callable[[], Awaitable[bool]], what: str) -> None:
    """Poll a condition until it holds; fail past the limit."""
    deadline = asyncio.get_running_loop().time() + LIMIT_S
    while True:
        found = look()
        if found if isinstance(found, bool) else await found:
            return
        assert asyncio.get_running_loop().time() < deadline, f"not seen within {LIMIT_S} s: {what}"
        await asyncio.sleep(0.005)


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """Write a fresh self-signed certificate for localhost and its key."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-days", "2"]
    subprocess.run([*command, *names, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)
    return cert, key
