"""`POST /refresh` and `GET /refresh/history` on the admin listener. The guard of that listener stands before both.

A request is one JSON object: `mode` is `dry_run` or `apply`; a dry run may carry a candidate as `config`, the text of a
file. An apply never does: it reads the Edge's own file, so that what runs is what is on disk. `If-Match` takes a
revision or the hash of a file.

| status | of an apply | |
|---|---|---|
| 200 | applied, no_change | and every dry run, whatever it says |
| 409 | restart_required | nothing was applied |
| 412 | stale | If-Match names something else |
| 422 | invalid | the findings say where |
"""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any

from aiohttp import web

from iop_fast import logs
from iop_fast.edge.admin import BODY_BYTES_MAX, json_answer
from iop_fast.edge.refresh import Asked, Busy, Refresher
from iop_fast.edge.refresh_report import Report, Status

log = logs.get(__name__)

MODES = ("dry_run", "apply")
FIELDS = ("mode", "config")

STATUS_OF_APPLY = {
    Status.APPLIED: HTTPStatus.OK,
    Status.NO_CHANGE: HTTPStatus.OK,
    Status.RESTART_REQUIRED: HTTPStatus.CONFLICT,
    Status.STALE: HTTPStatus.PRECONDITION_FAILED,
    Status.INVALID: HTTPStatus.UNPROCESSABLE_ENTITY,
}


class BadRequest(Exception):
    """What was posted is no refresh; the message says what was expected."""


def add_refresh(app: web.Application, refresher: Refresher) -> None:
    """Serve the two paths."""

    async def post_refresh(request: web.Request) -> web.Response:
        if (request.content_length or 0) > BODY_BYTES_MAX:
            return too_large()
        try:
            body = await request.read()
        except web.HTTPRequestEntityTooLarge:
            return too_large()
        except ConnectionError:  # the caller left in the middle; nobody reads this
            return refuse(HTTPStatus.BAD_REQUEST, "bad_request", "the body was cut off")
        try:
            asked = read_request(body, request.headers.getall("If-Match", None))
        except BadRequest as error:
            return refuse(HTTPStatus.BAD_REQUEST, "bad_request", str(error))
        try:
            report = await refresher.refresh(asked)
        except Busy as error:
            return refuse(HTTPStatus.SERVICE_UNAVAILABLE, "busy", str(error))
        except Exception as error:  # noqa: BLE001 - a bug of ours must not look like a refusal of the file
            log.failure("refresh_failed", error, source="http")
            return refuse(HTTPStatus.INTERNAL_SERVER_ERROR, "internal", "the refresh failed; the Edge's log says more")
        return json_answer(report.as_plain(), status_of(report))

    async def get_history(request: web.Request) -> web.Response:
        return json_answer({"refreshes": [entry.as_plain() for entry in refresher.history]})

    app.router.add_post("/refresh", post_refresh)
    app.router.add_get("/refresh/history", get_history)


def status_of(report: Report) -> int:
    """Return the answer's status."""
    return HTTPStatus.OK if report.mode == "dry_run" else STATUS_OF_APPLY[report.status]


def refuse(status: int, code: str, message: str) -> web.Response:
    """Answer what is no report."""
    return json_answer({"error": {"code": code, "message": message}}, status)


def too_large() -> web.Response:
    """Answer a body that no candidate needs."""
    return refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too_large", f"expected at most {BODY_BYTES_MAX} bytes")


def read_request(body: bytes, if_match: list[str] | None) -> Asked:
    """Read what was posted; raise BadRequest."""
    try:
        posted = json.loads(body.decode("utf-8"), object_pairs_hook=to_object, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"expected one JSON object: {error}") from None
    if not isinstance(posted, dict):
        raise BadRequest(f"expected one JSON object with {' and '.join(FIELDS)}, got {type(posted).__name__}")
    unknown = sorted(key for key in posted if key not in FIELDS)
    if unknown:
        raise BadRequest(f"unknown field {unknown[0][:64]!r}, expected {' and '.join(FIELDS)}")
    mode, text = posted.get("mode"), posted.get("config")
    if mode not in MODES:
        raise BadRequest("mode: expected dry_run or apply")
    if "config" in posted:
        if mode != "dry_run":
            raise BadRequest("config: an apply reads the Edge's own file; only a dry run may carry a candidate")
        if not isinstance(text, str):
            raise BadRequest("config: expected the text of a configuration file")
    return Asked("apply" if mode == "apply" else "dry_run", "http", text, read_tags(if_match))


def read_tags(if_match: list[str] | None) -> frozenset[str] | None:
    """Read the entity tags of If-Match, quoted or not; None where it is absent."""
    if if_match is None:
        return None
    return frozenset(tag.strip().strip('"') for value in if_match for tag in value.split(","))


def to_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object; a key that stands twice would mean two things."""
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key stands twice")
    return made


def refuse_constant(name: str) -> Any:
    """Refuse NaN and the like, which are no JSON."""
    raise ValueError(f"{name} is no JSON")
