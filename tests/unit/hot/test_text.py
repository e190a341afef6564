"""Small pieces of text: equal to what Python's own formatting makes of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iop_fast import logs
from iop_fast._hot.text import Block, Stamp, decimal, part, replaced

NUMBERS = st.integers(0, (1 << 63) - 1)


@given(NUMBERS)
def test_a_number_is_written_as_python_writes_it(number: int) -> None:
    assert decimal(number) == b"%d" % number
    block = Block()
    block.put_number(number)
    block.put(b" ")
    block.put_hexadecimal(number)
    assert block.take() == b"%d %x" % (number, number)


def test_a_number_beyond_the_bounds_is_refused() -> None:
    for write in (decimal, Block().put_number, Block().put_hexadecimal):
        with pytest.raises(ValueError, match="negative"):
            write(-1)
        with pytest.raises(OverflowError):
            write(1 << 63)


@given(st.binary(max_size=9), st.integers(-2, 11), st.integers(-2, 11), st.binary(max_size=3))
def test_a_part_is_a_slice_of_places_that_are_there(text: bytes, start: int, end: int, by: bytes) -> None:
    if start >= 0 and end <= len(text):
        assert part(text, start, end) == text[start:end] if end >= 0 else part(text, start, end) == b""
    else:
        with pytest.raises(IndexError):
            part(text, start, end)
    if 0 <= start <= end <= len(text):
        assert replaced(text, start, end, by) == text[:start] + by + text[end:]
    else:
        with pytest.raises(IndexError):
            replaced(text, start, end, by)


@given(st.lists(st.lists(st.binary(max_size=2_000) | st.text(max_size=30), max_size=6), max_size=4))
def test_a_block_is_written_over_and_over(lines: list[list[bytes | str]]) -> None:
    block = Block()
    for line in lines:
        for piece in line:
            if isinstance(piece, str):
                block.put_text(piece)
            else:
                block.put(piece)
        assert block.take() == b"".join(piece.encode() if isinstance(piece, str) else piece for piece in line)
    block.put(b"dropped")
    block.clear()
    assert block.take() == b""


@given(st.binary(max_size=5), st.lists(st.binary(max_size=5), max_size=4), st.binary(max_size=3))
def test_a_block_is_taken_with_what_stands_behind_it(begun: bytes, pieces: list[bytes], end: bytes) -> None:
    block = Block()
    block.put(begun)
    assert block.take_with(pieces, end) == b"".join((begun, *pieces, end))
    assert block.take_with([], b"") == b""


def test_a_piece_that_is_all_there_is_is_not_copied() -> None:
    piece = b"x" * 1000
    assert Block().take_with([piece], b"") is piece


def test_a_piece_that_is_no_bytes_is_refused() -> None:
    block = Block()
    block.put(b"begun")
    for piece in (bytearray(b"a"), None, "a"):
        with pytest.raises(TypeError, match="pieces of bytes"):
            block.take_with([b"a", piece], b"")  # type: ignore[list-item]
    assert block.take() == b"begun"


@given(st.binary(max_size=6))
def test_a_value_stays_within_its_line(value: bytes) -> None:
    block = Block()
    if any(byte in value for byte in b"\r\n\0"):
        with pytest.raises(ValueError, match="CR, LF or NUL"):
            block.put_value(value)
        assert block.take() == b""
    else:
        block.put_value(value)
        assert block.take() == value


def test_a_text_without_utf_8_is_refused() -> None:
    with pytest.raises(UnicodeEncodeError):
        Block().put_text("\ud800")


def test_a_stamp_is_the_time_of_now_as_logs_write_it() -> None:
    stamp = Stamp()
    for _ in range(2_000):
        before = datetime.now(UTC)
        text = stamp.now().decode()
        at = datetime.fromisoformat(text)
        assert before - timedelta(milliseconds=1) < at <= datetime.now(UTC)
        assert at.isoformat(timespec="milliseconds") == text
        assert len(text) == len(logs.stamp())
