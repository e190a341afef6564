"""Credentials: who a caller is, what is forwarded, what never leaves."""

from __future__ import annotations

from hashlib import sha256

import pytest

from iop_fast.edge import auth
from iop_fast.edge.auth import ANONYMOUS, AmbiguousToken, FieldTable, ForwardRule, MissingProviderToken, Principal

ALICE = Principal("alice", "laptop")
TOKEN = b"sk-alice"
KNOWN = {sha256(TOKEN).digest(): ALICE}
RULE = ForwardRule(b"x-iop-provider-authorization", b"authorization", b"Bearer", True)
OPTIONAL = ForwardRule(b"x-iop-provider-authorization", b"authorization", b"Bearer", False)
PLAIN = FieldTable(None)

Fields = list[tuple[bytes, bytes]]


def read_token(headers: Fields) -> bytes | None:
    return auth.read_token(PLAIN.sort(headers).marked)


def identify(headers: Fields, known: dict[bytes, Principal], is_required: bool) -> Principal | None:
    return auth.identify(PLAIN.sort(headers).marked, known, is_required)


def read_forwarded(headers: Fields, rule: ForwardRule) -> bytes | None:
    return auth.read_forwarded(FieldTable(rule).sort(headers).marked, rule)


@pytest.mark.parametrize(
    ("headers", "token"),
    [
        ([], None),
        ([(b"authorization", b"Bearer t")], b"t"),
        ([(b"x-api-key", b"t")], b"t"),
        ([(b"authorization", b"Bearer t"), (b"x-api-key", b"t")], b"t"),
        ([(b"authorization", b"Basic abc"), (b"x-api-key", b"t")], b"t"),
        ([(b"authorization", b"Basic abc")], None),
        ([(b"authorization", b"Bearer")], None),
        ([(b"authorization", b"Bearer ")], None),
        ([(b"authorization", b"bearer t")], None),
        ([(b"authorization", b"Bearer t"), (b"authorization", b"Bearer t")], None),
        ([(b"authorization", b"Bearer t"), (b"authorization", b"Basic abc")], None),
        ([(b"x-api-key", b"t"), (b"x-api-key", b"t")], None),
        ([(b"x-api-key", b"")], None),
    ],
)
def test_a_token_has_one_form_and_stands_once(headers: Fields, token: bytes | None) -> None:
    assert read_token(headers) == token


@pytest.mark.parametrize(
    "headers",
    [
        [(b"authorization", b"Bearer a"), (b"x-api-key", b"b")],
        [(b"authorization", b"Bearer a"), (b"authorization", b"Bearer b")],
        [(b"x-api-key", b"a"), (b"x-api-key", b"b")],
    ],
)
def test_two_different_tokens_are_refused_whatever_they_are_worth(headers: Fields) -> None:
    with pytest.raises(AmbiguousToken):
        read_token(headers)
    assert identify(headers, KNOWN, is_required=False) is None
    assert identify(headers, KNOWN, is_required=True) is None


def test_a_known_token_names_its_principal_in_either_header() -> None:
    for headers in ([(b"authorization", b"Bearer " + TOKEN)], [(b"x-api-key", TOKEN)]):
        assert identify(headers, KNOWN, is_required=True) == ALICE
        assert identify(headers, KNOWN, is_required=False) == ALICE


BAD_TOKENS = [
    [(b"authorization", b"Bearer caf\xe9")],
    [(b"authorization", "Bearer café".encode())],
    [(b"authorization", b"Bearer ")],
    [(b"authorization", b"Bearer")],
    [(b"authorization", b"Bearer " + b"a" * 65536)],
    [(b"authorization", b"Bearer " + TOKEN + b"\x00")],
    [(b"authorization", b"bearer " + TOKEN)],
    [(b"authorization", b"Bearer  " + TOKEN)],
    [(b"authorization", b"Bearer " + TOKEN), (b"authorization", b"Bearer " + TOKEN)],
    [(b"authorization", b"Bearer " + sha256(TOKEN).hexdigest().encode())],
    [(b"authorization", b"Bearer " + sha256(TOKEN).digest())],
    [(b"x-api-key", b"")],
    [],
]


@pytest.mark.parametrize("headers", BAD_TOKENS)
def test_a_bad_token_is_nobody(headers: Fields) -> None:
    """B18: refused where a principal is required, booked to nobody where not; the hash is no token."""
    assert identify(headers, KNOWN, is_required=True) is None
    assert identify(headers, KNOWN, is_required=False) == ANONYMOUS


