"""Heads to and from a provider: what is sorted out, written and read, and what is left to llhttp."""

from __future__ import annotations

import pytest

from iop_fast._hot.heads import (
    CHUNKED,
    UNTIL_CLOSE,
    Names,
    end_to_end,
    find_head_end,
    has_field,
    line_text_size,
    read_plain_head,
    write_request,
)

OK = b"HTTP/1.1 200 OK\r\n"
HOPS = Names((b"connection", b"te"))


def read(head: bytes) -> tuple[int, bytes, list[tuple[bytes, bytes]], int, bool] | None:
    return read_plain_head(head + b"body", len(head))


def test_fields_of_one_connection_stay_behind() -> None:
    fields = [(b"TE", b"x"), (b"a", b"1"), (b"Connection", b"close, X-Hop"), (b"x-hop", b"2"), (b"X-Hops", b"3")]
    assert end_to_end(fields, HOPS) == [(b"a", b"1"), (b"X-Hops", b"3")]
    assert end_to_end([], HOPS) == []
    assert has_field(fields, Names((b"x-hop",)))
    assert not has_field(fields, Names((b"x-ho",)))


@pytest.mark.parametrize("field", [(b"a",), [b"a", b"b"], ("a", b"b"), (b"a", None)])
def test_what_is_no_field_is_refused(field: object) -> None:
    with pytest.raises(TypeError):
        write_request(b"GET", b"/", b"h", [field], b"")  # type: ignore[list-item]


def test_a_request_is_written_with_its_body() -> None:
    written = write_request(b"POST", b"/x?y", b"h:1", [(b"A-b", b"c d"), (b"E", b"")], b"body")
    assert written == b"POST /x?y HTTP/1.1\r\nHost: h:1\r\nA-b: c d\r\nE: \r\n\r\nbody"


@pytest.mark.parametrize("byte", range(256))
def test_a_name_is_a_token_and_a_value_is_one_line(byte: int) -> None:
    one = bytes([byte])
    token = byte in b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    for method, name in ((one, b"a"), (b"GET", b"a" + one)):
        if token:
            assert one in write_request(method, b"/", b"h", [(name, b"v")], b"")
        else:
            with pytest.raises(ValueError, match="tokens"):
                write_request(method, b"/", b"h", [(name, b"v")], b"")
    fields = [(b"a", b"x" + one)]
    if byte in b"\0\r\n":
        with pytest.raises(ValueError, match="line end or NUL"):
            write_request(b"GET", b"/", b"h", fields, b"")
        with pytest.raises(ValueError, match="line end or NUL"):
            line_text_size(fields)
    else:
        assert one in write_request(b"GET", b"/", b"h", fields, b"")
        assert line_text_size(fields) == 3


@pytest.mark.parametrize(
    ("fields", "length", "keeps"),
    [
        (b"", UNTIL_CLOSE, False),
        (b"Content-Length: 17\r\n", 17, True),
        (b"content-length:\t0017 \r\n", 17, True),
        (b"Transfer-Encoding: Chunked\r\n", CHUNKED, True),
        (b"Content-Length: 1\r\nConnection: Close\r\n", 1, False),
        (b"Content-Length: 1\r\nconnection: Keep-Alive\r\n", 1, True),
        (b"Connection: keep-alive\r\n", UNTIL_CLOSE, False),
    ],
)
def test_a_plain_head_says_where_the_body_ends(fields: bytes, length: int, keeps: bool) -> None:
    found = read(OK + fields + b"\r\n")
    assert found is not None
    assert (found[0], found[1], found[3], found[4]) == (200, b"OK", length, keeps)


@pytest.mark.parametrize("status", [b"204", b"304"])
def test_some_answers_have_no_body_by_their_status(status: bytes) -> None:
    assert read(b"HTTP/1.1 %b No\r\nTransfer-Encoding: chunked\r\n\r\n" % status) == (
        int(status),
        b"No",
        [(b"Transfer-Encoding", b"chunked")],
        0,
        True,
    )


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.0 200 OK\r\n\r\n",
        b"HTTP/1.1 101 S\r\n\r\n",
        b"HTTP/1.1 100 C\r\n\r\n",
        b"HTTP/1.1 200\r\n\r\n",
        b"HTTP/1.1 200 OK\n\n",
        OK + b"X: y\n\n",
        OK + b"X: y\r\n\n",
        OK + b"X: y\rz: 1\r\n\r\n",
        OK + b"X : y\r\n\r\n",
        OK + b": y\r\n\r\n",
        OK + b"X: y\r\n z\r\n\r\n",
        OK + b"X: a\x00b\r\n\r\n",
        OK + b"X\r\n\r\n",
        OK + b"Upgrade: h2c\r\n\r\n",
        OK + b"Connection: upgrade\r\n\r\n",
        OK + b"Connection: close\r\nConnection: close\r\n\r\n",
        OK + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\n",
        OK + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        OK + b"Content-Length: 1234567890123456789\r\n\r\n",
        OK + b"Content-Length: -5\r\n\r\n",
        OK + b"Content-Length: \r\n\r\n",
        OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
        OK + b"X: y\r\n" * 257 + b"\r\n",
    ],
)
def test_every_other_head_is_llhttps_to_judge(head: bytes) -> None:
    assert read(head) is None


def test_a_block_without_its_end_is_none() -> None:
    whole = OK + b"X: y\r\n\r\n"
    for size in range(len(whole)):
        assert read_plain_head(whole[:size], size) is None


@pytest.mark.parametrize(
    ("data", "end"), [(b"a\r\n\r\nb", 5), (b"a\n\nb", 3), (b"a\r\n\nb", 4), (b"a\r\n", 0), (b"a\n\r", 0), (b"", 0)]
)
def test_the_end_of_a_head_is_found(data: bytes, end: int) -> None:
    assert find_head_end(data, 0) == end
    assert find_head_end(data, len(data) + 9) == 0
