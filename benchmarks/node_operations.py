"""Hot operations of the Node, for a run under callgrind and for `bench_node`. Prints their names in order.

A real session, relay, run, plain HTTP client, outbox and frame codec; a stream that hands out prepared messages and
takes everything, provider connections whose transport takes everything and whose answers are bytes made once. 32
requests share a message each way, as they do at 32 busy connections. `os.getppid` marks where the counted part of an
operation begins and ends, as in `core_operations`.

This file stands alone: it also runs against the package of another commit.
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections import deque
from collections.abc import Callable, Coroutine
from itertools import repeat
from types import SimpleNamespace
from typing import Any

from iop_fast._core.clock import VirtualClock
from iop_fast._hot.frames import encode_frame, encode_request_body, encode_tunnel_request, encode_window
from iop_fast.config.payload import AdapterSettings, NodePayload, ProviderPayload, RuntimeSettings, TimeoutSettings
from iop_fast.config.schema import NodeLimits
from iop_fast.node.adapters import Surroundings
from iop_fast.node.adapters.http_client import Backend, PlainClient
from iop_fast.node.adapters.http_rules import read_endpoint
from iop_fast.node.adapters.openai_compat import OpenAICompatUpstream
from iop_fast.node.adapters.plain_pool import PlainConnection
from iop_fast.node.health import Health
from iop_fast.node.registry import Router
from iop_fast.node.session import Identity, Session, SessionLimits
from iop_fast.seams import TunnelRequest, Upstream
from iop_fast.wire import runtime_pb2 as pb
from iop_fast.wire.payload import message_from_payload

CONNECTIONS = 32
COUNT = 10 * CONNECTIONS
WARM = 4 * CONNECTIONS

BODY = b'{"model":"served","messages":[{"role":"user","content":"' + b"hello " * 60 + b'"}]}'
MIB = 1 << 20
PIECE = b"x" * 65_472
PIECES = 16

# What the Edge passes on of an SDK's request.
FIELDS = [
    (b"accept-encoding", b"gzip, deflate"),
    (b"accept", b"application/json"),
    (b"content-type", b"application/json"),
    (b"user-agent", b"OpenAI/Python 3.0.0"),
    (b"x-stainless-lang", b"python"),
    (b"x-stainless-package-version", b"3.0.0"),
    (b"x-stainless-os", b"Linux"),
    (b"x-stainless-arch", b"x64"),
    (b"x-stainless-runtime", b"CPython"),
    (b"x-stainless-runtime-version", b"3.11.7"),
    (b"x-stainless-async", b"false"),
    (b"x-stainless-retry-count", b"0"),
    (b"x-stainless-read-timeout", b"600"),
    (b"x-request-id", b"req-0123456789abcdef0123456789abcdef"),
]

CONTENT = (
    b'{"id":"chatcmpl-bench","object":"chat.completion","created":1700000000,"model":"served","choices":[{"index":0,'
    b'"message":{"role":"assistant","content":"%b"},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":12,"completion_tokens":40,"total_tokens":52}}'
)
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
EVENT = (
    b'data: {"id":"chatcmpl-bench","object":"chat.completion.chunk","created":1700000000,"model":"served",'
    b'"choices":[{"index":0,"delta":{"content":" token"},"finish_reason":null}]}\n\n'
)
CHUNK = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
# What one read of a socket brings of a long answer, now and then.
READ_BYTES = 40_000


def answer(text: bytes) -> bytes:
    """A whole answer with a length."""
    content = CONTENT % text
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
        len(content),
        content,
    )


SHORT = answer(b"The quick brown fox. " * 8)
LONG = answer(b"The quick brown fox. " * 3120)


class EdgeEnd:
    """A MessageStream that hands out what `say` was given and takes everything at once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[bytes] = deque()
        self._reader: asyncio.Future[None] | None = None
        self.taken_bytes = 0

    def say(self, *entries: bytes) -> None:
        """Send a message to the Node."""
        self._waiting.append(b"".join(entries))
        if self._reader is not None:
            self._reader.set_result(None)
            self._reader = None

    async def read(self) -> bytes | None:
        if not self._waiting:
            self._reader = self._loop.create_future()
            await self._reader
        return self._waiting.popleft()

    async def write(self, message: bytes) -> None:
        self.taken_bytes += len(message)

    def abandon(self) -> None:
        pass


