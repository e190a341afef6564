"""One connection as a dialogue of bytes: order, limits, early answers, clients that leave, faults behind it."""

from __future__ import annotations

import logging

import pytest

from iop_fast.config.schema.front import HttpLimits
from iop_fast.edge.front.connection import DRAIN_BYTES_MAX
from iop_fast.errors import Failure
from iop_fast.seams import Head
from tests.unit.edge.front.harness import Bench, Client, Recorder

GET = b"GET /%s HTTP/1.1\r\nHost: a\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CLOSING_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def post(length: int, *fields: bytes, path: bytes = b"/") -> bytes:
    lines = [b"POST " + path + b" HTTP/1.1", b"Host: a", b"Content-Length: %d" % length, *fields, b"", b""]
    return b"\r\n".join(lines)


def chunked(*fields: bytes) -> bytes:
    return b"\r\n".join([b"POST / HTTP/1.1", b"Host: a", b"Transfer-Encoding: chunked", *fields, b"", b""])


def answer(request: Recorder) -> None:
    request.answer()


def paths(bench: Bench) -> list[bytes]:
    return [request.head.path for request in bench.service.requests]


# Order and pipelining.


def test_a_kept_connection_serves_one_request_after_another() -> None:
    bench = Bench()
    bench.service.on_complete = answer
    client = bench.connect()
    for number in range(3):
        client.send(GET % b"%d" % number)
    assert client.output == OK * 3
    assert client.transport.writes == [OK] * 3
    assert paths(bench) == [b"/0", b"/1", b"/2"]
    assert len(bench.front.idles) == 1


def test_a_pipelined_request_is_opened_only_after_the_answer_before_it() -> None:
    bench = Bench()
    client = bench.connect()
    client.send(GET % b"1" + GET % b"2" + GET % b"3")
    assert paths(bench) == [b"/1"]
    bench.service.requests[0].answer(b"one")
    assert paths(bench) == [b"/1"], "not from within the service's own call"
    bench.loop.settle()
    assert paths(bench) == [b"/1", b"/2"]
    bench.service.requests[1].answer(b"two")
    bench.loop.settle()
    bench.service.requests[2].answer(b"three")
    assert [write.partition(b"\r\n\r\n")[2] for write in client.transport.writes] == [b"one", b"two", b"three"]


def test_a_late_caller_cannot_write_into_the_next_answer() -> None:
    bench = Bench()
    client = bench.connect()
    client.send(GET % b"1" + GET % b"2")
    first = bench.service.requests[0]
    first.answer()
    bench.loop.settle()
    first.downstream.send(None, [b"late"], True)
    first.downstream.abort()
    assert not first.downstream.is_open
    bench.service.requests[1].answer()
    assert client.output == OK * 2


def test_as_many_pipelined_requests_as_allowed_are_kept() -> None:
    bench = Bench()
    client = bench.connect()
    client.send(GET % b"0" + b"".join(GET % b"%d" % number for number in range(1, 9)))
    for number in range(9):
        bench.service.requests[number].answer()
        bench.loop.settle()
    assert client.output == OK * 9
    assert not client.is_ended


@pytest.mark.parametrize("step", [0, 7])
def test_more_pipelined_requests_close_the_connection_after_the_answer_under_way(step: int) -> None:
    bench = Bench()
    client = bench.connect()
    client.send(b"".join(GET % b"%d" % number for number in range(10)), step)
    bench.service.requests[0].answer()
    bench.loop.settle()
    assert client.output == CLOSING_OK
    assert client.is_ended
    assert paths(bench) == [b"/0"]


def test_blank_lines_in_bodies_are_not_counted_as_requests() -> None:
    bench = Bench()
    client = bench.connect()
    body = b"{\r\n\r\n}" * 50
    client.send(GET % b"0" + (post(len(body)) + body) * 8)
    for number in range(9):
        bench.service.requests[number].answer()
        bench.loop.settle()
    assert client.output == OK * 9


