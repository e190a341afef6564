"""Hot operations of the Edge, for a run under callgrind and for `bench_edge`. Prints their names in order.

A real front, service, exchange, core, run table, outbox and frame codec; a transport that takes everything, a stream
that keeps messages, a Node that is a few encoded frames. 32 requests share a message each way, as they do at 32 busy
connections. `os.getppid` marks where the counted part of an operation begins and ends, as in `core_operations`.

This file stands alone: it also runs against the package of another commit.
"""

from __future__ import annotations

import asyncio
import gc
import os
import tempfile
from collections.abc import Callable, Coroutine
from itertools import repeat
from pathlib import Path
from random import Random
from typing import Any

from iop_fast._core.clock import MonotonicClock, VirtualClock
from iop_fast._hot.dispatch import dispatch_edge
from iop_fast._hot.frames import encode_data, encode_end, encode_head, encode_taken, encode_window
from iop_fast.config.catalog import build_catalog
from iop_fast.config.loader import load_edge
from iop_fast.config.payload import compile_payloads
from iop_fast.config.schema.front import HttpLimits
from iop_fast.edge.front.connection import Connection
from iop_fast.edge.front.listener import Front
from iop_fast.edge.gate import Gate
from iop_fast.edge.lines import LineWriter, write_to
from iop_fast.edge.link_runs import LinkCounters, LinkRuns
from iop_fast.edge.runtime import Runtime
from iop_fast.edge.service import EdgeService
from iop_fast.edge.state import EdgeState
from iop_fast.seams import End, Head, Usage
from iop_fast.wire import runtime_pb2 as pb
from iop_fast.wire.outbox import Outbox

CONNECTIONS = 32
COUNT = 50 * CONNECTIONS
WARM = 4 * CONNECTIONS
PIECE_BYTES = 64 * 1024
UPLOAD_PIECES = 16

CONFIG = """\
edge: {id: bench, listen: "127.0.0.1:1"}
openai: {listen: "127.0.0.1:2"}
admin: {listen: "127.0.0.1:3"}
models: [{id: m, providers: {p1: served-m}}]
nodes:
  - id: n1
    token_hash_sha256: "0000000000000000000000000000000000000000000000000000000000000000"
    providers: [{id: p1, type: vllm, endpoint: "http://127.0.0.1:4", models: [served-m], capacity: 4000}]
"""

