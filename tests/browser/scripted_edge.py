"""An admin listener whose feed says what a test tells it to: the page, its guard and headers are the Edge's own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import orjson
from aiohttp import web

from iop_fast.edge.admin import guard, json_answer
from iop_fast.edge.dashboard_http import add_dashboard
from iop_fast.edge.feed import HEADERS, QUIET, event
from tests.browser.worlds import Parts


class ScriptedEdge:
    """One listener. `parts` is what a reader is told first; `asked` are the questions to /explain."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.explanation: tuple[int, Any] = (200, {})
        self.asked: list[Mapping[str, str]] = []
        self.requests: list[tuple[str, str]] = []
        self.connections = 0
        self.is_busy = False
        self.is_mute = False
        self._readers: set[web.StreamResponse] = set()
        self._ended = asyncio.Event()
        self._runner: web.AppRunner | None = None
        self._port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/"

    async def start(self) -> None:
        """Listen: on a free port, and at later times on the same."""
        self._ended = asyncio.Event()
        app = web.Application(middlewares=[self._note, guard(frozenset())])
        add_dashboard(app)
        app.router.add_get("/events", self._get_events)
        app.router.add_get("/explain", self._get_explain)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port, reuse_address=True).start()
        self._port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Stop listening and end what is open."""
        self._ended.set()
        if self._runner is not None:
            await self._runner.cleanup()

    async def change(self, **parts: Any) -> None:
        """Say that these parts differ."""
        self.parts = {**self.parts, **parts}
        await self._write(event(b"change", parts_of(parts)))

    async def quiet(self) -> None:
        """Say that nothing differs."""
        await self._write(QUIET)

    async def _write(self, piece: bytes) -> None:
        for answer in list(self._readers):
            await self._write_to(answer, piece)

    async def _write_to(self, answer: web.StreamResponse, piece: bytes) -> None:
        try:
            await answer.write(piece)  # network
        except ConnectionError:
            self._readers.discard(answer)  # the page has left it

    @web.middleware
    async def _note(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.requests.append((request.method, request.path))
        answer: web.StreamResponse = await handler(request)
        return answer

    async def _get_events(self, request: web.Request) -> web.StreamResponse:
        if self.is_busy:
            return json_answer({}, 503)
        answer = web.StreamResponse(headers=HEADERS)
        await answer.prepare(request)
        if request.method == "HEAD":
            return answer
        self.connections += 1
        self._readers.add(answer)
        if not self.is_mute:
            await self._write_to(answer, event(b"snapshot", parts_of(self.parts)))
        try:
            await self._ended.wait()
        finally:
            self._readers.discard(answer)
        return answer

    async def _get_explain(self, request: web.Request) -> web.Response:
        self.asked.append(dict(request.query))
        status, body = self.explanation
        return json_answer(body, status)


def parts_of(parts: Parts) -> list[tuple[str, bytes]]:
    """Render parts as the feed does."""
    return [(name, orjson.dumps(part)) for name, part in parts.items()]
