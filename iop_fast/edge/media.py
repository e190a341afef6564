"""What a request's Content-Type says its body is: JSON, or a form with its boundary. Pure.

The provider decides by this field how it reads a body, and the Edge by the path how it scans it. Both must read the
same, so the field is held to what the path takes: a body that is scanned as JSON and that a provider would read as a
form, or in UTF-16, is refused. That also keeps web pages out that send JSON as text/plain, which browsers let them do
to any address without asking it first.
"""

from __future__ import annotations

from collections.abc import Sequence

from iop_fast._core.multipart import BOUNDARY_BYTES_MAX, is_boundary
from iop_fast.edge.auth import MEDIA_TYPE
from iop_fast.edge.outcomes import Verdict
from iop_fast.errors import Failure

JSON_TYPE = b"application/json"
JSON_SUFFIX = b"+json"
FORM_TYPE = b"multipart/form-data"
CHARSETS = (b"utf-8", b"us-ascii")
# RFC 9110, section 5.6.2.
TOKEN = frozenset(b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")

TWICE = Verdict(Failure.UNSUPPORTED_MEDIA_TYPE, "expected one content-type")
NO_JSON = Verdict(Failure.UNSUPPORTED_MEDIA_TYPE, "expected content-type: application/json, in UTF-8")
NO_FORM = Verdict(Failure.UNSUPPORTED_MEDIA_TYPE, "expected content-type: multipart/form-data")
NO_BOUNDARY = Verdict(
    Failure.INVALID_REQUEST,
    f"expected a content-type with one boundary of 1 to {BOUNDARY_BYTES_MAX} characters, in quotes if it is no token",
)


class BadMedia(Exception):
    """The body is not of the kind that the path takes, or its Content-Type leaves that open."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.message)
        self.verdict = verdict


def read_media(marked: Sequence[tuple[int, bytes]], is_form: bool) -> bytes:
    """Return the boundary of a form, b"" for JSON. Raises `BadMedia` for a body of another kind than the path's."""
    values = [value for meaning, value in marked if meaning & MEDIA_TYPE]
    if len(values) > 1:
        raise BadMedia(TWICE)
    if is_form:
        return read_boundary(values[0] if values else b"")
    if values and values[0] != JSON_TYPE and not is_json(values[0]):
        raise BadMedia(NO_JSON)
    return b""


def is_json(value: bytes) -> bool:
    """True for JSON's types (RFC 8259; RFC 6839, section 3.1) without another charset than UTF-8."""
    media, parameters = split_media(value)
    if parameters is None or (media != JSON_TYPE and not media.endswith(JSON_SUFFIX)):
        return False
    return all(text.lower() in CHARSETS for name, text in parameters if name == b"charset")


def read_boundary(value: bytes) -> bytes:
    """Return the boundary that a form's Content-Type names (RFC 2046, section 5.1.1; RFC 7578, section 4.1)."""
    media, parameters = split_media(value)
    if media != FORM_TYPE:
        raise BadMedia(NO_FORM)
    found = dict(parameters or ())
    is_plain = set(found) <= {b"boundary", b"charset"} and found.get(b"charset", CHARSETS[0]).lower() in CHARSETS
    boundary = found.get(b"boundary", b"")
    if not is_plain or len(found) < len(parameters or ()) or not is_boundary(boundary):
        raise BadMedia(NO_BOUNDARY)
    return boundary


def split_media(value: bytes) -> tuple[bytes, list[tuple[bytes, bytes]] | None]:
    """Cut a Content-Type (RFC 9110, section 8.3.1) into its type and its parameters, names in lower case; None for
    parameters that are malformed. A quoted value holds no escape and no semicolon: readers disagree about them."""
    media, *rest = value.split(b";")
    parameters: list[tuple[bytes, bytes]] = []
    for one in rest:
        name, equals, text = one.strip(b" \t").partition(b"=")
        is_quoted = len(text) > 2 and text[:1] == text[-1:] == b'"'
        is_good = b'"' not in text[1:-1] and b"\\" not in text if is_quoted else bool(text) and TOKEN.issuperset(text)
        if is_good and name and TOKEN.issuperset(name):
            parameters.append((name.lower(), text[1:-1] if is_quoted else text))
        elif name or equals:
            return media.strip(b" \t").lower(), None
    return media.strip(b" \t").lower(), parameters