BODY = b'{"model":"m","messages":[{"role":"user","content":"' + b"hello " * 60 + b'"}]}'
SDK_FIELDS = (
    b"Host: 127.0.0.1:8080",
    b"Accept-Encoding: gzip, deflate",
    b"Connection: keep-alive",
    b"Accept: application/json",
    b"Content-Type: application/json",
    b"User-Agent: OpenAI/Python 3.0.0",
    b"X-Stainless-Lang: python",
    b"X-Stainless-Package-Version: 3.0.0",
    b"X-Stainless-OS: Linux",
    b"X-Stainless-Arch: x64",
    b"X-Stainless-Runtime: CPython",
    b"X-Stainless-Runtime-Version: 3.11.7",
    b"Authorization: Bearer sk-0123456789abcdef0123456789abcdef",
    b"X-Stainless-Async: false",
    b"x-stainless-retry-count: 0",
    b"x-stainless-read-timeout: 600",
)
OK = End(pb.RunEnd.OK, "", Usage(12, 40, 0))
WHOLE = Head(200, b"OK", [(b"content-type", b"application/json"), (b"content-length", b"400")])
STREAM = Head(200, b"OK", [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")])
EVENT = b'data: {"choices":[{"delta":{"content":"token"}}]}\n\n' * 3


def request(fields: tuple[bytes, ...], body: bytes = BODY) -> bytes:
    """A chat request with `fields` and its length."""
    head = [b"POST /v1/chat/completions HTTP/1.1", *fields, b"Content-Length: %d" % len(body), b"", b""]
    return b"\r\n".join(head) + body


class NullTransport(asyncio.Transport):
    """Takes everything."""

    def write(self, data: bytes) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0


class KeptStream:
    """A MessageStream that takes everything at once."""

    async def read(self) -> bytes | None:
        await asyncio.get_running_loop().create_future()
        return None

    async def write(self, message: bytes) -> None:
        pass

    def abandon(self) -> None:
        pass


class Session(LinkRuns):
    """The run table of one session."""

    @property
    def is_up(self) -> bool:
        return True

    def on_control(self, frame: bytes) -> None:
        raise AssertionError("no session frames here")


class OneLink(dict[str, Session]):
    """The sessions, as the exchange asks for them."""

    def for_lease(self, node_id: str, generation: int) -> Session | None:
        return self.get(node_id)


def runtime() -> Runtime:
    """The Runtime of CONFIG."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "edge.yaml"
        path.write_text(CONFIG)
        config = load_edge(path).config
    return Runtime.build(config, build_catalog(config), compile_payloads(config))


class EdgeInProcess:
    """An Edge with one ready Node and a number of connections."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        clock = MonotonicClock()
        gate = Gate(runtime().plan(lambda key: True), clock, loop)
        links = OneLink()
        state = EdgeState(runtime(), gate, links, clock, Random(7))
        state.books.write_access(LineWriter("bench", write_to(os.open(os.devnull, os.O_WRONLY))))
        outbox = Outbox(KeptStream(), clock, loop)
        outbox.start()
        self.session = links["n1"] = Session("n1", 1, outbox, LinkCounters(), 1 << 30)
        assert gate.node_ready("n1", 1, {})
        # The front's time stands still: it starts requests for a while of a turn, and under callgrind 32 take longer.
        front = Front(EdgeService(state), HttpLimits(), VirtualClock(), loop)
        self.connections = [Connection(front) for _ in range(CONNECTIONS)]
        for connection in self.connections:
            connection.connection_made(NullTransport())
        self.request = request(SDK_FIELDS)

    async def ask(self) -> list[int]:
        """One request on every connection; the ids of their runs, which are in a message then."""
        for connection in self.connections:
            connection.data_received(self.request)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return list(self.session._runs)

    def deliver(self, frames: list[bytes]) -> None:
        """One message from the Node."""
        dispatch_edge(b"".join(frames), self.session._runs, self.session)

    async def answer(self, head: Head = WHOLE, body: bytes = b"x" * 400) -> None:
        """A request and its answer of one piece, on every connection."""
        runs = await self.ask()
        assert len(runs) == CONNECTIONS
        frames = []
        for run in runs:
            frames += [encode_taken(run), encode_head(run, head), encode_data(run, body), encode_end(run, OK)]
        self.deliver(frames)

    async def upload(self, pieces: list[bytes]) -> None:
        """A request whose body comes in pieces and is taken by the Node as it grants, on one connection."""
        for piece in pieces:
            self.connections[0].data_received(piece)
        (run,) = self.session._runs
        while self.session._outbox.queued_bytes:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            self.deliver([encode_window(run, 4 * PIECE_BYTES)])
        self.deliver([encode_taken(run), encode_head(run, WHOLE), encode_data(run, b"x" * 400), encode_end(run, OK)])


Work = Callable[[int], Coroutine[Any, Any, None]]


async def requests() -> Work:
    """Requests with answers of one piece."""
    edge = EdgeInProcess(asyncio.get_running_loop())

    async def work(count: int) -> None:
        for _ in repeat(None, count // CONNECTIONS):
            await edge.answer()

    return work


async def chunks() -> Work:
    """Chunks of streams."""
    edge = EdgeInProcess(asyncio.get_running_loop())
    runs = await edge.ask()
    edge.deliver([encode_head(run, STREAM) for run in runs])
    message = [encode_data(run, EVENT) for run in runs]

    async def work(count: int) -> None:
        for _ in repeat(None, count // CONNECTIONS):
            edge.deliver(message)

    return work


async def large_answers() -> Work:
    """Requests with answers of 64 KiB in one piece."""
    edge = EdgeInProcess(asyncio.get_running_loop())
    body = b"x" * PIECE_BYTES
    head = Head(200, b"OK", [(b"content-type", b"application/json"), (b"content-length", b"%d" % PIECE_BYTES)])

    async def work(count: int) -> None:
        for _ in repeat(None, count // CONNECTIONS):
            await edge.answer(head, body)

    return work


async def upload_pieces() -> Work:
    """Pieces of 64 KiB of request bodies of 1 MiB."""
    edge = EdgeInProcess(asyncio.get_running_loop())
    text = b"hello " * (UPLOAD_PIECES * PIECE_BYTES // 6 - 200)
    whole = request(SDK_FIELDS, b'{"model":"m","messages":[{"role":"user","content":"' + text + b'"}]}')
    pieces = [whole[start : start + PIECE_BYTES] for start in range(0, len(whole), PIECE_BYTES)]
    assert len(pieces) == UPLOAD_PIECES

    async def work(count: int) -> None:
        for _ in repeat(None, count // UPLOAD_PIECES):
            await edge.upload(pieces)

    return work


async def main() -> None:
    made = {
        "edge_request": await requests(),
        "edge_chunk": await chunks(),
        "edge_large_answer": await large_answers(),
        "edge_upload_piece": await upload_pieces(),
    }
    gc.collect()
    gc.disable()
    for name, work in made.items():
        await work(WARM)
        os.getppid()
        await work(COUNT)
        os.getppid()
        print(name, flush=True)
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main())
