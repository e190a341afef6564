"""Loopback providers of a chaos run: each answers as its request asks, and knows how many of them run on it at once.

A request carries what is to happen in fields that travel through untouched: `x_kind` is one of KINDS, `x_chunks` pieces
follow each other after `x_gap_s`. The whole answer is a function of the request (`answer_of`), so that its client can
judge every byte.

What counts against a provider's capacity are requests whose connection its Node has not closed: what the proxy between
them keeps back (a close, an end) is no fault of the Node's.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

from tests.chaos.proxy import FaultProxy, Line
from tests.fakes.openai_backend import Exchange, FakeBackend

KINDS = ("good", "slow_head", "error", "hangs_up", "breaks_off", "silent", "stalls")

ERROR = b'{"error":{"message":"the provider is busy","type":"rate_limit"}}'
# How long a change of the capacity may be on its way while requests are dispatched by the one before.
CHANGE_S = 30.0


def events_of(request: dict[str, Any]) -> list[bytes]:
    """The events of a request's streamed answer."""
    padding = "x" * request["x_bytes"]
    return [
        b"data: %b\n\n" % json.dumps({"user": request["user"], "n": number, "text": padding}).encode()
        for number in range(request["x_chunks"])
    ] + [b"data: [DONE]\n\n"]


def answer_of(request: dict[str, Any]) -> bytes:
    """The whole good answer to a request."""
    if request["stream"]:
        return b"".join(events_of(request))
    return json.dumps({"user": request["user"], "text": "y" * request["x_bytes"] * request["x_chunks"]}).encode()


class Provider:
    """One provider behind its proxy."""

    def __init__(self, provider_id: str, capacity: int) -> None:
        self.id = provider_id
        self.backend = FakeBackend(self._serve)
        self.proxy: FaultProxy
        self.seen: Counter[str] = Counter()  # whole requests by name
        self.worst_excess = 0
        self._running: dict[Exchange, tuple[float, Line | None]] = {}
        self._capacities: list[tuple[float, int]] = [(0.0, capacity)]

    async def start(self) -> None:
        await self.backend.start()
        self.proxy = FaultProxy(self.backend.port)
        await self.proxy.start()

    async def stop(self) -> None:
        await self.proxy.stop()
        await self.backend.stop()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.proxy.port}"

    @property
    def running(self) -> int:
        """Requests whose Node has not closed their connection."""
        return sum(line is None or not line.is_client_gone for _, line in self._running.values())

    def configure(self, capacity: int) -> None:
        """The Edge is told another capacity now, or has just been."""
        self._capacities.append((asyncio.get_running_loop().time(), capacity))

    def _ceiling(self) -> int:
        """The highest capacity that what runs now can have been dispatched by."""
        oldest = min(began for began, _ in self._running.values()) - CHANGE_S
        in_force = [capacity for since, capacity in self._capacities if since <= oldest][-1:]
        return max([*in_force, *(capacity for since, capacity in self._capacities if since > oldest)])

    async def _serve(self, exchange: Exchange) -> None:
        request = exchange.json
        self.seen[request["user"]] += 1
        port = exchange.peer.transport.get_extra_info("peername")[1]
        self._running[exchange] = (asyncio.get_running_loop().time(), self.proxy.by_port.get(port))
        self.worst_excess = max(self.worst_excess, self.running - self._ceiling())
        try:
            await self._answer(exchange, request)
        finally:
            del self._running[exchange]

    async def _answer(self, exchange: Exchange, request: dict[str, Any]) -> None:
        kind = request["x_kind"]
        if kind == "slow_head":
            await asyncio.sleep(request["x_gap_s"] * 20)
        if kind == "error":
            await exchange.respond(ERROR, 429)
        elif kind == "hangs_up":
            exchange.close()
        elif kind == "silent":
            await exchange.until_gone()
        elif request["stream"]:
            await self._stream(exchange, request)
        else:
            await self._whole(exchange, answer_of(request), kind)

    async def _stream(self, exchange: Exchange, request: dict[str, Any]) -> None:
        await exchange.head(200, [(b"Content-Type", b"text/event-stream"), (b"Transfer-Encoding", b"chunked")])
        events = events_of(request)
        for number, event in enumerate(events):
            if number == len(events) // 2 and request["x_kind"] == "breaks_off":
                exchange.reset()
                return
            if number == len(events) // 2 and request["x_kind"] == "stalls":
                await exchange.until_gone()
                return
            await exchange.chunk(event)
            await asyncio.sleep(request["x_gap_s"])
        await exchange.chunk(b"")

    async def _whole(self, exchange: Exchange, body: bytes, kind: str) -> None:
        await exchange.head(200, [(b"Content-Type", b"application/json"), (b"Content-Length", b"%d" % len(body))])
        if kind in ("breaks_off", "stalls"):
            await exchange.write(body[: len(body) // 2])
            if kind == "stalls":
                await exchange.until_gone()
            exchange.reset()
        else:
            await exchange.write(body)
