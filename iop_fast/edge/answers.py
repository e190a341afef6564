"""What the Edge writes itself: error answers, the error event that ends a broken stream, and the heads of answers.

Every function is pure and knows neither requests nor connections. The table of failures is `iop_fast.errors`; here it
gets the shape that each API's clients read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus

import orjson

from iop_fast.edge.routes import Dialect
from iop_fast.errors import Failure, error_body
from iop_fast.seams import Head

Field = tuple[bytes, bytes]

JSON_TYPE = (b"content-type", b"application/json")

REASONS: Mapping[int, bytes] = {status.value: status.phrase.encode() for status in HTTPStatus}

# Fields of a provider's answer that are not passed on: the connection's own (RFC 9110, section 7.6.1), and those that
# the Edge sets itself.
NOT_PASSED_ON = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"proxy-authenticate",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"x-request-id",
        b"x-iop-provider",
        b"x-iop-node",
        b"x-iop-queue-ms",
        b"x-iop-reason",
    }
)

# Anthropic's error types by status (docs.anthropic.com, "Errors").
ANTHROPIC_TYPES: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def error_bytes(failure: Failure, message: str, param: str | None, dialect: Dialect) -> bytes:
    """Render the error object of an answer's body in a surface's dialect."""
    if dialect is not Dialect.ANTHROPIC:
        return error_body(failure, message, param)
    return orjson.dumps({"type": "error", "error": {"type": anthropic_type(failure), "message": message}})


def anthropic_type(failure: Failure) -> str:
    """Return Anthropic's word for a failure."""
    status = failure.value.status
    return ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")


def error_answer(
    failure: Failure,
    message: str,
    request_id: bytes,
    *,
    param: str | None = None,
    dialect: Dialect = Dialect.OPENAI,
    extra: Iterable[Field] = (),
) -> tuple[Head, bytes]:
    """Build the whole answer to a failed request: its head and its body."""
    row = failure.value
    body = error_bytes(failure, message, param, dialect)
    headers = [
        JSON_TYPE,
        (b"content-length", b"%d" % len(body)),
        (b"x-request-id", request_id),
        (b"x-iop-reason", failure.reason.encode()),
    ]
    if row.closes:
        headers.append((b"connection", b"close"))
    if row.retry is not None:
        headers.append((b"x-should-retry", b"true" if row.retry else b"false"))
    headers.extend(extra)
    return Head(row.status, REASONS[row.status], headers), body


def json_answer(body: bytes, request_id: bytes) -> Head:
    """Build the head of a 200 with a JSON body."""
    headers = [JSON_TYPE, (b"content-length", b"%d" % len(body)), (b"x-request-id", request_id)]
    return Head(200, REASONS[200], headers)


def passed_on(head: Head, own: Sequence[Field]) -> Head:
    """Return a provider's head as the client gets it: end-to-end fields as they came, then the Edge's own."""
    named = [value for name, value in head.headers if name.lower() == b"connection"]
    dropped = NOT_PASSED_ON.union(word.strip().lower() for value in named for word in value.split(b",")) if named else (
        NOT_PASSED_ON
    )
    kept = [field for field in head.headers if field[0].lower() not in dropped]
    kept.extend(own)
    return Head(head.status, head.reason, kept)


# ---------------------------------------------------------------------------------------------------------------------
# A stream that breaks off


def takes_error_event(head: Head) -> bool:
    """True for an answer that an error event can be added to: server-sent events, not encoded, of no given length."""
    is_stream = False
    for name, value in head.headers:
        lowered = name.lower()
        if lowered == b"content-type":
            is_stream = value.partition(b";")[0].strip().lower() == b"text/event-stream"
        elif lowered == b"content-length" or (
            lowered == b"content-encoding" and value.strip().lower() not in (b"", b"identity")
        ):
            return False
    return is_stream


def blank_line_after(tail: bytes) -> bytes:
    """Return what ends the event that a stream is in; b"" between events.

    `tail` is the last 4 bytes of the stream, or all of a shorter one. Lines end by CR LF, LF or CR and an event by an
    empty line (WHATWG HTML, section 9.2.6).
    """
    if not tail:
        return b""
    lines = tail.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    if lines.endswith(b"\n\n") or lines == b"\n":
        return b""
    return b"\n" if lines.endswith(b"\n") else b"\n\n"


def error_event(failure: Failure, message: str, dialect: Dialect) -> bytes:
    """Render the event by which a surface's clients learn that a stream failed."""
    row = failure.value
    if dialect is Dialect.ANTHROPIC:
        return b"event: error\ndata: " + error_bytes(failure, message, None, dialect) + b"\n\n"
    if dialect is Dialect.RESPONSES:
        fault = {"type": row.type, "code": row.code, "message": message, "param": None}
        # Both shapes that clients of this API look for: the flat one of its reference and a nested `error` object.
        event = {"type": "error", "sequence_number": 0, **{k: fault[k] for k in ("code", "message", "param")}}
        return b"event: error\ndata: " + orjson.dumps({**event, "error": fault}) + b"\n\n"
    return b"data: " + error_body(failure, message) + b"\n\n"
