"""Every deadline of a connection, on a virtual clock."""

from __future__ import annotations

import pytest

from iop_fast.config.schema.front import HttpLimits
from iop_fast.errors import Failure
from tests.unit.edge.front.harness import Bench

GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"
TICK_S = 0.25


def test_a_connection_that_sends_nothing_is_closed_without_a_word() -> None:
    bench = Bench()
    client = bench.connect()
    bench.advance(9.9)
    assert not client.is_ended
    bench.advance(0.1 + TICK_S)
    assert client.transport.is_lost
    assert client.is_silent


def test_a_head_that_trickles_in_is_answered_408() -> None:
    bench = Bench()
    client = bench.connect()
    for byte in GET[:20]:
        client.send(bytes([byte]))
        bench.advance(0.6)
    assert client.output.startswith(b"HTTP/1.1 408 ")
    assert client.is_ended
    assert bench.front.counters.refusals == {Failure.REQUEST_TIMEOUT: 1}


def test_the_head_deadline_of_a_later_request_starts_with_its_first_byte() -> None:
    bench = Bench()
    bench.service.on_complete = lambda request: request.answer()
    client = bench.connect()
    client.send(GET)
    bench.advance(60)
    client.send(GET[:5])
    bench.advance(9.5)
    assert not client.is_ended
    client.send(GET[5:])
    bench.advance(60)
    assert not client.is_ended
    assert client.output.count(b" 200 ") == 2


def test_a_part_of_a_head_behind_an_unfinished_request_has_no_deadline_before_the_answer() -> None:
    bench = Bench()
    client = bench.connect()
    client.send(GET + GET[:5])
    bench.advance(300)
    assert client.is_silent
    bench.service.requests[0].answer()
    bench.loop.settle()
    bench.advance(10 + TICK_S)
    assert client.output.count(b"HTTP/1.1 408 ") == 1


def test_an_empty_line_after_a_body_is_no_late_head() -> None:
    bench = Bench()
    bench.service.on_complete = lambda request: request.answer()
    client = bench.connect()
    client.send(POST % 3 + b"abc\r\n")
    bench.advance(80)
    assert client.is_ended
    assert client.output.count(b"HTTP/1.1") == 1


def test_an_idle_connection_is_closed_after_its_time() -> None:
    bench = Bench()
    bench.service.on_complete = lambda request: request.answer()
    client = bench.connect()
    client.send(GET)
    bench.advance(74.9)
    assert not client.is_ended
    bench.advance(0.1 + TICK_S)
    assert client.transport.is_lost
    assert client.output.count(b"HTTP/1.1") == 1


def test_without_keep_alive_time_every_answer_closes() -> None:
    bench = Bench(limits=HttpLimits(keep_alive_ms=0))
    bench.service.on_complete = lambda request: request.answer()
    client = bench.connect()
    client.send(GET + GET)
    assert client.output == b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"


def test_a_request_that_waits_for_its_answer_has_no_deadline_here() -> None:
    bench = Bench()
    client = bench.connect()
    client.send(GET)
    bench.advance(3_600)
    assert client.is_silent
    bench.service.requests[0].answer()
    assert b" 200 " in client.output


def test_a_body_below_the_minimum_rate_is_answered_408_and_its_request_dropped() -> None:
    bench = Bench()
    client = bench.connect()
    client.send(POST % 30_000)
    for _ in range(11):
        client.send(b"x" * 1_100)
        bench.advance(1)
    assert client.is_silent, "1,024 bytes a second are enough"
    for _ in range(11):
        client.send(b"x" * 100)
        bench.advance(1)
    assert client.output.startswith(b"HTTP/1.1 408 ")
    assert bench.service.requests[0].is_gone


def test_a_body_that_stops_under_a_begun_answer_cuts_it() -> None:
    bench = Bench()
    client = bench.connect()
    client.send(POST % 30_000)
    bench.service.requests[0].send(pieces=[b"ab"])
    bench.advance(10 + TICK_S)
    assert client.output.endswith(b"2\r\nab\r\n")
    assert client.is_ended
    assert bench.service.requests[0].is_gone


