"""Bodies on one connection: whole, too large, answered before they were read, asked for."""

from __future__ import annotations

import pytest

from iop_fast.config.schema.front import HttpLimits
from iop_fast.edge.front.connection import DRAIN_BYTES_MAX
from iop_fast.errors import Failure
from tests.unit.edge.front.harness import CLOSING_OK, GET, OK, Bench, answer, chunked, paths, post

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


# Bodies.


@pytest.mark.parametrize("step", [0, 1, 3])
def test_a_body_arrives_whole_and_in_order(step: int) -> None:
    bench = Bench()
    client = bench.connect()
    client.send(post(11) + b"hello world" + GET % b"2", step)
    request = bench.service.requests[0]
    assert (bytes(request.body), request.is_complete) == (b"hello world", True)
    assert request.head.content_length == 11


def test_a_large_body_is_passed_on_as_it_comes() -> None:
    bench = Bench()
    client = bench.connect()
    client.send(post(1_000_000))
    for _ in range(10):
        client.send(b"x" * 100_000)
    request = bench.service.requests[0]
    assert (request.pieces, len(request.body), request.is_complete) == (10, 1_000_000, True)


def test_a_length_above_the_limit_is_refused_before_the_service_hears_of_it() -> None:
    bench = Bench(limits=HttpLimits(body_bytes=2_000))
    client = bench.connect()
    client.send(post(2_001) + b"x" * 100)
    assert client.output.startswith(b"HTTP/1.1 413 ")
    assert bench.service.requests == []
    assert bench.front.counters.refusals == {Failure.REQUEST_TOO_LARGE: 1}


@pytest.mark.parametrize("step", [0, 1])
def test_a_chunked_body_above_the_limit_is_refused_and_its_request_dropped(step: int) -> None:
    bench = Bench(limits=HttpLimits(body_bytes=1_024))
    client = bench.connect()
    client.send(chunked() + b"400\r\n" + b"x" * 1_024 + b"\r\n1\r\nx\r\n0\r\n\r\n" + GET % b"2", step)
    assert client.output.startswith(b"HTTP/1.1 413 ")
    assert [request.is_gone for request in bench.service.requests] == [True]
    assert client.is_ended


def test_the_tail_of_a_refused_body_is_never_a_request() -> None:
    """B24."""
    bench = Bench(limits=HttpLimits(body_bytes=1_024))
    bench.service.on_complete = answer
    client = bench.connect()
    client.send(post(1_024 + len(GET % b"evil")) + b"x" * 1_024)
    client.send(GET % b"evil")
    assert client.output.count(b"HTTP/1.1 ") == 1
    assert bench.service.requests == []


# Answers before the body was read.


@pytest.mark.parametrize("step", [0, 1])
@pytest.mark.parametrize("rest", ["length", "chunks"])
def test_an_early_answer_keeps_the_connection_after_a_short_rest_of_the_body(step: int, rest: str) -> None:
    """B24."""
    bench = Bench()
    bench.service.on_open = answer
    client = bench.connect()
    body = GET % b"evil"
    head = post(len(body)) + body if rest == "length" else chunked() + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    client.send(head + GET % b"next", step)
    assert client.output == OK * 2
    assert paths(bench) == [b"/", b"/next"]
    assert not bench.service.requests[0].is_complete


def test_an_early_answer_to_a_long_body_closes_and_reads_on_so_that_the_client_sees_it() -> None:
    bench = Bench()
    bench.service.on_open = answer
    client = bench.connect()
    client.send(post(DRAIN_BYTES_MAX + 1))
    assert client.output == CLOSING_OK
    assert client.transport.has_eof
    assert not client.transport.is_closed
    client.send(b"x" * 100_000 + GET % b"evil")
    assert paths(bench) == [b"/"]
    client.end()
    assert client.transport.is_lost


def test_an_early_answer_to_an_endless_chunked_body_closes_after_the_bound() -> None:
    bench = Bench()
    bench.service.on_open = answer
    client = bench.connect()
    client.send(chunked())
    assert client.output == OK
    for _ in range(5):
        client.send(b"4000\r\n" + b"x" * 0x4000 + b"\r\n")
    assert client.transport.has_eof


def test_an_early_answer_within_the_body_ends_the_calls_of_the_receiver() -> None:
    bench = Bench()
    bench.service.on_body = answer
    client = bench.connect()
    client.send(post(6) + b"abc")
    client.send(b"def" + GET % b"2")
    assert bytes(bench.service.requests[0].body) == b"abc"
    assert client.output == OK
    assert paths(bench) == [b"/", b"/2"]


def test_an_answer_at_the_last_piece_of_the_body_is_not_followed_by_its_end() -> None:
    bench = Bench()
    bench.service.on_body = answer
    client = bench.connect()
    client.send(post(3) + b"abc")
    client.send(post(3))
    client.send(b"abc")
    assert [request.is_complete for request in bench.service.requests] == [False, False]
    assert bench.front.counters.internal_errors == 0
    assert client.output == OK * 2


def test_broken_chunks_behind_an_early_answer_close_without_a_second_answer() -> None:
    bench = Bench()
    bench.service.on_open = answer
    client = bench.connect()
    client.send(chunked())
    client.send(b"nonsense\r\n")
    assert client.output == OK
    assert client.is_ended


def test_broken_chunks_under_a_begun_answer_cut_it() -> None:
    bench = Bench()
    bench.service.on_open = lambda request: request.send(pieces=[b"ab"])
    client = bench.connect()
    client.send(chunked())
    client.send(b"nonsense\r\n")
    assert client.output.endswith(b"2\r\nab\r\n")
    assert client.is_ended
    assert bench.service.requests[0].is_gone


def test_a_begun_answer_that_ends_by_close_is_reset_when_the_body_stops() -> None:
    bench = Bench()
    client = bench.connect()
    client.send(post(30_000).replace(b"1.1", b"1.0"))
    bench.service.requests[0].send(pieces=[b"ab"])
    bench.advance(11)
    assert client.output.endswith(b"\r\n\r\nab")
    assert client.transport.is_aborted


# Expect: 100-continue.


def test_the_body_is_asked_for_when_the_service_takes_the_request() -> None:
    bench = Bench()
    bench.service.on_complete = answer
    client = bench.connect()
    client.send(post(3, b"Expect: 100-continue"))
    assert client.output == CONTINUE
    client.send(b"abc")
    assert client.output == CONTINUE + OK
    assert not client.is_ended


def test_the_body_is_not_asked_for_when_the_request_is_answered_at_once() -> None:
    bench = Bench()
    bench.service.on_open = answer
    client = bench.connect()
    client.send(post(3, b"Expect: 100-continue"))
    assert client.output == CLOSING_OK, "the client may send the body or not, so the connection cannot be kept"
    assert client.is_ended


@pytest.mark.parametrize(
    "raw",
    [
        post(0, b"Expect: 100-continue"),
        post(3, b"Expect: 100-continue") + b"abc",
        post(3, b"Expect: 100-continue") + b"a",
        post(3, b"Expect: 100-continue").replace(b"1.1", b"1.0") + b"abc",
    ],
)
def test_a_body_that_is_there_already_is_not_asked_for(raw: bytes) -> None:
    bench = Bench()
    bench.service.on_complete = answer
    client = bench.connect()
    client.send(raw)
    assert b" 100 " not in client.output


def test_a_client_of_http10_is_not_asked() -> None:
    bench = Bench()
    client = bench.connect()
    client.send(post(3, b"Expect: 100-continue").replace(b"1.1", b"1.0"))
    assert client.is_silent
