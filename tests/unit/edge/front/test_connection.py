"""One connection as a dialogue of bytes: order, limits, clients that leave, backpressure."""

from __future__ import annotations

import pytest

from tests.unit.edge.front.harness import CLOSING_OK, GET, OK, Bench, Client, answer, chunked, paths, post

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