def test_no_minimum_rate_when_it_is_set_to_0() -> None:
    bench = Bench(limits=HttpLimits(body_bytes_per_second=0))
    client = bench.connect()
    client.send(POST % 3)
    bench.advance(3_600)
    client.send(b"abc")
    assert bench.service.requests[0].is_complete


def test_the_rest_of_a_body_that_was_answered_early_has_the_time_of_a_head() -> None:
    bench = Bench()
    bench.service.on_open = lambda request: request.answer()
    client = bench.connect()
    client.send(POST % 30_000)
    assert not client.is_ended
    bench.advance(10 + TICK_S)
    assert client.is_ended
    assert client.output.count(b"HTTP/1.1") == 1


def test_a_client_that_does_not_close_after_our_end_is_closed() -> None:
    bench = Bench()
    client = bench.connect()
    client.send(b"nonsense\r\n\r\n")
    assert client.transport.has_eof
    bench.advance(4.9)
    assert not client.transport.is_closed
    bench.advance(0.1 + TICK_S)
    assert client.transport.is_lost
    assert not client.transport.is_aborted


def test_a_client_that_takes_nothing_is_cut() -> None:
    bench = Bench()
    client = bench.connect()
    client.transport.takes_all = False
    client.send(GET)
    request = bench.service.requests[0]
    request.send(pieces=[b"x" * 70_000])
    bench.advance(59)
    request.downstream.send(None, [b"x" * 10_000], False)
    assert not request.is_gone
    bench.advance(1 + TICK_S)
    assert client.transport.is_aborted
    assert request.is_gone
    assert bench.front.counters.stalls == 1


def test_a_client_that_takes_a_little_is_not_cut_though_more_is_written() -> None:
    bench = Bench()
    client = bench.connect()
    client.transport.takes_all = False
    client.send(GET)
    request = bench.service.requests[0]
    request.send(pieces=[b"x" * 70_000])
    for _ in range(10):
        bench.advance(30)
        client.transport.take(100)
        request.downstream.send(None, [b"x" * 200], False)
    assert not request.is_gone
    bench.advance(60 + TICK_S)
    bench.advance(60 + TICK_S)
    assert request.is_gone


def test_a_client_that_catches_up_is_left_alone() -> None:
    bench = Bench()
    client = bench.connect()
    client.transport.takes_all = False
    client.send(GET)
    request = bench.service.requests[0]
    request.send(pieces=[b"x" * 70_000])
    bench.advance(50)
    client.transport.take(60_000)
    assert len(bench.front.stalls) == 0
    bench.advance(3_600)
    assert request.downstream.is_open


@pytest.mark.parametrize("raw", [b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", POST % 100_000])
def test_a_closing_connection_whose_client_takes_nothing_is_cut(raw: bytes) -> None:
    bench = Bench()
    client = bench.connect()
    client.transport.takes_all = False
    client.send(raw)
    bench.service.requests[0].answer(b"x" * 30_000)
    bench.advance(10)
    assert not client.transport.is_lost
    assert client.is_ended
    bench.advance(50 + TICK_S)
    assert client.transport.is_lost
    assert bench.front.connections == 0


def test_a_closing_connection_whose_client_reads_slowly_gets_everything() -> None:
    bench = Bench()
    client = bench.connect()
    client.transport.takes_all = False
    client.send(POST % 100_000)
    bench.service.requests[0].answer(b"x" * 30_000)
    for _ in range(31):
        bench.advance(50)
        assert not client.transport.is_lost
        client.transport.take(1_000)
    bench.advance(60 + TICK_S)
    assert client.transport.is_lost
    assert not client.transport.is_aborted


def test_a_lost_connection_stands_in_no_list() -> None:
    bench = Bench()
    front = bench.front
    for raw in (b"", GET, GET[:5], POST % 10, b"nonsense\r\n\r\n"):
        client = bench.connect()
        client.transport.takes_all = False
        client.send(raw)
        client.reset()
    assert [len(ages) for ages in (front.heads, front.bodies, front.idles, front.stalls, front.lingers)] == [0] * 5
    assert front.connections == 0
