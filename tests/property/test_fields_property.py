"""Cutting fields against the callbacks of httptools, for every head that it accepts."""

from __future__ import annotations

import httptools
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from iop_fast._hot.fields import split_fields

LINE = b"GET / HTTP/1.1\r\n"

names = st.binary(min_size=1, max_size=12) | st.sampled_from(
    [b"Host", b"X-A", b"x_b", b"Content-Length", b"Connection"]
)
values = st.binary(max_size=30) | st.sampled_from([b"", b" ", b"\t", b" a \t", b"7", b"a:b", b"\xff\x80", b"close"])
separators = st.sampled_from([b":", b": ", b":\t", b": \t ", b" :"])
ends = st.sampled_from([b"\r\n"] * 12 + [b"\n", b"\r", b"\r\n ", b"\r\r\n", b" \r\n"])
lines = st.builds(lambda name, colon, value, end: name + colon + value + end, names, separators, values, ends)


class Reference:
    """The fields as httptools calls them back."""

    def __init__(self) -> None:
        self.fields: list[tuple[bytes, bytes]] = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields.append((name.lower(), value.rstrip(b" \t")))


def called_back(block: bytes) -> list[tuple[bytes, bytes]] | None:
    reference = Reference()
    try:
        httptools.HttpRequestParser(reference).feed_data(block)
    except httptools.HttpParserUpgrade:
        pass
    except httptools.HttpParserError:
        return None
    return reference.fields


@settings(max_examples=500)
@given(st.lists(lines, max_size=6))
def test_what_httptools_accepts_is_cut_into_the_same_fields(parts: list[bytes]) -> None:
    block = LINE + b"".join(parts) + b"\r\n"
    assume(block.find(b"\r\n\r\n") == len(block) - 4)  # A head ends at its first empty line.
    expected = called_back(block)
    if expected is None:
        return
    aside, plain = split_fields(block, len(LINE), frozenset())
    assert aside == [field for field in expected if b"_" in field[0]]
    assert plain == [field for field in expected if b"_" not in field[0]]


@given(st.binary(max_size=200), st.integers(0, 250))
def test_any_bytes_are_cut_or_refused(block: bytes, start: int) -> None:
    try:
        aside, plain = split_fields(block + b"\r\n", start, frozenset())
    except ValueError:
        return
    assert sum(len(name) + len(value) for name, value in aside + plain) <= len(block)
