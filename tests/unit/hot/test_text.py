"""Small pieces of text: equal to what Python's own formatting makes of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iop_fast._hot.text import breaks_line, chunk_line, decimal

NUMBERS = st.integers(0, (1 << 63) - 1)


@given(NUMBERS)
def test_a_number_is_written_as_python_writes_it(number: int) -> None:
    assert decimal(number) == b"%d" % number
    assert chunk_line(number) == b"%x\r\n" % number


def test_a_number_beyond_the_bounds_is_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        decimal(-1)
    with pytest.raises(OverflowError):
        decimal(1 << 63)


@given(st.lists(st.binary(max_size=6), max_size=6), st.integers(0, 3), st.integers(1, 3))
def test_a_line_break_is_found_in_the_parts_that_are_looked_at(parts: list[bytes], start: int, step: int) -> None:
    looked_at = b"".join(parts[start::step])
    assert breaks_line(parts, start, step) == any(byte in looked_at for byte in b"\r\n\0")
