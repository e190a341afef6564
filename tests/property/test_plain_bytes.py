"""What the compiled readers and writers of bytes make of anything at all: the same however it is cut, and what a few
lines of Python make of it. `make sanitize` runs these with a wall around every piece of memory."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iop_fast._hot.heads import find_head_end, line_text_size, read_plain_head, write_request
from iop_fast._hot.plain_chunks import PlainChunks
from iop_fast._hot.text import Block, decimal, part, replaced
from iop_fast._hot.usage_scan import UsageScan, names_usage

EMPTY_LINE = re.compile(rb"\n\r?\n")
LINES = [b"Content-Length: 5", b"a:b", b"A-b:\t c d \t", b"x:", b"Connection: close", b"e: \xe9", b"X", b": x", b" y"]
HEAD = [LINES[0], b"HTTP/1.1 200 OK", b"HTTP/1.1 ", b"\r\n", b"\r\n", b"\r", b"\n", b"a", b": ", b"\t", b"\0"]
NAMES = [b"usage", b"usage", b"response", b"message"]
CHUNKS = [b"5\r\nhello\r\n", b"3\r\nab", b"c", b"\r\n", b"\r", b"\n", b"0\r\n\r\n", b"f", b"0", b";", b"ffffffffffffff"]
JSON = [*(b"%c" % mark for mark in b'{}[]:,"\\x'), b"null", *(b'"%b"' % name for name in NAMES)]


def soups(pieces: list[bytes], max_size: int = 16) -> st.SearchStrategy[bytes]:
    """Bytes that are nearly what a reader takes, or nothing of it."""
    some = st.one_of(st.sampled_from(pieces), st.sampled_from(pieces), st.binary(max_size=4))
    return st.lists(some, max_size=max_size).map(b"".join)


def cuts(data: bytes) -> Iterator[list[bytes]]:
    """The whole, each cut into two, and single bytes. A piece is a new object: nothing stands behind it."""
    yield [data]
    for at in range(1, len(data)):
        yield [data[:at], data[at:]]
    yield [data[at : at + 1] for at in range(len(data))]


@st.composite
def heads(draw: st.DrawFn) -> bytes:
    """A head or nearly one, and what comes behind it."""
    chosen = draw(st.lists(st.sampled_from(LINES[:6]) | st.sampled_from(LINES), max_size=4))
    head = bytearray(b"\r\n".join([b"HTTP/1.1 200 OK", *chosen, b"", draw(soups(HEAD, 3))]))
    if draw(st.booleans()):
        head[draw(st.integers(0, len(head) - 1))] = draw(st.sampled_from(b"\r\n\0\t: \x7f2"))
    return bytes(head)


@settings(deadline=None, max_examples=300)
@given(heads() | soups(HEAD), st.integers(0, 40))
def test_a_head_is_read_up_to_its_end_and_no_further(data: bytes, at: int) -> None:
    for end in {len(data), at, len(data) + 1, find_head_end(data, 0)}:
        read = read_plain_head(data, end)
        assert read == read_plain_head(data[:end], end)
        if read is not None:
            status, reason, fields, _, _ = read
            lines = data[:end].split(b"\r\n")
            assert lines[0] == b"HTTP/1.1 %d %b" % (status, reason)
            assert lines[-2:] == [b"", b""]
            split = [line.partition(b":") for line in lines[1:-2]]
            assert [(name, value.strip(b" \t")) for name, _, value in split] == fields


@settings(deadline=None, max_examples=300)
@given(soups(HEAD))
def test_the_first_empty_line_ends_a_head(data: bytes) -> None:
    for start in range(len(data) + 3):
        found = EMPTY_LINE.search(data, start)
        assert find_head_end(data, start) == (found.end() if found else 0)


class Decoded:
    """What a chunked body was, piece by piece, and what was left when it ended or was odd."""

    def __init__(self, pieces: list[bytes]) -> None:
        chunks = PlainChunks()
        self.body = b""
        self.rest = b""
        for number, piece in enumerate(pieces):
            self.body += chunks.feed(piece)
            if chunks.odd:
                self.rest = chunks.odd + b"".join(pieces[number + 1 :])
                break
            if chunks.is_complete:
                break
        self.end = (chunks.is_complete, chunks.has_filler)


@settings(deadline=None, max_examples=300)
@given(soups(CHUNKS))
def test_chunks_are_the_same_however_they_come(data: bytes) -> None:
    whole = Decoded([data])
    for pieces in cuts(data):
        decoded = Decoded(pieces)
        assert (decoded.body, decoded.rest, decoded.end) == (whole.body, whole.rest, whole.end), pieces


def found(pieces: list[bytes]) -> dict[bytes, bytes]:
    scan = UsageScan()
    for piece in pieces:
        scan.feed(piece)
    return scan.found


@settings(deadline=None, max_examples=300)
@given(soups(JSON, 24))
def test_usage_is_the_same_however_it_comes(data: bytes) -> None:
    whole = found([data])
    names_usage(data)
    for pieces in cuts(data):
        assert found(pieces) == whole, pieces


keys = st.sampled_from(["usage", "response", "message", "x", 'us"age', "usage\\", "é"])
values = st.recursive(
    st.none() | st.integers() | st.text('"\\{}[]:,u\n', max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=10,
)


@settings(deadline=None)
@given(st.dictionaries(keys, values, max_size=5), st.sampled_from([None, 1]))
def test_usage_stands_where_a_parser_finds_it(document: dict[str, Any], indent: int | None) -> None:
    places = {b"": document, b"response": document.get("response"), b"message": document.get("message")}
    wanted = {
        place: holder["usage"]
        for place, holder in places.items()
        if isinstance(holder, dict) and isinstance(holder.get("usage"), dict)
    }
    data = json.dumps(document, indent=indent).encode()
    assert {place: json.loads(usage) for place, usage in found([data]).items()} == wanted


tokens = st.text("!aZ9-_~", min_size=1, max_size=12).map(str.encode)
lines = st.binary(max_size=20).map(lambda value: re.sub(rb"[\0\r\n]", b"", value))


@settings(deadline=None)
@given(tokens, lines, st.lists(st.tuples(tokens, lines), max_size=6), st.binary(max_size=40))
def test_a_request_is_its_parts(method: bytes, target: bytes, fields: list[tuple[bytes, bytes]], body: bytes) -> None:
    head = b"".join(b"%b: %b\r\n" % field for field in fields)
    written = write_request(method, target, b"host", fields, body)
    assert written == b"%b %b HTTP/1.1\r\nHost: host\r\n%b\r\n%b" % (method, target, head, body)
    assert line_text_size(fields) == sum(len(name) + len(value) for name, value in fields)


PUTS: list[tuple[Callable[[Block, Any], object], Callable[[Any], bytes], st.SearchStrategy[Any]]] = [
    (Block.put, bytes, st.binary(max_size=3000)),
    (Block.put_value, bytes, lines),
    (Block.put_text, str.encode, st.text(max_size=40)),
    (Block.put_number, lambda number: b"%d" % number, st.integers(0, 2**63 - 1)),
    (Block.put_hexadecimal, lambda number: b"%x" % number, st.integers(0, 2**63 - 1)),
]


@settings(deadline=None)
@given(st.data())
def test_a_block_holds_what_was_put(data: st.DataObject) -> None:
    block, held = Block(), b""
    for _ in range(data.draw(st.integers(0, 12))):
        put, said, given_ = data.draw(st.sampled_from(PUTS))
        value = data.draw(given_)
        put(block, value)
        held += said(value)
        match data.draw(st.sampled_from(["go on", "go on", "go on", "clear", "take", "take with"])):
            case "clear":
                block.clear()
                held = b""
            case "take":
                assert block.take() == held
                held = b""
            case "take with":
                pieces = data.draw(st.lists(st.binary(max_size=20), max_size=3))
                assert block.take_with(pieces, b"end") == held + b"".join(pieces) + b"end"
                held = b""
    assert block.take() == held


@settings(deadline=None)
@given(st.binary(max_size=12), st.integers(-2, 14), st.integers(-2, 14), st.binary(max_size=5))
def test_parts_are_slices_and_none_beyond_the_text(text: bytes, start: int, end: int, by: bytes) -> None:
    if start < 0 or end > len(text):
        with pytest.raises(IndexError):
            part(text, start, end)
    else:
        assert part(text, start, end) == text[start : max(start, end)]
    if 0 <= start <= end <= len(text):
        assert replaced(text, start, end, by) == text[:start] + by + text[end:]
    else:
        with pytest.raises(IndexError):
            replaced(text, start, end, by)


@given(st.integers(0, 2**63 - 1))
def test_a_number_is_its_digits(number: int) -> None:
    assert decimal(number) == str(number).encode()
