"""Cutting fields out of a head: names, values, and blocks that are no heads."""

from __future__ import annotations

import pytest

from iop_fast._hot import fields
from iop_fast._hot.fields import split_fields

SPECIAL = frozenset((b"host", b"connection"))


def test_the_module_is_compiled() -> None:
    assert fields.__file__.endswith(".so")


def test_special_names_and_those_with_an_underscore_stand_aside() -> None:
    block = b"GET / HTTP/1.1\r\nX-A: 1\r\nHOST: a\r\nX_B: 2\r\nx-c:3\r\nConnection: x\r\n\r\n"
    aside = [(b"host", b"a"), (b"x_b", b"2"), (b"connection", b"x")]
    assert split_fields(block, 16, SPECIAL) == (aside, [(b"x-a", b"1"), (b"x-c", b"3")])


@pytest.mark.parametrize(
    ("line", "value"),
    [
        (b"X:v", b"v"),
        (b"X: v", b"v"),
        (b"X:\t v \t ", b"v"),
        (b"X: a  b", b"a  b"),
        (b"X: a:b", b"a:b"),
        (b"X: \xff\t\x80", b"\xff\t\x80"),
        (b"X:", b""),
        (b"X: ", b""),
        (b"X: \t \t", b""),
        (b"X: " + b"v" * 30_000, b"v" * 30_000),
    ],
)
def test_values_are_cut_of_the_space_around_them(line: bytes, value: bytes) -> None:
    assert split_fields(line + b"\r\n\r\n", 0, SPECIAL) == ([], [(b"x", value)])


def test_names_of_any_token_are_lowered() -> None:
    name = b"!#$%&'*+-.^`|~09AZaz"
    assert split_fields(name + b": v\r\n\r\n", 0, SPECIAL) == ([], [(name.lower(), b"v")])


def test_a_head_without_fields_has_none() -> None:
    assert split_fields(b"GET / HTTP/1.0\r\n\r\n", 16, SPECIAL) == ([], [])


@pytest.mark.parametrize(
    "block",
    [
        b"",
        b"\r",
        b"X: v",
        b"X: v\r\n",
        b"X: v\n\n",
        b": v\r\n\r\n",
        b"X v\r\n\r\n",
        b"X: v\rY: w\r\n\r\n",
        b"X: v\r\n\r\nY: w\r\n\r\n",
        b"X: v\r\n:\r\n\r\n",
    ],
)
def test_a_block_of_another_shape_is_an_error(block: bytes) -> None:
    with pytest.raises(ValueError, match="expected a"):
        split_fields(block, 0, SPECIAL)


@pytest.mark.parametrize("start", [-1, 100])
def test_an_offset_outside_of_the_block_reads_nothing(start: int) -> None:
    if start < 0:
        with pytest.raises(ValueError, match="expected a"):
            split_fields(b"X: v\r\n\r\n", start, SPECIAL)
    else:
        assert split_fields(b"X: v\r\n\r\n", start, SPECIAL) == ([], [])
