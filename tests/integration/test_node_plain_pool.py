"""Our own connections to a provider, on real sockets: how long they are kept, and what ends them."""

from __future__ import annotations

import asyncio
import gc
import socket
import weakref
from typing import Any

import pytest

from iop_fast.config.payload import TimeoutSettings
from iop_fast.node.adapters.http_client import Backend, PlainClient
from iop_fast.node.adapters.http_rules import read_endpoint
from iop_fast.node.adapters.plain_pool import PlainPool
from iop_fast.node.adapters.plain_run import PlainRun
from iop_fast.node.health import Health, State
from iop_fast.seams import End, Head
from iop_fast.wire import runtime_pb2 as pb
from tests.fakes.openai_backend import BeforeBody, Exchange, FakeBackend, Script, answer, raw
from tests.integration.node_bench import RecordingSink, on_uvloop, tunnel, until

OK_JSON = b'{"ok":true}'
TIMEOUTS = TimeoutSettings(5_000, 60_000, 60_000)


def plain(url: str, keepalive_s: float = 4.0) -> PlainClient:
    """A client of a backend."""
    loop = asyncio.get_running_loop()
    return PlainClient(Backend(read_endpoint(url), "", keepalive_s, Health(loop), loop))


async def close(client: PlainClient, backend: FakeBackend) -> None:
    """Close a client and wait until its connections are closed."""
    await client.close()
    await until(lambda: backend.open_connections == 0, "no connection is left")


async def run(client: PlainClient, sink: RecordingSink | None = None, **changes: Any) -> RecordingSink:
    """One run to its end."""
    sink = sink or RecordingSink()
    client.start(tunnel(**changes), TIMEOUTS, sink)
    await sink.finished()
    return sink


@on_uvloop
async def test_an_idle_connection_is_closed_after_its_time_and_not_used_again() -> None:
    async with FakeBackend(answer(OK_JSON)) as backend:
        client = plain(backend.url, keepalive_s=0.1)
        for _ in range(3):
            await run(client)
        assert backend.connections == 1
        await until(lambda: backend.open_connections == 0, "it is closed")
        await run(client)
        assert backend.connections == 2
        await close(client, backend)


@on_uvloop
async def test_idle_connections_are_closed_in_their_own_time() -> None:
    async with FakeBackend(answer(OK_JSON, delay_s=0.01)) as backend:
        client = plain(backend.url, keepalive_s=0.3)
        await asyncio.gather(*(run(client) for _ in range(8)))
        assert backend.open_connections == 8
        for _ in range(12):  # one goes on in use
            await run(client)
            await asyncio.sleep(0.03)
        await until(lambda: backend.open_connections == 1, "the others are closed")
        assert backend.connections == 8
        await close(client, backend)


@on_uvloop
async def test_a_connection_that_its_server_leaves_is_not_used_again() -> None:
    async def leaves(exchange: Exchange) -> None:
        await exchange.respond(OK_JSON)
        exchange.close()

    async with FakeBackend(leaves) as backend:
        client = plain(backend.url)
        for number in range(3):
            assert (await run(client)).status == pb.RunEnd.OK
            await until(lambda: backend.open_connections == 0, "it left")
            await until(lambda: not client._pool._idle, "the pool knows")
            assert backend.connections == number + 1
        await close(client, backend)


