"""Fields of HTTP/2 as gRPC uses them: what is written, and what a peer's header blocks must be.

Written blocks are literals without indexing behind "the dynamic table has no room" (RFC 7541, 6.3): so there is no
encoder state, whatever the peer's settings say and in whatever order blocks are sent. Blocks that come are decoded by
hpack, once a call, within `BLOCK_BYTES_MAX` encoded and decoded.

Rules for what comes (RFC 9113, 8.2 and 8.3; gRPC's PROTOCOL-HTTP2.md): malformed fields are an error of the stream
(`MalformedError`); well-formed ones that are no gRPC call are answered by an HTTP status, as gRPC's own server does.
Values are never logged nor told to anybody: hpack's debug log, which has them all, is switched off here. What a peer
says of a status is for people, and may be logged: what cannot be printed is replaced.
"""

from __future__ import annotations

import logging
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

import hpack

from iop_fast import __version__
from iop_fast.wire.http2 import frames
from iop_fast.wire.http2.frames import ProtocolError

BLOCK_BYTES_MAX = 16 * 1024
PATH_BYTES_MAX = 1024
DETAILS_BYTES_MAX = 1024

UPDATES_MAX = 2

# RFC 7541, 6.3: "the dynamic table has no room".
NO_TABLE = b"\x20"

Fields = list[tuple[bytes, bytes]]