class ProviderEnd(asyncio.Transport):
    """A provider's end of a connection: takes everything."""

    def __init__(self) -> None:
        super().__init__()
        self.taken_bytes = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.taken_bytes += len(data)

    def writelines(self, list_of_data: Any) -> None:
        for data in list_of_data:
            self.taken_bytes += len(data)

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        raise AssertionError("windows are large here")

    def resume_reading(self) -> None:
        raise AssertionError("windows are large here")

    def abort(self) -> None:
        pass


class Adapter:
    """The adapter of an OpenAI-compatible provider on connections that are there."""

    def __init__(self, settings: AdapterSettings, surroundings: Surroundings) -> None:
        loop = surroundings.loop
        self.health = Health(loop)
        self.client = PlainClient(Backend(read_endpoint(settings.endpoint), "", 3600.0, self.health, loop))
        pool = self.client._pool
        nobody: Any = SimpleNamespace(on_connected=lambda connection: None)  # who borrows them while they are made
        self.connections = [PlainConnection(pool, nobody, loop) for _ in range(CONNECTIONS)]
        for connection in self.connections:
            connection.connection_made(ProviderEnd())
            pool.give_back(connection)

    def upstream(self, provider: ProviderPayload) -> Upstream:
        return OpenAICompatUpstream(self, provider.timeouts)  # type: ignore[arg-type]  # it asks for no more

    async def close(self) -> None:
        await self.client.close()


def payload() -> NodePayload:
    """One provider."""
    settings = AdapterSettings("", "openai_compat", "http://127.0.0.1:4", "", "", "", ())
    timeouts = TimeoutSettings(5_000, 600_000, 600_000)
    values: dict[str, Any] = {
        "id": "p1",
        "type": "vllm",
        "label": "",
        "adapter_type": "openai_compat",
        "adapter": "",
        "settings": settings,
        "models": ("served",),
        "timeouts": timeouts,
        "enabled": True,
        "health": "auto",
        "capacity": CONNECTIONS,
        "long_context_capacity": 0,
        "priority": 0,
    }
    return NodePayload(RuntimeSettings(0, 0), (), (ProviderPayload(**values),))


def opening(run_id: int, body: bytes = BODY, length: int = len(BODY)) -> bytes:
    """The frame that opens a run."""
    return encode_tunnel_request(
        run_id,
        TunnelRequest(
            "p1", b"POST", b"/v1/chat/completions", FIELDS, body, len(body) == length, length, "served", False
        ),
    )


# The ids come again and again, when the runs before have ended: what the Edge does for a request is not counted here.
OPENINGS = b"".join([opening(run_id) for run_id in range(1, CONNECTIONS + 1)])


