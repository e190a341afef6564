"""The answer to one request, framed for HTTP/1.1 or 1.0: the `Downstream` that a service writes to.

An Answer belongs to one request of one connection and is *open* from its making until one of
- `send(..., end=True)`: the answer is whole; the connection goes on with the next request or closes,
- `abort`, or a body that does not fit its content-length: cut, never made to look whole,
- the connection: the client left, or the request turned out broken and was answered by the connection.
From then on it is detached (it knows no connection) and swallows everything, so that a late caller can neither reach
the next answer of a kept connection nor a closed transport.

Framing is decided with the head, in this order: no body (HEAD, 204, 304); the content-length given; the length known
because the whole answer came in one call; chunks; and for HTTP/1.0 the end of the connection.

Each `send` makes one write of one bytes object: uvloop turns every write into a system call and a segment.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from iop_fast._hot.fields import number_at
from iop_fast._hot.records import item
from iop_fast._hot.text import Block
from iop_fast.seams import Head

if TYPE_CHECKING:
    from iop_fast.edge.front.peer import Peer

# How the body of an answer is delimited.
UNDECIDED, NO_BODY, BY_LENGTH, BY_CHUNKS, BY_CLOSE = range(5)

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"
STATUS_MIN, STATUS_MAX = 200, 599
LENGTH_DIGITS_MAX = 18
_STATUS_LINES = [b"HTTP/1.1 %d " % status for status in range(STATUS_MIN, STATUS_MAX + 1)]

_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# Field names that mean something to the framing, and those of a hop.
_LENGTH, _DATE, _CONNECTION, _DROPPED = range(4)
_MEANING = {
    b"content-length": _LENGTH,
    b"date": _DATE,
    b"connection": _CONNECTION,
    b"keep-alive": _DROPPED,
    b"proxy-connection": _DROPPED,
    b"transfer-encoding": _DROPPED,
    b"te": _DROPPED,
    b"trailer": _DROPPED,
    b"upgrade": _DROPPED,
}
KNOWN_NAMES_MAX = 1024
KNOWN_NAME_BYTES_MAX = 64
# By name as it was given: its meaning or, for all others, what its line begins with.
_known: dict[bytes, int | bytes] = dict(_MEANING)
# What the fields of a head say beside its length.
HAS_DATE, ASKS_CLOSE = 1, 2

# Where heads are written: one for all answers, since nothing else runs while one is.
_written = Block()


def _learn(name: bytes) -> int | bytes:
    """Judge a field name that is not in `_known` and remember it: providers use few names, again and again."""
    if _TOKEN.fullmatch(name) is None:
        raise ValueError(f"{name!r} is no name of a header field")
    known = _MEANING.get(name.lower(), b"\r\n" + name + b": ")
    if len(name) <= KNOWN_NAME_BYTES_MAX and len(_known) < KNOWN_NAMES_MAX:
        _known[name] = known
    return known


class Answer:
    """One answer; see the module's text. Made by the connection only."""

    __slots__ = (
        "_connection",
        "_framing",
        "_is_http10",
        "_keeps",
        "_left",
        "_without_body",
        "is_open",
        "is_writable",
    )

    def __init__(self, connection: Peer, without_body: bool, is_http10: bool, is_writable: bool) -> None:
        self._connection: Peer | None = connection
        self._without_body = without_body
        self._is_http10 = is_http10
        self._keeps = False
        self._framing = UNDECIDED
        self._left = 0
        self.is_open = True
        self.is_writable = is_writable

    @property
    def has_begun(self) -> bool:
        """True once the head was sent: from then on no other answer can be given."""
        return self._framing != UNDECIDED

    @property
    def is_without_body(self) -> bool:
        """True for the answer to a HEAD request."""
        return self._without_body

    @property
    def is_ended_by_close(self) -> bool:
        """True where the client takes the end of the connection for the end of the answer."""
        return self._framing == BY_CLOSE

    def detach(self) -> None:
        """End the answer from the connection's side: nothing more is sent."""
        self.is_open = False
        self._connection = None

    def send(self, head: Head | None, pieces: Sequence[bytes], end: bool) -> None:
        """Send the head (once, first), body pieces and the proper end, in one write; see `Downstream.send`."""
        connection = self._connection
        if connection is None:
            return
        size = 0
        for piece in pieces:
            size += len(piece)
        _written.clear()
        if head is not None:
            assert self._framing == UNDECIDED, "the answer's head was sent already"
            self._write_head(connection, head, size, end)
        else:
            assert self._framing != UNDECIDED, "the answer's head comes first"
        block = self._frame(pieces, size, end)
        if block is None:
            self._cut(connection)
            return
        if block:
            connection.write(block)
        if end:
            self.is_open = False
            self._connection = None
            connection.on_answer_end(self._keeps)

    def abort(self) -> None:
        """Cut the connection without a proper end; what was sent before still reaches a client that reads."""
        if self._connection is not None:
            self._cut(self._connection)

    def _cut(self, connection: Peer) -> None:
        self.detach()
        connection.on_answer_cut(self._framing == BY_CLOSE)

    def _frame(self, pieces: Sequence[bytes], size: int, end: bool) -> bytes | None:
        """Return what was written with the framed pieces behind it, None where they contradict the content-length."""
        framing = self._framing
        last = b""
        if framing == NO_BODY:
            return _written.take()
        if framing == BY_CHUNKS:
            if size:
                _written.put_hexadecimal(size)
                _written.put(b"\r\n")
                last = b"\r\n0\r\n\r\n" if end else b"\r\n"
            elif end:
                last = LAST_CHUNK
        elif framing == BY_LENGTH:
            self._left -= size
            if self._left < 0 or (end and self._left):
                return None
        return _written.take_with(pieces if isinstance(pieces, list) else list(pieces), last)

    def _write_head(self, connection: Peer, head: Head, size: int, end: bool) -> None:
        """Decide the framing and write the head; raise ValueError, and change nothing, where it cannot be written."""
        status: int = item(head, 0)
        if not STATUS_MIN <= status <= STATUS_MAX:
            raise ValueError(f"status of an answer must be {STATUS_MIN} to {STATUS_MAX}, got {status}")
        _written.put(_STATUS_LINES[status - STATUS_MIN])
        _written.put_value(item(head, 1))
        length, flags = self._write_fields(item(head, 2))
        framing, left = self._decide_framing(status, length, size, end)
        if framing == BY_LENGTH and (size > left or (end and size < left)):
            raise ValueError(f"content-length of an answer is {left}, its body has {size} bytes")
        keeps = framing != BY_CLOSE and not flags & ASKS_CLOSE and connection.can_keep()
        if framing == BY_CHUNKS:
            _written.put(b"\r\nTransfer-Encoding: chunked\r\n")
        elif left >= 0:
            _written.put(b"\r\nContent-Length: ")
            _written.put_number(left)
            _written.put(b"\r\n")
        else:
            _written.put(b"\r\n")
        if not keeps:
            _written.put(b"Connection: close\r\n")
        elif self._is_http10:
            _written.put(b"Connection: keep-alive\r\n")
        if not flags & HAS_DATE:
            _written.put(connection.date_line())
        _written.put(b"\r\n")
        self._framing = framing
        self._left = left
        self._keeps = keeps

    def _write_fields(self, headers: list[tuple[bytes, bytes]]) -> tuple[int, int]:
        """Write the answer's own fields behind the status line; return the content-length or -1, and what else they
        say (HAS_DATE, ASKS_CLOSE)."""
        length, flags, names = -1, 0, _known
        for field in headers:
            value = field[1]
            known = names.get(field[0])
            if known is None:
                known = _learn(field[0])
            if type(known) is bytes:
                _written.put(known)
                # Whoever made the head could otherwise end it early and write an answer of its own.
                _written.put_value(value)
            elif known == _LENGTH:
                if length >= 0 or not value.isdigit() or len(value) > LENGTH_DIGITS_MAX:
                    raise ValueError(f"content-length of an answer must be one number, got {value!r}")
                length = number_at(value, 0)
            elif known == _DATE:
                flags |= HAS_DATE
                _written.put(b"\r\nDate: ")
                _written.put_value(value)
            elif known == _CONNECTION and value.lower() == b"close":
                flags |= ASKS_CLOSE
        return length, flags

    def _decide_framing(self, status: int, length: int, size: int, end: bool) -> tuple[int, int]:
        """Return the framing and the content-length that the head says, -1 for none."""
        if self._without_body or status == 204 or status == 304:
            if length < 0 and self._without_body and end and size:
                length = size  # What a GET would have got.
            return NO_BODY, -1 if status == 204 else length
        if length < 0 and end:
            length = size
        if length >= 0:
            return BY_LENGTH, length
        return BY_CLOSE if self._is_http10 else BY_CHUNKS, -1
