"""A finished span as plain data, and the names of its attributes.

Names follow OpenTelemetry's semantic conventions 1.44.0: http, url, server and error are stable there. gen_ai has a
repository of its own by now (open-telemetry/semantic-conventions-genai, as of the state that refers to 1.41.1), and is
all "development", so names may change. What has no name there begins with `iop.` and is called as in the access line.

Nothing in a span comes from the text of a request or of an answer, and no field of a header does: names of the
configuration, words of this program, numbers, and the ids of traceparent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple, Protocol

from iop_fast.tracing.context import Place

# HTTP spans.
HTTP_METHOD = "http.request.method"
HTTP_ROUTE = "http.route"
HTTP_STATUS = "http.response.status_code"
HTTP_REQUEST_SIZE = "http.request.body.size"
HTTP_RESPONSE_SIZE = "http.response.body.size"
URL_PATH = "url.path"
URL_SCHEME = "url.scheme"
SERVER_ADDRESS = "server.address"
SERVER_PORT = "server.port"
ERROR_TYPE = "error.type"

# Generative AI client spans.
OPERATION = "gen_ai.operation.name"
PROVIDER_NAME = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
REQUEST_STREAM = "gen_ai.request.stream"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"

# Our own.
REQUEST_ID = "iop.request_id"
PRINCIPAL = "iop.principal"
MODEL = "iop.model"
NODE = "iop.node"
PROVIDER = "iop.provider"
OUTCOME = "iop.outcome"
END = "iop.end"
CONTEXT_CLASS = "iop.class"
ESTIMATED_TOKENS = "iop.estimated_tokens"
RUN_STATUS = "iop.run_status"

# The operation of each API. Those of the conventions where they have one, else one made in their manner.
CHAT, TEXT_COMPLETION, EMBEDDINGS = "chat", "text_completion", "embeddings"
OPERATIONS: Mapping[bytes, str] = {
    b"/v1/chat/completions": CHAT,
    b"/v1/responses": CHAT,
    b"/v1/messages": CHAT,
    b"/v1/messages/count_tokens": "count_tokens",
    b"/v1/completions": TEXT_COMPLETION,
    b"/v1/embeddings": EMBEDDINGS,
    b"/v1/rerank": "rerank",
    b"/v1/audio/speech": "speech",
    b"/v1/audio/transcriptions": "transcription",
    b"/v1/audio/translations": "translation",
    b"/v1/images/generations": "image_generation",
}
OTHER_OPERATION = "other"

Value = str | int | float | bool


class Kind(IntEnum):
    """What a span is to its parent and its children."""

    INTERNAL = 0
    SERVER = 1
    CLIENT = 2


class Moment(NamedTuple):
    """Something that happened within a span."""

    name: str
    at_ns: int


class Span(NamedTuple):
    """One finished span. Times are nanoseconds since 1970; `parent` is None at the root of a trace."""

    name: str
    kind: Kind
    place: Place
    parent: Place | None
    is_parent_remote: bool
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Value]
    moments: Sequence[Moment] = ()
    is_error: bool = False


class SpanSink(Protocol):
    """Where finished spans go (`iop_fast.tracing.export.SpanExport`)."""

    def put(self, span: Span) -> None:
        """Take a span; never waits and never raises."""
        ...

    def counts(self) -> Mapping[str, int]:
        """Return how many were exported, failed and dropped."""
        ...


def operation_of(path: bytes) -> str:
    """Return the operation that a path without query asks for."""
    return OPERATIONS.get(path, OTHER_OPERATION)
