"""The head of a request: found, bounded, parsed and judged before anybody behind the front hears of it.

Three steps, each pure:
1. `find_head` looks for the empty line in the raw bytes and bounds what comes before it. llhttp's cost grows
   quadratically with a head that trickles in, so it gets no byte before the head is whole, and then all in one feed.
2. httptools (llhttp) parses the block. It gets the head alone, never a body. That keeps harmless how it treats an
   `Upgrade` (it would drop the body of a request that offers h2c, as Java's clients do on every POST) and that it has
   no pause. A parser serves one head: making one costs 0.2 us, and no state of one request can reach another. It calls
   nothing back; what it accepted is cut into fields by `split_fields`.
3. What llhttp lets pass is refused here: RFC 9112's rules on Host, target, version and Transfer-Encoding.

Every refusal is a `Refusal` with its row of the error table; none depends on how the bytes were split.
"""

from __future__ import annotations

import re

import httptools

from iop_fast._hot.fields import match_head, number_at, split_fields, with_length
from iop_fast._hot.records import new_record
from iop_fast.config.schema.front import HttpLimits
from iop_fast.errors import Failure
from iop_fast.seams import HeadMemo, RequestHead

EMPTY_LINES_MAX = 4
# "OPTIONS" + two spaces + "HTTP/1.1" fit: a request line longer than its target's limit plus this is too long for sure.
LINE_OVERHEAD_BYTES = 32
# A head up to this size cannot hold enough fields to be worth counting before the parser sees it.
UNCOUNTED_HEAD_BYTES = 4096

ALLOWED = b"GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"
# QUERY (draft-ietf-httpbis-safe-method-w-body) is a known method that no path has: who knows the path says so.
METHODS = frozenset(ALLOWED.split(b", ")) | {b"QUERY"}
REFUSED_METHODS = frozenset((b"CONNECT", b"TRACE"))

TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
TOKEN_BYTES = frozenset(b"!#$%&'*+.^_`|~-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
REQUEST_LINE = re.compile(rb"(?:\r\n)*(" + TOKEN + rb") ([\x21-\x7e]+) HTTP/([0-9]\.[0-9])\r\n")
# Of what may be no request at all: the path behind a word, where there is one.
ASKED_PATH = re.compile(rb"(?:\r\n)*[^ \r\n]+ +(?:https?://[^/ \r\n]*)?(/[^ ?#\r\n]*)")
HTTP_VERSION = re.compile(rb"HTTP/[0-9]\.[0-9]")
# RFC 3986, 3.2.2 and 3.2.3, without userinfo: a name, an IPv4 or a bracketed IPv6 address, and maybe a port.
AUTHORITY = re.compile(rb"(?:[0-9A-Za-z._~!$&'()*+,;=%-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
ABSOLUTE_TARGET = re.compile(rb"(?i:https?)://([^/?]+)(/[^?]*)?(?:\?(.*))?", re.DOTALL)
LENGTH_FIELD = re.compile(rb"(?i)\r\ncontent-length:[ \t]*([0-9]{1,18})[ \t]*\r\n")
CHUNKED_FIELD = re.compile(rb"(?i)\r\ntransfer-encoding:")

# What a field means to the front. Everything else is end to end and passed on.
_HOST, _LENGTH, _CODING, _CONNECTION, _EXPECT, _DROPPED = range(6)
_MEANING = {
    b"host": _HOST,
    b"content-length": _LENGTH,
    b"transfer-encoding": _CODING,
    b"connection": _CONNECTION,
    b"expect": _EXPECT,
    b"upgrade": _DROPPED,
    b"http2-settings": _DROPPED,
    b"keep-alive": _DROPPED,
    b"proxy-connection": _DROPPED,
    b"proxy-authenticate": _DROPPED,
    b"proxy-authorization": _DROPPED,
    b"te": _DROPPED,
    b"trailer": _DROPPED,
}
# Servers of the CGI family read "_" as "-": such a name would be another spelling of a field that we judge or remove.
_SPECIAL = frozenset(_MEANING)
_NO_ALIASES = _SPECIAL | {b"authorization", b"x-api-key", b"cookie"}

_NO_CALLBACKS = object()
_CONNECTION_WORDS = frozenset((b"keep-alive", b"close", b"", b"host"))


class Refusal(Exception):
    """The request is refused by the front: the row of the error table and a message for people."""

    def __init__(self, failure: Failure, message: str) -> None:
        super().__init__(message)
        self.failure = failure
        self.message = message


def malformed(message: str) -> Refusal:
    """A breach of HTTP's grammar or framing."""
    return Refusal(Failure.MALFORMED_HTTP, message)


def asked_path(buffer: bytes | bytearray) -> bytes:
    """Return the path that a refused head asks for, b"" where that cannot be told: it gives the answer its form."""
    found = ASKED_PATH.match(buffer)
    return b"" if found is None else bytes(found[1])


# Step 1: find and bound.


def find_head(buffer: bytes | bytearray, scanned: int, limits: HttpLimits) -> int:
    """Return the size of the head that `buffer` begins with, its empty line included, or 0 while it is not whole.

    `scanned` bytes were looked at by an earlier call on the same, shorter buffer; `buffer` is not empty. Up to four
    empty lines may precede a request (RFC 9112, 2.2) and count as part of its head.
    """
    start = _skip_empty_lines(buffer) if buffer[0] == 13 else 0
    end = buffer.find(b"\r\n\r\n", max(start, scanned - 3)) + 4
    if end < 4:
        _check_unfinished(buffer, start, scanned, limits)
        return 0
    if end > UNCOUNTED_HEAD_BYTES or end > limits.head_bytes:
        _check_size(buffer, start, end, limits)
    return end


def _skip_empty_lines(buffer: bytes | bytearray) -> int:
    start = 0
    while buffer.startswith(b"\r\n", start):
        start += 2
        if start > 2 * EMPTY_LINES_MAX:
            raise malformed(f"more than {EMPTY_LINES_MAX} empty lines before the request")
    return start


def _check_size(buffer: bytes | bytearray, start: int, end: int, limits: HttpLimits) -> None:
    line_end = buffer.find(b"\r\n", start, end)
    if (line_end if line_end >= 0 else end) - start > limits.target_bytes + LINE_OVERHEAD_BYTES:
        raise Refusal(Failure.URI_TOO_LONG, f"the request's target is longer than {limits.target_bytes} bytes")
    if end - start > limits.head_bytes:
        raise Refusal(Failure.HEAD_TOO_LARGE, f"the request's head is larger than {limits.head_bytes} bytes")
    if buffer.count(b"\n", start, end) > limits.head_fields + 2:
        raise _too_many_fields(limits)


def _too_many_fields(limits: HttpLimits) -> Refusal:
    return Refusal(Failure.HEAD_TOO_LARGE, f"the request has more than {limits.head_fields} header fields")


def _check_unfinished(buffer: bytes | bytearray, start: int, scanned: int, limits: HttpLimits) -> None:
    """Refuse early what can never become a head: another protocol, lines ended by LF alone, too many bytes."""
    size = len(buffer)
    if size > start and buffer[start] not in TOKEN_BYTES and buffer[start:] != b"\r":
        raise malformed("this is not an HTTP/1.1 request")
    fresh = scanned - 1 if scanned > 0 and buffer[scanned - 1] == 13 else scanned
    if buffer.count(b"\n", fresh) != buffer.count(b"\r\n", fresh):
        raise malformed("a line of the head ends with LF alone, expected CRLF")
    if size > limits.target_bytes:
        _check_size(buffer, start, size, limits)


def count_requests(backlog: bytes | bytearray, most: int) -> int:
    """Count the requests that begin in `backlog`, without parsing them; stop above `most`.

    A chunked body has no length to step over, so it counts as one request with all that follows it.
    """
    count = at = 0
    while at < len(backlog) and count <= most:
        count += 1
        end = backlog.find(b"\r\n\r\n", at)
        if end < 0 or CHUNKED_FIELD.search(backlog, at, end + 2) is not None:
            break
        length = LENGTH_FIELD.search(backlog, at, end + 2)
        at = end + 4 + (int(length[1]) if length else 0)
    return count


# The same again.

# The name and what stands before a length in the requests of most clients; a head without either is not remembered.
LENGTH_SPELLINGS = (b"\r\nContent-Length: ", b"\r\ncontent-length: ")
# A larger head is not remembered: an idle connection would keep it.
KNOWN_HEAD_BYTES_MAX = 2048


class KnownHead:
    """A clean head but for the digits of its Content-Length: what a connection keeps of the request before.

    A client sends the same head again and again, and only the length of its body changes. Whatever begins with `front`,
    digits and `back` is that head, and what was found about it holds. `back` is empty for a head without a length.
    """

    __slots__ = ("_back", "_front", "expects_continue", "head", "is_http10", "keep_alive")

    def __init__(self, front: bytes, back: bytes, head: RequestHead, parser: HeadParser) -> None:
        self._front = front
        self._back = back
        self.head = head
        self.is_http10 = parser.is_http10
        self.keep_alive = parser.keep_alive
        self.expects_continue = parser.expects_continue

    def match(self, data: bytes) -> int:
        """Return the size of the head that `data` begins with if it is this one, else 0."""
        return match_head(data, self._front, self._back)

    def read(self, data: bytes) -> RequestHead:
        """Return the head that `match` has found."""
        if not self._back:
            return self.head
        return with_length(self.head, number_at(data, len(self._front)))


# Steps 2 and 3: parse and judge.


class HeadParser:
    """Parses whole heads, one at a time, for all connections of a front.

    `is_http10`, `keep_alive` and `expects_continue` describe the head parsed last and are valid until the next `parse`.
    Nothing else is kept between two heads but the last authority that was found well formed.
    """

    __slots__ = (
        "_coding",
        "_connection",
        "_good_authority",
        "_host",
        "_length",
        "_limits",
        "expects_continue",
        "is_http10",
        "keep_alive",
    )

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self._good_authority: bytes | None = None
        self.is_http10 = False
        self._reset()

    def _reset(self) -> None:
        self._host: bytes | None = None
        self._length: bytes | None = None
        self._coding: bytes | None = None
        self._connection: bytes | None = None
        self.keep_alive = True
        self.expects_continue = False

    def parse(self, block: bytes) -> RequestHead:
        """Parse what `find_head` found; raise Refusal for everything that is not a clean request."""
        line = REQUEST_LINE.match(block)
        if line is None:
            raise _bad_request_line(block)
        method, target, version = line.groups()
        if method not in METHODS:
            raise _refused_method(method)
        if version != b"1.1" and version != b"1.0":
            raise _refused_version(version)
        if len(target) > self._limits.target_bytes:
            raise Refusal(Failure.URI_TOO_LONG, f"the target is longer than {self._limits.target_bytes} bytes")
        self.is_http10 = version == b"1.0"
        fields = self._read_fields(block, line.end())
        content_length = self._judge_framing()
        self._judge_host()
        path, query = self._split_target(target)
        if self._connection is not None:
            fields = self._apply_connection(self._connection, fields)
        elif self.is_http10:
            self.keep_alive = False
        return new_record(RequestHead, (method, path, query, fields, content_length, HeadMemo()))

    def remember(self, block: bytes, head: RequestHead) -> KnownHead | None:
        """Return what tells the head parsed last when it comes again, None where that would cost too much."""
        if len(block) > KNOWN_HEAD_BYTES_MAX:
            return None
        digits = self._length
        if digits is None:
            return KnownHead(block, b"", head, self)
        for spelling in LENGTH_SPELLINGS:
            at = block.find(spelling)
            if at >= 0:
                start = at + len(spelling)
                end = start + len(digits)
                if block[start:end] == digits and block[end] == 13:
                    return KnownHead(block[:start], block[end:], head, self)
        return None

    def recall(self, known: KnownHead, data: bytes) -> RequestHead:
        """Return the head that `known` matched, as if `data` had been parsed."""
        self.is_http10 = known.is_http10
        self.keep_alive = known.keep_alive
        self.expects_continue = known.expects_continue
        return known.read(data)

    # Step 2: the fields.

    def _read_fields(self, block: bytes, start: int) -> list[tuple[bytes, bytes]]:
        """Return the end-to-end fields, which begin at offset `start`; what the others say goes to the attributes."""
        self._reset()
        try:
            httptools.HttpRequestParser(_NO_CALLBACKS).feed_data(block)
        except httptools.HttpParserUpgrade:
            # An offer to switch protocols is ignored, as RFC 9110, 7.8 allows: the head was parsed whole before this.
            pass
        except httptools.HttpParserError as error:
            raise malformed(f"malformed request: {error}") from None
        special, fields = split_fields(block, start, _SPECIAL)
        if len(special) + len(fields) > self._limits.head_fields:
            raise _too_many_fields(self._limits)
        for field in special:
            self._take_special(field, fields)
        return fields

    def _take_special(self, field: tuple[bytes, bytes], fields: list[tuple[bytes, bytes]]) -> None:
        name, value = field
        meaning = _MEANING.get(name)
        if meaning is None:
            if name.replace(b"_", b"-") not in _NO_ALIASES:
                fields.append(field)
        elif meaning == _CONNECTION:
            self._connection = value if self._connection is None else self._connection + b"," + value
        elif meaning == _HOST:
            if self._host is not None:
                raise malformed("the request has more than one Host field")
            self._host = value
            fields.insert(0, field)
        elif meaning == _LENGTH:
            if self._length is not None:
                raise malformed("the request has more than one Content-Length field")
            self._length = value
        elif meaning == _CODING:
            if self._coding is not None:
                raise malformed("the request has more than one Transfer-Encoding field")
            self._coding = value
        elif meaning == _EXPECT:
            self._on_expect(value)

    def _on_expect(self, value: bytes) -> None:
        if self.is_http10:
            return  # RFC 9110, 10.1.1: the expectation of an HTTP/1.0 client is ignored.
        if value.lower() != b"100-continue":
            raise Refusal(Failure.EXPECTATION_FAILED, "the only expectation that is met is 100-continue")
        self.expects_continue = True

    # Step 3: what llhttp lets pass.

    def _judge_framing(self) -> int | None:
        """Return the body's length, None for a chunked one (RFC 9112, 6.3)."""
        coding, length = self._coding, self._length
        if coding is None:
            if length is None:
                return 0
            if not length.isdigit() or len(length) > 18:
                raise malformed("Content-Length is not a number of bytes")
            return int(length)
        if length is not None:
            raise malformed("the request has both Content-Length and Transfer-Encoding")
        if self.is_http10:
            raise malformed("an HTTP/1.0 request cannot have a Transfer-Encoding")
        if coding.lower() != b"chunked":
            raise Refusal(Failure.ENCODING_NOT_IMPLEMENTED, "the only Transfer-Encoding that is understood is chunked")
        return None

    def _judge_host(self) -> None:
        host = self._host
        if host is None:
            if not self.is_http10:
                raise malformed("an HTTP/1.1 request needs a Host field")
        elif host != self._good_authority:
            if AUTHORITY.fullmatch(host) is None:
                raise malformed("the Host field is not a host and port")
            self._good_authority = host

    def _split_target(self, target: bytes) -> tuple[bytes, bytes]:
        """Return path and query of an origin-form target, or of an absolute one for the host that Host names."""
        if b"#" in target:
            raise malformed("the request's target holds a fragment")
        if target[0] == 47:
            path, _, query = target.partition(b"?")
            return path, query
        absolute = ABSOLUTE_TARGET.fullmatch(target)
        if absolute is None:
            raise malformed("the request's target is neither a path nor an http URL")
        authority, path, query = absolute.groups(b"")
        if AUTHORITY.fullmatch(authority) is None:
            raise malformed("the target's authority is not a host and port")
        if self._host is not None and authority.lower() != self._host.lower():
            raise malformed("the target names another host than the Host field")
        return path or b"/", query

    def _apply_connection(self, value: bytes, fields: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """Read the Connection options; return the fields without those that they name (RFC 9110, 7.6.1)."""
        if value == b"keep-alive":
            return fields
        options = {option.strip(b" \t") for option in value.lower().split(b",")}
        is_kept = b"keep-alive" in options
        self.keep_alive = b"close" not in options and (is_kept or not self.is_http10)
        options -= _CONNECTION_WORDS
        if options:
            return [field for field in fields if field[0] not in options]
        return fields


def _bad_request_line(block: bytes) -> Refusal:
    line = block.lstrip(b"\r\n").partition(b"\r\n")[0]
    words = line.split(b" ")
    if len(words) != 3 or HTTP_VERSION.fullmatch(words[2]) is None:
        return malformed("malformed request line, expected: method, target, HTTP/1.1")
    return malformed("the method or target of the request line holds a character that is not allowed there")


def _refused_method(method: bytes) -> Refusal:
    if method == b"PRI":
        return Refusal(Failure.VERSION_NOT_SUPPORTED, "HTTP/2 is not spoken here, use HTTP/1.1")
    if method in REFUSED_METHODS:
        return Refusal(Failure.METHOD_NOT_ALLOWED, f"the method {method.decode('ascii')} is not allowed")
    return Refusal(Failure.METHOD_NOT_IMPLEMENTED, "the request's method is not known")


def _refused_version(version: bytes) -> Refusal:
    if version < b"1.0":
        return malformed("HTTP/0.9 is not spoken here, use HTTP/1.1")
    return Refusal(Failure.VERSION_NOT_SUPPORTED, f"HTTP/{version.decode('ascii')} is not spoken here, use HTTP/1.1")
