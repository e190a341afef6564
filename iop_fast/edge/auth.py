"""Credentials of a caller: who it is, what goes on to a provider, and what stays here.

Three credentials can stand in one request and they never mix:

- the **token** of the gateway's own caller (`Authorization: Bearer`, or `x-api-key` where that is absent). It names a
  principal, for usage and logs, and goes no further;
- the **provider's own key**, which only the Node knows;
- the **forwarded token** (`openai.provider_auth`): a provider token that the caller brings in a header of its own and
  that travels in the one tunnel chosen for the request, in place of the provider's key.

Nothing here is logged or stored: tokens exist as the bytes of a header and as their sha256 on the way to a lookup, and
every refusal reads the same whatever was wrong.

A request's fields are looked at once, by a `FieldTable`, which sorts them into those that go on and those that mean
something here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import NamedTuple

from iop_fast._hot.records import new_record

Field = tuple[bytes, bytes]

BEARER = b"Bearer "

# What a field of a request is to the Edge; 0 is a field that goes on and is not looked at.
PRIVATE, AUTHORIZATION, API_KEY, PROVIDER_TOKEN, CODING, MEDIA_TYPE = 1, 2, 4, 8, 16, 32

# By lower-case name. Private are credentials, the connection's own fields (RFC 9110, section 7.6.1), the framing, which
# the Node writes anew, and what we set ourselves.
MEANINGS: Mapping[bytes, int] = {
    b"authorization": PRIVATE | AUTHORIZATION,
    b"x-api-key": PRIVATE | API_KEY,
    b"content-encoding": CODING,
    b"content-type": MEDIA_TYPE,
    b"api-key": PRIVATE,
    b"x-goog-api-key": PRIVATE,
    b"cookie": PRIVATE,
    b"proxy-authorization": PRIVATE,
    b"x-iop-provider-authorization": PRIVATE,  # the forwarded token's default field, also while forwarding is off
    b"host": PRIVATE,
    b"content-length": PRIVATE,
    b"transfer-encoding": PRIVATE,
    b"connection": PRIVATE,
    b"keep-alive": PRIVATE,
    b"proxy-connection": PRIVATE,
    b"proxy-authenticate": PRIVATE,
    b"te": PRIVATE,
    b"trailer": PRIVATE,
    b"upgrade": PRIVATE,
    b"http2-settings": PRIVATE,
    b"expect": PRIVATE,
    b"x-request-id": PRIVATE,
}

# How many names a table remembers, and how long ones: clients use few, again and again.
KNOWN_NAMES_MAX = 1024
KNOWN_NAME_BYTES_MAX = 64


class Principal(NamedTuple):
    """Labels that a request's usage is booked under. `token_ref` is "" for the anonymous one."""

    principal: str
    token_ref: str


ANONYMOUS = Principal("anonymous", "")


@dataclass(frozen=True, slots=True)
class ForwardRule:
    """`openai.provider_auth`, ready for use: header names in lower case, the scheme without its space."""

    from_header: bytes
    target_header: bytes
    scheme: bytes
    is_required: bool


class AmbiguousToken(Exception):
    """The request carries two different tokens: it is refused whatever they are worth."""


class MissingProviderToken(Exception):
    """The header that brings the provider token is missing or empty where it is required, or stands twice."""


class CallerFields(NamedTuple):
    """A request's fields: `passed` go on to the provider as they came, `marked` have a meaning here."""

    passed: list[Field]
    marked: list[tuple[int, bytes]]


class FieldTable:
    """Knows what each field of a request is under one configuration. Remembers the names it has seen, within bounds.

    A private field is kept back in every spelling: a backend behind CGI or WSGI reads "_" as "-". It is taken for what
    it means in its own spelling alone.
    """

    __slots__ = ("_known", "_meanings", "_private")

    def __init__(self, rule: ForwardRule | None) -> None:
        meanings = dict(MEANINGS)
        if rule is not None:
            meanings[rule.from_header] = meanings.get(rule.from_header, 0) | PRIVATE | PROVIDER_TOKEN
            meanings[rule.target_header] = meanings.get(rule.target_header, 0) | PRIVATE
        self._meanings = meanings
        self._private = frozenset(canonical(name) for name, meaning in meanings.items() if meaning & PRIVATE)
        self._known: dict[bytes, int] = {}

    def sort(self, fields: Iterable[Field]) -> CallerFields:
        """Sort a request's fields, whose names are in lower case."""
        known = self._known
        passed: list[Field] = []
        marked: list[tuple[int, bytes]] = []
        for field in fields:
            meaning = known.get(field[0])
            if meaning is None:
                meaning = self._learn(field[0])
            if not meaning:
                passed.append(field)
                continue
            if not meaning & PRIVATE:
                passed.append(field)
            if meaning != PRIVATE:
                marked.append((meaning, field[1]))
        return new_record(CallerFields, (passed, marked))

    def _learn(self, name: bytes) -> int:
        meaning = self._meanings.get(name)
        if meaning is None:
            meaning = PRIVATE if canonical(name) in self._private else 0
        if len(name) <= KNOWN_NAME_BYTES_MAX and len(self._known) < KNOWN_NAMES_MAX:
            self._known[name] = meaning
        return meaning


def canonical(name: bytes) -> bytes:
    """Spell a lower-case field name with "-" for "_"."""
    return name.replace(b"_", b"-")


def read_token(marked: Sequence[tuple[int, bytes]]) -> bytes | None:
    """Return the caller's token, or None when the request has none that could be one.

    The form is exactly `Authorization: Bearer TOKEN` with one space; a field that stands twice, an empty token and any
    other scheme are no token. Raises `AmbiguousToken` for two different tokens.
    """
    authorizations = keys = 0
    tokens: list[bytes] = []
    for meaning, value in marked:
        if meaning & AUTHORIZATION:
            authorizations += 1
            if value.startswith(BEARER):
                tokens.append(value[len(BEARER) :])
        elif meaning & API_KEY:
            keys += 1
            tokens.append(value)
    if len(tokens) > 1 and tokens.count(tokens[0]) < len(tokens):
        raise AmbiguousToken
    if not tokens or authorizations > 1 or keys > 1:
        return None
    return tokens[0] or None


def identify(
    marked: Sequence[tuple[int, bytes]], principals: Mapping[bytes, Principal], is_required: bool
) -> Principal | None:
    """Return the principal behind a request, or None when it must be refused with 401.

    `principals` is keyed by the 32 bytes of sha256. An unknown token is `ANONYMOUS` unless a principal is required.
    """
    try:
        token = read_token(marked)
    except AmbiguousToken:
        return None
    known = principals.get(sha256(token).digest()) if token is not None and principals else None
    if known is not None:
        return known
    return None if is_required else ANONYMOUS


def is_encoded(marked: Sequence[tuple[int, bytes]]) -> bool:
    """True when a request's body is not sent as it is."""
    codings = [value.strip().lower() for meaning, value in marked if meaning & CODING]
    return any(coding not in (b"", b"identity") for coding in codings)


def read_forwarded(marked: Sequence[tuple[int, bytes]], rule: ForwardRule) -> bytes | None:
    """Return the value for the rule's target header; None means that the provider's own key is used.

    The scheme is put in front unless it stands there already. A field that stands twice is refused even where the
    token is optional: which of the two is meant, and whose account pays, is not ours to guess. Raises
    `MissingProviderToken`.
    """
    values = [value.strip(b" \t") for meaning, value in marked if meaning & PROVIDER_TOKEN]
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