@pytest.mark.parametrize(("method", "tries"), [(b"GET", 3), (b"HEAD", 3), (b"POST", 2)])
@on_uvloop
async def test_a_request_without_a_body_is_sent_again_if_that_does_no_harm(method: bytes, tries: int) -> None:
    """The server may have acted on it: only an idempotent one goes out once more, on a new connection."""
    async with FakeBackend(answer(OK_JSON)) as backend:
        client = plain(backend.url)
        await run(client)
        backend.scripts = [raw([], then="close")]
        backend.script = raw([b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"], then="keep")
        sink = await run(client, body=b"", method=method)
        assert len(backend.requests) == tries
        assert sink.calls == (["taken", "head", "end"] if tries == 3 else ["end"])
        assert sink.status == (pb.RunEnd.OK if tries == 3 else pb.RunEnd.UPSTREAM_ERROR)
        await close(client, backend)


@on_uvloop
async def test_a_head_request_keeps_its_connection_whatever_length_is_said() -> None:
    async with FakeBackend(raw([b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n"], then="keep")) as backend:
        client = plain(backend.url)
        for _ in range(2):
            sink = await run(client, body=b"", method=b"HEAD")
            assert sink.end == End(pb.RunEnd.OK, "", None)
            assert sink.header(b"content-length") == [b"99"]
        assert backend.connections == 1
        await close(client, backend)


@on_uvloop
async def test_a_connection_is_given_back_reading_after_its_run_was_paused() -> None:
    class Pausing(RecordingSink):
        run: PlainRun

        def on_head(self, head: Head) -> None:
            super().on_head(head)
            self.run.pause()

    async with FakeBackend(answer(OK_JSON)) as backend:
        client = plain(backend.url)
        for _ in range(3):
            sink = Pausing()
            started = client.start(tunnel(), TIMEOUTS, sink)
            assert isinstance(started, PlainRun)
            sink.run = started
            await sink.finished()
            assert sink.body == OK_JSON
        assert backend.connections == 1
        await close(client, backend)


@pytest.mark.parametrize("call", ["on_taken", "on_head", "on_data", "on_consumed"])
@on_uvloop
async def test_a_sink_that_fails_ends_its_own_run_only(call: str, caplog: pytest.LogCaptureFixture) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    async with FakeBackend(answer(OK_JSON)) as backend:
        client = plain(backend.url)
        for _ in range(2):
            sink = RecordingSink()
            setattr(sink, call, fail)
            assert (await run(client, sink)).end == End(pb.RunEnd.INTERNAL, "the Node failed", None)
            assert (await run(client)).status == pb.RunEnd.OK
        await until(lambda: backend.open_connections == 1, "the failed ones are closed")
        await close(client, backend)


@on_uvloop
async def test_one_lookup_serves_everybody_who_waits_for_it() -> None:
    loop = asyncio.get_running_loop()
    lookups = 0
    found: asyncio.Future[list[Any]] = loop.create_future()

    class Counting(PlainPool):
        async def _look_up(self) -> list[Any]:
            nonlocal lookups
            lookups += 1
            return await found

    async with FakeBackend(answer(OK_JSON)) as backend:
        client = plain(f"http://name.invalid:{backend.port}")
        client._pool = Counting("name.invalid", backend.port, 4.0, loop)
        sinks = [RecordingSink() for _ in range(5)]
        runs = [client.start(tunnel(), TIMEOUTS, sink) for sink in sinks]
        await until(lambda: lookups == 1, "it is looked up")
        runs[0].cancel()
        assert (await sinks[0].finished()).status == pb.RunEnd.CANCELLED
        # Two addresses, of which the first refuses: the second is tried.
        with socket.create_server(("127.0.0.1", 0)) as listener:
            refusing = listener.getsockname()
        info = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
        found.set_result([(*info, refusing), (*info, ("127.0.0.1", backend.port))])
        for sink in sinks[1:]:
            assert (await sink.finished()).status == pb.RunEnd.OK
        assert lookups == 1
        await close(client, backend)


@on_uvloop
async def test_a_lookup_that_fails_is_a_failed_connect_for_each() -> None:
    client = plain("http://no-such-host.invalid:80")
    sinks = await asyncio.gather(run(client), run(client))
    assert [sink.end for sink in sinks] == [End(pb.RunEnd.CONNECT_FAILED, "host name not found", None)] * 2
    assert client._backend.health.state is State.UNREACHABLE
    client._backend.health.close()


@on_uvloop
async def test_runs_leave_no_cycle() -> None:
    """Answered, cut, refused and cancelled ones, and a body that was sent twice."""

    async def drops(exchange: Exchange) -> None:
        exchange.close()

    scripts: list[Script] = [
        answer(OK_JSON),
        raw([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"]),
        raw([b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhi"]),
        raw([b"SSH-2"]),
        BeforeBody(drops),
    ]
    async with FakeBackend(answer(OK_JSON)) as backend:
        client = plain(backend.url)
        gc.collect()
        gc.disable()
        try:
            gone: list[weakref.ref[object]] = []
            for script in scripts:
                backend.scripts = [script]
                sink = RecordingSink()
                gone.append(weakref.ref(sink))
                client.start(tunnel(), TIMEOUTS, sink)
                await sink.finished()
                del sink
            sink = RecordingSink()
            gone.append(weakref.ref(sink))
            client.start(tunnel(), TIMEOUTS, sink).cancel()
            await sink.finished()
            del sink
            await until(lambda: not any(ref() for ref in gone), "their sinks are gone")
        finally:
            gc.enable()
        await close(client, backend)
