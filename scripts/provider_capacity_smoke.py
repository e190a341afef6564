"""The capacity smoke: two model aliases over one provider of capacity 1, through real Edge and Node processes.

The provider runs in this process and holds each request until it is told to answer, so that order and concurrency are
observed, not timed. Run by scripts/e2e-provider-capacity-smoke.sh.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

LIMIT_S = 30.0
MAX_QUEUE = 4
ALIASES = ("smoke-fast", "smoke-large")

EDGE_CONFIG = """\
edge: {{id: smoke, listen: "127.0.0.1:{link}"}}
openai: {{listen: "127.0.0.1:{http}", long_context_threshold_tokens: 1000}}
admin: {{listen: "127.0.0.1:{admin}"}}
provider_pool: {{max_queue: {max_queue}, queue_timeout_ms: {queue_timeout_ms}}}
models:
  - {{id: smoke-fast, providers: {{gpu: served-fast}}}}
  - {{id: smoke-large, providers: {{gpu: served-large}}}}
nodes:
  - id: smoke-node
    token_hash_sha256: {token_hash}
    providers:
      - id: gpu
        type: vllm
        endpoint: http://127.0.0.1:{provider}
        models: [served-fast, served-large]
        capacity: 1
        long_context_capacity: 1
"""

NODE_CONFIG = """\
id: smoke-node
edge: {{address: "127.0.0.1:{link}"}}
token_env: IOP_NODE_TOKEN
"""


class SmokeFailure(Exception):
    """Something is not as it must be."""


def expect(condition: bool, what: str) -> None:
    """Print what was checked, or fail with it."""
    if not condition:
        raise SmokeFailure(what)
    print(f"ok    {what}", flush=True)


async def until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    """Poll a condition until it holds; fail with `what` past the limit."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + LIMIT_S
    while not await condition():
        if loop.time() > deadline:
            raise SmokeFailure(f"not seen within {LIMIT_S:.0f} s: {what}")
        await asyncio.sleep(0.01)


class Provider:
    """An OpenAI-compatible server that answers one held request at a time, when told to."""

    def __init__(self) -> None:
        self.running = 0
        self.highest = 0
        self.served: list[tuple[str, str]] = []  # (request's name, served model) in order of arrival
        self._answer = asyncio.Semaphore(0)
        self.port = 0

    async def chat(self, request: web.Request) -> web.Response:
        """Hold the request until `answer_one`."""
        body = await request.json()
        self.running += 1
        self.highest = max(self.highest, self.running)
        self.served.append((body["user"], body["model"]))
        try:
            await self._answer.acquire()
        finally:
            self.running -= 1
        message = {"role": "assistant", "content": body["user"]}
        return web.json_response(
            {"id": "smoke", "object": "chat.completion", "choices": [{"index": 0, "message": message}]}
        )

    def answer_one(self) -> None:
        """Let one held request (or the next to come) be answered."""
        self._answer.release()

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[None]:
        """Listen on a free loopback port."""
        app = web.Application(client_max_size=64 << 20)
        app.router.add_post("/v1/chat/completions", self.chat)
        runner = web.AppRunner(app, handle_signals=False)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.port = runner.addresses[0][1]
            yield
        finally:
            await runner.cleanup()


class Fleet:
    """A running Edge and Node in front of a provider."""

    def __init__(self, session: aiohttp.ClientSession, http: int, admin: int) -> None:
        self._session = session
        self._http = http
        self._admin = admin

    async def status(self) -> dict[str, Any]:
        """The Edge's snapshot."""
        async with self._session.get(f"http://127.0.0.1:{self._admin}/status") as answer:
            status: dict[str, Any] = await answer.json()
            return status

    async def effective(self) -> dict[str, int]:
        """Effective counters of the one provider."""
        row: dict[str, int] = (await self.status())["providers"][0]["effective"]
        return row

    async def is_ready(self) -> bool:
        """True once the provider is a candidate."""
        try:
            return (await self.effective())["capacity"] == 1
        except aiohttp.ClientError:
            return False

    async def waiting(self) -> int:
        """Requests in the queue."""
        count: int = (await self.status())["queue"]["waiting"]
        return count

    async def chat(self, name: str, model: str, text: str = "hello") -> tuple[int, dict[str, Any], Any]:
        """One chat request; its status, body and headers."""
        body = {"model": model, "user": name, "messages": [{"role": "user", "content": text}]}
        async with self._session.post(f"http://127.0.0.1:{self._http}/v1/chat/completions", json=body) as answer:
            return answer.status, await answer.json(), answer.headers


