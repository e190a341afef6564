"""Faults behind a connection, and what it refuses by itself."""

from __future__ import annotations

import logging

import pytest

from iop_fast.config.schema.front import HttpLimits
from iop_fast.errors import Failure
from iop_fast.seams import Head
from tests.unit.edge.front.harness import GET, OK, Bench, Recorder, post


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