@pytest.mark.parametrize("step", [0, 5_000])
def test_more_pipelined_bytes_close_the_connection_after_the_answer_under_way(step: int) -> None:
    bench = Bench()
    client = bench.connect()
    client.send(GET % b"0" + post(70_000) + b"x" * 70_000, step)
    request = bench.service.requests[0]
    assert not request.is_gone
    request.answer()
    bench.loop.settle()
    assert client.output == CLOSING_OK
    assert paths(bench) == [b"/0"]


def test_bytes_behind_the_last_request_are_dropped_and_do_not_reset_the_connection() -> None:
    bench = Bench()
    client = bench.connect()
    client.send(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n" + GET % b"2")
    bench.service.requests[0].answer()
    bench.loop.settle()
    assert client.output == CLOSING_OK
    assert client.transport.has_eof
    assert not client.transport.is_closed, "closed only when the client does, or late"
    assert len(bench.service.requests) == 1


def test_an_answer_that_has_begun_is_finished_before_too_much_pipelining_closes() -> None:
    bench = Bench()
    client = bench.connect()
    client.send(GET % b"0")
    request = bench.service.requests[0]
    request.send(pieces=[b"ab"])
    client.send(b"x" * 70_000)
    request.downstream.send(None, [b"cd"], True)
    bench.loop.settle()
    assert client.output.endswith(b"2\r\nab\r\n2\r\ncd\r\n0\r\n\r\n")
    assert client.is_ended


def test_a_broken_pipelined_request_does_not_touch_the_answer_before_it() -> None:
    bench = Bench()
    client = bench.connect()
    client.send(GET % b"0" + b"nonsense\r\n\r\n")
    request = bench.service.requests[0]
    assert not request.is_gone
    request.answer()
    bench.loop.settle()
    assert client.output.startswith(OK + b"HTTP/1.1 400 ")
    assert client.is_ended


def test_answers_made_at_once_do_not_recurse() -> None:
    bench = Bench()
    bench.service.on_open = answer
    client = bench.connect()
    client.send(GET % b"1" * 9)
    assert client.output == OK * 9


def test_ten_thousand_pipelined_requests_in_one_read_are_not_served_in_one_turn() -> None:
    bench = Bench()
    bench.service.on_open = answer
    client = bench.connect()
    client.send(GET % b"1" * 10_000)
    assert client.output == CLOSING_OK
    assert len(bench.service.requests) == 1


def test_no_further_request_is_started_while_the_client_does_not_read() -> None:
    bench = Bench()
    client = bench.connect()
    client.transport.takes_all = False
    client.send(GET % b"1" + GET % b"2")
    bench.service.requests[0].answer(b"x" * 100_000)
    bench.loop.settle()
    assert paths(bench) == [b"/1"]
    client.transport.take(99_000)
    bench.loop.settle()
    assert paths(bench) == [b"/1", b"/2"]
    assert bench.service.requests[1].downstream.is_writable


def test_a_client_that_does_not_read_and_goes_on_sending_is_closed() -> None:
    bench = Bench()
    client = bench.connect()
    client.transport.takes_all = False
    client.send(GET % b"1")
    bench.service.requests[0].answer(b"x" * 100_000)
    for _ in range(20):
        client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4000\r\n\r\n")
        client.send(b"x" * 4_000)
    assert client.is_ended
    assert paths(bench) == [b"/1"]
    client.transport.take(100_000)
    bench.loop.settle()
    assert paths(bench) == [b"/1"]


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


# Clients that leave.


@pytest.mark.parametrize("leave", [Client.end, Client.reset])
@pytest.mark.parametrize("raw", [GET % b"1", post(5) + b"ab", chunked() + b"5\r\nab", GET % b"1" + GET % b"2"])
def test_a_client_that_leaves_is_noticed_at_once(leave: object, raw: bytes) -> None:
    bench = Bench()
    client = bench.connect()
    client.send(raw)
    request = bench.service.requests[0]
    leave(client)  # type: ignore[operator]
    assert request.is_gone
    request.answer()
    request.downstream.send(None, [b"late"], True)
    request.downstream.abort()
    assert client.is_silent
    assert client.transport.is_lost
    assert len(bench.service.requests) == 1
    assert bench.front.connections == 0


@pytest.mark.parametrize("leave", [Client.end, Client.reset])
def test_a_client_that_leaves_within_its_answer_is_noticed(leave: object) -> None:
    bench = Bench()
    client = bench.connect()
    client.send(GET % b"1")
    request = bench.service.requests[0]
    request.send(pieces=[b"ab"])
    leave(client)  # type: ignore[operator]
    assert request.is_gone
    request.downstream.send(None, [b"cd"], False)
    assert client.output.endswith(b"ab\r\n")


def test_a_request_cut_by_the_front_is_ended_at_once() -> None:
    bench = Bench()
    client = bench.connect()
    client.send(GET % b"1")
    request = bench.service.requests[0]
    request.send()
    client.connection.close_now()
    assert request.is_gone, "before the loop has told of the lost connection"
    written = len(client.transport.writes)
    request.downstream.send(None, [b"late"], True)
    assert len(client.transport.writes) == written
    bench.loop.settle()
    assert bench.front.connections == 0


@pytest.mark.parametrize("raw", [b"", b"GET / HT", b"\r\n"])
def test_a_client_that_leaves_between_requests_just_closes(raw: bytes) -> None:
    bench = Bench()
    client = bench.connect()
    client.send(raw)
    client.end()
    assert client.is_silent
    assert client.transport.is_lost
    assert bench.front.connections == 0


# Backpressure.


def test_writability_follows_the_transport() -> None:
    bench = Bench()
    client = bench.connect()
    client.transport.takes_all = False
    client.send(GET % b"1")
    request = bench.service.requests[0]
    assert request.downstream.is_writable
    request.send(pieces=[b"x" * 70_000])
    assert not request.downstream.is_writable
    assert request.writable_calls == 0
    client.transport.take(40_000)
    assert not request.downstream.is_writable
    client.transport.take(20_000)
    assert request.downstream.is_writable
    assert request.writable_calls == 1


# Faults behind the front.


def fail(_: Recorder) -> None:
    raise RuntimeError("a fault of the service")


@pytest.mark.parametrize("hook", ["on_open", "on_body", "on_complete"])
@pytest.mark.parametrize("step", [0, 1])
def test_a_fault_of_the_service_ends_this_connection_with_500_and_no_other(
    hook: str, step: int, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench()
    bystander = bench.connect()
    bystander.send(GET % b"good")
    setattr(bench.service, hook, fail)
    client = bench.connect()
    with caplog.at_level(logging.ERROR):
        client.send(post(3) + b"abc" + GET % b"2", step)
    assert client.output.startswith(b"HTTP/1.1 500 ")
    assert client.output.count(b"HTTP/1.1") == 1
    assert client.is_ended
    assert bench.front.counters.internal_errors == 1
    assert [record.message for record in caplog.records] == ["connection_failed"]
    bench.service.requests[0].answer()
    assert bystander.output == OK


def test_a_fault_within_a_begun_answer_cuts_it(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()

    def begin_and_fail(request: Recorder) -> None:
        request.send(pieces=[b"ab"])
        raise RuntimeError("a fault of the service")

    bench.service.on_complete = begin_and_fail
    client = bench.connect()
    with caplog.at_level(logging.ERROR):
        client.send(GET % b"1")
    assert client.output.endswith(b"2\r\nab\r\n")
    assert client.is_ended
    assert bench.service.requests[0].is_gone


def test_a_fault_after_the_answer_adds_no_second_answer(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()

    def answer_and_fail(request: Recorder) -> None:
        request.answer()
        raise RuntimeError("a fault of the service")

    bench.service.on_complete = answer_and_fail
    client = bench.connect()
    with caplog.at_level(logging.ERROR):
        client.send(GET % b"1" + GET % b"2")
    assert client.output == OK
    assert client.is_ended
    assert not bench.service.requests[0].is_gone


def test_a_fault_at_the_news_of_a_client_gone_is_counted_and_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.service.on_gone = fail
    client = bench.connect()
    client.send(GET % b"1")
    with caplog.at_level(logging.ERROR):
        client.reset()
    assert bench.front.counters.internal_errors == 1
    assert bench.front.connections == 0
    assert [record.message for record in caplog.records] == ["client_gone_failed"]


def test_a_fault_at_the_news_of_writability_cuts_the_answer(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    client = bench.connect()
    client.transport.takes_all = False
    client.send(GET % b"1")
    request = bench.service.requests[0]
    request.send(pieces=[b"x" * 70_000])
    request.on_writable = lambda: fail(request)
    with caplog.at_level(logging.ERROR):
        client.transport.take(60_000)
    assert client.is_ended
    assert request.is_gone


def test_a_fault_while_refusing_resets_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    def render(failure: Failure, message: str) -> tuple[Head, bytes]:
        raise RuntimeError("a fault of the service")

    bench = Bench(render=render)
    client = bench.connect()
    with caplog.at_level(logging.ERROR):
        client.send(b"nonsense\r\n\r\n")
    assert client.is_ended
    bench.service.on_body = fail
    second = bench.connect()
    with caplog.at_level(logging.ERROR):
        second.send(post(3) + b"abc")
    assert second.transport.is_aborted
    assert second.transport.is_lost
    assert bench.service.requests[0].is_gone
    expected = ["connection_failed", "connection_failed", "connection_refusal_failed"]
    assert [record.message for record in caplog.records] == expected


def test_refusals_have_the_form_that_the_service_gives_them() -> None:
    def render(failure: Failure, message: str, path: bytes) -> tuple[Head, bytes]:
        return Head(failure.value.status, b"Nope", [(b"x-request-id", b"7")]), message.encode()

    bench = Bench(render=render)
    client = bench.connect()
    client.send(b"GET / HTTP/1.1\r\n\r\n")
    message = b"an HTTP/1.1 request needs a Host field"
    expected = b"HTTP/1.1 400 Nope\r\nx-request-id: 7\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s"
    assert client.output == expected % (len(message), message)


def test_a_receiver_answers_itself_what_broke_its_request() -> None:
    bench = Bench()
    client = bench.connect()
    client.send(b"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
    request = bench.service.requests[-1]
    request.on_refused = lambda failure, message: request.answer(failure.reason.encode(), 400)  # type: ignore[method-assign]
    client.send(b"zz\r\n")
    assert client.output.startswith(b"HTTP/1.1 400 ")
    assert b"\r\nConnection: close\r\n" in client.output
    assert client.output.endswith(b"malformed_http")
    assert not request.is_gone
    assert bench.front.counters.refusals == {Failure.MALFORMED_HTTP: 1}


def test_only_so_many_connections_from_one_address() -> None:
    bench = Bench(limits=HttpLimits(connections_per_address=2))
    first, second = bench.connect(), bench.connect()
    third = bench.connect()
    assert b"503 " in third.output
    third.transport.lose()
    other = bench.connect(peername=("10.0.0.9", 5))
    assert other.output == b""
    second.transport.lose()
    assert bench.connect().output == b""
    for client in (first, other):
        client.transport.lose()


def test_a_refused_head_request_gets_no_body() -> None:
    bench = Bench()
    client = bench.connect()
    client.send(b"HEAD / HTTP/1.1\r\n\r\n")
    assert client.output.startswith(b"HTTP/1.1 400 ")
    assert client.output.endswith(b"\r\n\r\n")


def test_a_405_names_what_is_allowed() -> None:
    bench = Bench()
    client = bench.connect()
    client.send(b"TRACE / HTTP/1.1\r\nHost: a\r\n\r\n")
    assert b"\r\nAllow: GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS\r\n" in client.output
