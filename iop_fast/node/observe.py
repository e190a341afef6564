"""The Node's `observe` listener: GET /livez, /readyz and /metrics and nothing else. It shows no secrets."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import TYPE_CHECKING

import orjson
from aiohttp import web

from iop_fast.metrics import Exposition, add_metrics

if TYPE_CHECKING:
    from iop_fast.node.app import Node


async def start_observe(
    host: str, port: int, node: Node, exposition: Exposition
) -> tuple[Callable[[], Awaitable[None]], int]:
    """Listen; return what stops it and the port. Raises OSError when the address cannot be had."""
    app = web.Application(client_max_size=1024)

    async def get_livez(request: web.Request) -> web.Response:
        return web.Response(text="live\n")

    async def get_readyz(request: web.Request) -> web.Response:
        checks = node.checks()
        is_ready = all(checks.values())
        status = HTTPStatus.OK if is_ready else HTTPStatus.SERVICE_UNAVAILABLE
        if "verbose" in request.query:
            body = orjson.dumps({"ready": is_ready, "checks": checks}, option=orjson.OPT_APPEND_NEWLINE)
            return web.Response(status=status, body=body, content_type="application/json")
        text = "ready\n" if is_ready else "not ready: no session with the Edge takes requests\n"
        return web.Response(status=status, text=text)

    app.router.add_get("/livez", get_livez)
    app.router.add_get("/readyz", get_readyz)
    add_metrics(app, exposition)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
    except OSError:
        await runner.cleanup()
        raise
    return runner.cleanup, int(runner.addresses[0][1])
