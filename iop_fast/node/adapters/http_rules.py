"""What an HTTP tunnel may pass on and where to: endpoints, header fields, and the words for a failed connect.

Pure functions. Nothing here repeats an address or a value of a header in a message: these reach operators and callers.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import ssl
from collections.abc import Sequence
from typing import NamedTuple

import aiohttp
import yarl

from iop_fast._hot.heads import Names, end_to_end, has_field, line_text_size, write_request

# RFC 9110, section 7.6.1, and what older software uses in the same sense.
PER_HOP = (
    b"connection",
    b"keep-alive",
    b"proxy-authenticate",
    b"proxy-authorization",
    b"proxy-connection",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
)
HOP_BY_HOP = Names(PER_HOP)
# What of a request belongs to one connection.
NOT_FORWARDED = Names((*PER_HOP, b"host", b"content-length", b"expect"))
# And of an answer that came in chunks: a length beside them means nothing (RFC 9112, section 6.3).
NOT_OF_CHUNKED = Names((*PER_HOP, b"content-length"))
CODINGS = Names((b"transfer-encoding",))
# A request that carries one of these was given it for exactly this provider; the caller's own never come this far.
CREDENTIALS = Names((b"authorization", b"x-api-key", b"api-key"))

# RFC 9110, section 8.6: a request of another method says the length of a body that it does not have.
METHODS_WITHOUT_BODY = frozenset({b"GET", b"HEAD", b"OPTIONS", b"TRACE"})

TARGET = re.compile(rb"/[\x21-\x22\x24-\x7e]*")
ROOT = re.compile(r"(?:/[\x21-\x22\x24-\x3e\x40-\x7e]*)?")
VERSION_SEGMENT = re.compile(r"v[0-9]+[a-z0-9]*")
# What an answer's head may hold in all; it travels in one frame.
HEAD_BYTES_MAX = 256 * 1024
ERRNO_IN_TEXT = re.compile(r"\[Errno (\d+)\]")

# Errors that mean this machine and not the backend.
OWN_ERRORS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})

Field = tuple[bytes, bytes]


class Endpoint(NamedTuple):
    """Where a backend is. `root` is its path without a slash at the end.

    `names_version`: that path names a version of an API (`v1`, `v4`, `v1beta`), so it is that API's root.
    """

    origin: str
    host: str
    port: int
    is_tls: bool
    root: str
    names_version: bool

    def target(self, target: bytes) -> bytes:
        """Return what to ask the backend for; raise ValueError for a request target that is not in origin form.

        The target follows the endpoint's path, whole, or without its own leading `/v1` where the endpoint names a
        version itself.
        """
        if TARGET.fullmatch(target) is None:
            raise ValueError("expected a request target in origin form, of printable ASCII")
        if self.names_version and (target == b"/v1" or target.startswith((b"/v1/", b"/v1?"))):
            target = target[3:]
        return (self.root.encode() + target) if self.root else target

    def url(self, target: bytes) -> yarl.URL:
        """Return the URL for a request target; raise ValueError as `target` does."""
        return yarl.URL(self.origin + self.target(target).decode("ascii"), encoded=True)

    @property
    def host_field(self) -> bytes:
        """What the field Host says."""
        return self.origin.partition("//")[2].encode()


def read_endpoint(text: str) -> Endpoint:
    """Read an endpoint's URL; raise ValueError with what was expected, without repeating what came."""
    expected = "expected a URL http(s)://host[:port][/path]"
    try:
        url = yarl.URL(text.strip(), encoded=True)
        port = url.port
    except ValueError:
        raise ValueError(expected) from None
    if url.scheme not in ("http", "https") or not url.raw_host or not port:
        raise ValueError(expected)
    if url.raw_user is not None or url.raw_password is not None:
        raise ValueError("expected no user or password in the URL, name the variable with the key by api_key_env")
    if url.raw_query_string or url.raw_fragment:
        raise ValueError("expected a URL without query and fragment")
    root = url.raw_path.rstrip("/")
    if ROOT.fullmatch(root) is None or re.fullmatch(r"[0-9A-Za-z.:_%-]+", url.raw_host) is None:
        raise ValueError(f"{expected}, of printable ASCII without spaces")
    names_version = any(VERSION_SEGMENT.fullmatch(segment) for segment in root.split("/"))
    return Endpoint(str(url.origin()), url.raw_host, port, url.scheme == "https", root, names_version)


def request_fields(fields: Sequence[Field], key: str) -> list[tuple[str, str]]:
    """Return a request's fields as they go to a provider with a key of its own ("" for none).

    aiohttp writes text as UTF-8, so a value that is UTF-8 arrives as it came and one that is not is read as Latin-1. It
    takes two spellings of one name for a replacement, so a repeated field gets the spelling of its first.
    """
    kept = end_to_end(fields, NOT_FORWARDED)
    spelled: dict[bytes, str] = {}
    texts = [(spelled.setdefault(name.lower(), name.decode("latin-1")), as_text(value)) for name, value in kept]
    if key and not has_field(kept, CREDENTIALS):
        texts.append(("Authorization", f"Bearer {key}"))
    return texts


def request_head(
    method: bytes, target: bytes, host: bytes, fields: Sequence[Field], key: str, body_bytes: int, body: bytes = b""
) -> bytes:
    """Return a request's head with its fields byte for byte; raise ValueError for what no HTTP message can hold.

    `key` is the provider's own, "" for none; it goes out unless the request carries credentials. `body` is what of the
    body goes out with the head.
    """
    kept = end_to_end(fields, NOT_FORWARDED)
    if key and not has_field(kept, CREDENTIALS):
        kept.append((b"Authorization", b"Bearer " + key.encode()))
    if body_bytes or method not in METHODS_WITHOUT_BODY:
        kept.append((b"Content-Length", b"%d" % body_bytes))
    return write_request(method, target, host, kept, body)


def as_text(value: bytes) -> str:
    """Decode a field's value."""
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value.decode("latin-1")


def answer_fields(fields: Sequence[Field]) -> list[Field]:
    """Return an answer's fields as they go to the caller; raise ValueError for one that no HTTP message can hold."""
    kept = end_to_end(fields, NOT_OF_CHUNKED if has_field(fields, CODINGS) else HOP_BY_HOP)
    if line_text_size(kept) > HEAD_BYTES_MAX:
        raise ValueError(f"its head is over {HEAD_BYTES_MAX} bytes")
    return kept


def is_own_failure(error: OSError) -> bool:
    """True when a connect failed for want of something on this machine."""
    return error_number(error) in OWN_ERRORS


def connect_reason(error: OSError) -> str:
    """Say in a few words why a connect failed."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return connect_reason(error.certificate_error) if isinstance(error.certificate_error, OSError) else "TLS failed"
    if isinstance(error, aiohttp.ClientConnectorDNSError | socket.gaierror):
        return "host name not found"
    if isinstance(error, aiohttp.ClientConnectorError):
        return connect_reason(error.os_error)
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"TLS failed: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        reason = getattr(error, "reason", None) or "handshake"  # OpenSSL's code, on errors that it raised
        return f"TLS failed: {reason.lower().replace('_', ' ')}"
    number = error_number(error)
    return os.strerror(number).lower() if number else "cannot connect"


def error_number(error: OSError) -> int:
    """Return the errno of a failed connect, also of one that tried several addresses; 0 when there is none."""
    if isinstance(error, aiohttp.ClientConnectorError):
        return error_number(error.os_error)
    if error.errno is not None:
        return error.errno
    found = ERRNO_IN_TEXT.search(str(error))
    return int(found[1]) if found else 0
