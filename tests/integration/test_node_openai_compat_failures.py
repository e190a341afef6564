"""The HTTP adapter and servers that fail it: unreachable, broken, cut off, silent. Over both clients."""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path

import pytest

from iop_fast.config.payload import TimeoutSettings
from iop_fast.node.health import State
from iop_fast.wire import runtime_pb2 as pb
from tests.fakes.openai_backend import BeforeBody, Exchange, FakeBackend, answer, raw, sse
from tests.integration.node_bench import (
    feed_all,
    on_uvloop,
    tunnel,
    until,
)
from tests.integration.openai_compat_bench import OK_JSON, bench, use_client

RunEnd = pb.RunEnd


@pytest.fixture(autouse=True, params=["plain", "library"])
def client(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    return use_client(request.param, monkeypatch)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


# Failures.


@on_uvloop
async def test_a_refused_connect_is_unseen_and_makes_the_backend_unreachable_until_it_listens() -> None:
    port = free_port()
    async with bench(f"http://127.0.0.1:{port}", limits={"probe_ms_min": 20, "probe_ms_max": 40}) as node:
        changes: list[str] = []
        health = node.adapter.health
        health.on_change = lambda: changes.append(health.state.name)
        sink = await node.run()
        assert sink.end == (RunEnd.CONNECT_FAILED, "connection refused", None, 0)
        assert sink.calls == ["end"]
        assert (health.state, health.reason) == (State.UNREACHABLE, "connection refused")
        backend = FakeBackend(answer(OK_JSON))
        await backend.start(port)
        try:
            await until(lambda: health.state is State.UP, "an attempt of its own succeeds")
            assert changes == ["UNREACHABLE", "UP"]
            assert backend.requests == []
            assert (await node.run()).status == RunEnd.OK
        finally:
            await backend.stop()


@on_uvloop
async def test_a_host_that_does_not_exist_is_unreachable() -> None:
    async with bench("http://no-such-host.invalid:80") as node:
        sink = await node.run()
        assert sink.status == RunEnd.CONNECT_FAILED
        assert "127" not in sink.end.detail  # type: ignore[union-attr]
        assert node.adapter.health.state is State.UNREACHABLE


@on_uvloop
async def test_a_failed_tls_handshake_is_a_failed_connect() -> None:
    async def speak_plainly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await reader.read()
        writer.close()

    server = await asyncio.start_server(speak_plainly, "127.0.0.1", 0)
    async with server, bench(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}") as node:
        sink = await node.run()
        assert sink.status == RunEnd.CONNECT_FAILED
        assert sink.end is not None
        assert sink.end.detail.startswith("TLS failed")
        assert node.adapter.health.state is State.UNREACHABLE


@on_uvloop
async def test_a_certificate_that_nobody_vouches_for_is_a_failed_connect(tmp_path: Path) -> None:
    made = await asyncio.create_subprocess_exec(
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
        "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "cert.pem",
        cwd=tmp_path, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    assert await made.wait() == 0
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    backend = FakeBackend(answer(OK_JSON))
    await backend.start(tls=context)
    async with bench(f"https://127.0.0.1:{backend.port}") as node:
        sink = await node.run()
        assert sink.end == (RunEnd.CONNECT_FAILED, "TLS failed: self-signed certificate", None, 0)
        look = node.adapter.health.look()
        assert look is not None
        await look
        assert node.adapter.health.reason == "TLS failed: self-signed certificate"
        assert backend.requests == []
    await backend.stop()


@on_uvloop
async def test_a_connect_that_takes_too_long_is_unreachable() -> None:
    """A listener whose queue of connections is full answers no further handshake."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    address = listener.getsockname()
    waiting = []
    try:
        for _ in range(8):
            client = socket.socket()
            client.setblocking(False)
            client.connect_ex(address)
            waiting.append(client)
        async with bench(f"http://127.0.0.1:{address[1]}") as node:
            sink = await node.run(timeouts=TimeoutSettings(200, 60_000, 60_000))
            assert sink.end == (RunEnd.CONNECT_FAILED, "no connection within 200 ms", None, 0)
            assert node.adapter.health.state is State.UNREACHABLE
    finally:
        for each in [listener, *waiting]:
            each.close()


NOT_HTTP = [
    b"SSH-2.0-OpenSSH_9.0\r\n\r\n",
    b"HTTP/9.9 nonsense\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000 + b"\r\n\r\n",
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
]


@pytest.mark.parametrize("pieces", NOT_HTTP, ids=range(len(NOT_HTTP)))
@on_uvloop
async def test_an_answer_that_is_not_http_is_an_upstream_error(pieces: bytes) -> None:
    async with FakeBackend(raw([pieces])) as backend, bench(backend.url) as node:
        sink = await node.run()
        assert sink.status == RunEnd.UPSTREAM_ERROR
        assert sink.head is None
        assert node.adapter.health.state is State.UP
        assert len(backend.requests) == 1


@pytest.mark.parametrize("then", ["close", "reset"])
@on_uvloop
async def test_a_server_that_leaves_before_its_answer_is_an_upstream_error_and_asked_once(then: str) -> None:
    async with FakeBackend(raw([], then=then)) as backend, bench(backend.url) as node:
        sink = await node.run()
        assert sink.status == RunEnd.UPSTREAM_ERROR
        assert sink.calls == ["taken", "end"]
        assert len(backend.requests) == 1


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n"
TRUNCATED = [
    ([CHUNKED + b"5\r\nhello\r\n"], b"hello", "close"),
    ([CHUNKED + b"5\r\nhel"], b"hel", "close"),
    ([CHUNKED, b"5\r\nhello\r\n"], b"hello", "reset"),
    ([CHUNKED, b"5\r\nhello\r\n", b"zz\r\n"], b"hello", "close"),
    ([LENGTH + b"hello"], b"hello", "close"),
    ([LENGTH, b"hello"], b"hello", "reset"),
    ([b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", b"hello"], b"hello", "reset"),
]


@pytest.mark.parametrize(("pieces", "body", "then"), TRUNCATED, ids=range(len(TRUNCATED)))
@on_uvloop
async def test_a_truncated_answer_passes_what_came_and_is_an_upstream_error(
    pieces: list[bytes], body: bytes, then: str
) -> None:
    async with FakeBackend(raw(pieces, 0.05, then="hold")) as backend, bench(backend.url) as node:

        async def script(exchange: Exchange) -> None:
            for number, piece in enumerate(pieces):
                if number:
                    await asyncio.sleep(0.02)
                await exchange.write(piece)
            if then == "reset":
                await asyncio.sleep(0.05)  # let the bytes be read: a reset may overtake them
                exchange.reset()
            else:
                exchange.close()

        backend.script = script
        sink = await node.run()
        assert sink.end == (RunEnd.UPSTREAM_ERROR, "the answer was cut short", None, 0)
        assert sink.body == body


@on_uvloop
async def test_an_answer_that_ends_by_a_proper_close_is_whole() -> None:
    async with FakeBackend(raw([b"HTTP/1.0 200 OK\r\n\r\n", b"hello"], 0.02)) as backend, bench(backend.url) as node:
        sink = await node.run()
        assert sink.end == (RunEnd.OK, "", None, 0)
        assert sink.body == b"hello"


# Time.


@pytest.mark.parametrize(
    ("pieces", "delivered"),
    [
        ([], b""),
        ([CHUNKED], b""),
        ([CHUNKED + b"7\r\ndata: 1\r\n"], b"data: 1"),
    ],
    ids=["nothing", "head alone", "one piece"],
)
@on_uvloop
async def test_a_silent_server_ends_in_a_timeout_and_its_connection_is_closed(
    pieces: list[bytes], delivered: bytes
) -> None:
    """B21: nothing at all, a head alone, one piece and then nothing."""
    async with FakeBackend(raw(pieces, then="hold")) as backend, bench(backend.url) as node:
        sink = await node.run(timeouts=TimeoutSettings(5_000, 150, 150))
        assert sink.end == (RunEnd.UPSTREAM_TIMEOUT, "the provider was silent for 150 ms", None, 0)
        assert sink.body == delivered
        async with asyncio.timeout(2):
            await backend.requests[0].closed.wait()
        assert node.adapter.health.state is State.UP


@on_uvloop
async def test_a_slow_stream_that_lives_is_not_cut() -> None:
    """B21: comments and single bytes count as life."""
    pieces = [b": ping\n\n"] * 10 + [b"d", b"a", b"t", b"a"] * 5
    async with FakeBackend(sse(pieces, delay_s=0.04)) as backend, bench(backend.url) as node:
        sink = await node.run(timeouts=TimeoutSettings(5_000, 60_000, 400))
        assert sink.status == RunEnd.OK
        assert sink.body == b"".join(pieces)


@on_uvloop
async def test_a_server_that_stops_reading_the_body_is_silent_too() -> None:
    async def script(exchange: Exchange) -> None:
        exchange.peer.transport.pause_reading()
        await asyncio.sleep(30)

    async with FakeBackend(BeforeBody(script)) as backend, bench(backend.url) as node:
        run, sink = node.start(
            tunnel(b"", body_complete=False, body_length=30_000_000), TimeoutSettings(5_000, 300, 300)
        )
        feed_all(run, b"x" * 30_000_000)
        assert (await sink.finished()).status == RunEnd.UPSTREAM_TIMEOUT