def upload_messages() -> list[bytes]:
    """A request of a MiB as messages."""
    sizes = [len(PIECE)] * (MIB // len(PIECE)) + [MIB % len(PIECE)]
    pieces = [
        encode_request_body(1, PIECE[:size], place == len(sizes) - 1) for place, size in enumerate(sizes) if place
    ]
    return [opening(1, PIECE, MIB), *[b"".join(pieces[at : at + 2]) for at in range(0, len(pieces), 2)]]


MESSAGES = upload_messages()


class NodeInProcess:
    """A Node in session with an Edge, one provider behind it, a number of connections to that."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.adapters: list[Adapter] = []
        self.edge = EdgeEnd(loop)
        surroundings = Surroundings(loop=loop, environ={}, native_models={}, limits=NodeLimits())
        router = Router(surroundings, {"openai_compat": self._make})
        identity = Identity("n1", "token", "instance", "bench", "host")
        # Its time stands still, and no heartbeat is due: an operation under callgrind takes longer than a silence may.
        limits = SessionLimits(heartbeat_ns=3600 * 10**9, pace_ns=0)
        self.session = Session(self.edge, identity, router, VirtualClock(), loop, limits)
        self.running = loop.create_task(self.session.run())

    def _make(self, settings: AdapterSettings, surroundings: Surroundings) -> Adapter:
        self.adapters.append(Adapter(settings, surroundings))
        return self.adapters[-1]

    async def become_ready(self) -> None:
        """Get through the registration."""
        response = pb.RegisterResponse(
            generation=1,
            payload_revision=1,
            payload=message_from_payload(payload()),
            protocol="1.0",
        )
        self.edge.say(encode_frame(pb.Frame(register_response=response).SerializeToString()))
        for _ in range(50):
            await asyncio.sleep(0)
        assert self.adapters, self.session

    async def turns(self) -> None:
        """Let the reader take what was said and the writer write all that it has."""
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        while self.session._outbox.queued_bytes:  # noqa: ASYNC110 - turns of the loop are what is waited for
            await asyncio.sleep(0)

    async def ask(self) -> list[PlainConnection]:
        """Open a run on every connection; the connections that have one then."""
        self.edge.say(OPENINGS)
        await self.turns()
        return [connection for connection in self.adapters[0].connections if connection.borrower is not None]

    async def serve(self, pieces: tuple[bytes, ...]) -> None:
        """A request and its answer, on every connection."""
        busy = await self.ask()
        assert len(busy) == CONNECTIONS, self.session
        for piece in pieces:
            for connection in busy:
                connection.data_received(piece)
        await self.turns()

    async def upload(self) -> None:
        """A request of a MiB and its answer, as the Edge sends it: two pieces share a message."""
        for message in MESSAGES:
            self.edge.say(message)
            await self.turns()
        (busy,) = [connection for connection in self.adapters[0].connections if connection.borrower is not None]
        busy.data_received(SHORT)
        await self.turns()


Work = Callable[[int], Coroutine[Any, Any, None]]


async def ready_node() -> NodeInProcess:
    """A Node that takes runs."""
    node = NodeInProcess(asyncio.get_running_loop())
    await node.become_ready()
    return node


async def requests() -> Work:
    """Requests with answers of one piece."""
    return await answers(SHORT)


async def long_answers() -> Work:
    """Requests with answers of 64 KiB, which one read of the socket brings whole."""
    return await answers(LONG)


async def cut_answers() -> Work:
    """Requests with answers of 64 KiB, which two reads of the socket bring."""
    return await answers(LONG[:READ_BYTES], LONG[READ_BYTES:])


async def answers(*pieces: bytes) -> Work:
    """Requests with answers of these pieces."""
    node = await ready_node()

    async def work(count: int) -> None:
        for _ in repeat(None, count // CONNECTIONS):
            await node.serve(pieces)
        assert not node.session.relay.runs, "a run has not ended"

    return work


async def chunks() -> Work:
    """Chunks of streams, one of each in a message."""
    node = await ready_node()
    busy = await node.ask()
    for connection in busy:
        connection.data_received(STREAM_HEAD)
    grant = [encode_window(run_id, COUNT * len(EVENT)) for run_id in range(1, CONNECTIONS + 1)]

    async def work(count: int) -> None:
        node.edge.say(*grant)
        for _ in repeat(None, count // CONNECTIONS):
            for connection in busy:
                connection.data_received(CHUNK)
            await node.turns()

    return work


async def uploads() -> Work:
    """Pieces of 64 KiB of requests of a MiB, the requests and their answers included."""
    node = await ready_node()

    async def work(count: int) -> None:
        for _ in repeat(None, count // PIECES):
            await node.upload()
        assert not node.session.relay.runs, "an upload has not ended"

    return work


OPERATIONS = {
    "node_request": requests,
    "node_chunk": chunks,
    "node_64k_answer": long_answers,
    "node_64k_in_two_reads": cut_answers,
    "node_64k_of_upload": uploads,
}


async def main() -> None:
    made = {name: await make() for name, make in OPERATIONS.items()}
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
