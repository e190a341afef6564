"""`GET /queue`, `/runs` and `/explain` of the admin listener. The guard of that listener stands before them."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

from aiohttp import web

from iop_fast.edge.admin import json_answer
from iop_fast.edge.links import Links
from iop_fast.edge.needs import NAMES, SURFACE_CHAT
from iop_fast.edge.state import EdgeState
from iop_fast.edge.views import LIMIT_DEFAULT, LIMIT_MAX, explain_view, queue_view, runs_view

TOKENS_MAX = 1_000_000_000

# Of a name that was asked for, this much is said back.
SHOWN_CHARACTERS = 128

BITS: Mapping[str, int] = {name: bit for bit, name in NAMES.items()}
APIS = frozenset(name for name in BITS if name.startswith("/"))
# Those that one word names.
FEATURES = frozenset(name for name in BITS if name.isidentifier())


class BadQuery(Exception):
    """What was asked for makes no sense; the message says what was expected."""


def add_views(app: web.Application, edge: EdgeState, links: Links) -> None:
    """Serve the three paths."""

    async def get_queue(request: web.Request) -> web.Response:
        try:
            return json_answer(queue_view(edge, read_limit(request.query)))
        except BadQuery as error:
            return refuse(HTTPStatus.BAD_REQUEST, "bad_request", str(error))

    async def get_runs(request: web.Request) -> web.Response:
        try:
            return json_answer(runs_view(edge, links, read_limit(request.query)))
        except BadQuery as error:
            return refuse(HTTPStatus.BAD_REQUEST, "bad_request", str(error))

    async def get_explain(request: web.Request) -> web.Response:
        query = request.query
        try:
            model = read_model(query)
            tokens, needs, limit = read_number(query, "tokens", 0, TOKENS_MAX), read_needs(query), read_limit(query)
        except BadQuery as error:
            return refuse(HTTPStatus.BAD_REQUEST, "bad_request", str(error))
        if model not in edge.runtime.models:
            return refuse(HTTPStatus.NOT_FOUND, "model_not_found", unknown(edge, model))
        return json_answer(explain_view(edge, model, tokens, needs, limit))

    app.router.add_get("/queue", get_queue)
    app.router.add_get("/runs", get_runs)
    app.router.add_get("/explain", get_explain)


def refuse(status: int, code: str, message: str) -> web.Response:
    """Answer a question that makes no sense."""
    return json_answer({"error": {"code": code, "message": message}}, status)


def unknown(edge: EdgeState, model: str) -> str:
    """Say that there is no such model, and which ones have a name like it."""
    shown = model[:SHOWN_CHARACTERS]
    near = edge.runtime.near_names(shown)
    hint = f", did you mean {' or '.join(map(repr, near))}?" if near else ""
    return f"no model {shown!r} is configured{hint}"


def read_limit(query: Mapping[str, str]) -> int:
    """Read how many rows a list may have."""
    return read_number(query, "limit", LIMIT_DEFAULT, LIMIT_MAX)


def read_number(query: Mapping[str, str], name: str, default: int, most: int) -> int:
    """Read a number from 0 up; raise BadQuery."""
    text = query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(most)) and int(text) <= most):
        raise BadQuery(f"{name}: expected a number from 0 to {most}, got {text[:SHOWN_CHARACTERS]!r}")
    return int(text)


def read_model(query: Mapping[str, str]) -> str:
    """Read the model; raise BadQuery."""
    model = query.get("model")
    if not model:
        raise BadQuery("model: expected the id of a model")
    return model


def read_needs(query: Mapping[str, str]) -> int:
    """Read what the request needs: `api` is a path, chat unless it is said, `needs` names features; raise BadQuery."""
    api = query.get("api")
    needs = SURFACE_CHAT
    if api is not None:
        if api not in APIS:
            raise BadQuery(f"api: expected one of {', '.join(sorted(APIS))}, got {api[:SHOWN_CHARACTERS]!r}")
        needs = BITS[api]
    for name in filter(None, query.get("needs", "").split(",")):
        if name not in FEATURES:
            raise BadQuery(f"needs: expected some of {', '.join(sorted(FEATURES))}, got {name[:SHOWN_CHARACTERS]!r}")
        needs |= BITS[name]
    return needs
