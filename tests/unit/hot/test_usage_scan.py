"""Usage objects in JSON that passes: where they stand, where they do not, and texts that would be slow."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iop_fast._hot.usage_scan import USAGE_BYTES_MAX, UsageScan, names_usage

NAMED = re.compile(rb'"usage"(?!\s*:\s*null)')


def found(*pieces: bytes) -> dict[bytes, bytes]:
    scan = UsageScan()
    for piece in pieces:
        scan.feed(piece)
    return scan.found


@pytest.mark.parametrize(
    ("document", "wanted"),
    [
        (b'{"usage":{"a":1}}', {b"": b'{"a":1}'}),
        (b'{"response":{"usage":{}},"message":{"usage":{"b":2}}}', {b"response": b"{}", b"message": b'{"b":2}'}),
        (b'{"usage":{"a":1},"usage":{"a":2}}', {b"": b'{"a":2}'}),
        (b'{"usage":[{"a":1}],"x":{"usage":{}},"responses":{"usage":{}}}', {}),
        (b'{"usage"}{"usage":"x","y":{}}', {}),
        (b'{"\\\\":"\\"","usage":{"c":"}\\"{"}}', {b"": b'{"c":"}\\"{"}'}),
        (b"]]]}}}", {}),
    ],
)
def test_usage_objects_are_found_in_their_places(document: bytes, wanted: dict[bytes, bytes]) -> None:
    assert found(document) == wanted
    for cut in range(len(document)):
        assert found(document[:cut], document[cut:]) == wanted, cut


@pytest.mark.parametrize("text", ['a"b' * 3, "\\" * 9, "line\n" * 5, '\\"'])
def test_escapes_end_no_string(text: str) -> None:
    document = json.dumps({"text": text, "usage": {"a": 1}}, separators=(",", ":")).encode()
    for cut in range(len(document)):
        assert found(document[:cut], document[cut:]) == {b"": b'{"a":1}'}


def test_an_object_beyond_the_limit_is_passed_over() -> None:
    large = b'{"x":"' + b"y" * USAGE_BYTES_MAX + b'"}'
    assert found(b'{"usage":' + large + b',"message":{"usage":{"a":1}}}') == {b"message": b'{"a":1}'}


@given(st.lists(st.sampled_from([b'"usage"', b" ", b"\n", b":", b"null", b"nul", b"{", b"x", b'"']), max_size=12))
def test_a_key_is_named_unless_it_says_null(parts: list[bytes]) -> None:
    data = b"".join(parts)
    assert names_usage(data) == (NAMED.search(data) is not None)
