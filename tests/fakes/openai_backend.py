"""A scriptable model server: an HTTP/1.1 server that does exactly what a test tells it and records what it saw.

It is written on raw sockets, so that it can also answer what is not HTTP, cut a body at any byte, hold a head back or
reset a connection. Each request is recorded with its raw head and body, when its connection closed, and how many were
running at once.

In a test:

    async with FakeBackend() as backend:
        backend.script = sse([b"data: 1\\n\\n", b"data: [DONE]\\n\\n"], delay_s=0.01)
        ... use backend.url ...
        assert backend.highest == 1

As a process: `python -m tests.fakes.openai_backend --port 0` prints `port N` and answers like a small OpenAI server;
`GET /_backend` returns its counters.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, cast

Script = Callable[["Exchange"], Awaitable[None]]

REASONS = {200: b"OK", 400: b"Bad Request", 429: b"Too Many Requests", 500: b"Internal Server Error"}


@dataclass(eq=False)
class Recorded:
    """One request as it arrived. `closed` is set, with `closed_at` (loop time), when its connection is gone."""

    number: int
    connection: int
    head: bytes
    method: bytes
    target: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytearray = field(default_factory=bytearray)
    is_complete: bool = False
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    closed_at: float | None = None

    def values(self, name: bytes) -> list[bytes]:
        """Every value of a header, in order, whatever the case of its name."""
        return [value for key, value in self.headers if key.lower() == name.lower()]


class Peer(asyncio.Protocol):
    """One accepted connection: a byte buffer to read from and the moment its peer left."""

    def __init__(self, backend: FakeBackend) -> None:
        self.backend = backend
        self.number = 0
        self.buffer = bytearray()
        self.served: list[Recorded] = []
        self.gone = asyncio.Event()
        self.transport: asyncio.Transport
        self._arrived = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.number = self.backend.register(self)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        self._arrived.set()

    def eof_received(self) -> None:
        self._leave()

    def connection_lost(self, error: Exception | None) -> None:
        self._leave()
        self.backend.forget(self)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def _leave(self) -> None:
        if not self.gone.is_set():
            self.gone.set()
            self._arrived.set()
            self._writable.set()
            for request in self.served:
                request.closed_at = asyncio.get_running_loop().time()
                request.closed.set()

    async def more(self) -> None:
        """Wait for further bytes; raises EOFError once the peer is gone."""
        self._arrived.clear()
        if self.gone.is_set():
            raise EOFError
        await self._arrived.wait()

    async def read_until(self, mark: bytes) -> bytes:
        """Take everything up to and with `mark`."""
        while (end := self.buffer.find(mark)) < 0:
            await self.more()
        return self._take(end + len(mark))

    async def read_exactly(self, count: int, into: bytearray) -> None:
        """Move `count` bytes into a buffer as they arrive."""
        while count:
            if not self.buffer:
                await self.more()
            piece = self._take(min(count, len(self.buffer)))
            into += piece
            count -= len(piece)

    def _take(self, count: int) -> bytes:
        taken = bytes(self.buffer[:count])
        del self.buffer[:count]
        return taken

    async def write(self, data: bytes) -> None:
        """Write raw bytes; raises EOFError once the peer is gone."""
        if self.gone.is_set():
            raise EOFError
        self.transport.write(data)
        await self._writable.wait()

    def reset(self) -> None:
        """Close with RST instead of FIN."""
        if self.gone.is_set():
            return
        sock = self.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()


class Exchange:
    """What a script works with: the request, and the raw way back."""

    def __init__(self, peer: Peer, request: Recorded) -> None:
        self.peer = peer
        self.request = request
        self.keep_alive = True

    @property
    def json(self) -> Any:
        """The request's body, parsed."""
        return json.loads(bytes(self.request.body))

    async def read_body(self) -> None:
        """Read the request's body to its end; done already unless the script is a BeforeBody."""
        request, peer = self.request, self.peer
        if request.values(b"transfer-encoding"):
            while (size := int(await peer.read_until(b"\r\n"), 16)) > 0:
                await peer.read_exactly(size, request.body)
                await peer.read_until(b"\r\n")
            await peer.read_until(b"\r\n")
        elif lengths := request.values(b"content-length"):
            await peer.read_exactly(int(lengths[0]), request.body)
        request.is_complete = True

    async def write(self, data: bytes) -> None:
        """Send raw bytes as they are."""
        await self.peer.write(data)

    async def head(self, status: int = 200, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
        """Send a status line, the headers as given, and the empty line."""
        line = b"HTTP/1.1 %d %s\r\n" % (status, REASONS.get(status, b"Status"))
        await self.write(line + b"".join(b"%s: %s\r\n" % pair for pair in headers) + b"\r\n")

    async def chunk(self, data: bytes) -> None:
        """Send one chunk of a chunked body; an empty one ends it."""
        await self.write(b"%x\r\n%s\r\n" % (len(data), data))

    async def respond(self, body: bytes, status: int = 200, content_type: bytes = b"application/json") -> None:
        """Send a whole answer with Content-Length."""
        headers = [(b"Content-Type", content_type), (b"Content-Length", str(len(body)).encode())]
        await self.head(status, headers)
        await self.write(body)

    async def until_gone(self) -> None:
        """Hold everything until the peer leaves."""
        await self.peer.gone.wait()

    def close(self) -> None:
        """Close the connection properly (FIN), whatever was promised."""
        self.keep_alive = False
        self.peer.transport.close()

    def reset(self) -> None:
        """Close the connection with RST."""
        self.keep_alive = False
        self.peer.reset()


@dataclass(frozen=True)
class BeforeBody:
    """A script that runs as soon as the head is read; the body stays unread until it says `read_body`."""

    script: Script

    async def __call__(self, exchange: Exchange) -> None:
        await self.script(exchange)


def answer(body: bytes, status: int = 200, content_type: bytes = b"application/json", delay_s: float = 0.0) -> Script:
    """A script: one whole answer, its head held back for `delay_s`."""

    async def script(exchange: Exchange) -> None:
        await asyncio.sleep(delay_s)
        await exchange.respond(body, status, content_type)

    return script


def raw(pieces: Sequence[bytes], delay_s: float = 0.0, then: str = "close") -> Script:
    """A script: raw bytes in given writes with a pause between; then "close", "reset", "hold" or "keep"."""

    async def script(exchange: Exchange) -> None:
        for number, piece in enumerate(pieces):
            if number:
                await asyncio.sleep(delay_s)
            await exchange.write(piece)
        if then == "hold":
            await exchange.until_gone()
        elif then == "close":
            exchange.close()
        elif then == "reset":
            exchange.reset()

    return script


def sse(events: Sequence[bytes], delay_s: float = 0.0, head_delay_s: float = 0.0) -> Script:
    """A script: a chunked text/event-stream, one chunk an event, with a pause before each but the first."""

    async def script(exchange: Exchange) -> None:
        await asyncio.sleep(head_delay_s)
        await exchange.head(200, [(b"Content-Type", b"text/event-stream"), (b"Transfer-Encoding", b"chunked")])
        for number, event in enumerate(events):
            if number:
                await asyncio.sleep(delay_s)
            await exchange.chunk(event)
        await exchange.chunk(b"")

    return script


class FakeBackend:
    """The server. `script` answers every request unless `scripts` still holds one for it."""

    def __init__(self, script: Script | None = None) -> None:
        self.script: Script = script or OpenAIScript()
        self.scripts: list[Script] = []
        self.requests: list[Recorded] = []
        self.running = 0
        self.highest = 0
        self.connections = 0
        self.failures: list[BaseException] = []
        self._peers: dict[int, Peer] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._deserted = asyncio.Event()
        self._deserted.set()
        self._server: asyncio.Server
        self.port = 0

    @property
    def url(self) -> str:
        """Its address, without a path."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def open_connections(self) -> int:
        """Connections open now."""
        return len(self._peers)

    async def start(self, port: int = 0, tls: ssl.SSLContext | None = None) -> None:
        """Listen on a loopback port; 0 takes a free one."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Peer(self), "127.0.0.1", port, ssl=tls)
        self.port = self._server.sockets[0].getsockname()[1]

    def refuse(self) -> None:
        """Listen no more; connections that are open stay."""
        self._server.close()

    async def stop(self) -> None:
        """Close everything; a script that failed fails the test here."""
        self._server.close()
        for peer in list(self._peers.values()):
            peer.transport.abort()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()
        await self._deserted.wait()
        if self.failures:
            raise self.failures[0]

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def register(self, peer: Peer) -> int:
        """Take a new connection; returns its number."""
        self.connections += 1
        self._peers[self.connections] = peer
        self._deserted.clear()
        task = asyncio.get_running_loop().create_task(self._serve(peer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return self.connections

    def forget(self, peer: Peer) -> None:
        """A connection is gone."""
        self._peers.pop(peer.number, None)
        if not self._peers:
            self._deserted.set()

    async def _serve(self, peer: Peer) -> None:
        keep = True
        with contextlib.suppress(EOFError):
            while keep:
                keep = await self._serve_one(peer)
        peer.transport.close()

    async def _serve_one(self, peer: Peer) -> bool:
        request = await self._read_head(peer)
        if request.target == b"/_backend":
            await Exchange(peer, request).respond(json.dumps(self.counters()).encode())
            return True
        self.requests.append(request)
        peer.served.append(request)
        self.running += 1
        self.highest = max(self.highest, self.running)
        exchange = Exchange(peer, request)
        script = self.scripts.pop(0) if self.scripts else self.script
        try:
            if not isinstance(script, BeforeBody):
                await exchange.read_body()
            await script(exchange)
        except (EOFError, asyncio.CancelledError):
            raise
        except Exception as error:
            self.failures.append(error)
            raise EOFError from error
        finally:
            self.running -= 1
        return exchange.keep_alive and b"close" not in request.values(b"connection")

    async def _read_head(self, peer: Peer) -> Recorded:
        head = await peer.read_until(b"\r\n\r\n")
        first, *lines = head[:-4].split(b"\r\n")
        method, target, _ = first.split(b" ")
        headers = [(name, value.strip()) for name, value in (line.split(b":", 1) for line in lines)]
        return Recorded(len(self.requests) + 1, peer.number, head, method, target, headers)

    def counters(self) -> dict[str, int]:
        """Numbers for whoever runs this as a process."""
        return {
            "requests": len(self.requests),
            "running": self.running,
            "highest": self.highest,
            "connections": self.connections,
            "open_connections": self.open_connections,
        }


class OpenAIScript:
    """Answers like a small OpenAI server: chat, completions, embeddings and models, streamed or whole."""

    def __init__(self, words: int = 5, head_delay_s: float = 0.0, chunk_delay_s: float = 0.0) -> None:
        self.words = words
        self.head_delay_s = head_delay_s
        self.chunk_delay_s = chunk_delay_s

    async def __call__(self, exchange: Exchange) -> None:
        await asyncio.sleep(self.head_delay_s)
        path = exchange.request.target.split(b"?")[0]
        if path.endswith(b"/models"):
            await exchange.respond(b'{"object":"list","data":[]}')
        elif path.endswith(b"/embeddings"):
            await exchange.respond(json.dumps(self._embedding(exchange.json)).encode())
        elif path.endswith((b"/chat/completions", b"/completions")):
            await self._complete(exchange, is_chat=path.endswith(b"/chat/completions"))
        else:
            await exchange.respond(b'{"error":{"message":"no such path","type":"invalid_request_error"}}', 400)

    async def _complete(self, exchange: Exchange, is_chat: bool) -> None:
        request = exchange.json
        words = [f"w{number} " for number in range(self.words)]
        usage = {"prompt_tokens": 7, "completion_tokens": len(words), "total_tokens": 7 + len(words)}
        base = {"id": "cmpl-1", "created": 1, "model": request.get("model")}
        if not request.get("stream"):
            text = "".join(words)
            choice = {"message": {"role": "assistant", "content": text}} if is_chat else {"text": text}
            whole = base | {"choices": [{"index": 0, "finish_reason": "stop"} | choice], "usage": usage}
            await exchange.respond(json.dumps(whole).encode())
            return
        events: list[dict[str, Any]] = []
        for word in words:
            delta = {"delta": {"content": word}} if is_chat else {"text": word}
            events.append(base | {"choices": [{"index": 0, "finish_reason": None} | delta]})
        events.append(base | {"choices": [{"index": 0, "finish_reason": "stop"} | ({"delta": {}} if is_chat else {})]})
        if (request.get("stream_options") or {}).get("include_usage"):
            events.append(base | {"choices": [], "usage": usage})
        lines = [b"data: " + json.dumps(event).encode() + b"\n\n" for event in events]
        await sse([*lines, b"data: [DONE]\n\n"], self.chunk_delay_s)(exchange)

    def _embedding(self, request: dict[str, Any]) -> dict[str, Any]:
        inputs = request["input"] if isinstance(request["input"], list) else [request["input"]]
        data = [{"object": "embedding", "index": index, "embedding": [0.0, 1.0]} for index in range(len(inputs))]
        return {"object": "list", "data": data, "usage": {"prompt_tokens": len(inputs), "total_tokens": len(inputs)}}


async def run(port: int, script: Script) -> None:
    """Serve until the process is stopped."""
    backend = FakeBackend(script)
    await backend.start(port)
    print(f"port {backend.port}", flush=True)
    await asyncio.get_running_loop().create_future()


def main() -> None:
    """Run the server as a process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--words", type=int, default=5, help="words of each answer")
    parser.add_argument("--head-delay-ms", type=int, default=0)
    parser.add_argument("--chunk-delay-ms", type=int, default=0)
    options = parser.parse_args()
    script = OpenAIScript(options.words, options.head_delay_ms / 1000, options.chunk_delay_ms / 1000)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run(options.port, script))


if __name__ == "__main__":
    main()
