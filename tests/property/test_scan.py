"""The compiled scan against the plain one: any body, whole or broken, in any pieces, with either block reader."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iop_fast._core import json_string, scan
from tests.model import scan_reference

KEYS = [
    "model", "stream", "messages", "prompt", "input", "system", "tools", "functions", "response_format", "text",
    "output_config", "metadata", "max_tokens", "Model", "strea\u212a", "\u017ftream", "Tools", "user", "",
]  # fmt: skip
INNER_KEYS = [
    "type", "text", "content", "role", "id", "image_url", "url", "input_audio", "data", "format", "video_url", "file",
    "file_data", "source", "media_type", "tool_calls", "function", "name", "arguments", "input", "cache_control",
    "properties", "model", "a key that is longer than every name", "",
]  # fmt: skip
STRINGS = [
    "https://a", "HTTP://", "http:/", "https:", "httpx://", "ttp://", "ht",
    "text", "image_url", "input_image", "image", "input_audio", "audio_url", "video", "document", "file", "json_schema",
    "base64", "user", "hello world", "", "data:image/png;base64,AAAA", "\ud800", "\ud83d", "\ude00", "a" * 70,
    "x" * 1024, "y" * 1025, "\U0001f600 emoji", "한국어", "日本語、テキスト", "é\t\n\"\\/",
]  # fmt: skip

texts = st.one_of(st.sampled_from(STRINGS), st.text(st.characters(codec=None, categories=None), max_size=90))
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.just(10**400), texts
)
values = st.recursive(
    st.one_of(scalars, texts),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.one_of(st.sampled_from(INNER_KEYS), texts), inner, max_size=5),
    ),
    max_leaves=14,
)
members = st.lists(
    st.one_of(
        st.tuples(st.just("model"), texts),
        st.tuples(st.just("stream"), st.sampled_from([True, False, None])),
        st.tuples(st.just("messages"), st.lists(values, max_size=4)),
        st.tuples(st.sampled_from(KEYS), values),
        st.tuples(texts, values),
    ),
    max_size=8,
)


class Writer:
    """Writes JSON as no library would: odd white space, and every way to spell a character."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def space(self) -> bytes:
        return self.random.choice([b"", b"", b"", b" ", b"\n", b"\r\n\t  "])

    def string(self, text: str) -> bytes:
        out = b'"'
        style = self.random.random()
        for character in text:
            point = ord(character)
            short = {34: b'\\"', 92: b"\\\\", 8: b"\\b", 12: b"\\f", 10: b"\\n", 13: b"\\r", 9: b"\\t", 47: b"\\/"}
            if point in short and (point != 47 or self.random.random() < 0.5) and self.random.random() < 0.8:
                out += short[point]
            elif point < 32 or point in (34, 92) or 0xD800 <= point <= 0xDFFF or self.random.random() < style * 0.5:
                out += self.escape(point)
            else:
                out += character.encode()
        return out + b'"'

    def escape(self, point: int) -> bytes:
        units = [point] if point < 0x10000 else [0xD7C0 + (point >> 10), 0xDC00 + (point & 0x3FF)]
        digits = [f"{unit:04x}" if self.random.random() < 0.5 else f"{unit:04X}" for unit in units]
        return "".join("\\u" + four for four in digits).encode()

    def value(self, value: Any) -> bytes:
        if isinstance(value, str):
            return self.string(value)
        if isinstance(value, list):
            return b"[" + b",".join(self.spaced(item) for item in value) + self.space() + b"]"
        if isinstance(value, dict):
            return self.members(list(value.items()))
        return json.dumps(value).encode()

    def spaced(self, value: Any) -> bytes:
        return self.space() + self.value(value) + self.space()

    def members(self, pairs: list[tuple[str, Any]]) -> bytes:
        written = [self.space() + self.string(key) + self.space() + b":" + self.spaced(value) for key, value in pairs]
        return b"{" + b",".join(written) + self.space() + b"}"


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    writer = Writer(draw(st.integers(0, 2**32)))
    return writer.space() + writer.members(draw(members)) + writer.space()


@st.composite
def broken_bodies(draw: st.DrawFn) -> bytes:
    body = bytearray(draw(bodies()))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(body)))
        junk = draw(
            st.one_of(st.binary(max_size=3), st.sampled_from([b'"', b"\\", b"\\u", b"{", b"]", b",", b"-0", b"e"]))
        )
        body[at : at + draw(st.integers(0, 3))] = junk
    return bytes(body)


