"""What all connections of a front share: the limit on their number, counters, the way down, memory."""

from __future__ import annotations

import asyncio
import gc
import re

import pytest

from iop_fast._core.clock import VirtualClock
from iop_fast.config.schema.front import HttpLimits
from iop_fast.edge.ages import Ticker
from iop_fast.edge.front import listener
from iop_fast.edge.front.connection import Connection
from iop_fast.edge.front.listener import Front, reason_phrase
from tests.unit.edge.front.harness import Bench, Client, FakeTransport, ScriptedService

GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"


def test_connections_above_the_limit_are_told_503_and_end() -> None:
    bench = Bench(limits=HttpLimits(connections=2))
    clients = [bench.connect() for _ in range(3)]
    assert bench.front.connections == 2
    assert clients[2].output.startswith(b"HTTP/1.1 503 ")
    assert b"\r\nConnection: close\r\n" in clients[2].output
    assert clients[2].transport.has_eof
    clients[2].send(GET)
    assert bench.service.requests == []
    clients[0].reset()
    fourth = bench.connect()
    assert fourth.is_silent
    assert bench.front.connections == 2
    assert bench.front.counters.connections == 4


def test_a_flood_above_the_limit_is_cut_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "REFUSED_CONNECTIONS_MAX", 2)
    bench = Bench(limits=HttpLimits(connections=1))
    clients = [bench.connect() for _ in range(4)]
    bench.loop.settle()
    assert [client.is_silent for client in clients] == [True, False, False, True]
    assert clients[3].transport.is_lost
    assert not clients[0].is_ended
    clients[1].reset()
    assert not bench.connect().is_silent


def test_a_draining_front_closes_each_connection_with_its_answer() -> None:
    bench = Bench()
    waiting, begun, idle = bench.connect(), bench.connect(), bench.connect()
    waiting.send(GET)
    begun.send(GET)
    bench.service.requests[1].send(pieces=[b"ab"])
    bench.front.drain()
    assert not idle.is_ended
    bench.front.close_idle()
    bench.loop.settle()
    assert idle.transport.is_lost
    assert bench.front.connections == 2
    bench.service.requests[0].answer()
    bench.service.requests[1].downstream.send(None, [b"cd"], True)
    bench.loop.settle()
    assert b"\r\nConnection: close\r\n" in waiting.output
    assert begun.output.endswith(b"cd\r\n0\r\n\r\n")
    assert bench.front.connections == 0


def test_a_request_that_comes_while_draining_is_still_handed_to_the_service() -> None:
    bench = Bench()
    client = bench.connect()
    client.send(GET[:5])
    bench.front.drain()
    bench.front.close_idle()
    client.send(GET[5:])
    bench.service.requests[0].answer()
    bench.loop.settle()
    assert b"\r\nConnection: close\r\n" in client.output
    assert client.transport.is_lost


def test_close_cuts_what_is_left() -> None:
    bench = Bench(limits=HttpLimits(connections=2))
    clients = [bench.connect() for _ in range(3)]
    clients[0].send(GET)
    bench.front.close()
    bench.front.close()
    bench.loop.settle()
    assert all(client.transport.is_lost for client in clients)
    assert bench.service.requests[0].is_gone
    assert bench.front.connections == 0


def test_waiting_for_the_last_connection() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        front = Front(ScriptedService(), HttpLimits(), VirtualClock(), loop)
        await front.wait_empty()
        bench = Bench()
        bench.front = front
        bench.loop = loop  # type: ignore[assignment]
        client = Client(bench)
        waiter = asyncio.ensure_future(front.wait_empty())
        await asyncio.sleep(0)
        assert not waiter.done()
        client.transport.lose()
        await waiter

    asyncio.run(run())


def test_a_ticker_of_the_caller_is_shared_and_left_to_the_caller() -> None:
    bench = Bench()
    ticker = Ticker(bench.clock, bench.loop)  # type: ignore[arg-type]
    front = Front(bench.service, HttpLimits(), bench.clock, bench.loop, ticker=ticker)  # type: ignore[arg-type]
    connection = Connection(front)
    transport = FakeTransport(connection, bench.loop)
    connection.connection_made(transport)
    bench.clock.advance_to(bench.clock.now_ns() + 10_000_000_000)
    ticker._tick()
    bench.loop.settle()
    assert transport.is_lost
    front.close()


def test_the_date_has_the_form_of_http() -> None:
    front = Front(ScriptedService(), HttpLimits(), VirtualClock(), Bench().loop)  # type: ignore[arg-type]
    assert re.fullmatch(rb"Date: [A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT\r\n", front.date_line)


@pytest.mark.parametrize(("status", "phrase"), [(200, b"OK"), (431, b"Request Header Fields Too Large"), (599, b"")])
def test_reason_phrases(status: int, phrase: bytes) -> None:
    assert reason_phrase(status) == phrase


@pytest.mark.parametrize("leave", [Client.reset, Client.end])
def test_ten_thousand_connections_leave_no_object_behind_without_the_collector(leave: object) -> None:
    class Forgetful(ScriptedService):
        def open(self, head: object, downstream: object) -> object:  # type: ignore[override]
            recorder = super().open(head, downstream)  # type: ignore[arg-type]
            self.requests.clear()
            return recorder

    bench = Bench(service=Forgetful())
    bench.service.on_complete = lambda request: request.answer()
    raws = [GET + GET, POST, CHUNKED, GET[:9], b"nonsense\r\n\r\n", POST[:-2], CHUNKED[:-9], b""]

    def round_trip(raw: bytes) -> None:
        client = bench.connect()
        client.send(raw)
        if not client.transport.is_lost:
            leave(client)  # type: ignore[operator]

    gc.collect()
    gc.disable()
    try:
        for raw in raws:
            round_trip(raw)
        before = len(gc.get_objects())
        for number in range(10_000):
            round_trip(raws[number % len(raws)])
        grown = len(gc.get_objects()) - before
    finally:
        gc.enable()
    assert bench.front.connections == 0
    assert grown < 50, f"{grown} objects are left of 10,000 connections"
