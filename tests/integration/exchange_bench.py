"""The whole request path of an Edge but for the wire to its Nodes: real sockets, real front, real core.

The Node's session is played in the process: it gets what the exchange opens and answers as a test's script says.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from iop_fast._core.clock import MonotonicClock
from iop_fast.edge.ages import Ticker
from iop_fast.edge.front.listener import Front
from iop_fast.edge.gate import Gate
from iop_fast.edge.service import EdgeService
from iop_fast.edge.state import EdgeState
from iop_fast.seams import EdgeRun, End, Head, TunnelRequest
from iop_fast.wire.runtime_pb2 import RunEnd
from tests.unit.edge.exchange_world import provider_spec, runtime_of

LIMIT_S = 20.0
WINDOW = 256 * 1024
OK = End(RunEnd.OK, "", None)
JSON_HEAD = Head(200, b"OK", [(b"Content-Type", b"application/json")])
SSE_HEAD = Head(200, b"OK", [(b"Content-Type", b"text/event-stream")])
CHAT = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'


class Run:
    """A run as the Node's side sees it."""

    def __init__(self, link: PlayedLink, run_id: int, run: EdgeRun, request: TunnelRequest) -> None:
        self.link = link
        self.run_id = run_id
        self.run = run
        self.request = request
        self.body = bytearray(request.body)
        self.is_complete = request.body_complete
        self.is_cancelled = False
        self.window = WINDOW

    def answer(self, head: Head | None, *data: bytes, end: End | None = None) -> None:
        """Bring one message; a run that is over gets no more."""
        if self.run_id not in self.link.runs:
            return
        if end is not None:
            del self.link.runs[self.run_id]
        self.window -= sum(map(len, data))
        self.run.on_answer(head is not None, head, list(data), end)

    def end(self, status: int) -> None:
        self.answer(None, end=End(status, "", None))


class PlayedLink:
    """The session of one Node. `script` is called for each run once its body is whole; cancels are confirmed at once
    unless `confirms` is off."""

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.is_up = self.has_room = self.takes_body = True
        self.confirms = True
        self.runs: dict[int, Run] = {}
        self.seen: list[Run] = []
        self.highest = 0
        self.script: Callable[[Run], None] = lambda run: run.answer(JSON_HEAD, b"{}", end=OK)

    def open(self, run_id: int, run: EdgeRun, request: TunnelRequest) -> None:
        opened = self.runs[run_id] = Run(self, run_id, run, request)
        self.seen.append(opened)
        self.highest = max(self.highest, len(self.runs))
        asyncio.get_running_loop().call_soon(self._sent, opened)

    def _sent(self, run: Run) -> None:
        if run.run_id in self.runs:
            run.run.on_sent(1)
            if run.is_complete:
                self.script(run)

    def send_body(self, run_id: int, piece: bytes, complete: bool) -> None:
        run = self.runs[run_id]
        run.body += piece
        run.is_complete = complete
        loop = asyncio.get_running_loop()
        loop.call_soon(run.run.on_window, len(piece))
        if complete:
            loop.call_soon(self.script, run)

    def wait_to_send(self, run_id: int) -> None:
        raise AssertionError("a body waits for a session that always takes one")

    def hold(self, run_id: int, byte_count: int) -> None:
        """The bound on what clients leave unread is the real session's."""

    def grant(self, run_id: int, byte_count: int) -> None:
        self.runs[run_id].window += byte_count

    def cancel(self, run_id: int) -> None:
        run = self.runs[run_id]
        run.is_cancelled = True
        if self.confirms:
            asyncio.get_running_loop().call_soon(run.end, RunEnd.CANCELLED)

    def withdraw(self, run_id: int) -> bool:
        return False

    def forget(self, run_id: int) -> None:
        self.runs.pop(run_id, None)


class PlayedLinks(dict[str, PlayedLink]):
    def for_lease(self, node_id: str, generation: int) -> PlayedLink | None:
        link = self.get(node_id)
        return link if link is not None and link.generation == generation else None


def begin_stream(run: Run) -> None:
    run.answer(SSE_HEAD, b"data: 1\n\n")


def stay_silent(run: Run) -> None:
    """The provider works and says nothing."""


