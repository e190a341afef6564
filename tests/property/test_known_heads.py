"""A head that comes again is read as if it had not been there before, and no other head is taken for it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from iop_fast._hot.fields import match_head, number_at
from iop_fast.config.schema.front import HttpLimits
from iop_fast.edge.front.head import KNOWN_HEAD_BYTES_MAX, HeadParser, KnownHead
from iop_fast.seams import RequestHead

FIELDS = st.lists(
    st.sampled_from(
        [
            b"Accept: */*",
            b"Authorization: Bearer secret",
            b"Connection: keep-alive",
            b"Connection: close",
            b"Content-Type: application/json",
            b"Expect: 100-continue",
            b"X-Length: 5",
            b"x-odd: \tContent-Length: 7 ",
        ]
    ),
    max_size=5,
    unique_by=lambda field: field.partition(b":")[0],
)
LENGTHS = st.one_of(
    st.none(),
    st.tuples(
        st.sampled_from([b"Content-Length: ", b"content-length: ", b"CONTENT-LENGTH:", b"Content-Length:  "]),
        st.integers(0, 10**17),
        st.sampled_from([b"", b" ", b"\t"]),
    ),
)


def block(fields: list[bytes], at: int, length: tuple[bytes, int, bytes] | None, version: bytes = b"1.1") -> bytes:
    lines = [b"Host: a", *fields]
    if length is not None:
        lines.insert(at % (len(lines) + 1), b"%b%d%b" % length)
    return b"\r\n".join([b"POST /v1/x?q=1 HTTP/" + version, *lines, b"", b""])


def known(parser: HeadParser, head: bytes) -> KnownHead | None:
    return parser.remember(head, parser.parse(head))


def facts(parser: HeadParser, head: RequestHead) -> tuple[object, ...]:
    return (*head, parser.is_http10, parser.keep_alive, parser.expects_continue)


@given(FIELDS, st.integers(0, 9), LENGTHS, st.integers(0, 10**17), st.binary(max_size=20))
def test_a_head_that_comes_again_is_read_as_the_first_time(
    fields: list[bytes], at: int, length: tuple[bytes, int, bytes] | None, again: int, rest: bytes
) -> None:
    parser = HeadParser(HttpLimits())
    seen = known(parser, block(fields, at, length))
    second = block(fields, at, None if length is None else (length[0], again, length[2]))
    if seen is None:
        assert length is not None  # one that is not spelled as most clients do
        return
    assert seen.match(second + rest) == len(second)
    parser.parse(b"GET / HTTP/1.0\r\n\r\n")  # what the parser was left with does not matter
    recalled = facts(parser, parser.recall(seen, second + rest))
    assert recalled == facts(parser, parser.parse(second))


@given(FIELDS, st.integers(0, 9), LENGTHS, st.integers(0, 400), st.integers(0, 255))
def test_a_head_that_differs_elsewhere_is_another(
    fields: list[bytes], at: int, length: tuple[bytes, int, bytes] | None, place: int, byte: int
) -> None:
    parser = HeadParser(HttpLimits())
    first = block(fields, at, length)
    seen = known(parser, first)
    place %= len(first)
    changed = first[:place] + bytes([byte]) + first[place + 1 :]
    size = 0 if seen is None else seen.match(changed)
    if changed == first:
        assert size in (0, len(first))
    elif size:
        assert length is not None
        digits = b"%d" % length[1]
        spot = first.index(length[0] + digits) + len(length[0])
        assert spot <= place < spot + len(digits)
        assert 48 <= byte <= 57
    for end in range(len(first)):
        assert seen is None or seen.match(first[:end]) == 0 or first[:end].endswith(b"\r\n\r\n")


def test_a_large_head_is_not_remembered() -> None:
    parser = HeadParser(HttpLimits())
    assert known(parser, block([b"x: " + b"y" * KNOWN_HEAD_BYTES_MAX], 0, None)) is None


@given(st.binary(max_size=8), st.binary(max_size=8), st.integers(0, 10**20), st.binary(max_size=8))
def test_match_takes_at_most_18_digits(front: bytes, back: bytes, number: int, rest: bytes) -> None:
    digits = b"%d" % number
    front += b":"
    back = b"\r" + back
    size = match_head(front + digits + back + rest, front, back)
    assert size == (len(front + digits + back) if len(digits) <= 18 else 0)
    if size:
        assert number_at(front + digits + back, len(front)) == number
