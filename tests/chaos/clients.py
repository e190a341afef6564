"""Clients of a chaos run: each asks without end, leaves when it likes, and judges every answer that it gets.

A request ends in exactly one way: whole (a provider's answer, byte for byte), an error that the Edge documents, cut (a
true beginning of the answer, and for a stream perhaps an error event), or left by its client.
"""

from __future__ import annotations

import asyncio
import io
import json
from collections import Counter
from random import Random
from typing import Any

import aiohttp

from tests.chaos.providers import ERROR, KINDS, answer_of

MODELS = ("all", "all", "one", "two")
WEIGHTS = (60, 10, 8, 4, 6, 4, 4)
# What the Edge may answer by itself while everything breaks.
ERRORS = {
    (429, "queue_full"),
    (502, "upstream_error"),
    (503, "provider_unavailable"),
    (503, "overloaded"),
    (504, "queue_timeout"),
    (504, "upstream_timeout"),
}


class Wrong(AssertionError):
    """An answer that must not be."""


class Clients:
    """Asks in `count` loops until stopped. `outcomes` counts how requests ended, `wrong` says what was amiss."""

    def __init__(self, base_url: str, random: Random, count: int) -> None:
        self.outcomes: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._url = f"{base_url}/chat/completions"
        self._random = random
        self._count = count
        self._asked = 0
        self._is_stopping = False
        self._loops: list[asyncio.Task[None]] = []
        self._session: aiohttp.ClientSession

    def start(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(60)
        )
        self._loops = [
            asyncio.create_task(self._ask_on(Random(self._random.getrandbits(64)))) for _ in range(self._count)
        ]

    async def stop(self) -> None:
        """Let every request under way end."""
        self._is_stopping = True
        await asyncio.gather(*self._loops)
        await self._session.close()

    async def _ask_on(self, random: Random) -> None:
        while not self._is_stopping:
            request = self._make(random)
            try:
                outcome = await self._ask(request, random)
                self.outcomes[outcome] += 1
                if outcome.startswith("503"):
                    await asyncio.sleep(0.3)
            except (Wrong, TimeoutError, aiohttp.ClientError) as error:
                self.outcomes["wrong"] += 1
                self.wrong.append(f"{request['user']} ({request['x_kind']}): {type(error).__name__} {error}")
            await asyncio.sleep(random.choice((0, 0, 0.05, 0.3)))

    def _make(self, random: Random) -> dict[str, Any]:
        self._asked += 1
        is_large = random.random() < 0.05
        return {
            "model": random.choice(MODELS),
            "stream": random.random() < 0.6,
            "user": f"request-{self._asked}",
            "x_kind": random.choices(KINDS, WEIGHTS)[0],
            "x_chunks": random.choice((1, 5, 30)),
            "x_gap_s": random.choice((0.0, 0.005, 0.05)),
            "x_bytes": random.choice((0, 50, 3_000, 60_000)),
            "messages": [{"role": "user", "content": "z" * (1_500_000 if is_large else 20)}],
        }

    async def _ask(self, request: dict[str, Any], random: Random) -> str:
        leaves_after = random.choice((0.0, 0.02, 0.2, 1.0)) if random.random() < 0.2 else None
        reading = asyncio.create_task(self._read(request, random))
        if leaves_after is None:
            return await reading
        done, _ = await asyncio.wait((reading,), timeout=leaves_after)
        if done:
            return reading.result()
        reading.cancel()
        await asyncio.wait((reading,))
        return "left"

    async def _read(self, request: dict[str, Any], random: Random) -> str:
        body = bytearray()
        is_slow = random.random() < 0.1
        headers = {"content-type": "application/json"}
        data = io.BytesIO(json.dumps(request).encode())
        async with self._session.post(self._url, data=data, headers=headers) as answer:
            try:
                async for piece in answer.content.iter_any():
                    body += piece
                    if is_slow:
                        await asyncio.sleep(0.05)
            except aiohttp.ClientPayloadError:
                return self._judge_cut(request, bytes(body), answer)
            return self._judge(request, bytes(body), answer)

    def _judge(self, request: dict[str, Any], body: bytes, answer: aiohttp.ClientResponse) -> str:
        if "x-iop-reason" in answer.headers:
            code = json.loads(body)["error"]["code"]
            if (answer.status, code) not in ERRORS:
                raise Wrong(f"{answer.status} {code}")
            return f"{answer.status} {code}"
        if request["x_kind"] == "error" and (answer.status, body) == (429, ERROR):
            return "whole (an error of the provider)"
        if request["x_kind"] not in ("good", "slow_head") or answer.status != 200 or body != answer_of(request):
            raise Wrong(f"{answer.status} with {len(body)} bytes, whole, expected {len(answer_of(request))}")
        return "whole"

    def _judge_cut(self, request: dict[str, Any], body: bytes, answer: aiohttp.ClientResponse) -> str:
        event = body.rfind(b'data: {"error"')
        true = body if event < 0 else body[:event]
        whole = answer_of(request)
        while true.endswith(b"\n") and not whole.startswith(true):
            true = true[:-1]
        if answer.status != 200 or not whole.startswith(true):
            raise Wrong(f"cut after {len(body)} bytes that are no beginning of the answer")
        return "cut"