class Reply(NamedTuple):
    """An answer as a client reads it. `is_whole` is False where the connection ended before the answer did."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes
    is_whole: bool

    @property
    def code(self) -> str:
        code: str = json.loads(self.body)["error"]["code"]
        return code


class Client:
    """One connection of a client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(
        self, body: bytes = CHAT, *, method: bytes = b"POST", path: bytes = b"/v1/chat/completions", fields: bytes = b""
    ) -> None:
        content = body if method == b"POST" else b""
        length = b"Content-Length: %d\r\n" % len(content) if content else b""
        self.writer.write(b"%b %b HTTP/1.1\r\nHost: edge\r\n%b%b\r\n%b" % (method, path, length, fields, content))

    async def read_head(self) -> tuple[int, dict[bytes, bytes]]:
        block = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), LIMIT_S)
        lines = block[:-4].split(b"\r\n")
        fields = [line.split(b": ", 1) for line in lines[1:]]
        return int(lines[0].split(b" ")[1]), {name.lower(): value for name, value in fields}

    async def read_chunk(self) -> bytes | None:
        """The next chunk, b"" for the last one, None where the connection ends instead."""
        try:
            size = int(await asyncio.wait_for(self.reader.readuntil(b"\r\n"), LIMIT_S), 16)
            return (await asyncio.wait_for(self.reader.readexactly(size + 2), LIMIT_S))[:-2]
        except asyncio.IncompleteReadError:
            return None

    async def read(self, *, is_head: bool = False) -> Reply:
        status, headers = await self.read_head()
        if is_head:
            return Reply(status, headers, b"", True)
        if b"content-length" in headers:
            return Reply(status, headers, await self.reader.readexactly(int(headers[b"content-length"])), True)
        assert headers[b"transfer-encoding"] == b"chunked"
        body = b""
        while piece := await self.read_chunk():
            body += piece
        return Reply(status, headers, body, piece is not None)

    async def ask(self, body: bytes = CHAT, **how: Any) -> Reply:
        self.send(body, **how)
        return await self.read(is_head=how.get("method") == b"HEAD")

    def close(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        self.writer.transport.abort()


class Bench:
    """An Edge on a free port with one provider `p1` on Node `n1`."""

    def __init__(self, capacity: int, config: dict[str, Any]) -> None:
        loop = asyncio.get_running_loop()
        clock = MonotonicClock()
        self.providers = [provider_spec("n1", "p1", capacity=capacity)]
        runtime = runtime_of(self.providers, {"m": {"p1": "served"}}, config)
        self.gate = Gate(runtime.plan(lambda key: True), clock, loop, verify=True)
        self.links = PlayedLinks(n1=PlayedLink(1))
        self.edge = EdgeState(runtime, self.gate, self.links, clock, random.Random(1))
        self.ticker = Ticker(clock, loop)
        self.ticker.register(self.edge.cancelling.sweep)
        service = EdgeService(self.edge)
        limits = runtime.config.openai.limits
        self.front = Front(service, limits, clock, loop, render=service.render, ticker=self.ticker)
        self._clients: list[Client] = []

    @property
    def link(self) -> PlayedLink:
        return self.links["n1"]

    async def connect(self) -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.front.port))
        self._clients.append(client)
        return client

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for what other turns of the loop bring about."""
        async with asyncio.timeout(LIMIT_S):
            while not condition():  # noqa: ASYNC110 - many conditions, none of which has an event
                await asyncio.sleep(0.001)

    @property
    def in_flight(self) -> int:
        return sum(row.in_flight for row in self.gate.snapshot())

    async def until_idle(self) -> None:
        await self.until(lambda: not self.in_flight and not self.gate.waiting and not self.edge.budget.used)
        assert not self.link.runs
        assert len(self.edge.cancelling) == 0
        assert self.gate.counters()["reclaimed"] == 0
        assert "broken" not in self.edge.counters

    async def close(self) -> None:
        for client in self._clients:
            client.close()
        self.front.close()
        await self.front.wait_empty()
        self.ticker.stop()
        self.gate.close()


@asynccontextmanager
async def bench(capacity: int = 1, **config: Any) -> AsyncIterator[Bench]:
    made = Bench(capacity, config)
    await made.front.start("127.0.0.1", 0)
    made.ticker.start()
    assert made.gate.node_ready("n1", 1, {})
    try:
        yield made
        await made.until_idle()
    finally:
        await made.close()
