"""How an answer is framed, and what is never written."""

from __future__ import annotations

import socket
import struct

import pytest

from tests.unit.edge.front.harness import Bench, Client, Recorder

GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
HEAD = b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n"
GET10 = b"GET / HTTP/1.0\r\n\r\n"
KEEP10 = b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
TYPE = (b"content-type", b"text/plain")
RST = (socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def opened(raw: bytes = GET) -> tuple[Client, Recorder]:
    bench = Bench()
    client = bench.connect()
    client.send(raw)
    (request,) = bench.service.requests
    return client, request


def send(request: Recorder, *pieces: bytes, end: bool = False) -> None:
    request.downstream.send(None, pieces, end)


def settle(client: Client) -> None:
    client.bench.loop.settle()


# Framing.


def test_a_whole_answer_has_a_length_and_is_one_write() -> None:
    client, request = opened()
    request.send(headers=[TYPE], pieces=[b"ab", b"", b"cd"], end=True)
    assert client.transport.writes == [b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\nContent-Length: 4\r\n\r\nabcd"]


def test_a_streamed_answer_is_chunked_one_chunk_and_one_write_a_send() -> None:
    client, request = opened()
    request.send(headers=[TYPE], pieces=[b"ab"])
    send(request, b"c" * 17, b"d")
    send(request)
    send(request, b"e", end=True)
    assert client.transport.writes == [
        b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n",
        b"12\r\n" + b"c" * 17 + b"d\r\n",
        b"1\r\ne\r\n0\r\n\r\n",
    ]
    assert not client.is_ended


def test_the_end_alone_is_the_last_chunk() -> None:
    client, request = opened()
    request.send()
    send(request, end=True)
    assert client.transport.writes == [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"0\r\n\r\n"]


def test_a_given_length_is_kept() -> None:
    client, request = opened()
    request.send(headers=[(b"Content-Length", b"4")], pieces=[b"ab"])
    send(request, b"cd", end=True)
    assert client.transport.writes == [b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nab", b"cd"]


def test_http10_gets_its_stream_delimited_by_the_end_of_the_connection() -> None:
    client, request = opened(KEEP10)
    request.send(pieces=[b"ab"])
    send(request, b"cd", end=True)
    settle(client)
    assert client.output == b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabcd"
    assert client.transport.is_lost


@pytest.mark.parametrize(("raw", "is_kept"), [(KEEP10, True), (GET10, False)])
def test_http10_is_kept_only_on_request(raw: bytes, is_kept: bool) -> None:
    client, request = opened(raw)
    request.answer()
    settle(client)
    option = b"keep-alive" if is_kept else b"close"
    assert client.output == b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: %s\r\n\r\nok" % option
    assert client.is_ended is not is_kept


@pytest.mark.parametrize("headers", [[], [(b"content-length", b"4")]])
def test_head_gets_no_body(headers: list[tuple[bytes, bytes]]) -> None:
    client, request = opened(HEAD)
    request.send(headers=headers, pieces=[b"ab"])
    send(request, b"cd", end=True)
    length = b"Content-Length: 4\r\n" if headers else b""
    assert client.output == b"HTTP/1.1 200 OK\r\n" + length + b"\r\n"
    assert not client.is_ended


def test_head_learns_the_length_of_a_whole_answer() -> None:
    client, request = opened(HEAD)
    request.answer(b"abcd")
    assert client.output == b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n"


@pytest.mark.parametrize("status", [204, 304])
def test_a_status_without_a_body_gets_none(status: int) -> None:
    client, request = opened()
    request.send(status, headers=[(b"content-length", b"4")], reason=b"No", pieces=[b"abcd"], end=True)
    length = b"Content-Length: 4\r\n" if status == 304 else b""
    assert client.output == b"HTTP/1.1 %d No\r\n%s\r\n" % (status, length)
    assert not client.is_ended


# Answers that do not fit.


@pytest.mark.parametrize("pieces", [(b"abcde",), (b"abc",), ()])
def test_a_body_that_does_not_fit_its_length_cuts_the_connection(pieces: tuple[bytes, ...]) -> None:
    client, request = opened()
    request.send(headers=[(b"content-length", b"4")])
    send(request, *pieces, end=True)
    settle(client)
    assert client.output == b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n"
    assert client.transport.is_lost
    assert not request.downstream.is_open
    assert not request.is_gone
    assert client.bench.front.counters.answers_cut == 1


def test_a_body_beyond_its_length_cuts_the_connection_at_once() -> None:
    client, request = opened()
    request.send(headers=[(b"content-length", b"4")], pieces=[b"ab"])
    send(request, b"cde")
    assert client.output.endswith(b"\r\n\r\nab")
    assert client.is_ended
    assert not request.downstream.is_open


def test_abort_ends_a_framed_answer_without_its_end_but_with_what_was_sent() -> None:
    client, request = opened()
    client.transport.takes_all = False
    request.send(pieces=[b"ab"])
    request.downstream.abort()
    settle(client)
    assert client.output.endswith(b"2\r\nab\r\n")
    assert client.transport.is_closed
    assert not client.transport.is_lost, "what was sent leaves first"
    client.transport.take(1_000)
    settle(client)
    assert client.transport.is_lost
    assert not client.transport.is_aborted
    assert not request.is_gone


def test_abort_resets_a_connection_whose_end_would_look_like_the_end_of_the_answer() -> None:
    client, request = opened(GET10)
    request.send(pieces=[b"ab"])
    request.downstream.abort()
    settle(client)
    assert client.transport.is_aborted
    assert RST in client.transport.socket.options


def test_abort_before_the_head_closes_without_a_word() -> None:
    client, request = opened()
    request.downstream.abort()
    request.downstream.abort()
    settle(client)
    assert client.is_silent
    assert client.transport.is_lost


# Heads that are not written.


@pytest.mark.parametrize(
    "header",
    [
        (b"x", b"a\r\nset-cookie: b"),
        (b"x", b"a\nb"),
        (b"x", b"a\rb"),
        (b"x", b"a\0b"),
        (b"x\r\ny", b"a"),
        (b"x y", b"a"),
        (b"x:", b"a"),
        (b"", b"a"),
        (b"transfer-encoding: chunked\r\nx", b"a"),
        (b"transfer-encoding:chunked,x", b"a"),
        (b"x" * 200 + b"\n", b"a"),
        (b"content-length", b"+4"),
        (b"content-length", b"4, 4"),
        (b"content-length", b""),
        (b"content-length", b"-1"),
    ],
)
def test_a_head_that_would_split_the_answer_is_refused_and_another_may_follow(header: tuple[bytes, bytes]) -> None:
    client, request = opened()
    for _ in range(2):
        with pytest.raises(ValueError):
            request.send(headers=[TYPE, header], pieces=[b"abcd"], end=True)
    assert client.is_silent
    assert request.downstream.is_open
    request.send(502, reason=b"Bad Gateway", pieces=[b"no"], end=True)
    assert client.output == b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 2\r\n\r\nno"


@pytest.mark.parametrize(
    ("status", "reason"), [(101, b"x"), (199, b"x"), (600, b"x"), (-1, b"x"), (200, b"O\r\nK"), (200, b"\0")]
)
def test_an_impossible_status_line_is_refused(status: int, reason: bytes) -> None:
    client, request = opened()
    with pytest.raises(ValueError):
        request.send(status, reason=reason, end=True)
    assert client.is_silent


@pytest.mark.parametrize(("pieces", "end"), [([b"abcde"], False), ([b"abcde"], True), ([b"abc"], True), ([], True)])
def test_a_length_that_the_body_beside_it_contradicts_is_refused(pieces: list[bytes], end: bool) -> None:
    client, request = opened()
    with pytest.raises(ValueError, match="content-length of an answer is 4"):
        request.send(headers=[(b"content-length", b"4")], pieces=pieces, end=end)
    assert client.is_silent
    request.send(502, reason=b"Bad Gateway", pieces=[b"no"], end=True)
    assert client.output == b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 2\r\n\r\nno"


def test_two_lengths_are_refused() -> None:
    _, request = opened()
    with pytest.raises(ValueError, match="content-length"):
        request.send(headers=[(b"content-length", b"4"), (b"Content-Length", b"4")])


def test_hop_by_hop_fields_of_a_head_are_dropped() -> None:
    client, request = opened()
    fields = [
        (b"Connection", b"keep-alive, x-secret"),
        (b"Keep-Alive", b"timeout=5"),
        (b"transfer-encoding", b"chunked"),
        (b"Trailer", b"x"),
        (b"upgrade", b"h2c"),
        (b"proxy-connection", b"close"),
    ]
    request.send(headers=[*fields, TYPE], end=True)
    assert client.output == b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\nContent-Length: 0\r\n\r\n"


def test_a_head_can_ask_for_the_connection_to_be_closed() -> None:
    client, request = opened()
    request.send(headers=[(b"connection", b"close")], end=True)
    settle(client)
    assert client.output == b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    assert client.transport.is_lost


def test_an_empty_reason_is_written() -> None:
    client, request = opened()
    request.send(599, reason=b"", end=True)
    assert client.output.startswith(b"HTTP/1.1 599 \r\n")


def test_a_date_is_added_where_the_answer_has_none() -> None:
    client, request = opened()
    client.bench.front.date_line = b"Date: then\r\n"
    request.send(headers=[(b"date", b"now")], end=True)
    assert b"then" not in client.output
    client.send(GET)
    client.bench.service.requests[1].answer()
    assert client.output.endswith(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nDate: then\r\n\r\nok")


def test_remembered_field_names_are_bounded() -> None:
    from iop_fast.edge.front import answer

    _, request = opened()
    names = [b"x-%d" % number for number in range(2_000)] + [b"y" * 5_000]
    request.send(headers=[(name, b"v") for name in names], end=True)
    assert len(answer._known) <= answer.KNOWN_NAMES_MAX
    assert b"y" * 5_000 not in answer._known
    for name in names:
        answer._known.pop(name, None)
