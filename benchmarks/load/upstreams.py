"""A fast OpenAI-compatible upstream: answers at once, after a while, at length, or by a paced stream; or it stalls.

What to do stands in the request (see `asks`):

- nothing: an answer of 500 bytes at once; `big=1`: one of 64 KiB;
- `wait=MS`: the answer after so long; `n=K`: it says `served:N;`, the place of request K in the order of arrival;
- a streamed request: `chunks=N` events (100), one each `every=MS` (20), each with the time of its write; `stall=1`: one
  event, then silence for ever.

One uvloop process, no HTTP library: its own cost must not hide what is measured in front of it. Streams share a tick of
1 ms, no timer each; answers after a while share a timerfd, since the loop's own timers round to milliseconds.
`python -m benchmarks.load.upstreams PORT`; `GET /order` gives the K in the order of arrival and forgets them.
"""

from __future__ import annotations

import asyncio
import sys
from collections import defaultdict
from functools import partial
from typing import cast

import uvloop

from benchmarks.load.asks import order_of
from benchmarks.load.pacing import Alarm, Metronome, now_ns

CHUNKS = 100
CHUNK_INTERVAL_MS = 20
NS_PER_MS = 1_000_000
TICK_NS = NS_PER_MS

BODY = (
    b'{"id":"chatcmpl-bench","object":"chat.completion","created":1700000000,"model":"served","choices":[{"index":0,'
    b'"message":{"role":"assistant","content":"%b"},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":12,"completion_tokens":40,"total_tokens":52}}'
)
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\n"
    b"content-type: text/event-stream\r\n"
    b"cache-control: no-cache\r\n"
    b"transfer-encoding: chunked\r\n"
    b"\r\n"
)
EVENT = (
    b'data: {"id":"chatcmpl-bench","object":"chat.completion.chunk","created":1700000000,"model":"served",'
    b'"choices":[{"index":0,"delta":{"content":" t=%019d;"},"finish_reason":null}]}\n\n'
)


def answer(content: bytes, kind: bytes = b"application/json") -> bytes:
    """A whole answer with a length."""
    return b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (kind, len(content), content)


SHORT = answer(BODY % (b"The quick brown fox. " * 8))
LONG = answer(BODY % (b"The quick brown fox. " * 3120))

EVENT_SIZE = b"%x\r\n" % len(EVENT % 0)
LAST_CHUNKS = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


def event_chunk(sent_ns: int) -> bytes:
    """One event as a chunk of RFC 9112 section 7.1."""
    return EVENT_SIZE + EVENT % sent_ns + b"\r\n"


class Upstream:
    """What all connections share: the tick, the alarm, and the order in which numbered requests came."""

    def __init__(self) -> None:
        self.served: list[int] = []
        self._due: defaultdict[int, list[PacedStream]] = defaultdict(list)
        self._tick = 0
        self.alarm = Alarm()
        self._metronome = Metronome(TICK_NS, self._on_beats)
        self._metronome.start(now_ns() + TICK_NS)

    def schedule(self, stream: PacedStream, after_ms: int) -> None:
        """Have a stream send again in so many ticks."""
        self._due[self._tick + after_ms].append(stream)

    def _on_beats(self, beats: int) -> None:
        for _ in range(beats):
            self._tick += 1
            for stream in self._due.pop(self._tick, ()):
                stream.send()


class PacedStream:
    """One streamed answer."""

    def __init__(self, upstream: Upstream, connection: UpstreamConnection, order: dict[bytes, int]) -> None:
        self._upstream = upstream
        self._connection = connection
        self._left = order.get(b"chunks", CHUNKS)
        self._every = order.get(b"every", CHUNK_INTERVAL_MS)
        self._stalls = b"stall" in order
        connection.write(STREAM_HEAD)
        self.send()

    def send(self) -> None:
        """Send what is due and say when to come again."""
        if self._connection.is_closed:
            return
        if not self._left:
            self._connection.write(LAST_CHUNKS)
            return
        self._left -= 1
        self._connection.write(event_chunk(now_ns()))
        if not self._stalls:
            self._upstream.schedule(self, self._every)


class UpstreamConnection(asyncio.Protocol):
    """One connection: whole requests in, answers out."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._buffer = bytearray()
        self._needed = 0
        self._transport: asyncio.Transport | None = None

    @property
    def is_closed(self) -> bool:
        """True when nobody reads any more."""
        return self._transport is None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None

    def write(self, content: bytes) -> None:
        """Send, unless the client has left."""
        if self._transport is not None:
            self._transport.write(content)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) < self._needed:
            return
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._buffer[:end]).lower()
            length = body_length(head)
            if length is None:  # chunked: whole when it ends so, since clients send one request at a time
                if not self._buffer.endswith(b"0\r\n\r\n"):
                    return
                length = len(self._buffer) - end - 4
            self._needed = end + 4 + length
            if len(self._buffer) < self._needed:
                return
            body = bytes(self._buffer[end + 4 : self._needed])
            del self._buffer[: self._needed]
            self._needed = 0
            self._answer(head, body)

    def _answer(self, head: bytes, body: bytes) -> None:
        if head.startswith(b"get /order"):
            self.write(answer(b" ".join(b"%d" % number for number in self._upstream.served), b"text/plain"))
            self._upstream.served.clear()
            return
        order = order_of(body)
        if is_streamed(body):
            PacedStream(self._upstream, self, order)
            return
        content = LONG if b"big" in order else SHORT
        if b"n" in order:
            content = answer(BODY % (b"served:%d;" % len(self._upstream.served)))
            self._upstream.served.append(order[b"n"])
        if b"wait" in order:
            self._upstream.alarm.at(now_ns() + order[b"wait"] * NS_PER_MS, partial(self.write, content))
        else:
            self.write(content)


def is_streamed(body: bytes) -> bool:
    """True for a request that wants a stream; gateways write the key first or last, so a long text is not searched."""
    ends = body if len(body) < 2048 else body[:1024] + body[-1024:]
    return b'"stream":true' in ends or b'"stream": true' in ends


def body_length(head: bytes) -> int | None:
    """The length of a request's body by its lowered head, None when it comes in chunks."""
    at = head.find(b"\r\ncontent-length:")
    if at >= 0:
        return int(head[at + 17 :].split(b"\r\n", 1)[0])
    return None if b"\r\ntransfer-encoding:" in head else 0


async def serve(port: int) -> None:
    """Listen on 127.0.0.1 until ended."""
    upstream = Upstream()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: UpstreamConnection(upstream), "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
