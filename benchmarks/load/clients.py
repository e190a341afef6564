"""The load: connections that ask, and what they saw.

`ClosedLoad`: each connection sends again when its answer has ended. `OfferedLoad`: requests are due by a schedule
(`pacing`). `StreamLoad`: each connection holds one stream after the other and looks at every chunk. All run in the
harness's own process, whose CPU time is measured beside the gateway's.
"""

from __future__ import annotations

import asyncio
import re
import socket
from abc import ABC, abstractmethod
from array import array
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import cast

from benchmarks.load.figures import GapGauge
from benchmarks.load.pacing import NS_PER_S, Metronome, OpenLoop, now_ns

STAMP = re.compile(rb"t=(\d{19});")
OK = 200
CONNECT_AT_ONCE = 128
# Streams begin one after the other within this time, so that their chunks are not due in one instant.
RAMP_S = 1.0
GOLDEN = 0.618034


class Tally:
    """What the connections of one load have seen since the last reset. Times in ns."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything: the measured window begins."""
        self.statuses: Counter[int] = Counter()
        self.lost = 0
        self.latencies = array("q")
        self.refusals = array("q")
        self.chunks = 0
        self.gaps = array("q")
        self.delays = array("q")

    @property
    def answers(self) -> int:
        """Answers of status 200."""
        return self.statuses[OK]

    @property
    def errors(self) -> int:
        """Answers of another status, and connections that were lost."""
        return self.statuses.total() - self.statuses[OK] + self.lost

    def on_answer(self, status: int, took_ns: int) -> None:
        """Count an answer that has ended."""
        self.statuses[status] += 1
        (self.latencies if status == OK else self.refusals).append(took_ns)


class AnswerReader:
    """Finds the end of HTTP/1.1 answers: by length, by the last chunk, or by the connection's end."""

    __slots__ = ("_buffer", "_chunked", "_left", "status")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._left = -1
        self._chunked = False
        self.status = 0

    def feed(self, data: bytes) -> bool:
        """Take bytes; True when they end an answer, whose status then stands in `status`."""
        if self._left < 0 and not self._chunked:
            self._buffer += data
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return False
            head = bytes(self._buffer[:end]).lower()
            data = bytes(self._buffer[end + 4 :])
            self._buffer.clear()
            self.status = int(head[9:12])
            at = head.find(b"\r\ncontent-length:")
            self._chunked = at < 0
            self._left = int(head[at + 17 :].split(b"\r\n", 1)[0]) if at >= 0 else -1
        if self._chunked:
            self._buffer += data[-7:]
            del self._buffer[:-7]
            is_whole = self._buffer.endswith(b"\r\n0\r\n\r\n") or self._buffer == b"0\r\n\r\n"
        else:
            self._left -= len(data)
            is_whole = self._left <= 0
        if is_whole:
            self._buffer.clear()
            self._left, self._chunked = -1, False
        return is_whole


