"""`GET` and `POST /logs` of the admin listener: which logger writes from which level on, changed while the Edge runs.

A restart takes the level of the file again. The guard of that listener stands before both.
"""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any

from aiohttp import web

from iop_fast import logs
from iop_fast.edge.admin import json_answer

log = logs.get(__name__)

FIELDS = ("logger", "level")
LEVELS = (*logs.LEVELS, "default")
BODY_BYTES_MAX = 4096
# Of a name that was asked for, this much is said back.
SHOWN_CHARACTERS = 128


class BadRequest(Exception):
    """What was posted is no level of a logger; the message says what was expected."""


def add_logs(app: web.Application) -> None:
    """Serve the path."""

    async def get_logs(request: web.Request) -> web.Response:
        return json_answer({"loggers": [one._asdict() for one in logs.levels()]})

    async def post_logs(request: web.Request) -> web.Response:
        if request.content_length is None or request.content_length > BODY_BYTES_MAX:
            return refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too_large", f"expected at most {BODY_BYTES_MAX} bytes")
        try:
            logger, level = read_request(await request.read())
            changed = logs.set_level(logger, level)
        except BadRequest as error:
            return refuse(HTTPStatus.BAD_REQUEST, "bad_request", str(error))
        except KeyError as error:
            name = str(error.args[0])[:SHOWN_CHARACTERS]
            return refuse(HTTPStatus.NOT_FOUND, "not_found", f"no logger {name!r}; GET /logs lists them")
        except ConnectionError:  # the caller left in the middle; nobody reads this
            return refuse(HTTPStatus.BAD_REQUEST, "bad_request", "the body was cut off")
        log.warning("log_level_changed", of=changed.logger, to=changed.level, own=changed.is_own)
        return json_answer(changed._asdict())

    app.router.add_get("/logs", get_logs)
    app.router.add_post("/logs", post_logs)


def refuse(status: int, code: str, message: str) -> web.Response:
    """Answer what changes nothing."""
    return json_answer({"error": {"code": code, "message": message}}, status)


def read_request(body: bytes) -> tuple[str, str]:
    """Read logger and level; raise BadRequest."""
    try:
        posted: Any = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"expected one JSON object: {error}") from None
    if not isinstance(posted, dict) or set(posted) - set(FIELDS):
        raise BadRequest(f"expected one JSON object with {' and '.join(FIELDS)}")
    logger, level = posted.get("logger", ""), posted.get("level")
    if not isinstance(logger, str):
        raise BadRequest("logger: expected a name, as GET /logs lists them; all of them are an empty one")
    if level not in LEVELS:
        raise BadRequest(f"level: expected one of {', '.join(LEVELS)}")
    return logger, str(level)
