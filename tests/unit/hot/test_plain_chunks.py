"""Chunked bodies of the plain form, and the place where they stop being it."""

from __future__ import annotations

import pytest

from iop_fast._hot.plain_chunks import PlainChunks

PLAIN = b"5\r\nhello\r\n0a\r\n0123456789\r\n0\r\n\r\n"


def fed(*pieces: bytes) -> tuple[bytes, PlainChunks, bytes]:
    """The payload, the decoder, and what was not fed because the body was over or odd."""
    chunks = PlainChunks()
    body = b""
    left = list(pieces)
    while left and not chunks.is_complete and chunks.odd is None:
        body += chunks.feed(left.pop(0))
    return body, chunks, b"".join(left)


def test_every_split_gives_the_same_body() -> None:
    for cut in range(len(PLAIN) + 1):
        body, chunks, _ = fed(PLAIN[:cut], PLAIN[cut:])
        assert (body, chunks.is_complete, chunks.has_more, chunks.odd) == (b"hello0123456789", True, False, None)


@pytest.mark.parametrize(
    ("odd", "seen", "has_filler"),
    [
        (b"5;x\r\nabcde\r\n", b"5;x\r\nabcde\r\n", False),
        (b"5 \r\n", b"5 \r\n", False),
        (b"5\nabcde", b"5\nabcde", False),
        (b"0\r\nX: y\r\n\r\n", b"0\r\nX: y\r\n\r\n", False),
        (b"0\r\n\rX", b"0\r\n\rX", False),
        (b"zz", b"zz", False),
        (b"\r\n", b"\r\n", False),
        (b"0123456789abcdef", b"0123456789abcdef", False),
        (b"3\r\nabc\n", b"1\r\nx\n", True),
        (b"3\r\nabc\rX", b"1\r\nx\rX", True),
    ],
)
def test_what_is_odd_is_shown_to_a_parser(odd: bytes, seen: bytes, has_filler: bool) -> None:
    """Whatever the cut, the parser sees the same bytes from the same place on."""
    whole = b"5\r\nhello\r\n" + odd + b"rest"
    for cut in range(len(whole) + 1):
        body, chunks, left = fed(whole[:cut], whole[cut:])
        assert chunks.odd is not None
        assert body == (b"helloabc" if has_filler else b"hello")
        assert chunks.odd + left == seen + b"rest"
        assert (chunks.has_filler, chunks.is_complete) == (has_filler, False)


def test_bytes_behind_the_end_are_seen() -> None:
    body, chunks, _ = fed(PLAIN + b"more")
    assert (len(body), chunks.is_complete, chunks.has_more) == (15, True, True)


def test_the_middle_of_a_long_chunk_is_not_copied() -> None:
    chunks = PlainChunks()
    chunks.feed(b"ffff\r\n")
    piece = bytes(1000)
    assert chunks.feed(piece) is piece