def pieces(body: bytes, cuts: list[int]) -> Iterator[bytes]:
    edges = sorted({0, len(body), *(cut % (len(body) + 1) for cut in cuts)})
    for start, end in pairwise(edges):
        yield body[start:end]


def compiled_outcome(body: bytes, cuts: list[int], max_depth: int = 128) -> dict[str, Any]:
    machine = scan.BodyScan(max_depth)
    try:
        for piece in pieces(body, cuts):
            machine.feed(piece)
        machine.finish()
    except scan.ScanError as error:
        return {"code": error.code, "offset": error.offset, "param": error.param}
    keys = list(machine.top_level_keys)
    return {
        "model": machine.model,
        "model_span": machine.model_span,
        "stream": machine.stream,
        "features": machine.features,
        "estimated_tokens": machine.estimated_tokens,
        "value_count": machine.value_count,
        "input_value_count": machine.input_value_count,
        "top_level_keys": keys,
        "insert_at": machine.insert_at,
        "spans": [machine.value_span(key) for key in keys if "\ufffd" not in key],
    }


def reference_outcome(body: bytes, max_depth: int = 128) -> dict[str, Any]:
    try:
        result = scan_reference.scan(body, max_depth)
    except scan_reference.Refused as refused:
        return {"code": refused.code, "offset": refused.offset, "param": refused.param}
    found = dict(vars(result))
    named = zip(result.top_level_keys, result.spans, strict=True)
    return {**found, "spans": [span for key, span in named if "\ufffd" not in key]}


@pytest.fixture(params=json_string.block_readers(), autouse=True, scope="module")
def block_reader(request: pytest.FixtureRequest) -> Iterator[None]:
    json_string.use_block_reader(request.param)
    yield
    json_string.use_block_reader(json_string.block_readers()[0])


cut_lists = st.one_of(st.just([]), st.lists(st.integers(0, 2**16), max_size=6), st.just(list(range(2**12))))


@given(bodies(), cut_lists)
@settings(max_examples=300, deadline=None)
def test_a_body_is_read_as_the_reference_reads_it(body: bytes, cuts: list[int]) -> None:
    assert compiled_outcome(body, cuts) == reference_outcome(body)


@given(broken_bodies(), cut_lists)
@settings(max_examples=500, deadline=None)
def test_a_broken_body_is_refused_for_the_same_byte(body: bytes, cuts: list[int]) -> None:
    assert compiled_outcome(body, cuts) == reference_outcome(body)


@given(broken_bodies())
@settings(max_examples=200, deadline=None)
def test_what_is_called_invalid_json_is_what_another_parser_refuses(body: bytes) -> None:
    outcome = compiled_outcome(body, [])
    try:
        parsed = json.loads(body.decode(), parse_int=str, parse_float=str, parse_constant=refuse_constant)
        is_object = isinstance(parsed, dict)
    except ValueError:
        is_object = False
    if is_object:
        assert outcome.get("code") not in ("invalid_json", "invalid_utf8", "not_an_object")
    else:
        assert "code" in outcome


def refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


@given(st.integers(1, 6), st.lists(st.sampled_from([b"[", b"]", b'{"a":', b"}", b"1", b",", b" "]), max_size=30))
@settings(max_examples=300, deadline=None)
def test_depth_is_limited_alike(max_depth: int, parts: list[bytes]) -> None:
    body = b'{"x":' + b"".join(parts)
    assert compiled_outcome(body, [], max_depth) == reference_outcome(body, max_depth)


@given(st.binary(max_size=300), st.integers(0, 200))
@settings(max_examples=300, deadline=None)
def test_any_bytes_in_a_string_end_alike(inside: bytes, padding: int) -> None:
    body = b'{"messages":["' + b"p" * padding + inside + b'"]}' + b" " * 64
    assert compiled_outcome(body, []) == reference_outcome(body)


@given(st.text(st.characters(codec=None, categories=None), max_size=200))
@settings(max_examples=200, deadline=None)
def test_a_text_weighs_the_sum_of_its_characters(text: str) -> None:
    assert scan.estimate_tokens(text) == math.ceil(scan_reference.weight(text) / scan_reference.UNITS)
