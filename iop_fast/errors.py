"""Every way to fail, in one place: what goes to the client, and what goes to who wrote a configuration.

The HTTP table is DESIGN's error table as data. `code` is stable and for machines, `reason` is the outcome label shared
by the `x-iop-reason` header, metrics and the access log. Messages are for people and are written where the failure is
met. A provider's own error answer is passed through and has no row here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import orjson


@dataclass(frozen=True, slots=True)
class FailureRow:
    """One row of the error table. `closes`: the connection cannot be kept after it."""

    status: int
    type: str
    code: str
    closes: bool = False
    retry: bool | None = None  # x-should-retry, where the answer to "try again?" is known better than by status


class Failure(Enum):
    """How a request failed. The member's lower-case name is the reason label."""

    QUEUE_FULL = FailureRow(429, "rate_limit_error", "queue_full")
    QUEUE_TIMEOUT = FailureRow(504, "timeout_error", "queue_timeout", retry=False)
    UNAVAILABLE = FailureRow(503, "service_unavailable_error", "provider_unavailable")
    DRAINING = FailureRow(503, "service_unavailable_error", "draining", closes=True)
    OVERLOADED = FailureRow(503, "service_unavailable_error", "overloaded", closes=True)
    MODEL_NOT_FOUND = FailureRow(404, "invalid_request_error", "model_not_found")
    NOT_FOUND = FailureRow(404, "invalid_request_error", "not_found")
    METHOD_NOT_ALLOWED = FailureRow(405, "invalid_request_error", "method_not_allowed")
    UNSUPPORTED_BY_MODEL = FailureRow(400, "invalid_request_error", "unsupported_by_model")
    INVALID_REQUEST = FailureRow(400, "invalid_request_error", "invalid_request")
    MALFORMED_HTTP = FailureRow(400, "invalid_request_error", "malformed_http", closes=True)
    EXPECTATION_FAILED = FailureRow(417, "invalid_request_error", "expectation_failed", closes=True)
    METHOD_NOT_IMPLEMENTED = FailureRow(501, "invalid_request_error", "method_not_implemented", closes=True)
    ENCODING_NOT_IMPLEMENTED = FailureRow(501, "invalid_request_error", "transfer_encoding", closes=True)
    VERSION_NOT_SUPPORTED = FailureRow(505, "invalid_request_error", "http_version_not_supported", closes=True)
    REQUEST_TOO_LARGE = FailureRow(413, "invalid_request_error", "request_too_large", closes=True)
    URI_TOO_LONG = FailureRow(414, "invalid_request_error", "uri_too_long", closes=True)
    HEAD_TOO_LARGE = FailureRow(431, "invalid_request_error", "head_too_large", closes=True)
    REQUEST_TIMEOUT = FailureRow(408, "invalid_request_error", "request_timeout", closes=True)
    UNSUPPORTED_ENCODING = FailureRow(415, "invalid_request_error", "unsupported_content_encoding")
    INVALID_API_KEY = FailureRow(401, "authentication_error", "invalid_api_key")
    MISSING_PROVIDER_AUTHORIZATION = FailureRow(401, "authentication_error", "missing_provider_authorization")
    UPSTREAM_ERROR = FailureRow(502, "api_error", "upstream_error")
    UPSTREAM_TIMEOUT = FailureRow(504, "timeout_error", "upstream_timeout")
    INTERNAL = FailureRow(500, "server_error", "internal")

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
