"""Which web pages may use the API from a browser (fetch.spec.whatwg.org, "CORS protocol").

An origin of `openai.cors_origins` is named in the answers to its pages, and its preflights are answered before anybody
asks for a token, which a preflight never carries. Any other page gets what every caller gets, without the fields that
let a browser show it to the page. While the list is empty nothing here is asked.

Callers' tokens stand in fields that a page sets itself, so credentials that a browser adds (cookies) are not asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from iop_fast.edge.auth import Field
from iop_fast.seams import RequestHead

ORIGIN = b"origin"
VARY = (b"vary", b"Origin")
EXPOSED = (
    b"access-control-expose-headers",
    b"x-request-id, x-iop-provider, x-iop-node, x-iop-queue-ms, x-iop-reason, x-iop-clamped, retry-after",
)
METHODS = (b"access-control-allow-methods", b"GET, HEAD, POST")
# How long a browser may go without asking again; Chromium takes no more than two hours.
MAX_AGE = (b"access-control-max-age", b"7200")
NAMES = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+(?:[ \t]*,[ \t]*[!#$%&'*+.^_`|~0-9A-Za-z-]+)*")


class Cors:
    """The allow-list. Immutable."""

    __slots__ = ("_origins",)

    def __init__(self, origins: Iterable[str]) -> None:
        self._origins = frozenset(origin.encode() for origin in origins)

    def answer_fields(self, head: RequestHead) -> Sequence[Field]:
        """Return what every answer to this request says about the page that asked, and to caches about all pages."""
        if not self._origins:
            return ()
        origin = self._known_origin(head)
        return (VARY,) if origin is None else (VARY, (b"access-control-allow-origin", origin), EXPOSED)

    def preflight_fields(self, head: RequestHead) -> Sequence[Field] | None:
        """Return the fields of the answer to a known page's preflight; None for any other request."""
        if head.method != b"OPTIONS" or not self._origins:
            return None
        origin = self._known_origin(head)
        asked = [value for name, value in head.headers if name == b"access-control-request-headers"]
        is_preflight = any(name == b"access-control-request-method" for name, _ in head.headers)
        if origin is None or not is_preflight or len(asked) > 1:
            return None
        fields = [VARY, (b"access-control-allow-origin", origin), METHODS, MAX_AGE]
        if asked and NAMES.fullmatch(asked[0]):
            fields.append((b"access-control-allow-headers", asked[0]))
        return fields

    def without_origin(self, fields: list[Field]) -> list[Field]:
        """Take out the page's origin, which backends have opinions of their own about."""
        return [field for field in fields if field[0] != ORIGIN] if self._origins else fields

    def _known_origin(self, head: RequestHead) -> bytes | None:
        origins = [value for name, value in head.headers if name == ORIGIN]
        return origins[0] if len(origins) == 1 and origins[0] in self._origins else None
