"""A fast OpenAI-compatible upstream: answers at once, or streams a fixed number of events at a fixed pace.

One uvloop process, no HTTP library: its own cost must not hide what is measured in front of it. `python -m
benchmarks.load.upstream PORT`.
"""

from __future__ import annotations

import asyncio
import sys
from itertools import count
from typing import cast

import uvloop

CHUNKS = 100
CHUNK_INTERVAL_S = 0.020

ANSWER_BODY = (
    b'{"id":"chatcmpl-bench","object":"chat.completion","created":1700000000,"model":"served","choices":[{"index":0,'
    b'"message":{"role":"assistant","content":"' + b"The quick brown fox. " * 8 + b'"},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":12,"completion_tokens":40,"total_tokens":52}}'
)
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
    len(ANSWER_BODY),
    ANSWER_BODY,
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
    b'"choices":[{"index":0,"delta":{"content":" token"},"finish_reason":null}]}\n\n'
)


def chunk(data: bytes) -> bytes:
    """Frame a piece by RFC 9112 section 7.1."""
    return b"%x\r\n%b\r\n" % (len(data), data)


EVENT_CHUNK = chunk(EVENT)
LAST_CHUNKS = chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


class UpstreamConnection(asyncio.Protocol):
    """One connection: whole requests in, fixed answers out."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._buffer[:end]).lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self._buffer) < end + 4 + length:
                return
            body = bytes(self._buffer[end + 4 : end + 4 + length])
            del self._buffer[: end + 4 + length]
            self._answer(b'"stream":true' in body or b'"stream": true' in body)

    def _answer(self, streamed: bool) -> None:
        assert self._transport is not None
        if not streamed:
            self._transport.write(ANSWER)
            return
        self._transport.write(STREAM_HEAD)
        loop = asyncio.get_running_loop()
        self._send_next(count(), loop.time(), loop)

    def _send_next(self, numbers: count[int], started: float, loop: asyncio.AbstractEventLoop) -> None:
        if self._transport is None:
            return
        number = next(numbers)
        if number == CHUNKS:
            self._transport.write(LAST_CHUNKS)
            return
        self._transport.write(EVENT_CHUNK)
        due = started + (number + 1) * CHUNK_INTERVAL_S
        self._timer = loop.call_at(due, self._send_next, numbers, started, loop)


async def serve(port: int) -> None:
    """Listen on 127.0.0.1 until ended."""
    server = await asyncio.get_running_loop().create_server(UpstreamConnection, "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
