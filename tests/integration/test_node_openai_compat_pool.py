"""The HTTP adapter's connections, kept and used again. Over both clients."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from iop_fast.node.health import State
from iop_fast.wire import runtime_pb2 as pb
from tests.fakes.openai_backend import BeforeBody, Exchange, FakeBackend, answer, raw
from tests.integration.node_bench import (
    on_uvloop,
    tunnel,
    until,
)
from tests.integration.openai_compat_bench import OK_JSON, bench, use_client

RunEnd = pb.RunEnd


@pytest.fixture(autouse=True, params=["plain", "library"])
def client(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    return use_client(request.param, monkeypatch)


@on_uvloop
async def test_connections_are_kept_and_used_again() -> None:
    async with FakeBackend(answer(OK_JSON)) as backend, bench(backend.url) as node:
        for _ in range(5):
            assert (await node.run()).status == RunEnd.OK
        assert backend.connections == 1
        sinks = [node.start()[1] for _ in range(20)]
        for sink in sinks:
            await sink.finished()
        assert backend.connections == 20


@pytest.mark.parametrize("later_s", [0.0, 0.05])
@on_uvloop
async def test_what_a_server_says_unasked_is_never_the_next_answer(later_s: float) -> None:
    spoken = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.respond(OK_JSON)
        await asyncio.sleep(later_s)
        with contextlib.suppress(EOFError):
            await exchange.respond(b"someone else's")
        spoken.set()

    async with FakeBackend(script) as backend, bench(backend.url) as node:
        assert (await node.run()).body == OK_JSON
        await spoken.wait()
        await asyncio.sleep(0.05)  # let it arrive; there is nothing to see it by
        backend.script = answer(OK_JSON)
        sink = await node.run()
        assert (sink.body, sink.status) == (OK_JSON, RunEnd.OK)
        assert backend.connections == 2


@on_uvloop
async def test_interim_answers_are_passed_over() -> None:
    pieces = [
        b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" + b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    ]
    async with FakeBackend(raw(pieces, 0.02)) as backend, bench(backend.url) as node:
        sink = await node.run()
        assert sink.head == (200, b"OK", [(b"Content-Length", b"2")])
        assert (sink.body, sink.status) == (b"ok", RunEnd.OK)


@on_uvloop
async def test_a_pooled_connection_that_dies_after_the_request_is_not_tried_again() -> None:
    """The server may have acted on the request: once is once."""
    async with FakeBackend(answer(OK_JSON)) as backend, bench(backend.url) as node:
        await node.run()
        backend.script = raw([], then="close")
        sink = await node.run()
        assert sink.status == RunEnd.UPSTREAM_ERROR
        assert len(backend.requests) == 2


@on_uvloop
async def test_a_pooled_connection_that_dies_during_the_body_is_replaced_and_the_body_sent_from_its_front() -> None:
    async def drops(exchange: Exchange) -> None:
        exchange.close()

    async with FakeBackend(answer(OK_JSON)) as backend, bench(backend.url) as node:
        await node.run()
        backend.scripts = [BeforeBody(drops)]
        run, sink = node.start(tunnel(b"hello ", body_complete=False, body_length=11))
        await until(lambda: len(backend.requests) > 1 and backend.requests[1].closed.is_set(), "it was dropped")
        assert sink.head is None
        run.feed(b"world", True)
        await sink.finished()
        assert sink.status == RunEnd.OK
        assert sink.calls == ["taken", "head", "data", "end"]
        assert bytes(backend.requests[2].body) == b"hello world"
        assert sink.consumed == 11


@on_uvloop
async def test_when_the_second_connection_cannot_be_had_the_request_is_unseen() -> None:
    async with FakeBackend(answer(OK_JSON)) as backend, bench(backend.url) as node:
        await node.run()

        async def drops(exchange: Exchange) -> None:
            backend.refuse()
            exchange.close()

        backend.scripts = [BeforeBody(drops)]
        _, sink = node.start(tunnel(b"hello ", body_complete=False, body_length=11))
        assert (await sink.finished()).status == RunEnd.CONNECT_FAILED
        assert sink.calls == ["end"]
        assert node.adapter.health.state is State.UNREACHABLE