@pytest.mark.parametrize(
    ("value", "forwarded"),
    [
        (b"tok", b"Bearer tok"),
        (b"Bearer tok", b"Bearer tok"),
        (b"bearer tok", b"Bearer tok"),
        (b"Bearer   tok", b"Bearer tok"),
        (b"  tok  ", b"Bearer tok"),
        (b"Bearertok", b"Bearer Bearertok"),
    ],
)
def test_the_scheme_is_put_in_front_once(value: bytes, forwarded: bytes) -> None:
    assert read_forwarded([(RULE.from_header, value)], RULE) == forwarded


def test_without_a_scheme_the_value_goes_on_as_it_is() -> None:
    rule = ForwardRule(b"x-from", b"x-to", b"", True)
    assert read_forwarded([(b"x-from", b"Token abc")], rule) == b"Token abc"


@pytest.mark.parametrize("values", [[], [b""], [b"  "], [b"Bearer"], [b"Bearer  "], [b"a", b"a"], [b"a", b"b"]])
def test_a_required_provider_token_is_there_once_and_not_empty(values: list[bytes]) -> None:
    with pytest.raises(MissingProviderToken):
        read_forwarded([(RULE.from_header, value) for value in values], RULE)


@pytest.mark.parametrize("values", [[], [b""], [b"Bearer"]])
def test_without_an_optional_provider_token_the_own_key_is_used(values: list[bytes]) -> None:
    assert read_forwarded([(RULE.from_header, value) for value in values], OPTIONAL) is None


def test_an_optional_provider_token_that_stands_twice_is_refused() -> None:
    with pytest.raises(MissingProviderToken):
        read_forwarded([(RULE.from_header, b"a"), (RULE.from_header, b"b")], OPTIONAL)


def test_no_credential_of_the_caller_reaches_a_provider() -> None:
    """B17: gateway token, keys and cookies stay here, however often and with whatever spelling they are sent."""
    kept = [(b"accept", b"*/*"), (b"content-type", b"application/json"), (b"x_custom", b"1")]
    private = [
        (b"authorization", b"Bearer gateway"),
        (b"authorization", b"Bearer gateway"),
        (b"x-api-key", b"gateway"),
        (b"x_api_key", b"gateway"),
        (b"api-key", b"gateway"),
        (b"cookie", b"session=1"),
        (b"proxy-authorization", b"Basic x"),
        (b"x-iop-provider-authorization", b"Bearer provider"),
        (b"x_iop_provider_authorization", b"Bearer provider"),
        (b"host", b"edge"),
        (b"content-length", b"12"),
        (b"content_length", b"12"),
        (b"transfer-encoding", b"chunked"),
        (b"transfer_encoding", b"chunked"),
        (b"x-request-id", b"mine"),
    ]
    assert PLAIN.sort(kept + private).passed == kept
    assert PLAIN.sort(kept + private).passed == kept


@pytest.mark.parametrize(("source", "target"), [(b"x_from", b"x-to"), (b"x-from", b"x_to")])
def test_a_rule_keeps_its_own_fields_back_in_every_spelling_and_takes_one(source: bytes, target: bytes) -> None:
    rule = ForwardRule(source, target, b"", False)
    fields = [(b"x-from", b"dash"), (b"x_from", b"low"), (b"x-to", b"b"), (b"x_to", b"b"), (b"accept", b"*/*")]
    assert FieldTable(rule).sort(fields).passed == [(b"accept", b"*/*")]
    assert read_forwarded(fields, rule) == (b"low" if source == b"x_from" else b"dash")


def test_the_gateway_s_own_header_may_bring_the_provider_s_token() -> None:
    rule = ForwardRule(b"authorization", b"authorization", b"Bearer", True)
    fields = FieldTable(rule).sort([(b"authorization", b"Bearer " + TOKEN)])
    assert fields.passed == []
    assert auth.identify(fields.marked, KNOWN, is_required=True) == ALICE
    assert auth.read_forwarded(fields.marked, rule) == b"Bearer " + TOKEN


def test_a_coding_is_seen_and_passed_on() -> None:
    for value, is_encoded in ((b"gzip", True), (b"identity", False), (b"", False), (b" Identity ", False)):
        fields = PLAIN.sort([(b"content-encoding", value)])
        assert auth.is_encoded(fields.marked) is is_encoded
        assert fields.passed == [(b"content-encoding", value)]


def test_a_table_remembers_within_bounds() -> None:
    table = FieldTable(None)
    names = [b"x-%d" % number for number in range(2 * auth.KNOWN_NAMES_MAX)] + [b"y" * 100]
    fields = [(name, b"") for name in names]
    assert table.sort(fields).passed == fields
    assert table.sort([(b"cookie", b"c"), *fields]).passed == fields
    assert len(table._known) == auth.KNOWN_NAMES_MAX
