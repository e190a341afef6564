"""Reads the token usage out of what a run relays, without keeping it and without changing a byte.

A reader is fed the answer's pieces as they pass, cut anywhere, and asked once at the end. It reads two kinds of answer,
and both only when they are identity-coded: a JSON document (chat completions, completions, responses, embeddings,
messages) and a text/event-stream of such documents. Whatever else an answer is, its usage is unknown, which is None and
never 0.

Where usage stands: `usage` at the top of a document, `response.usage` (events of /v1/responses), `message.usage`
(message_start of /v1/messages). A stream may report it several times, whole or in part (message_start has the prompt,
message_delta the completion): a later number replaces an earlier one of the same name.

Memory is bounded whatever the answer's size: no document is kept. A scan walks it and copies nothing but the usage
object itself (`_hot/usage_scan`). Fast paths spare the walk: a piece of a stream that holds whole events and no usage
is skipped by one search, and one that is a single event with usage is parsed.
"""

from __future__ import annotations

import re

import orjson

from iop_fast._hot.records import new_record
from iop_fast._hot.usage_scan import UsageScan, names_usage
from iop_fast.seams import Head, Usage

# A piece of a stream up to here is looked at as a whole.
WHOLE_BYTES_MAX = 64 * 1024
COUNT_MAX = 2**63 - 1

JSON, EVENTS = b"application/json", b"text/event-stream"
LINE_END = re.compile(rb"[\r\n]")
EVENT_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")
# Where a document may report usage; the first that does counts.
PLACES = (b"", b"response", b"message")

# Our names, and where the APIs write them. The first spelling present counts.
SPELLINGS: tuple[tuple[str, tuple[tuple[str, ...], ...]], ...] = (
    ("prompt", (("prompt_tokens",), ("input_tokens",))),
    ("completion", (("completion_tokens",), ("output_tokens",))),
    ("cached", (("prompt_tokens_details", "cached_tokens"), ("input_tokens_details", "cached_tokens"))),
    ("cache_read", (("cache_read_input_tokens",),)),
    ("cache_created", (("cache_creation_input_tokens",),)),
)


class UsageReader:
    """Reads usage from one answer. Its subclasses have what raises here: C classes know no abstract methods."""

    __slots__ = ()

    def feed(self, data: bytes) -> None:
        """Take the next piece of the body."""
        raise NotImplementedError

    def result(self) -> Usage | None:
        """Return what was reported so far; None when nothing was."""
        raise NotImplementedError


def usage_reader(head: Head) -> UsageReader | None:
    """Return a reader for an answer with this head, or None for one that reports no usage we can read."""
    content_type = b""
    for name, value in head.headers:
        size = len(name)
        if size == 16 and name.lower() == b"content-encoding" and value.strip().lower() not in (b"", b"identity"):
            return None
        if size == 12 and name.lower() == b"content-type":
            content_type = value
    if content_type != JSON:  # as most servers write it
        content_type = content_type.split(b";", 1)[0].strip().lower()
    if content_type == EVENTS:
        return StreamUsage()
    if content_type == JSON or content_type.endswith(b"+json"):
        return DocumentUsage()
    return None


def value_at(usage: object, path: tuple[str, ...]) -> object:
    """Return what stands at a path of keys, None where nothing does."""
    value = usage
    for key in path:
        if not isinstance(value, dict):
            return None
        inner = value
        value = inner.get(key)
    return value


def numbers_of(usage: object) -> dict[str, int]:
    """Return the counts that one usage object reports, under our names; anything odd is left out."""
    found: dict[str, int] = {}
    for name, spellings in SPELLINGS:
        for path in spellings:
            value = value_at(usage, path)
            # No bool, which is an int too.
            if type(value) is int and 0 <= value <= COUNT_MAX:
                found[name] = value
                break
    return found


def usage_of(numbers: dict[str, int]) -> Usage | None:
    """Fold counts into Usage. Anthropic counts cached prompt tokens apart; here `cached` is a part of `prompt`."""
    if not numbers:
        return None
    cache_read = numbers.get("cache_read", 0)
    prompt = numbers.get("prompt", 0) + cache_read + numbers.get("cache_created", 0)
    return new_record(Usage, (prompt, numbers.get("completion", 0), numbers.get("cached", 0) + cache_read))


