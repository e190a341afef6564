"""Answers that are read without llhttp are what llhttp says they are, whatever they are made of and however cut."""

from __future__ import annotations

from typing import NamedTuple

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from iop_fast._hot.heads import find_head_end
from iop_fast.node.adapters.plain_answer import Answer, NotHttpError

STATUS_LINES = [
    b"HTTP/1.1 200 OK",
    b"HTTP/1.1 201 ",
    b"HTTP/1.1 404",
    b"HTTP/1.0 200 OK",
    b"HTTP/1.1 200 caf\xe9",
    b"HTTP/1.1 200 a\x01b",
    b"HTTP/1.1  200 OK",
    b"HTTP/1.1 2000 OK",
    b"HTTP/2.0 200 OK",
    b"HTTP/1.1 20 OK",
]
FIELDS = [
    b"Content-Length: 5",
    b"content-length:5 ",
    b"Content-Length: +5",
    b"Content-Length: 5,5",
    b"Content-Length: 005",
    b"Content-Length:",
    b"Content-Length: 99999999999999999999",
    b"Transfer-Encoding: chunked",
    b"transfer-encoding: Chunked ",
    b"Connection: close",
    b"Connection: Keep-Alive",
    b"Connection: x, close",
    b"Connection:",
    b"Upgrade: h2c",
    b"X: y",
    b"x-Y_z:\ta  b \t",
    b"X:",
    b"X: a\x01b",
    b"X: caf\xe9",
    b"X : y",
    b" folded",
    b": x",
    b"X",
]
LINE_ENDS = [b"\r\n"] * 8 + [b"\n", b"\r"]
CHUNKS = [
    b"5\r\nhello\r\n",
    b"0A\r\n0123456789\r\n",
    b"5;x=y\r\nhello\r\n",
    b"5  \r\nhello\r\n",
    b"5\nhello\n",
    b"5\r\nhello\r",
    b"5\r\nhelloXX",
    b"5\r\nhello\r\n\r\n",
    b"fffffffffffffffff\r\n",
    b"zz\r\n",
    b"-1\r\n",
]
LAST = [b"0\r\n\r\n", b"00\r\n\r\n", b"0;x\r\n\r\n", b"0\r\nT: x\r\n\r\n", b"0\r\nT", b"0\n\n", b"0\r\n\n", b""]


class Seen(NamedTuple):
    """What came of an answer; None for the head of one that was refused."""

    head: tuple[int, bytes, list[tuple[bytes, bytes]]] | None
    body: bytes
    is_complete: bool
    is_broken: bool


REFUSED = Seen(None, b"", False, False)


class Judge:
    """llhttp alone, with the leniencies of plain answers."""

    def __init__(self) -> None:
        self.fields: list[tuple[bytes, bytes]] = []
        self.reason = b""
        self.body: list[bytes] = []
        self.is_in_body = False
        self.is_complete = False
        self.parser = HttpResponseParser(self)
        self.parser.set_dangerous_leniencies(
            lenient_headers=True, lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True
        )

    def on_status(self, reason: bytes) -> None:
        self.reason = reason

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.is_in_body:
            self.fields.append((name, value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        self.is_in_body = True

    def on_body(self, piece: bytes) -> None:
        if not self.is_complete:
            self.body.append(piece)

    def on_message_complete(self) -> None:
        self.is_complete = True

    def judge(self, whole: bytes) -> Seen:
        end = find_head_end(whole, 0)
        is_broken = False
        try:
            self.parser.feed_data(whole[:end])
        except HttpParserUpgrade:
            self.is_in_body = True
        except HttpParserError:
            return REFUSED
        if any(name.lower() == b"transfer-encoding" and value.lower() != b"chunked" for name, value in self.fields):
            return REFUSED  # the one rule that is our own
        try:
            self.parser.feed_data(whole[end:])
        except HttpParserUpgrade:
            self.is_in_body = True
        except HttpParserError:
            is_broken = not self.is_complete
        head = (self.parser.get_status_code(), self.reason, self.fields)
        return Seen(head, b"".join(self.body), self.is_complete, is_broken)


def read(pieces: list[bytes]) -> Seen:
    """Feed an answer until it is over."""
    answer = Answer(is_bodiless=False)
    body = b""
    for piece in pieces:
        try:
            body += answer.feed(piece)
        except NotHttpError:
            return REFUSED
        if answer.is_complete or answer.is_broken:
            break
    head = answer.head
    assert head is not None
    return Seen((head.status, head.reason, head.headers), body, answer.is_complete, answer.is_broken)


@st.composite
def heads(draw: st.DrawFn) -> bytes:
    """The head of an answer, or nearly one."""
    lines = [draw(st.sampled_from(STATUS_LINES)), *draw(st.lists(st.sampled_from(FIELDS), max_size=4)), b""]
    return b"".join(line + draw(st.sampled_from(LINE_ENDS)) for line in lines)


@st.composite
def chunked(draw: st.DrawFn) -> bytes:
    """An answer in chunks, some of them odd."""
    body = b"".join(draw(st.lists(st.sampled_from(CHUNKS), max_size=4))) + draw(st.sampled_from(LAST))
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body


def check(whole: bytes, cut: int) -> None:
    wanted = Judge().judge(whole)
    assert read([whole]) == wanted
    assert read([piece for piece in (whole[:cut], whole[cut:]) if piece]) == wanted
    assert read([whole[at : at + 1] for at in range(len(whole))]) == wanted


@settings(deadline=None, max_examples=400)
@given(head=heads(), cut=st.integers(1, 60))
def test_heads_are_what_llhttp_says(head: bytes, cut: int) -> None:
    assume(find_head_end(head, 0) == len(head) > 0)
    lower = head.lower()
    assume(lower.count(b"transfer-encoding") < 2)  # which of two codings counts is nobody's to say
    check(head + (b"5\r\nhello\r\n0\r\n\r\n" if b"chunked" in lower else b"hello"), cut)


@settings(deadline=None, max_examples=400)
@given(whole=chunked(), cut=st.integers(1, 120))
def test_chunks_are_what_llhttp_says(whole: bytes, cut: int) -> None:
    check(whole, cut)