def free_ports(count: int) -> list[int]:
    """Loopback ports that are free now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@asynccontextmanager
async def program(kind: str, config: Path, environment: dict[str, str]) -> AsyncIterator[None]:
    """Run `iop KIND` as a process; stop it at the end and wait for it."""
    log = config.with_suffix(".log")
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "iop_fast.cli", kind, "-c", str(config), env=environment, stdout=output, stderr=output
        )
    try:
        yield
    except BaseException:
        print(f"--- log of the {kind}\n{log.read_text(errors='replace')[-4000:]}---", file=sys.stderr)
        raise
    finally:
        if process.returncode is None:
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), 15)
        except TimeoutError:
            process.kill()
            await process.wait()


@asynccontextmanager
async def fleet(provider: Provider, queue_timeout_ms: int) -> AsyncIterator[Fleet]:
    """Start Edge and Node with fresh ports and a fresh token; wait until the provider is a candidate."""
    http, link, admin = free_ports(3)
    token = secrets.token_urlsafe(16)
    values = {
        "http": http,
        "link": link,
        "admin": admin,
        "provider": provider.port,
        "max_queue": MAX_QUEUE,
        "queue_timeout_ms": queue_timeout_ms,
        "token_hash": hashlib.sha256(token.encode()).hexdigest(),
    }
    environment = {**os.environ, "IOP_NODE_TOKEN": token}
    with tempfile.TemporaryDirectory(prefix="iop-smoke-") as folder:
        edge, node = Path(folder) / "edge.yaml", Path(folder) / "node.yaml"
        edge.write_text(EDGE_CONFIG.format(**values))
        node.write_text(NODE_CONFIG.format(**values))
        async with (
            program("edge", edge, environment),
            program("node", node, environment),
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
        ):
            running = Fleet(session, http, admin)
            await until(running.is_ready, "the provider is a candidate")
            yield running


async def check_order(provider: Provider, running: Fleet) -> None:
    """One runs, MAX_QUEUE wait over both aliases, one more is refused; all finish in the order they came."""
    names = [f"request-{number}" for number in range(MAX_QUEUE + 1)]
    tasks = []
    for number, name in enumerate(names):
        tasks.append(asyncio.create_task(running.chat(name, ALIASES[number % 2])))

        async def arrived(number: int = number) -> bool:
            return len(provider.served) == 1 and await running.waiting() == number

        await until(arrived, f"{name} runs or waits")
    effective = await running.effective()
    expect(effective["in_flight"] == 1, "one request runs")
    expect(effective["queued"] == MAX_QUEUE, f"{MAX_QUEUE} requests over two aliases wait in one queue")

    status, body, headers = await running.chat("one-too-many", ALIASES[0])
    expect((status, body["error"]["code"]) == (429, "queue_full"), "the next one is refused: 429 queue_full")
    expect(1 <= int(headers["retry-after"]) <= 30, f"it says when to come back: Retry-After {headers['retry-after']}")

    for task in tasks:
        provider.answer_one()
        status, body, _ = await asyncio.wait_for(task, LIMIT_S)
        expect(status == 200, f"{body['choices'][0]['message']['content']} answered")
    expect([name for name, _ in provider.served] == names, "the provider got them in the order they came")
    expect(
        [model for _, model in provider.served] == [f"served-{ALIASES[n % 2][6:]}" for n in range(len(names))],
        "each under the name that its alias is mapped to",
    )


async def check_long(provider: Provider, running: Fleet) -> None:
    """A long request takes a long slot beside the normal one and gives both back."""
    task = asyncio.create_task(running.chat("long", ALIASES[1], "word " * 5000))

    async def runs() -> bool:
        return (await running.effective())["long_in_flight"] == 1

    await until(runs, "a long request holds a long slot")
    expect((await running.effective())["in_flight"] == 1, "a long request holds a normal and a long slot")
    provider.answer_one()
    status, _, _ = await asyncio.wait_for(task, LIMIT_S)
    expect(status == 200, "the long request answered")


async def check_idle(provider: Provider, running: Fleet) -> None:
    """Everything is back at 0 and the provider never saw two at once."""

    async def idle() -> bool:
        effective = await running.effective()
        return not any(effective[name] for name in ("in_flight", "long_in_flight", "queued"))

    await until(idle, "all counters are 0")
    effective = await running.effective()
    expect(
        (effective["in_flight"], effective["long_in_flight"], effective["queued"]) == (0, 0, 0),
        "in_flight, long_in_flight and queued are 0",
    )
    expect(provider.highest == 1, "the provider never saw two requests at once")


async def check_timeout(provider: Provider, running: Fleet) -> None:
    """A waiter past queue_timeout_ms ends 504; the running one is untouched."""
    task = asyncio.create_task(running.chat("holds", ALIASES[0]))

    async def runs() -> bool:
        return (await running.effective())["in_flight"] == 1

    await until(runs, "one request runs")
    status, body, headers = await running.chat("waits", ALIASES[1])
    expect((status, body["error"]["code"]) == (504, "queue_timeout"), "a waiter past its time ends 504 queue_timeout")
    expect(headers["x-should-retry"] == "false", "and is told not to retry")
    provider.answer_one()
    status, _, _ = await asyncio.wait_for(task, LIMIT_S)
    expect(status == 200, "the running request is answered all the same")


async def main() -> int:
    """Run all checks; 0 when every one held."""
    try:
        provider = Provider()
        async with provider.serve():
            async with fleet(provider, queue_timeout_ms=120_000) as running:
                await check_order(provider, running)
                await check_long(provider, running)
                await check_idle(provider, running)
            async with fleet(provider, queue_timeout_ms=300) as running:
                await check_timeout(provider, running)
                await check_idle(provider, running)
    except SmokeFailure as failure:
        print(f"FAILED {failure}", file=sys.stderr)
        return 1
    print("capacity smoke: all checks held")
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