def numbers_of_document(document: object) -> dict[str, int]:
    """Return the counts of a parsed document: its own usage, else that of its response, else of its message."""
    if not isinstance(document, dict):
        return {}
    places = [document, document.get("response"), document.get("message")]
    for place in places:
        if isinstance(place, dict) and isinstance(place.get("usage"), dict):
            return numbers_of(place["usage"])
    return {}


def numbers_found(scan: UsageScan) -> dict[str, int]:
    """Return the counts of the document that a scan has walked."""
    for place in PLACES:
        if place in scan.found:
            try:
                return numbers_of(orjson.loads(scan.found[place]))
            except orjson.JSONDecodeError:
                return {}
    return {}


class DocumentUsage(UsageReader):
    """Usage of an answer that is one JSON document."""

    __slots__ = ("_scan",)

    def __init__(self) -> None:
        self._scan = UsageScan()

    def feed(self, data: bytes) -> None:
        """Take the next piece of the body."""
        self._scan.feed(data)

    def result(self) -> Usage | None:
        """Return what the document reports."""
        return usage_of(numbers_found(self._scan))


class StreamUsage(UsageReader):
    """Usage of a text/event-stream (html.spec.whatwg.org, section 9.2.6): lines end by LF, CR or CRLF, an empty line
    ends an event, several `data` lines of one event are one document.
    """

    __slots__ = ("_is_data", "_numbers", "_prefix", "_scan", "_skips_lf")

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._scan: UsageScan | None = None  # of the current event, from its first data line on
        self._prefix: bytes | None = b""  # the line's first bytes; None once its field is known
        self._is_data = False
        self._skips_lf = False  # a CR ended the last piece

    def feed(self, data: bytes) -> None:
        """Take the next piece of the stream."""
        if self._scan is None and self._prefix == b"" and not self._skips_lf and self._take_whole(data):
            return
        self._walk(data)

    def _walk(self, data: bytes) -> None:
        """Take a piece line by line."""
        position, size = 0, len(data)
        if self._skips_lf and size:
            self._skips_lf = False
            position = 1 if data[0] == 0x0A else 0
        while position < size:
            found = LINE_END.search(data, position)
            end = found.start() if found else size
            if end > position:
                self._take(data[position:end])
            if found is None:
                return
            self._end_line()
            position = end + 1
            if data[end] == 0x0D:
                if position == size:
                    self._skips_lf = True
                elif data[position] == 0x0A:
                    position += 1

    def result(self) -> Usage | None:
        """Return what the stream reported, an event that was cut included."""
        numbers = self._numbers if self._scan is None else self._numbers | numbers_found(self._scan)
        return usage_of(numbers)

    def _take_whole(self, data: bytes) -> bool:
        """Fast path between two events: skip whole events that name no usage, parse a single one that does."""
        if not data.endswith(EVENT_ENDS) or len(data) > WHOLE_BYTES_MAX:
            return False
        if not names_usage(data):
            return True
        is_single = data.startswith(b"data:") and data.find(b"\n") == len(data) - 2 and b"\r" not in data
        if not is_single:
            return False
        try:
            self._numbers |= numbers_of_document(orjson.loads(data[5:]))
        except orjson.JSONDecodeError:
            return False
        return True

    def _take(self, part: bytes) -> None:
        """Take a part of the current line, without its end."""
        if self._prefix is not None:
            self._prefix += part
            if len(self._prefix) < 5:
                return
            self._is_data = self._prefix.startswith(b"data:")
            part, self._prefix = self._prefix[5:], None
            if self._is_data and self._scan is None:
                self._scan = UsageScan()
        if self._is_data and self._scan is not None:
            self._scan.feed(part)

    def _end_line(self) -> None:
        if self._prefix == b"" and self._scan is not None:
            self._numbers |= numbers_found(self._scan)
            self._scan = None
        elif self._is_data and self._scan is not None:
            self._scan.feed(b"\n")
        self._prefix = b""
        self._is_data = False
