"""What the Edge writes itself: error answers, the error event that ends a broken stream, and the heads of answers.

Every function is pure and knows neither requests nor connections. The table of failures is `iop_fast.errors`; here it
gets the shape that each API's clients read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus

import orjson

from iop_fast._hot.records import item, new_record
from iop_fast.edge.auth import Field
from iop_fast.edge.routes import Dialect
from iop_fast.errors import Failure, error_body
from iop_fast.seams import Head

EVENT_STREAM = b"text/event-stream"
JSON_MEDIA = b"application/json"
JSON_TYPE = (b"content-type", JSON_MEDIA)
# nginx, in front of us, hands events on as they come instead of collecting them.
UNBUFFERED = (b"x-accel-buffering", b"no")

REASONS: Mapping[int, bytes] = {status.value: status.phrase.encode() for status in HTTPStatus}

# What a field of a provider's answer is to the Edge: one that is passed on (0), one that is not (the connection's own,
# RFC 9110, section 7.6.1, and those that the Edge sets itself), or one that says what may follow a broken stream.
NOT_PASSED_ON, CONNECTION, TYPE, CODING, LENGTH, BUFFERING = range(1, 7)
MEANINGS: Mapping[bytes, int] = {
    b"connection": CONNECTION,
    b"keep-alive": NOT_PASSED_ON,
    b"proxy-connection": NOT_PASSED_ON,
    b"proxy-authenticate": NOT_PASSED_ON,
    b"te": NOT_PASSED_ON,
    b"trailer": NOT_PASSED_ON,
    b"transfer-encoding": NOT_PASSED_ON,
    b"upgrade": NOT_PASSED_ON,
    b"x-request-id": NOT_PASSED_ON,
    b"x-iop-provider": NOT_PASSED_ON,
    b"x-iop-node": NOT_PASSED_ON,
    b"x-iop-queue-ms": NOT_PASSED_ON,
    b"x-iop-reason": NOT_PASSED_ON,
    b"x-iop-clamped": NOT_PASSED_ON,
    # Which pages may read answers is said by the gateway's own list (openai.cors_origins), not by a backend's default.
    b"access-control-allow-origin": NOT_PASSED_ON,
    b"access-control-allow-credentials": NOT_PASSED_ON,
    b"access-control-expose-headers": NOT_PASSED_ON,
    b"access-control-allow-private-network": NOT_PASSED_ON,
    b"x-accel-buffering": BUFFERING,
    b"content-type": TYPE,
    b"content-encoding": CODING,
    b"content-length": LENGTH,
}

# How many spellings of names are remembered, and how long ones: providers use few, again and again.
KNOWN_NAMES_MAX = 1024
KNOWN_NAME_BYTES_MAX = 64
_known: dict[bytes, int] = {}

ANTHROPIC = Dialect.ANTHROPIC


def meaning_of(name: bytes) -> int:
    """Say what a field is, by a name in any case."""
    meaning = _known.get(name)
    if meaning is None:
        meaning = MEANINGS.get(name.lower(), 0)
        if len(name) <= KNOWN_NAME_BYTES_MAX and len(_known) < KNOWN_NAMES_MAX:
            _known[name] = meaning
    return meaning


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
        *id_fields(request_id, dialect),
        (b"x-iop-reason", failure.reason.encode()),
    ]
    if row.closes:
        headers.append((b"connection", b"close"))
    if row.retry is not None:
        headers.append((b"x-should-retry", b"true" if row.retry else b"false"))
    headers.extend(extra)
    return Head(row.status, REASONS[row.status], headers), body


def id_fields(request_id: bytes, dialect: Dialect, answered: Iterable[Field] = ()) -> list[Field]:
    """Return the fields that carry a request's id; Anthropic's clients look for one of their own, where a provider may
    have put its."""
    fields = [(b"x-request-id", request_id)]
    if dialect is ANTHROPIC and b"request-id" not in [name.lower() for name, _ in answered]:
        fields.append((b"request-id", request_id))
    return fields


def own_fields(request_id: bytes, dialect: Dialect, answered: Iterable[Field], clamped: Sequence[str]) -> list[Field]:
    """Return what the Edge says about an answer besides the provider's own fields: whose it is, and which limits of the
    request were lowered."""
    fields = id_fields(request_id, dialect, answered)
    if clamped:
        fields.append((b"x-iop-clamped", ", ".join(clamped).encode()))
    return fields


def json_answer(body: bytes, request_id: bytes) -> Head:
    """Build the head of a 200 with a JSON body."""
    headers = [JSON_TYPE, (b"content-length", b"%d" % len(body)), (b"x-request-id", request_id)]
    return Head(200, REASONS[200], headers)


def empty_answer(fields: Iterable[Field], request_id: bytes) -> Head:
    """Build the head of a 204."""
    return Head(204, REASONS[204], [*fields, (b"x-request-id", request_id)])


def passed_on(head: Head, own: Iterable[Field]) -> tuple[Head, bool]:
    """Return a provider's head as the client gets it, end-to-end fields as they came and then the Edge's own, and
    whether an error event can be added to the answer: it is a stream of events, not encoded and of no given length."""
    kept: list[Field] = []
    named: set[bytes] | None = None
    is_stream, is_plain, says_buffering = False, True, False
    headers: list[Field] = item(head, 2)
    for field in headers:
        known = _known.get(field[0])
        meaning = meaning_of(field[0]) if known is None else known
        if meaning:
            if meaning == CONNECTION:
                words = [word.strip().lower() for word in field[1].split(b",")]
                named = set(words) if named is None else named.union(words)
            if meaning <= CONNECTION:
                continue
            if meaning == TYPE:
                is_stream = is_event_stream(field[1])
            elif meaning == BUFFERING:
                says_buffering = True
            elif meaning == LENGTH or field[1].strip().lower() not in (b"", b"identity"):
                is_plain = False
        kept.append(field)
    if named is not None:
        kept = [field for field in kept if field[0].lower() not in named]
    if is_stream and not says_buffering:
        kept.append(UNBUFFERED)
    kept += own
    return new_record(Head, (item(head, 0), item(head, 1), kept)), is_stream and is_plain


def is_event_stream(media_type: bytes) -> bool:
    """True for a Content-Type that says events."""
    if media_type == JSON_MEDIA:
        return False
    return media_type == EVENT_STREAM or media_type.partition(b";")[0].strip().lower() == EVENT_STREAM


# ---------------------------------------------------------------------------------------------------------------------
# A stream that breaks off


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
