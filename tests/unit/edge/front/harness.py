"""A connection without sockets: a scripted service behind it and a transport that records in front of it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from iop_fast._core.clock import VirtualClock
from iop_fast.config.schema.front import HttpLimits
from iop_fast.edge.front.connection import Connection
from iop_fast.edge.front.listener import Front
from iop_fast.errors import Failure
from iop_fast.seams import Downstream, Head, RequestHead

GET = b"GET /%s HTTP/1.1\r\nHost: a\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CLOSING_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"

NS_PER_S = 1_000_000_000


class TurnLoop:
    """The part of a loop that the front uses, turned by hand."""

    def __init__(self) -> None:
        self.ready: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self.timers = 0

    def call_soon(self, callback: Callable[..., object], *args: object) -> None:
        self.ready.append((callback, args))

    def call_later(self, delay: float, callback: Callable[..., object], *args: object) -> None:
        self.timers += 1

    def turn(self) -> int:
        """Run what was ready when the turn began; return how much that was."""
        count = len(self.ready)
        for _ in range(count):
            callback, args = self.ready.popleft()
            callback(*args)
        return count

    def settle(self) -> None:
        while self.turn():
            pass


LOCAL = ("127.0.0.1", 1)


class FakeSocket:
    def __init__(self) -> None:
        self.options: list[tuple[int, int, object]] = []

    def setsockopt(self, level: int, option: int, value: object) -> None:
        self.options.append((level, option, value))


class FakeTransport(asyncio.Transport):
    """Records writes; behaves like uvloop's TCP transport where that matters: no write after the connection is lost.

    `takes` bytes of what is written leave at once, the rest counts as unsent until `take`.
    """

    def __init__(self, protocol: asyncio.Protocol, loop: TurnLoop, peername: tuple[str, int] = LOCAL) -> None:
        super().__init__()
        self.peername = peername
        self.protocol: asyncio.Protocol | None = protocol
        self.loop = loop
        self.writes: list[bytes] = []
        self.socket = FakeSocket()
        self.unsent = 0
        self.takes_all = True
        self.high, self.low = 65_536, 16_384
        self.is_paused = False
        self.has_eof = False
        self.is_closed = False
        self.is_aborted = False
        self.is_lost = False

    def get_extra_info(self, name: str, default: object = None) -> object:
        return {"socket": self.socket, "peername": self.peername}.get(name, default)

    def write(self, data: bytes) -> None:
        if self.is_lost:
            raise RuntimeError("unable to perform operation on a closed transport; the handler is closed")
        assert not self.has_eof, "write after write_eof"
        assert data, "empty write"
        if self.is_closed:
            return
        self.writes.append(data)
        if not self.takes_all:
            self.unsent += len(data)
            if self.unsent > self.high and not self.is_paused:
                self.is_paused = True
                assert self.protocol is not None
                self.protocol.pause_writing()

    def take(self, count: int) -> None:
        """The client reads `count` of the unsent bytes."""
        self.unsent = max(0, self.unsent - count)
        if self.is_paused and self.unsent <= self.low:
            self.is_paused = False
            assert self.protocol is not None
            self.protocol.resume_writing()
        if self.unsent == 0 and self.is_closed:
            self.loop.call_soon(self.lose)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.has_eof = True

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            if self.unsent == 0:
                self.loop.call_soon(self.lose)

    def abort(self) -> None:
        self.is_aborted = True
        if not self.is_closed or self.unsent:
            self.is_closed = True
            self.loop.call_soon(self.lose)

    def lose(self, error: Exception | None = None) -> None:
        if not self.is_lost:
            self.is_lost = self.is_closed = True
            protocol, self.protocol = self.protocol, None
            assert protocol is not None
            protocol.connection_lost(error)

    @property
    def output(self) -> bytes:
        return b"".join(self.writes)


class Recorder:
    """A receiver that records its calls and answers as its service says."""

    def __init__(self, service: ScriptedService, head: RequestHead, downstream: Downstream) -> None:
        self.service = service
        self.head = head
        self.downstream = downstream
        self.body = bytearray()
        self.pieces = 0
        self.is_complete = False
        self.is_gone = False
        self.writable_calls = 0

    def on_body(self, piece: bytes) -> None:
        assert not self.is_complete
        assert not self.is_gone
        assert self.downstream.is_open
        assert type(piece) is bytes
        assert piece
        self.pieces += 1
        self.body += piece
        self.service.on_body(self)

    def on_body_complete(self) -> None:
        assert not self.is_complete
        assert not self.is_gone
        assert self.downstream.is_open
        self.is_complete = True
        self.service.on_complete(self)

    def on_refused(self, failure: Failure, message: str) -> None:
        assert not self.is_complete
        assert self.downstream.is_open

    def on_client_gone(self) -> None:
        assert not self.is_gone
        assert not self.downstream.is_open
        self.is_gone = True
        self.service.on_gone(self)

    def on_writable(self) -> None:
        assert self.downstream.is_open
        self.writable_calls += 1

    def answer(self, body: bytes = b"ok", status: int = 200) -> None:
        self.send(status, [body] if body else [], end=True)

    def send(
        self,
        status: int = 200,
        pieces: Sequence[bytes] = (),
        end: bool = False,
        headers: Sequence[tuple[bytes, bytes]] = (),
        reason: bytes = b"OK",
    ) -> None:
        self.downstream.send(Head(status, reason, list(headers)), pieces, end)


def nothing(_: Recorder) -> None:
    """The default of each hook."""


class ScriptedService:
    """Opens a Recorder for each request; `on_*` are hooks of the test."""

    def __init__(self) -> None:
        self.requests: list[Recorder] = []
        self.on_open: Callable[[Recorder], None] = nothing
        self.on_body: Callable[[Recorder], None] = nothing
        self.on_complete: Callable[[Recorder], None] = nothing
        self.on_gone: Callable[[Recorder], None] = nothing

    def open(self, head: RequestHead, downstream: Downstream) -> Recorder:
        recorder = Recorder(self, head, downstream)
        self.requests.append(recorder)
        self.on_open(recorder)
        return recorder


class Bench:
    """A front, its virtual clock and loop, and a service."""

    def __init__(self, service: Any = None, limits: HttpLimits | None = None, **options: Any) -> None:
        self.clock = VirtualClock(NS_PER_S)
        self.loop = TurnLoop()
        self.service: Any = service if service is not None else ScriptedService()
        self.front = Front(self.service, limits or HttpLimits(), self.clock, self.loop, **options)  # type: ignore[arg-type]
        self.front.date_line = b""

    def connect(self, peername: tuple[str, int] = LOCAL) -> Client:
        return Client(self, peername)

    def advance(self, seconds: float) -> None:
        """Let time pass in ticks of 250 ms, sweeping as the ticker does."""
        end_ns = self.clock.now_ns() + int(seconds * NS_PER_S)
        front = self.front
        while self.clock.now_ns() < end_ns:
            self.clock.advance_to(min(end_ns, self.clock.now_ns() + NS_PER_S // 4))
            for ages in (front.heads, front.bodies, front.idles, front.stalls, front.lingers):
                ages.sweep(self.clock.now_ns())
            self.loop.settle()


class Client:
    """The other end of one connection."""

    def __init__(self, bench: Bench, peername: tuple[str, int] = LOCAL) -> None:
        self.bench = bench
        self.connection = Connection(bench.front)
        self.transport = FakeTransport(self.connection, bench.loop, peername)
        self.connection.connection_made(self.transport)

    def send(self, data: bytes, step: int = 0) -> None:
        """Deliver `data` in one read, or in reads of `step` bytes, as far as the connection still reads."""
        step = step or max(len(data), 1)
        for at in range(0, len(data), step):
            if self.transport.is_closed:
                return
            self.connection.data_received(data[at : at + step])
        self.bench.loop.settle()

    def end(self) -> None:
        """Send FIN."""
        if self.connection.eof_received():
            raise AssertionError("the front never keeps a half-closed connection")
        self.transport.close()
        self.bench.loop.settle()

    def reset(self) -> None:
        self.transport.lose(ConnectionResetError())
        self.bench.loop.settle()

    @property
    def output(self) -> bytes:
        return self.transport.output

    @property
    def is_ended(self) -> bool:
        """True once the server said that nothing more will come."""
        return self.transport.is_closed or self.transport.has_eof

    @property
    def is_silent(self) -> bool:
        return not self.transport.writes


def post(length: int, *fields: bytes, path: bytes = b"/") -> bytes:
    lines = [b"POST " + path + b" HTTP/1.1", b"Host: a", b"Content-Length: %d" % length, *fields, b"", b""]
    return b"\r\n".join(lines)


def chunked(*fields: bytes) -> bytes:
    return b"\r\n".join([b"POST / HTTP/1.1", b"Host: a", b"Transfer-Encoding: chunked", *fields, b"", b""])


def answer(request: Recorder) -> None:
    request.answer()


def paths(bench: Bench) -> list[bytes]:
    return [request.head.path for request in bench.service.requests]
