"""Credentials of a caller: who it is, what goes on to a provider, and what stays here.

Three credentials can stand in one request and they never mix:

- the **token** of the gateway's own caller (`Authorization: Bearer`, or `x-api-key` where that is absent). It names a
  principal, for usage and logs, and goes no further;
- the **provider's own key**, which only the Node knows;
- the **forwarded token** (`openai.provider_auth`): a provider token that the caller brings in a header of its own and
  that travels in the one tunnel chosen for the request, in place of the provider's key.

Nothing here is logged or stored: tokens exist as the bytes of a header and as their sha256 on the way to a lookup, and
every refusal reads the same whatever was wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import NamedTuple

Headers = Sequence[tuple[bytes, bytes]]

BEARER = b"Bearer "

# Fields that never reach a provider, by lower-case name with "-" for "_" (a backend behind CGI or WSGI reads both as
# one). The first group are credentials; the second are the connection's (RFC 9110, section 7.6.1) and the framing,
# which the Node writes anew; `x-request-id` is replaced by ours.
PRIVATE = frozenset(
    {
        b"authorization",
        b"x-api-key",
        b"api-key",
        b"x-goog-api-key",
        b"cookie",
        b"proxy-authorization",
        b"x-iop-provider-authorization",  # the forwarded token's default field, also while forwarding is off
        b"host",
        b"content-length",
        b"transfer-encoding",
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"proxy-authenticate",
        b"te",
        b"trailer",
        b"upgrade",
        b"http2-settings",
        b"expect",
        b"x-request-id",
    }
)


class Principal(NamedTuple):
    """Labels that a request's usage is booked under. `token_ref` is "" for the anonymous one."""

    principal: str
    token_ref: str


ANONYMOUS = Principal("anonymous", "")


class AmbiguousToken(Exception):
    """The request carries two different tokens: it is refused whatever they are worth."""


def read_token(headers: Headers) -> bytes | None:
    """Return the caller's token, or None when the request has none that could be one.

    The form is exactly `Authorization: Bearer TOKEN` with one space; a field that stands twice, an empty token and any
    other scheme are no token. Raises `AmbiguousToken` for two different tokens.
    """
    authorizations = [value for name, value in headers if name == b"authorization"]
    keys = [value for name, value in headers if name == b"x-api-key"]
    tokens = [value[len(BEARER) :] for value in authorizations if value.startswith(BEARER)] + keys
    if any(token != tokens[0] for token in tokens):
        raise AmbiguousToken
    if not tokens or len(authorizations) > 1 or len(keys) > 1:
        return None
    return tokens[0] or None


def identify(headers: Headers, principals: Mapping[bytes, Principal], is_required: bool) -> Principal | None:
    """Return the principal behind a request, or None when it must be refused with 401.

    `principals` is keyed by the 32 bytes of sha256. An unknown token is `ANONYMOUS` unless a principal is required.
    """
    try:
        token = read_token(headers)
    except AmbiguousToken:
        return None
    known = principals.get(sha256(token).digest()) if token is not None and principals else None
    if known is not None:
        return known
    return None if is_required else ANONYMOUS


@dataclass(frozen=True, slots=True)
class ForwardRule:
    """`openai.provider_auth`, ready for use: header names in lower case, the scheme without its space."""

    from_header: bytes
    target_header: bytes
    scheme: bytes
    is_required: bool

    @property
    def dropped(self) -> frozenset[bytes]:
        """Fields of the caller that no provider gets under this rule, as `canonical` spells them."""
        return PRIVATE | {canonical(self.from_header), canonical(self.target_header)}


class MissingProviderToken(Exception):
    """The header that brings the provider token is missing or empty where it is required, or stands twice."""


def read_forwarded(headers: Headers, rule: ForwardRule) -> bytes | None:
    """Return the value for the rule's target header; None means that the provider's own key is used.

    The scheme is put in front unless it stands there already. A field that stands twice is refused even where the
    token is optional: which of the two is meant, and whose account pays, is not ours to guess. Raises
    `MissingProviderToken`.
    """
    values = [value.strip(b" \t") for name, value in headers if name == rule.from_header]
    if len(values) > 1:
        raise MissingProviderToken
    token = without_scheme(values[0], rule.scheme) if values else b""
    if not token:
        if rule.is_required:
            raise MissingProviderToken
        return None
    return rule.scheme + b" " + token if rule.scheme else token


def without_scheme(value: bytes, scheme: bytes) -> bytes:
    """Return the token of a value that may begin with the scheme (any case, RFC 9110, section 11.1)."""
    if not scheme:
        return value
    first, _, rest = value.partition(b" ")
    return rest.strip(b" \t") if first.lower() == scheme.lower() else value


def tunnel_headers(headers: Headers, dropped: frozenset[bytes]) -> list[tuple[bytes, bytes]]:
    """Return the caller's fields without those that `dropped` names (`PRIVATE`, or more under a `ForwardRule`)."""
    return [field for field in headers if canonical(field[0]) not in dropped]


def canonical(name: bytes) -> bytes:
    """Spell a lower-case field name with "-" for "_"."""
    return name.replace(b"_", b"-") if b"_" in name else name
