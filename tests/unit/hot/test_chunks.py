"""The chunked decoder: form, bounds, and where a body ends."""

from __future__ import annotations

import pytest

from iop_fast._hot import chunks
from iop_fast._hot.chunks import ChunkDecoder, ChunkError, PayloadTooLargeError

MIB = 1_048_576


def decode(raw: bytes, step: int = 0, payload_max: int = MIB) -> tuple[bytes, int, bool]:
    """Return the payload, the bytes used and whether the body was complete."""
    decoder = ChunkDecoder(payload_max)
    payload = b""
    used = 0
    for at in range(0, len(raw), step or max(len(raw), 1)):
        payload += decoder.feed(raw[at : at + (step or len(raw))])
        used += decoder.consumed
        if decoder.is_complete:
            break
    return payload, used, decoder.is_complete


def verdict(raw: bytes, step: int = 0, payload_max: int = MIB) -> str:
    try:
        return "complete" if decode(raw, step, payload_max)[2] else "incomplete"
    except PayloadTooLargeError:
        return "too large"
    except ChunkError:
        return "refused"


def test_the_module_is_compiled() -> None:
    assert chunks.__file__.endswith(".so")


@pytest.mark.parametrize("step", [0, 1, 2, 5])
def test_payload_of_all_chunks_is_joined_and_the_end_is_found(step: int) -> None:
    raw = b"3\r\nabc\r\n0A;x=y\r\n0123456789\r\n000\r\nX-T: 1\r\n\r\n"
    assert decode(raw + b"GET /", step) == (b"abc0123456789", len(raw), True)


def test_one_feed_gives_one_piece_however_small_the_chunks_are() -> None:
    assert decode(b"1\r\nx\r\n" * 40_000 + b"0\r\n\r\n") == (b"x" * 40_000, 240_005, True)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_every_buffer_is_taken(kind: type) -> None:
    assert ChunkDecoder(10).feed(kind(b"3\r\nabc\r\n0\r\n\r\n")) == b"abc"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"3",
        b"3\r",
        b"3;",
        b"3\r\n",
        b"3\r\nab",
        b"3\r\nabc",
        b"3\r\nabc\r",
        b"3\r\nabc\r\n",
        b"0",
        b"0\r\n",
        b"0\r\n\r",
        b"0\r\nX",
        b"0\r\nX: y",
        b"0\r\nX: y\r",
        b"0\r\nX: y\r\n",
    ],
)
def test_a_cut_body_is_incomplete(raw: bytes) -> None:
    assert verdict(raw) == verdict(raw, 1) == "incomplete"


@pytest.mark.parametrize(
    "raw",
    [
        b"g\r\n",
        b"-1\r\n",
        b"+1\r\n",
        b"0x1\r\n",
        b" 1\r\n",
        b"1 \r\n",
        b"1\t;a\r\n",
        b"\r\n",
        b";a\r\n",
        b"1\n",
        b"1\rx",
        b"1;a\n",
        b"1;a\0\r\n",
        b"1;a\x7f\r\n",
        b"1;\rx",
        b"00000000000000001\r\n",
        b"1\r\nab",
        b"1\r\na\n",
        b"1\r\na\rx",
        b"0\r\n\rx",
        b"0\r\n\n",
        b"0\r\n: v\r\n",
        b"0\r\n X: y\r\n",
        b"0\r\nX y: z\r\n",
        b"0\r\nX: y\n",
        b"0\r\nX: y\rz",
        b"0\r\nX: \0\r\n",
        b"0\r\nX\r\n",
        b"0\r\nX: y\r\n folded\r\n",
    ],
)
def test_broken_framing_is_refused_whole_and_byte_by_byte(raw: bytes) -> None:
    assert verdict(raw) == verdict(raw, 1) == "refused"


@pytest.mark.parametrize("step", [0, 1])
def test_payload_is_bounded_at_the_size_line(step: int) -> None:
    assert verdict(b"5\r\nabcde\r\n5\r\nabcde\r\n0\r\n\r\n", step, payload_max=10) == "complete"
    assert verdict(b"5\r\nabcde\r\n6\r\n", step, payload_max=10) == "too large"
    assert verdict(b"ffffffffffffffff\r\n", step, payload_max=10) == "too large"


def test_extensions_are_bounded() -> None:
    assert verdict(b"1;" + b"e" * 4_095 + b"\r\na\r\n0\r\n\r\n") == "complete"
    assert verdict(b"1;" + b"e" * 4_097) == "refused"


def test_framing_is_bounded_in_proportion_to_the_payload() -> None:
    line = b"1;" + b"e" * 1_000 + b"\r\na\r\n"
    assert verdict(line * 16 + b"0\r\n\r\n") == "complete"
    assert verdict(line * 20) == "refused"
    assert verdict(b"400\r\n" + b"a" * 1_024 + b"\r\n" + line * 20 + b"0\r\n\r\n") == "complete"


def test_trailers_are_bounded_in_bytes_and_fields() -> None:
    assert verdict(b"0\r\n" + b"X: y\r\n" * 100 + b"\r\n") == "complete"
    assert verdict(b"0\r\n" + b"X: y\r\n" * 101) == "refused"
    assert verdict(b"0\r\nX: " + b"y" * 17_000) == "refused"


def test_a_decoder_takes_nothing_after_its_end() -> None:
    decoder = ChunkDecoder(10)
    decoder.feed(b"0\r\n\r\n")
    with pytest.raises(ValueError, match="has ended already"):
        decoder.feed(b"x")
    broken = ChunkDecoder(10)
    with pytest.raises(ChunkError):
        broken.feed(b"x")
    with pytest.raises(ValueError, match="has ended already"):
        broken.feed(b"0\r\n\r\n")
