"""Large media in a request's body: found without reading the body, decoded piece by piece.

Images and sound come as base64 in JSON strings: `"data:image/png;base64,..."`, or the `data` of an `input_audio`.
Decoding tens of megabytes at once would hold the loop for as many milliseconds, so the long ones stay where they are:
they are found by their beginning, and each piece that leaves for a Node decodes its own part.

The search needs no parser. The body is known to be JSON (the scan has read it), and in JSON a quote that no backslash
precedes and that a letter follows opens a string. So `"data` with such a quote is the beginning of a string, and base64
holds neither quotes nor backslashes, so the next quote is its end. (A backslash that is the end of `\\\\` precedes a
closing quote, and no letter follows that.) What has a backslash in it, `\\/` for example, is read with the rest.
"""

from __future__ import annotations

import re
from binascii import Error, a2b_base64
from typing import NamedTuple

from iop_fast.edge.body import Body
from iop_fast.edge.outcomes import RequestRefused, Verdict
from iop_fast.errors import Failure

# Shorter media is read with the rest of the body.
LONG_BYTES = 2 * 1024
# What may stand between the first quote and the base64.
LEAD_BYTES_MAX = 512
# Places that are looked at closely; a body of more is not worth the search.
LOOKS_MAX = 2048
LEAD = re.compile(rb'"data(?::[^"\\,]*;base64,|"[ \t\r\n]*:[ \t\r\n]*")')


class Span(NamedTuple):
    """Where base64 stands in a body."""

    start: int
    end: int


def find_media(body: Body, start: int, end: int, other_max: int) -> list[Span]:
    """Return the long base64 in a part of a body, in order. The search ends when more than `other_max` bytes of other
    text were passed, or after LOOKS_MAX places that could have been some."""
    found: list[Span] = []
    at, passed = start, 0
    for _ in range(LOOKS_MAX):
        if passed > other_max:
            break
        quote = body.find(b'"data', at, end)
        if quote < 0:
            break
        passed += quote - at
        at = quote + 1
        if quote > start and body.slice(quote - 1, quote) == b"\\":
            continue
        lead = LEAD.match(body.slice(quote, min(quote + LEAD_BYTES_MAX, end)))
        if lead is None:
            continue
        first = quote + lead.end()
        last = body.find(b'"', first, end)
        if last - first >= LONG_BYTES and body.find(b"\\", first, last) < 0:
            found.append(Span(first, last))
            at = last
    return found


def decode(text: bytes, param: str) -> bytes:
    """Decode base64, its padding given or not; raise RequestRefused."""
    try:
        return a2b_base64(text + b"=" * (-len(text) % 4), strict_mode=True)
    except Error as error:
        raise bad_base64(param) from error


def bad_base64(param: str) -> RequestRefused:
    """Return what is said of broken base64."""
    return RequestRefused(Verdict(Failure.INVALID_REQUEST, f"{param}: expected base64 (RFC 4648, section 4)"), param)


class Media:
    """Base64 in a body as the bytes that it stands for. `param` names it to its client."""

    __slots__ = ("_body", "_end", "_start", "param", "size")

    def __init__(self, body: Body, span: Span, param: str) -> None:
        """Raises RequestRefused for a length that no base64 has."""
        self._body = body
        self._start, self._end = span
        self.param = param
        if self._end - self._start >= 2:
            tail = body.slice(self._end - 2, self._end)
            self._end -= len(tail) - len(tail.rstrip(b"="))
        quads, rest = divmod(self._end - self._start, 4)
        if rest == 1:
            raise bad_base64(param)
        self.size = quads * 3 + (rest * 3) // 4

    def piece(self, first: int, last: int) -> bytes:
        """Decode the bytes from `first` up to `last`; raise RequestRefused where the text is no base64."""
        start = first // 3
        text = self._body.slice(self._start + start * 4, min(self._start + -(-last // 3) * 4, self._end))
        return decode(text, self.param)[first - start * 3 : last - start * 3]