class Connection(asyncio.Protocol):
    """One client connection. Its load hears of answers, of bytes where it wants them, and of a lost connection."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._reader = AnswerReader()
        self.transport: asyncio.Transport | None = None
        self.sent_ns = 0
        self.gauge = GapGauge()
        self.closed = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self._load.on_lost(self)
        if not self.closed.done():
            self.closed.set_result(None)

    def send(self, request: bytes, start_ns: int) -> None:
        """Send a request whose latency counts from `start_ns`."""
        if self.transport is not None:
            self.sent_ns = start_ns
            self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        now = now_ns()
        if self._load.looks_at_chunks:
            self._load.on_bytes(self, data, now)
        if self._reader.feed(data):
            self._load.on_answer(self, self._reader.status, now)


class Load(ABC):
    """What the kinds of load share: their connections, tally, and the life open - run - close."""

    looks_at_chunks = False

    def __init__(self, port: int, connections: int, request: Callable[[int], bytes]) -> None:
        """`request(number)` gives the bytes of the number-th request."""
        self._port = port
        self._count = connections
        self._request = request
        self._stopping = False
        self.number = 0
        self.connections: set[Connection] = set()
        self.tally = Tally()

    async def open(self) -> None:
        """Connect all."""
        for first in range(0, self._count, CONNECT_AT_ONCE):
            batch = range(first, min(first + CONNECT_AT_ONCE, self._count))
            await asyncio.gather(*(self._connect() for _ in batch))

    @abstractmethod
    async def start(self) -> None:
        """Begin to ask."""

    async def close(self) -> None:
        """Leave at once, whatever runs."""
        self._stopping = True
        held = list(self.connections)
        for connection in held:
            if connection.transport is not None:
                connection.transport.abort()
        await asyncio.gather(*(connection.closed for connection in held))

    def ask(self, connection: Connection, start_ns: int) -> None:
        """Send the next request on a connection."""
        connection.gauge.begin()
        request = self._request(self.number)
        self.number += 1
        connection.send(request, start_ns)

    @abstractmethod
    def on_answer(self, connection: Connection, status: int, now: int) -> None:
        """An answer has ended."""

    def on_bytes(self, connection: Connection, data: bytes, now: int) -> None:
        """Bytes came, the last of an answer or not: gauge the chunks among them."""
        for stamp in STAMP.findall(data):
            sent = int(stamp)
            self.tally.chunks += 1
            self.tally.delays.append(now - sent)
            added = connection.gauge.on_chunk(sent, now)
            if added is not None:
                self.tally.gaps.append(added)

    def on_lost(self, connection: Connection) -> None:
        """A connection has ended; nothing replaces it."""
        self.connections.discard(connection)
        if not self._stopping:
            self.tally.lost += 1

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        sock = socket.socket()
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await loop.sock_connect(sock, ("127.0.0.1", self._port))
        _, connection = await loop.create_connection(partial(Connection, self), sock=sock)
        self.connections.add(connection)
        return connection


class ClosedLoad(Load):
    """Each connection sends again when its answer has ended."""

    async def start(self) -> None:
        for connection in list(self.connections):
            self.ask(connection, now_ns())

    def on_answer(self, connection: Connection, status: int, now: int) -> None:
        self.tally.on_answer(status, now - connection.sent_ns)
        if not self._stopping:
            self.ask(connection, now_ns())


class FreshLoad(Load):
    """Each request on a connection of its own, that many at a time; latency counts from the connect."""

    async def open(self) -> None:
        """Nothing is held open."""

    async def start(self) -> None:
        self._tasks = [asyncio.ensure_future(self._work()) for _ in range(self._count)]

    async def close(self) -> None:
        self._stopping = True
        await asyncio.gather(*self._tasks)

    async def _work(self) -> None:
        while not self._stopping:
            start = now_ns()
            connection = await self._connect()
            self.ask(connection, start)
            await connection.closed

    def on_answer(self, connection: Connection, status: int, now: int) -> None:
        self.tally.on_answer(status, now - connection.sent_ns)
        assert connection.transport is not None
        connection.transport.close()
        self.connections.discard(connection)

    def on_lost(self, connection: Connection) -> None:
        if connection in self.connections:  # before its answer had ended
            super().on_lost(connection)


class OfferedLoad(Load):
    """Requests by a schedule, on whichever connection is free; latency counts from the intended start."""

    def __init__(self, port: int, connections: int, request: Callable[[int], bytes], per_s: float) -> None:
        super().__init__(port, connections, request)
        self._interval_ns = round(NS_PER_S / per_s)
        self.offered = 0

    async def start(self) -> None:
        first = now_ns() + self._interval_ns
        self.loop: OpenLoop[Connection] = OpenLoop(first, self._interval_ns, self.ask)
        for connection in self.connections:
            self.loop.on_free(connection, first)
        self._metronome = Metronome(self._interval_ns, lambda beats: self.loop.on_beats(beats, now_ns()))
        self._metronome.start(first)

    def on_answer(self, connection: Connection, status: int, now: int) -> None:
        self.tally.on_answer(status, self.loop.on_end(connection, now))
        self.loop.on_free(connection, now_ns())

    def settle(self) -> int:
        """End the window: count what is still on its way by its age so far; return how many those are."""
        self._metronome.stop()
        ages = self.loop.unfinished(now_ns())
        self.tally.latencies.extend(ages)
        return len(ages)

    async def close(self) -> None:
        self._metronome.stop()
        await super().close()


class StreamLoad(Load):
    """Each connection holds one stream after the other; chunks are gauged by their stamps."""

    looks_at_chunks = True

    async def start(self) -> None:
        """Begin the streams over the ramp, spread evenly over the chunks' interval."""
        loop = asyncio.get_running_loop()
        for number, connection in enumerate(list(self.connections)):
            loop.call_later(RAMP_S * (number * GOLDEN % 1), self._begin, connection)
        await asyncio.sleep(RAMP_S)

    def _begin(self, connection: Connection) -> None:
        if connection.transport is not None and not self._stopping:
            self.ask(connection, now_ns())

    def on_answer(self, connection: Connection, status: int, now: int) -> None:
        self.tally.on_answer(status, now - connection.sent_ns)
        self._begin(connection)