# Fields of HTTP/1 connections, which HTTP/2 forbids (RFC 9113, 8.2.2); `te` may say one thing.
CONNECTION_FIELDS = frozenset((b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"))
REQUEST_PSEUDO = frozenset((b":method", b":scheme", b":path", b":authority"))
RESPONSE_PSEUDO = frozenset((b":status",))

# Characters of a field name: those of a token without upper case (RFC 9110, 5.6.2; RFC 9113, 8.2.1).
NAME_BYTES = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz"
FORBIDDEN_IN_VALUE = b"\x00\r\n"

GRPC_OK, GRPC_CANCELLED, GRPC_UNKNOWN = 0, 1, 2
GRPC_PERMISSION_DENIED, GRPC_RESOURCE_EXHAUSTED, GRPC_UNIMPLEMENTED, GRPC_INTERNAL = 7, 8, 12, 13
GRPC_UNAVAILABLE, GRPC_UNAUTHENTICATED = 14, 16

# gRPC's http-grpc-status-mapping.md; every other status is UNKNOWN.
STATUS_OF_HTTP = {
    400: GRPC_INTERNAL,
    401: GRPC_UNAUTHENTICATED,
    403: GRPC_PERMISSION_DENIED,
    404: GRPC_UNIMPLEMENTED,
    429: GRPC_UNAVAILABLE,
    502: GRPC_UNAVAILABLE,
    503: GRPC_UNAVAILABLE,
    504: GRPC_UNAVAILABLE,
}

# gRPC's PROTOCOL-HTTP2.md, "Errors": what an RST_STREAM means for the call.
STATUS_OF_RESET = {
    frames.REFUSED_STREAM: GRPC_UNAVAILABLE,
    frames.CANCEL: GRPC_CANCELLED,
    frames.ENHANCE_YOUR_CALM: GRPC_RESOURCE_EXHAUSTED,
    0xC: GRPC_PERMISSION_DENIED,
}

logging.getLogger("hpack").setLevel(logging.INFO)


class MalformedError(Exception):
    """Fields that break RFC 9113: an error of the stream alone."""


class Request(NamedTuple):
    """What a request's fields say: `refusal` is the HTTP status to answer with when it is no gRPC call, else 0."""

    path: bytes
    refusal: int
    content_length: int


class Ending(NamedTuple):
    """How a peer ended a call."""

    status: int
    details: str


class Response(NamedTuple):
    """What the first fields of an answer say. An informational one is to be skipped; `ending` is set when the answer
    is no gRPC answer, or nothing but its end."""

    is_informational: bool
    ending: Ending | None


# Reading.


class BlockReader:
    """Decodes the header blocks of one connection, in order: they share hpack's table."""

    def __init__(self) -> None:
        self._decoder = hpack.Decoder(max_header_list_size=BLOCK_BYTES_MAX)

    def read(self, block: bytes) -> Fields:
        """Return the fields of a whole block. Raises ProtocolError: after it the connection cannot go on."""
        _check_updates(block)
        try:
            return [(bytes(name), bytes(value)) for name, value in self._decoder.decode(block, raw=True)]
        except hpack.OversizedHeaderListError:
            raise ProtocolError(frames.ENHANCE_YOUR_CALM, "header list too large") from None
        except hpack.HPACKError:
            raise ProtocolError(frames.COMPRESSION_ERROR, "broken header block") from None


def _check_updates(block: bytes) -> None:
    """A block begins with two updates of the table's size at most (RFC 7541, 4.2); more are work for nothing."""
    at = count = 0
    while at < len(block) and block[at] & 0xE0 == 0x20:
        count += 1
        if count > UPDATES_MAX:
            raise ProtocolError(frames.COMPRESSION_ERROR, "too many updates of the header table's size")
        is_long = block[at] & 0x1F == 0x1F
        at += 1
        while is_long and at < len(block):
            is_long = block[at] >= 0x80
            at += 1


def _check(fields: Fields, pseudo: frozenset[bytes]) -> dict[bytes, bytes]:
    """Hold fields to RFC 9113, 8.2 and 8.3; return them by name (of equal names the last)."""
    known: dict[bytes, bytes] = {}
    is_regular = False
    for name, value in fields:
        if name[:1] == b":":
            if is_regular or name in known or name not in pseudo:
                raise MalformedError("a pseudo-header field that is unknown, twice there or out of place")
        else:
            is_regular = True
            if not name or name.translate(None, NAME_BYTES):
                raise MalformedError("a field name with a forbidden character")
            if name in CONNECTION_FIELDS or (name == b"te" and value != b"trailers"):
                raise MalformedError("a field of HTTP/1 connections")
        if value.translate(None, FORBIDDEN_IN_VALUE) != value or value.strip(b" \t") != value:
            raise MalformedError("a field value with a forbidden character")
        if name == b"content-length" and known.get(name, value) != value:
            raise MalformedError("two content lengths")
        known[name] = value
    return known


def read_request(fields: Fields) -> Request:
    """Read the fields of a request. Raises MalformedError."""
    known = _check(fields, REQUEST_PSEUDO)
    method, path = known.get(b":method"), known.get(b":path")
    if not method or b":scheme" not in known or not path or not path.startswith(b"/"):
        raise MalformedError("a request without method, scheme or path")
    refusal = 0
    if method != b"POST":
        refusal = 405
    elif not is_grpc(known.get(b"content-type", b"")):
        refusal = 415
    elif known.get(b"te") != b"trailers" or len(path) > PATH_BYTES_MAX:
        refusal = 400
    return Request(path, refusal, _content_length(known))


def _content_length(known: dict[bytes, bytes]) -> int:
    length = known.get(b"content-length")
    if length is None:
        return -1
    if not length.isdigit() or len(length) > 18:
        raise MalformedError("a content length that is no number")
    return int(length)


def is_grpc(content_type: bytes) -> bool:
    """True for gRPC with messages that are bytes to us: `application/grpc` and `application/grpc+proto`."""
    return content_type.partition(b";")[0].strip().lower() in (b"application/grpc", b"application/grpc+proto")


def read_response(fields: Fields, is_end: bool) -> Response:
    """Read the first fields of an answer; `is_end`: they are the last as well. Raises MalformedError."""
    known = _check(fields, RESPONSE_PSEUDO)
    status = known.get(b":status", b"")
    if len(status) != 3 or not status.isdigit():
        raise MalformedError("an answer without a status")
    if status.startswith(b"1"):
        if is_end:
            raise MalformedError("an informational answer that ends the stream")
        return Response(True, None)
    if status != b"200" and b"grpc-status" not in known:
        code = STATUS_OF_HTTP.get(int(status), GRPC_UNKNOWN)
        return Response(False, Ending(code, f"the peer answered HTTP status {status.decode()}"))
    if not is_grpc(known.get(b"content-type", b"")) and b"grpc-status" not in known:
        return Response(False, Ending(GRPC_UNKNOWN, "the peer's answer is not gRPC"))
    return Response(False, _ending(known) if is_end else None)


def read_trailers(fields: Fields) -> Ending:
    """Read the fields that end an answer. Raises MalformedError."""
    return _ending(_check(fields, frozenset()))


def _ending(known: dict[bytes, bytes]) -> Ending:
    status = known.get(b"grpc-status", b"")
    if not status.isdigit() or len(status) > 3:
        return Ending(GRPC_UNKNOWN, "the peer ended the call without a gRPC status")
    details = unquote_to_bytes(known.get(b"grpc-message", b"")[: 3 * DETAILS_BYTES_MAX])
    text = details[:DETAILS_BYTES_MAX].decode("utf-8", "replace")
    return Ending(int(status), "".join(c if c.isprintable() else "?" for c in text))


# Writing.


def _string(value: bytes) -> bytes:
    """RFC 7541, 5.2, without Huffman coding."""
    size = len(value)
    if size < 127:
        return bytes((size,)) + value
    size -= 127
    prefix = bytearray((127,))
    while size >= 128:
        prefix.append(size & 0x7F | 0x80)
        size >>= 7
    prefix.append(size)
    return bytes(prefix) + value


def literal(name: bytes, value: bytes) -> bytes:
    """Return a literal field without indexing and with a new name (RFC 7541, 6.2.2)."""
    return b"\x00" + _string(name) + _string(value)


def _percent_encoded(text: str) -> bytes:
    """gRPC's encoding of a status message: everything but printable ASCII, and the percent sign."""
    raw = text.encode("utf-8", "replace")[:DETAILS_BYTES_MAX]
    return b"".join(bytes((byte,)) if 0x20 <= byte <= 0x7E and byte != 0x25 else b"%%%02X" % byte for byte in raw)


RESPONSE_FIELDS = NO_TABLE + literal(b":status", b"200") + literal(b"content-type", b"application/grpc")

REQUEST_FIELDS = (
    literal(b"te", b"trailers")
    + literal(b"content-type", b"application/grpc")
    + literal(b"user-agent", b"grpc-iop-fast/" + __version__.encode())
)


def request_block(path: bytes, authority: bytes, scheme: bytes) -> bytes:
    """Return the fields that open a call."""
    return (
        NO_TABLE
        + literal(b":method", b"POST")
        + literal(b":scheme", scheme)
        + literal(b":path", path)
        + literal(b":authority", authority)
        + REQUEST_FIELDS
    )


def trailers_block(status: int, details: str, is_alone: bool) -> bytes:
    """Return the fields that end a call; alone they are the whole answer."""
    block = (RESPONSE_FIELDS if is_alone else NO_TABLE) + literal(b"grpc-status", b"%d" % status)
    text = _percent_encoded(details).strip(b" ")
    return block + literal(b"grpc-message", text) if text else block


def refusal_block(http_status: int) -> bytes:
    """Return the answer to a request that is no gRPC call."""
    return NO_TABLE + literal(b":status", b"%d" % http_status) + literal(b"content-length", b"0")
