"""The listeners for operators: `admin` (this machine alone, guarded) and `observe` (any address, probes alone).

Both are ordinary aiohttp applications on the Edge's loop. They are handed what they read and hold no
state of their own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

import orjson
from aiohttp import web

from iop_fast import logs
from iop_fast.edge.admin_guard import refusal
from iop_fast.edge.links import Links
from iop_fast.edge.state import EdgeState
from iop_fast.seams import Clock

log = logs.get(__name__)

NS_PER_S = 1_000_000_000

# Without any Node ready, the Edge calls itself ready after this long: it answers, though with 503 per model.
NODE_GRACE_NS = 10 * NS_PER_S

# The largest body that any path takes: a candidate configuration (16 MiB) as a JSON string.
BODY_BYTES_MAX = 40 * 1024 * 1024

JSON_TYPE = "application/json"

# What each check says where it fails; the first that does stands for all.
UNREADY = {
    "not_draining": "draining",
    "listeners_bound": "listeners are not bound yet",
    "node_was_ready": "no node has become ready yet",
}


class Readiness:
    """Whether a load balancer should send requests here, and if not, why."""

    __slots__ = ("_clock", "_edge", "_is_leaving", "_links", "_listening_at_ns")

    def __init__(self, edge: EdgeState, links: Links, clock: Clock) -> None:
        self._edge = edge
        self._links = links
        self._clock = clock
        self._listening_at_ns: int | None = None
        self._is_leaving = False

    def note_listening(self) -> None:
        """Every listener is bound."""
        self._listening_at_ns = self._clock.now_ns()

    def note_leaving(self) -> None:
        """The Edge is going to drain; requests are still taken."""
        self._is_leaving = True

    def checks(self) -> dict[str, bool]:
        """Return what being ready asks for, each with whether it is so."""
        bound_at_ns = self._listening_at_ns
        return {
            "not_draining": not self._edge.is_draining and not self._is_leaving,
            "listeners_bound": bound_at_ns is not None,
            "node_was_ready": self._links.was_ready
            or (bound_at_ns is not None and self._clock.now_ns() - bound_at_ns >= NODE_GRACE_NS),
        }

    def reasons(self) -> list[str]:
        """Return what stands against being ready; empty when nothing does."""
        return [UNREADY[name] for name, is_so in self.checks().items() if not is_so][:1]


def observe_app(readiness: Readiness) -> web.Application:
    """Build the application of the `observe` listener."""
    app = web.Application(client_max_size=1024)
    add_probes(app, readiness)
    return app


def admin_app(readiness: Readiness, status: Callable[[], Awaitable[Any]], own_hosts: frozenset[str]) -> web.Application:
    """Build the application of the `admin` listener.

    `status` returns the snapshot, `own_hosts` are the host parts of the listener's own address.
    """
    app = web.Application(client_max_size=BODY_BYTES_MAX, middlewares=[guard(own_hosts)])
    add_probes(app, readiness)

    async def get_status(request: web.Request) -> web.Response:
        return json_answer(await status())

    app.router.add_get("/status", get_status)
    return app


def add_document(app: web.Application, path: str, make: Callable[[], object]) -> None:
    """Add a document about a listener, for tools; it is made when it is asked for."""

    async def get_document(request: web.Request) -> web.Response:
        return json_answer(make())

    app.router.add_get(path, get_document)


def add_probes(app: web.Application, readiness: Readiness) -> None:
    """Add /livez (the loop answers) and /readyz (send requests here; `?verbose` names every check)."""

    async def get_livez(request: web.Request) -> web.Response:
        return json_answer({"live": True})

    async def get_readyz(request: web.Request) -> web.Response:
        reasons = readiness.reasons()
        status = HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK
        answer: dict[str, object] = {"ready": not reasons, "reasons": reasons}
        if "verbose" in request.query:
            answer["checks"] = readiness.checks()
        return json_answer(answer, status)

    app.router.add_get("/livez", get_livez)
    app.router.add_get("/readyz", get_readyz)


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def guard(own_hosts: frozenset[str]) -> Any:
    """Build the middleware that lets nothing through that `admin_guard` refuses, and logs what it refused."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        headers = {name.lower(): request.headers.getall(name) for name in request.headers}
        reason = refusal(request.method, headers, own_hosts)
        if reason is None:
            return await handler(request)
        log.warning("admin_refused", method=request.method, path=request.path, reason=reason)
        return json_answer({"error": {"code": "forbidden", "message": reason}}, HTTPStatus.FORBIDDEN)

    return check


def json_answer(content: object, status: int = HTTPStatus.OK) -> web.Response:
    """Render an answer that no cache keeps."""
    body = orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    return web.Response(status=status, body=body, content_type=JSON_TYPE, headers={"cache-control": "no-store"})
