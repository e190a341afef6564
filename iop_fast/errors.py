"""Every way to fail, in one place: what goes to the client, and what goes to who wrote a configuration.

The HTTP table is DESIGN's error table as data. `code` is stable and for machines, `reason` is the outcome label shared
by the `x-iop-reason` header, metrics and the access log. Messages are for people and are written where the failure is
met. A provider's own error answer is passed through and has no row here. docs/errors.md is made from this table.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import orjson


@dataclass(frozen=True, slots=True)
class FailureRow:
    """One row of the error table. `when` says to people what brings it about and what helps, `closes` that the
    connection cannot be kept after it."""

    status: int
    type: str
    code: str
    when: str
    closes: bool = False
    retry: bool | None = None  # x-should-retry, where the answer to "try again?" is known better than by status


class Failure(Enum):
    """How a request failed. The member's lower-case name is the reason label."""

    QUEUE_FULL = FailureRow(
        429,
        "rate_limit_error",
        "queue_full",
        "Every slot of the model is taken and as many requests wait as may (`provider_pool.max_queue`). "
        "`Retry-After` says in how many seconds a slot is likely to be free, from the rate at which they come"
        " back.",
    )
    QUEUE_TIMEOUT = FailureRow(
        504,
        "timeout_error",
        "queue_timeout",
        "The request has waited `provider_pool.queue_timeout_ms` for a slot. Sending it again puts it at the "
        "end of the line.",
        retry=False,
    )
    UNAVAILABLE = FailureRow(
        503,
        "service_unavailable_error",
        "provider_unavailable",
        "No provider of the model can take requests now: its Node is away, or it is disabled or unhealthy. "
        "Said at once on arrival, and to those who wait when the last provider goes.",
    )
    DRAINING = FailureRow(
        503,
        "service_unavailable_error",
        "draining",
        "The gateway is shutting down. Another instance, or this one when it is back, will serve.",
        closes=True,
    )
    OVERLOADED = FailureRow(
        503,
        "service_unavailable_error",
        "overloaded",
        "The gateway holds as many connections (`openai.limits.connections`, `connections_per_address`), as many"
        " bytes of request bodies (`buffered_bytes`), or as much for the one Node that could serve the request"
        " (`edge.link.buffered_bytes_max`) as it may.",
        closes=True,
    )
    MODEL_NOT_FOUND = FailureRow(
        404,
        "invalid_request_error",
        "model_not_found",
        "No model of that name is configured. The message names ones that look like it.",
    )
    NOT_FOUND = FailureRow(
        404,
        "invalid_request_error",
        "not_found",
        "There is no such path.",
    )
    METHOD_NOT_ALLOWED = FailureRow(
        405,
        "invalid_request_error",
        "method_not_allowed",
        "The path exists, for the methods that the field `Allow` names.",
    )
    UNSUPPORTED_BY_MODEL = FailureRow(
        400,
        "invalid_request_error",
        "unsupported_by_model",
        "No provider of the model offers what the request needs: its API (surface), tools, images, audio or a"
        " JSON schema. The message names it.",
    )
    INVALID_REQUEST = FailureRow(
        400,
        "invalid_request_error",
        "invalid_request",
        "The body is not a JSON object, holds a key twice, or has no `model`; or it is a form that parsers read in"
        " different ways. The message says what was expected, `param` names the field.",
    )
    MALFORMED_HTTP = FailureRow(
        400,
        "invalid_request_error",
        "malformed_http",
        "The bytes are not a clean HTTP/1.1 request (RFC 9112): framing, Host, line ends, characters.",
        closes=True,
    )
    EXPECTATION_FAILED = FailureRow(
        417,
        "invalid_request_error",
        "expectation_failed",
        "The request expects something else than `100-continue`.",
        closes=True,
    )
    METHOD_NOT_IMPLEMENTED = FailureRow(
        501,
        "invalid_request_error",
        "method_not_implemented",
        "The method is none of HTTP's.",
        closes=True,
    )
    ENCODING_NOT_IMPLEMENTED = FailureRow(
        501,
        "invalid_request_error",
        "transfer_encoding",
        "The request has a Transfer-Encoding other than `chunked`.",
        closes=True,
    )
    VERSION_NOT_SUPPORTED = FailureRow(
        505,
        "invalid_request_error",
        "http_version_not_supported",
        "The request is not HTTP/1.1 or HTTP/1.0, for example an HTTP/2 preface.",
        closes=True,
    )
    REQUEST_TOO_LARGE = FailureRow(
        413,
        "invalid_request_error",
        "request_too_large",
        "The body is larger than `openai.limits.body_bytes`.",
        closes=True,
    )
    URI_TOO_LONG = FailureRow(
        414,
        "invalid_request_error",
        "uri_too_long",
        "The target is longer than `openai.limits.target_bytes`.",
        closes=True,
    )
    HEAD_TOO_LARGE = FailureRow(
        431,
        "invalid_request_error",
        "head_too_large",
        "The head is larger than `openai.limits.head_bytes` or has more fields than `head_fields`.",
        closes=True,
    )
    REQUEST_TIMEOUT = FailureRow(
        408,
        "invalid_request_error",
        "request_timeout",
        "The head took longer than `openai.limits.header_ms`, or the body came slower than `body_bytes_per_second`.",
        closes=True,
    )
    UNSUPPORTED_ENCODING = FailureRow(
        415,
        "invalid_request_error",
        "unsupported_content_encoding",
        "The body has a Content-Encoding. Send it as it is.",
    )
    UNSUPPORTED_MEDIA_TYPE = FailureRow(
        415,
        "invalid_request_error",
        "unsupported_media_type",
        "The Content-Type is not that of the path: `application/json` in UTF-8 (which a request without one is taken"
        " for), or `multipart/form-data` for audio uploads.",
    )
    INVALID_API_KEY = FailureRow(
        401,
        "authentication_error",
        "invalid_api_key",
        "A principal is required (`openai.require_principal`) and the token is missing or unknown, or two "
        "different tokens stand in one request. The body is the same in each case.",
    )
    MISSING_PROVIDER_AUTHORIZATION = FailureRow(
        401,
        "authentication_error",
        "missing_provider_authorization",
        "The header that `openai.provider_auth` forwards is missing, empty or there twice.",
    )
    UPSTREAM_ERROR = FailureRow(
        502,
        "api_error",
        "upstream_error",
        "The provider could not be reached, broke off or sent no valid answer, or its Node was lost. What a "
        "provider cannot have seen was tried once more, elsewhere.",
    )
    UPSTREAM_TIMEOUT = FailureRow(
        504,
        "timeout_error",
        "upstream_timeout",
        "The provider was silent for longer than its `timeouts` allow.",
    )
    INTERNAL = FailureRow(
        500,
        "server_error",
        "internal",
        "A fault of the gateway. Its log has the traceback under the request's id.",
    )

    @property
    def reason(self) -> str:
        """The outcome label of header, metrics and log."""
        return self.name.lower()


def error_body(failure: Failure, message: str, param: str | None = None) -> bytes:
    """Render OpenAI's error object (platform.openai.com, "Error codes") as compact JSON."""
    row = failure.value
    return orjson.dumps({"error": {"message": message, "type": row.type, "param": param, "code": row.code}})


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One thing wrong (or doubtful) in a configuration file, where it stands. `line` and `column` count from 1."""

    file: str
    line: int
    column: int
    severity: str  # "error" | "warning"
    path: str  # nodes[ID].providers[ID].capacity; "" for the file as a whole
    message: str

    def __str__(self) -> str:
        place = f"{self.path}: " if self.path else ""
        return f"{self.file}:{self.line}:{self.column}: {self.severity}: {place}{self.message}"


class ConfigError(Exception):
    """A configuration is refused. Carries every finding, warnings included, sorted by place."""

    def __init__(self, findings: list[Finding]) -> None:
        self.findings = sorted(findings)
        super().__init__("\n".join(map(str, self.findings)))
