"""A load client: N connections, each sends the next request when its answer has ended, or at its time after that.

One class speaks enough HTTP/1.1 to find the end of an answer with a length or chunks; it sends the openai SDK's
headers (openai-python 3.x on Linux), because each of them costs every gateway something.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from functools import partial
from typing import cast

SDK_HEADERS = (
    b"Host: 127.0.0.1\r\n"
    b"Accept-Encoding: gzip, deflate, zstd\r\n"
    b"Connection: keep-alive\r\n"
    b"Accept: application/json\r\n"
    b"Content-Type: application/json\r\n"
    b"User-Agent: OpenAI/Python 3.57.0\r\n"
    b"X-Stainless-Lang: python\r\n"
    b"X-Stainless-Package-Version: 3.57.0\r\n"
    b"X-Stainless-OS: Linux\r\n"
    b"X-Stainless-Arch: x64\r\n"
    b"X-Stainless-Runtime: CPython\r\n"
    b"X-Stainless-Runtime-Version: 3.11.7\r\n"
    b"Authorization: Bearer sk-benchmark-0123456789abcdef0123456789abcdef\r\n"
    b"X-Stainless-Async: false\r\n"
    b"x-stainless-retry-count: 0\r\n"
    b"x-stainless-read-timeout: 600\r\n"
)

MESSAGES = b'"messages":[{"role":"system","content":"You answer briefly."},{"role":"user","content":"%b"}]'


def request_bytes(model: str, streamed: bool, content: bytes = b"Say something about foxes. " * 20) -> bytes:
    """One whole chat request."""
    body = b'{"model":"%b","stream":%b,%b}' % (model.encode(), b"true" if streamed else b"false", MESSAGES % content)
    return b"POST /v1/chat/completions HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n%b" % (SDK_HEADERS, len(body), body)


@dataclass
class Tally:
    """What the connections of one run have seen. Times in seconds."""

    answers: int = 0
    errors: int = 0
    latencies: list[float] = field(default_factory=list)
    chunks: int = 0
    gaps: list[float] = field(default_factory=list)


class LoadConnection(asyncio.Protocol):
    """One closed-loop connection."""

    def __init__(self, request: bytes, tally: Tally, interval_s: float = 0.0, first_s: float = 0.0) -> None:
        """Send when an answer has ended, or every `interval_s` with the first request `first_s` after connecting."""
        self._request = request
        self._interval_s = interval_s
        self._due_s = asyncio.get_running_loop().time() + first_s
        self._tally = tally
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._stopping = False
        self._sent_at = 0.0
        self._data_at = 0.0
        self.closed = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
        self._send_in_time()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._stopping:
            self._tally.errors += 1
        self._transport = None
        if not self.closed.done():
            self.closed.set_result(None)

    def stop(self) -> None:
        """Close the connection at once."""
        self._stopping = True
        if self._transport is not None:
            self._transport.abort()

    def _send_in_time(self) -> None:
        if self._interval_s:
            asyncio.get_running_loop().call_at(self._due_s, self._send)
            self._due_s += self._interval_s
        else:
            self._send()

    def _send(self) -> None:
        if self._transport is None or self._stopping:
            return
        self._sent_at = time.perf_counter()
        self._data_at = 0.0
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        events = data.count(b"data: ")
        if events:
            self._tally.chunks += events
            if self._data_at:
                self._tally.gaps.append(now - self._data_at)
            self._data_at = now
        self._buffer += data
        if not self._is_whole():
            return
        if not self._buffer.startswith(b"HTTP/1.1 200"):
            self._tally.errors += 1
        self._buffer.clear()
        self._tally.answers += 1
        self._tally.latencies.append(now - self._sent_at)
        self._send_in_time()

    def _is_whole(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return False
        head = bytes(self._buffer[:end]).lower()
        at = head.find(b"content-length:")
        if at >= 0:
            return len(self._buffer) >= end + 4 + int(head[at + 15 :].split(b"\r\n", 1)[0])
        return self._buffer.endswith(b"0\r\n\r\n")


async def run_load(port: int, connections: int, seconds: float, request: bytes, per_s: float = 0.0) -> Tally:
    """Keep `connections` busy for `seconds`, or offer `per_s` requests on them; answers cut off by the end are not
    counted."""
    tally = Tally()
    loop = asyncio.get_running_loop()
    protocols: list[LoadConnection] = []
    interval_s = connections / per_s if per_s else 0.0
    for number in range(connections):
        first_s = interval_s * number / connections
        _, protocol = await loop.create_connection(
            partial(LoadConnection, request, tally, interval_s, first_s), "127.0.0.1", port
        )
        protocols.append(protocol)
    await asyncio.sleep(seconds)
    counted = Tally(tally.answers, tally.errors, tally.latencies[:], tally.chunks, tally.gaps[:])
    for protocol in protocols:
        protocol.stop()
    await asyncio.gather(*(protocol.closed for protocol in protocols))
    return counted
