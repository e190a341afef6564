"""Reads the token usage out of what a run relays, without keeping it and without changing a byte.

A reader is fed the answer's pieces as they pass, cut anywhere, and asked once at the end. It reads two kinds of answer,
and both only when they are identity-coded: a JSON document (chat completions, completions, responses, embeddings,
messages) and a text/event-stream of such documents. Whatever else an answer is, its usage is unknown, which is None and
never 0.

Where usage stands: `usage` at the top of a document, `response.usage` (events of /v1/responses), `message.usage`
(message_start of /v1/messages). A stream may report it several times, whole or in part (message_start has the prompt,
message_delta the completion): a later number replaces an earlier one of the same name.

Memory is bounded whatever the answer's size: no document is kept. A scanner walks it, knows only nesting depth and the
last short key, and copies nothing but the usage object itself, of at most USAGE_BYTES_MAX. Fast paths spare the walk:
an answer that came in one piece is parsed at once, a piece of a stream that holds whole events and no usage is skipped
by one search, and one that is a single event with usage is parsed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Protocol

import orjson

from iop_fast.seams import Head, Usage

USAGE_BYTES_MAX = 16 * 1024
WHOLE_BYTES_MAX = 64 * 1024
COUNT_MAX = 2**63 - 1

# The rest of a JSON string up to its closing quote or to a backslash that ends the piece.
STRING = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
# Everything between strings and brackets: commas, colons, numbers, literals, white space.
GAP = re.compile(rb'[^"{}\[\]]*+')
LINE_END = re.compile(rb"[\r\n]")
EVENT_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")
# A usage key that may hold an object: `"usage":null` stands in every chunk of some servers.
USAGE_KEY = re.compile(rb'"usage"(?!\s*:\s*null)')

KEYS_KEPT = (b"usage", b"response", b"message")
KEY_BYTES_MAX = max(map(len, KEYS_KEPT))

# Our names, and where the APIs write them. The first spelling present counts.
SPELLINGS: dict[str, tuple[tuple[str, ...], ...]] = {
    "prompt": (("prompt_tokens",), ("input_tokens",)),
    "completion": (("completion_tokens",), ("output_tokens",)),
    "cached": (("prompt_tokens_details", "cached_tokens"), ("input_tokens_details", "cached_tokens")),
    "cache_read": (("cache_read_input_tokens",),),
    "cache_created": (("cache_creation_input_tokens",),),
}


class UsageReader(Protocol):
    """Reads usage from one answer."""

    def feed(self, data: bytes) -> None:
        """Take the next piece of the body."""
        ...

    def result(self) -> Usage | None:
        """Return what was reported so far; None when nothing was."""
        ...


def usage_reader(head: Head) -> UsageReader | None:
    """Return a reader for an answer with this head, or None for one that reports no usage we can read."""
    content_type = b""
    for name, value in head.headers:
        lower = name.lower()
        if lower == b"content-encoding" and value.strip().lower() not in (b"", b"identity"):
            return None
        if lower == b"content-type":
            content_type = value.split(b";", 1)[0].strip().lower()
    if content_type == b"text/event-stream":
        return StreamUsage()
    if content_type == b"application/json" or content_type.endswith(b"+json"):
        return DocumentUsage()
    return None


def numbers_of(usage: object) -> dict[str, int]:
    """Return the counts that one usage object reports, under our names; anything odd is left out."""
    found: dict[str, int] = {}
    for name, spellings in SPELLINGS.items():
        for path in spellings:
            value: Any = usage
            for key in path:
                value = value.get(key) if isinstance(value, dict) else None
            if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= COUNT_MAX:
                found[name] = value
                break
    return found


def usage_of(numbers: Mapping[str, int]) -> Usage | None:
    """Fold counts into Usage. Anthropic counts cached prompt tokens apart; here `cached` is a part of `prompt`."""
    if not numbers:
        return None
    cache_read = numbers.get("cache_read", 0)
    prompt = numbers.get("prompt", 0) + cache_read + numbers.get("cache_created", 0)
    return Usage(prompt, numbers.get("completion", 0), numbers.get("cached", 0) + cache_read)


def numbers_of_document(document: object) -> dict[str, int]:
    """Return the counts of a parsed document: its own usage, else that of its response, else of its message."""
    if not isinstance(document, dict):
        return {}
    places = [document, document.get("response"), document.get("message")]
    for place in places:
        if isinstance(place, dict) and isinstance(place.get("usage"), dict):
            return numbers_of(place["usage"])
    return {}


class Scanner:
    """Walks one JSON document piece by piece and keeps its usage objects, by the key that they stand under.

    It trusts the text to be JSON; on other text it finds nothing or something harmless, and never fails.
    """

    __slots__ = ("_captured", "_colon", "_depth", "_escaped", "_in_string", "_key", "_parent", "_until", "found")

    def __init__(self) -> None:
        self.found: dict[bytes, bytes] = {}  # b"" for the top, b"response", b"message"
        self._depth = 0
        self._in_string = False
        self._escaped = False  # a backslash ended the last piece
        self._key: bytes | None = None  # the last string, as long as it may be one of KEYS_KEPT
        self._colon = False  # a colon followed it
        self._parent = b""  # the kept key whose object is open at depth 2
        self._captured: bytearray | None = None
        self._until = 0  # the depth at which the captured object ends

    @property
    def numbers(self) -> dict[str, int]:
        """The counts found so far."""
        for place in (b"", b"response", b"message"):
            if place in self.found:
                try:
                    return numbers_of(orjson.loads(self.found[place]))
                except orjson.JSONDecodeError:
                    return {}
        return {}

    def feed(self, data: bytes) -> None:
        """Take the next piece."""
        start = 0 if self._captured is not None else -1  # where the captured object goes on in this piece
        position, size = 0, len(data)
        while position < size:
            if self._in_string:
                position = self._walk_string(data, position)
                continue
            end = GAP.match(data, position).end()  # type: ignore[union-attr]  # it matches the empty string too
            if self._key is not None:
                self._note_gap(data, position, end)
            position = end + 1
            if end == size:
                break
            mark = data[end]
            if mark == 0x22:  # a quote
                self._in_string = True
                self._key = b"" if self._depth <= 2 else None
                self._colon = False
            elif mark in b"{[":
                if self._open(mark):
                    start = end
            elif self._close():
                self._keep(data[start:position])
                start = -1
        if start >= 0:
            self._capture_more(data[start:])

    def _walk_string(self, data: bytes, position: int) -> int:
        """Go to the string's end or the piece's; return the position after it."""
        if self._escaped:
            self._escaped = False
            position += 1
            self._key = None
        end = STRING.match(data, position).end()  # type: ignore[union-attr]  # it matches the empty string too
        if self._key is not None:
            key = self._key + data[position : min(end, position + KEY_BYTES_MAX + 1)]
            self._key = key if len(key) <= KEY_BYTES_MAX else None
        if end == len(data):
            return end
        if data[end] == 0x22:
            self._in_string = False
        else:
            self._escaped = True
        return end + 1

    def _note_gap(self, data: bytes, start: int, end: int) -> None:
        """A colon makes the last string a key; a comma ends whatever it was."""
        if data.find(b",", start, end) >= 0:
            self._key = None
        elif data.find(b":", start, end) >= 0:
            self._colon = True

    def _open(self, mark: int) -> bool:
        """Enter an object or array; True when it is a usage object to be captured from here."""
        self._depth += 1
        key = self._key if self._colon and mark == 0x7B else None
        self._key = None
        self._colon = False
        if key is None or self._captured is not None:
            return False
        if self._depth == 2 and key in (b"response", b"message"):
            self._parent = key
        elif key == b"usage" and (self._depth == 2 or (self._depth == 3 and self._parent)):
            self._captured = bytearray()
            self._until = self._depth - 1
            return True
        return False

    def _close(self) -> bool:
        """Leave an object or array; True when it was the captured one."""
        self._depth -= 1
        self._key = None
        self._colon = False
        is_captured = self._captured is not None and self._depth == self._until
        if self._depth < 2 and not is_captured:
            self._parent = b""
        return is_captured

    def _capture_more(self, part: bytes) -> None:
        if self._captured is not None:
            self._captured += part
            if len(self._captured) > USAGE_BYTES_MAX:
                self._captured = None

    def _keep(self, part: bytes) -> None:
        """The captured object is whole; the last one under a key counts."""
        self._capture_more(part)
        if self._captured is not None:
            self.found[self._parent] = bytes(self._captured)
            self._captured = None


class DocumentUsage:
    """Usage of an answer that is one JSON document."""

    __slots__ = ("_scanner", "_whole")

    def __init__(self) -> None:
        self._whole: bytes | None = None
        self._scanner: Scanner | None = None

    def feed(self, data: bytes) -> None:
        """Take the next piece of the body."""
        if self._scanner is None:
            if self._whole is None and len(data) <= WHOLE_BYTES_MAX:
                self._whole = data
                return
            self._scanner = Scanner()
            if self._whole is not None:
                self._scanner.feed(self._whole)
                self._whole = None
        self._scanner.feed(data)

    def result(self) -> Usage | None:
        """Return what the document reports."""
        if self._scanner is not None:
            return usage_of(self._scanner.numbers)
        if self._whole is None or USAGE_KEY.search(self._whole) is None:
            return None
        try:
            return usage_of(numbers_of_document(orjson.loads(self._whole)))
        except orjson.JSONDecodeError:
            scanner = Scanner()
            scanner.feed(self._whole)
            return usage_of(scanner.numbers)


class StreamUsage:
    """Usage of a text/event-stream (html.spec.whatwg.org, section 9.2.6): lines end by LF, CR or CRLF, an empty line
    ends an event, several `data` lines of one event are one document.
    """

    __slots__ = ("_is_data", "_numbers", "_prefix", "_scanner", "_skips_lf")

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._scanner: Scanner | None = None  # of the current event, from its first data line on
        self._prefix: bytes | None = b""  # the line's first bytes; None once its field is known
        self._is_data = False
        self._skips_lf = False  # a CR ended the last piece

    def feed(self, data: bytes) -> None:
        """Take the next piece of the stream."""
        if self._scanner is None and self._prefix == b"" and not self._skips_lf and self._take_whole(data):
            return
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
        numbers = self._numbers if self._scanner is None else self._numbers | self._scanner.numbers
        return usage_of(numbers)

    def _take_whole(self, data: bytes) -> bool:
        """Fast path between two events: skip whole events that name no usage, parse a single one that does."""
        if not data.endswith(EVENT_ENDS) or len(data) > WHOLE_BYTES_MAX:
            return False
        if USAGE_KEY.search(data) is None:
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
            if self._is_data and self._scanner is None:
                self._scanner = Scanner()
        if self._is_data and self._scanner is not None:
            self._scanner.feed(part)

    def _end_line(self) -> None:
        if self._prefix == b"" and self._scanner is not None:
            self._numbers |= self._scanner.numbers
            self._scanner = None
        elif self._is_data and self._scanner is not None:
            self._scanner.feed(b"\n")
        self._prefix = b""
        self._is_data = False
