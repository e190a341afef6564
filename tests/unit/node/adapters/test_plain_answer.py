"""Answers as they come off a plain connection: the same for every split of their bytes."""

from __future__ import annotations

import pytest

from iop_fast.node.adapters.plain_answer import FIELDS_MAX, HEAD_BYTES_MAX, Answer, NotHttpError

OK = b"HTTP/1.1 200 OK\r\n"
LENGTH = OK + b"Content-Length: 5\r\n\r\nhello"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\nX-Late: 1\r\n\r\n"
CLOSE = OK + b"X-A: 1\r\n\r\nhello"


def fed(*pieces: bytes, is_bodiless: bool = False) -> tuple[Answer, bytes]:
    """An answer fed with these pieces until it is complete, and its body."""
    answer = Answer(is_bodiless)
    body = b""
    for piece in pieces:
        assert not answer.is_complete, "it was complete before"
        body += answer.feed(piece)
    return answer, body


@pytest.mark.parametrize(
    "whole",
    [LENGTH, CHUNKED, b"\r\n\n" + LENGTH, b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 E\r\nLink: x\r\n\r\n" + CHUNKED],
    ids=["length", "chunked", "empty lines first", "interim"],
)
def test_every_split_gives_the_same_answer(whole: bytes) -> None:
    splits = [[whole[:cut], whole[cut:]] for cut in range(1, len(whole))]
    for pieces in [[whole], [whole[at : at + 1] for at in range(len(whole))], *splits]:
        answer, body = fed(*pieces)
        assert (answer.is_complete, answer.is_broken, answer.can_keep) == (True, False, True)
        assert answer.head is not None
        assert (answer.head.status, answer.head.reason, body) == (200, b"OK", b"hello")
        assert len(answer.head.headers) == 1, "neither trailers nor fields of interim answers"


def test_names_and_values_are_as_they_were_written() -> None:
    block = b"X-Mixed_Case:  a  b \t\r\nx-latin: caf\xe9\r\nx-empty:\r\nx-empty: 2\r\n"
    answer, _ = fed(OK + block + b"Content-Length: 0\r\n\r\n")
    assert answer.head is not None
    assert answer.head.headers == [
        (b"X-Mixed_Case", b"a  b"),
        (b"x-latin", b"caf\xe9"),
        (b"x-empty", b""),
        (b"x-empty", b"2"),
        (b"Content-Length", b"0"),
    ]


@pytest.mark.parametrize("head", [b"HTTP/1.1 204 N\r\nTransfer-Encoding: chunked\r\n\r\n", b"HTTP/1.1 304 N\r\n\r\n"])
def test_some_answers_have_no_body(head: bytes) -> None:
    answer, body = fed(head)
    assert (answer.is_complete, answer.can_keep, body) == (True, True, b"")


def test_the_answer_to_head_has_no_body_whatever_it_says() -> None:
    answer, body = fed(OK + b"Content-Length: 5\r\n\r\n", is_bodiless=True)
    assert (answer.is_complete, answer.can_keep, body) == (True, True, b"")


@pytest.mark.parametrize(
    ("whole", "is_bodiless"), [(LENGTH, False), (CHUNKED, False), (LENGTH[:-5], True), (OK[:-2] + b"\r\n\r\n", True)]
)
def test_what_comes_behind_an_answer_is_none_of_it(whole: bytes, is_bodiless: bool) -> None:
    answer, body = fed(whole + b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nmore", is_bodiless=is_bodiless)
    assert answer.is_complete
    assert not answer.can_keep
    assert body == (b"" if is_bodiless else b"hello")


@pytest.mark.parametrize(
    "fields", [b"Connection: close\r\nContent-Length: 0\r\n", b"Connection: Close\r\nTransfer-Encoding: chunked\r\n"]
)
def test_a_server_may_ask_for_the_close(fields: bytes) -> None:
    answer, _ = fed(OK + fields + b"\r\n" + (b"0\r\n\r\n" if b"chunked" in fields else b""))
    assert answer.is_complete
    assert not answer.can_keep


def test_without_a_length_the_close_is_the_end() -> None:
    answer, body = fed(CLOSE[:30], CLOSE[30:])
    assert (answer.is_complete, body) == (False, b"hello")
    assert answer.feed_end()
    assert not answer.can_keep


@pytest.mark.parametrize("part", [LENGTH[:-1], CHUNKED[:-1], LENGTH[:10], CHUNKED[:60]])
def test_a_close_elsewhere_is_no_end(part: bytes) -> None:
    answer, _ = fed(part)
    assert not answer.feed_end()


def test_broken_chunks_end_an_answer_behind_what_was_whole() -> None:
    answer, body = fed(OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhe\r\nzz\r\n")
    assert (answer.is_broken, answer.is_complete, answer.can_keep, body) == (True, False, False, b"he")


def test_what_aiohttp_lets_pass_passes() -> None:
    answer, body = fed(b"HTTP/1.1 200 OK\nX: a\x01b\nTransfer-Encoding: chunked\n\n5  \r\nhello\r\n0\r\n\r\n")
    assert answer.is_complete
    assert body == b"hello"


@pytest.mark.parametrize(
    ("head", "complaint"),
    [
        (b"SSH-2.0-OpenSSH", "status line"),
        (b"H2", "status line"),
        (b"HTTP/1.1 200 OK\r\nA : b\r\n\r\n", "header"),
        (OK + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n", "Content-Length"),
        (OK + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", "Content-Length"),
        (OK + b"Transfer-Encoding: gzip\r\n\r\n", "transfer coding"),
        (OK + b"X: " + b"y" * HEAD_BYTES_MAX, "over 65536 bytes"),
        (b"HTTP/1.1 100 C\r\n\r\n" * (HEAD_BYTES_MAX // 18 + 1), "over 65536 bytes"),
        (OK + b"X: y\r\n" * (FIELDS_MAX + 1) + b"\r\n", "more than 256"),
    ],
)
def test_other_heads_are_refused(head: bytes, complaint: str) -> None:
    with pytest.raises(NotHttpError, match=complaint):
        Answer(is_bodiless=False).feed(head)
