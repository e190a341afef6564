"""What Ollama refuses and how it fails, as ends of a run and in words for the client.

Ollama answers an error with a JSON object, `{"error": "..."}`, under an HTTP status, or as a line of a stream that has
begun (docs.ollama.com/api/errors). Before the first event it is a refusal of the provider's own and keeps its status;
after it the answer is broken off.
"""

from __future__ import annotations

import re

import orjson

from iop_fast.seams import End, Head
from iop_fast.wire import runtime_pb2 as pb

# Of a refusal's body, and of a message passed on.
BODY_BYTES_MAX = 64 * 1024
MESSAGE_CHARS_MAX = 1_000

# What an error has that comes without a status: Ollama says 500 itself where it can still say one.
UNKNOWN_STATUS = 500

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


class TaskError(Exception):
    """A task that Ollama cannot be given; the text names the parameter, what was expected and what came."""


class AnswerError(Exception):
    """What came as an answer is none of Ollama's, or is not whole; the text says in a few words what is wrong."""


class ProviderError(Exception):
    """Ollama reports an error in place of a line of its answer. `status` is the HTTP status that says it best."""

    def __init__(self, message: str, status: int = UNKNOWN_STATUS) -> None:
        super().__init__(message)
        self.status = status


def error_in(fields: dict[str, object]) -> ProviderError | None:
    """Return the error that a JSON object reports, None when it reports none."""
    error = fields.get("error")
    if not error:
        return None
    if isinstance(error, dict):  # as OpenAI spells it, and servers that stand before an Ollama
        error = error.get("message")
    message = clean(error) if isinstance(error, str) else ""
    status = fields.get("status")
    if not isinstance(status, int) or not 400 <= status <= 599:
        status = UNKNOWN_STATUS
    return ProviderError(message or "the provider reported an error without a message", status)


def refused_task(error: TaskError) -> End:
    """Return the end of a run that was refused here."""
    return refused(str(error), 400)


def refused(message: str, status: int) -> End:
    """Return the end of a run that the provider refused."""
    return End(pb.RunEnd.REFUSED, message, None, status)


def broken(detail: str) -> End:
    """Return the end of a run whose answer the provider broke off, or that is none."""
    return End(pb.RunEnd.UPSTREAM_ERROR, detail, None)


def refusal_of(head: Head, body: bytes, model: str, provider_id: str) -> End:
    """Return the end for an answer with an error status: Ollama's own words, and what to do where that is known."""
    status = head.status
    if not 400 <= status <= 599:
        return broken(f"the provider answered {status}, expected 200")
    error = reported(body)
    if error is None:
        if status == 404:
            return broken("the provider answered 404: its endpoint is not the root of an Ollama, or an old one's")
        return refused(f"the provider answered {status} {clean(head.reason.decode('latin-1'))}".rstrip(), status)
    message = str(error)
    if status == 404:
        message = f"{message} (on provider {provider_id}: run `ollama pull {model}` there)"
    return refused(message, status)


def reported(body: bytes) -> ProviderError | None:
    """Return the error that a body reports, None for a body that is not Ollama's."""
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return error_in(fields) if isinstance(fields, dict) else None


def clean(text: str) -> str:
    """Return text as one line of bounded length."""
    line = CONTROL.sub(" ", text).strip()
    return line if len(line) <= MESSAGE_CHARS_MAX else line[: MESSAGE_CHARS_MAX - 3] + "..."
