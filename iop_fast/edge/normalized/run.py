"""The run of a normalized request as its session knows it: between the Node's events and the exchange.

The exchange knows answers: a head, bytes, an end. So this object stands in the session's table in the exchange's place,
hands on what is the same for every run (sent, window, lost) and turns events into what the exchange already handles.
Keep-alive, broken streams, books, windows, re-admission and cancelling have one home, the exchange.

- A stream's head goes out with its first event, so that a refusal before it can still be an answer of its own.
- Any other answer is collected, to ANSWER_BYTES_MAX, and goes out whole with the end; its window is renewed meanwhile.
- REFUSED while nothing was sent is the provider's own error answer, passed on with its status as a tunnel's is.
- The window counts what events took on the link, and not what is made of them for the client.

A Node whose events make no answer loses the run: FrameError, which the session takes as it takes any malformed run.
"""

from __future__ import annotations

from typing import Protocol

import orjson

from iop_fast._hot.frames import EVENT_BYTES, FrameError
from iop_fast.edge.answers import JSON_TYPE, REASONS
from iop_fast.edge.normalized.translation import IncompleteAnswer, Translation
from iop_fast.edge.state import RunLink
from iop_fast.edge.usage import believable
from iop_fast.seams import EdgeRun, End, Head, RunSaid
from iop_fast.wire.options import MAX_MESSAGE_BYTES
from iop_fast.wire.runtime_pb2 import RunEnd

# An event that begins within the window is sent whole.
OVERDRAFT_BYTES = MAX_MESSAGE_BYTES
# What is collected of an answer that is no stream.
ANSWER_BYTES_MAX = 32 * 1024 * 1024
# Of a provider's own words about a refusal, this much reaches the client.
REFUSAL_CHARACTERS = 2048

STREAM_FIELDS = ((b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"))

# OpenAI's words for a status: type and code (platform.openai.com, "Error codes").
REFUSAL_WORDS = {
    401: ("authentication_error", "invalid_api_key"),
    403: ("permission_error", None),
    404: ("invalid_request_error", "model_not_found"),
    429: ("rate_limit_error", "rate_limit_exceeded"),
}


class Exchange(Protocol):
    """What is used of an exchange (`iop_fast.edge.exchange.Exchange`)."""

    def on_sent(self, message_number: int) -> None:
        """The provider may see the request."""
        ...

    def on_window(self, byte_count: int) -> None:
        """The Node takes more of the input."""
        ...

    def on_link_lost(self) -> None:
        """The session is gone."""
        ...

    def on_answer(self, taken: bool, head: Head | None, data: list[bytes], end: End | None) -> None:
        """Take what came without an event."""
        ...

    def on_translated(self, head: Head | None, data: list[bytes], end: End | None, byte_count: int) -> None:
        """Take what events came to."""
        ...


class NormalizedRun(EdgeRun):
    """One normalized run. See the module's head."""

    __slots__ = ("_collected", "_events_max", "_exchange", "_has_begun", "_link", "_run_id", "_translation")

    def __init__(
        self, exchange: Exchange, link: RunLink, run_id: int, translation: Translation, window_bytes: int
    ) -> None:
        self._exchange = exchange
        self._link = link
        self._run_id = run_id
        self._translation = translation
        self._events_max = window_bytes // EVENT_BYTES + 1  # that a window may hold: each counts EVENT_BYTES and more
        self._has_begun = False  # the head was handed on
        self._collected = 0  # bytes of the window that wait here

    @property
    def exchange(self) -> Exchange:
        """The exchange that it stands for."""
        return self._exchange

    def on_sent(self, message_number: int) -> None:
        """Hand on."""
        self._exchange.on_sent(message_number)

    def on_window(self, byte_count: int) -> None:
        """Hand on."""
        self._exchange.on_window(byte_count)

    def on_link_lost(self) -> None:
        """Hand on."""
        self._exchange.on_link_lost()

    def on_answer(self, taken: bool, head: Head | None, data: list[bytes], end: End | None) -> None:
        """Take what came without an event."""
        if head is not None or data:
            raise FrameError("bytes of a tunnel came for a normalized run")
        if end is None or end.status not in (RunEnd.OK, RunEnd.REFUSED):
            self._exchange.on_answer(taken, None, [], end)
        else:
            self._finish([], 0, end)

    def on_events(self, taken: bool, said: list[RunSaid], byte_count: int, end: End | None) -> None:
        """Take the events of a message."""
        if len(said) > self._events_max:
            raise FrameError(f"{len(said)} events came at once, expected what a window may hold, {self._events_max}")
        pieces = self._translation.add(said)
        if end is not None:
            self._finish(pieces, byte_count, end)
        elif self._translation.is_stream:
            head = None
            if pieces and not self._has_begun:
                self._has_begun = True
                head = Head(200, REASONS[200], [*STREAM_FIELDS])
            self._exchange.on_translated(head, pieces, None, byte_count)
        else:
            self._collected += byte_count
            if self._collected > ANSWER_BYTES_MAX:
                raise FrameError(f"an answer that is no stream is larger than {ANSWER_BYTES_MAX} bytes")
            self._exchange.on_translated(None, [], None, byte_count)
            self._link.hold(self._run_id, self._collected)

    def _finish(self, pieces: list[bytes], byte_count: int, end: End) -> None:
        """Hand on the rest of the answer, as whole as its end says."""
        head = None
        if end.status == RunEnd.OK:
            try:
                pieces += self._translation.close(believable(end.usage))
            except IncompleteAnswer as error:
                end = End(RunEnd.UPSTREAM_ERROR, str(error), end.usage)
            else:
                head = None if self._has_begun else self._head(pieces)
        elif end.status == RunEnd.REFUSED and not self._has_begun and 400 <= end.refusal_status <= 599:
            head, body = refusal(end)
            pieces, end = [body], End(RunEnd.OK, end.detail, end.usage)
        self._exchange.on_translated(head, pieces, end, byte_count)

    def _head(self, pieces: list[bytes]) -> Head:
        if self._translation.is_stream:
            return Head(200, REASONS[200], [*STREAM_FIELDS])
        return json_head(200, sum(map(len, pieces)))


def json_head(status: int, length: int) -> Head:
    """Return the head of an answer in JSON."""
    return Head(status, REASONS.get(status, b""), [JSON_TYPE, (b"content-length", b"%d" % length)])


def refusal(end: End) -> tuple[Head, bytes]:
    """Return the provider's own error as an OpenAI client reads it."""
    status = end.refusal_status
    kind, code = REFUSAL_WORDS.get(status, ("invalid_request_error" if status < 500 else "server_error", None))
    message = end.detail[:REFUSAL_CHARACTERS] or "the provider refused the request"
    body = orjson.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}})
    return json_head(status, len(body)), body
