"""The HTTP adapter against a server on real sockets that does what each test tells it.

Every test runs over both clients: our own for plain HTTP, and aiohttp, which carries https and here plain HTTP too.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import hashlib
import random
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from iop_fast.config.payload import TimeoutSettings
from iop_fast.node.adapters import http_backend
from iop_fast.node.adapters.http_client import LibraryClient, PlainClient
from iop_fast.node.adapters.http_run import HttpRun
from iop_fast.node.adapters.openai_compat import OpenAICompatAdapter, make_openai_compat
from iop_fast.node.adapters.plain_run import PlainRun
from iop_fast.node.health import State
from iop_fast.seams import TunnelRequest
from iop_fast.wire import runtime_pb2 as pb
from tests.fakes.openai_backend import BeforeBody, Exchange, FakeBackend, answer, raw, sse
from tests.integration.node_bench import (
    RecordingSink,
    adapter_settings,
    feed_all,
    on_uvloop,
    provider_payload,
    surroundings,
    tunnel,
    until,
)

RunEnd = pb.RunEnd
OK_JSON = b'{"ok":true}'


@pytest.fixture(autouse=True, params=["plain", "library"])
def client(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which HTTP client carries plain HTTP."""
    name: str = request.param
    if name == "library":
        monkeypatch.setattr(http_backend, "client_for", LibraryClient)
    return name


class Bench:
    """An adapter and what starts runs on it."""

    def __init__(self, adapter: OpenAICompatAdapter) -> None:
        self.adapter = adapter

    def start(
        self, request: TunnelRequest | None = None, timeouts: TimeoutSettings | None = None
    ) -> tuple[HttpRun | PlainRun, RecordingSink]:
        sink = RecordingSink()
        limits = timeouts or TimeoutSettings(5_000, 60_000, 60_000)
        run = self.adapter.upstream(provider_payload(timeouts=limits)).start(request or tunnel(), sink)
        assert isinstance(run, PlainRun if isinstance(self.adapter.client, PlainClient) else HttpRun)
        return run, sink

    async def run(self, request: TunnelRequest | None = None, **changes: Any) -> RecordingSink:
        _, sink = self.start(request, **changes)
        await sink.finished()
        return sink


@asynccontextmanager
async def bench(
    endpoint: str, environ: dict[str, str] | None = None, limits: dict[str, Any] | None = None, **settings: Any
) -> AsyncIterator[Bench]:
    adapter = make_openai_compat(adapter_settings(endpoint, **settings), surroundings(environ, **(limits or {})))
    assert isinstance(adapter, OpenAICompatAdapter)
    try:
        yield Bench(adapter)
    finally:
        await adapter.close()
        await asyncio.sleep(0.01)  # uvloop closes transports in a later turn


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


# What reaches the server, and what comes back.


@on_uvloop
async def test_a_request_arrives_as_it_was_and_so_does_the_answer(client: str) -> None:
    async with FakeBackend(answer(OK_JSON)) as backend, bench(backend.url) as node:
        headers = [
            (b"Content-Type", b"application/json"),
            (b"X-Trace", b"a b"),
            (b"x-trace", b"c"),
            (b"User-Agent", b"me"),
        ]
        sink = await node.run(tunnel(b'{"a": 1}', b"/v1/chat/completions?x=%2F&y=a+b", headers))
        assert sink.calls == ["taken", "head", "data", "end"]
        assert sink.end == (RunEnd.OK, "", None, 0)
        assert sink.body == OK_JSON
        assert sink.head == (200, b"OK", [(b"Content-Type", b"application/json"), (b"Content-Length", b"11")])
        seen = backend.requests[0]
        assert (seen.method, seen.target) == (b"POST", b"/v1/chat/completions?x=%2F&y=a+b")
        assert bytes(seen.body) == b'{"a": 1}'
        length, host = (b"Content-Length", b"8"), (b"Host", f"127.0.0.1:{backend.port}".encode())
        if client == "library":  # it takes two spellings of a name for a replacement
            headers[2] = (b"X-Trace", b"c")
        assert seen.headers == [host, *headers, length]


@on_uvloop
async def test_a_request_without_a_body_has_none() -> None:
    async with FakeBackend(answer(OK_JSON)) as backend, bench(backend.url) as node:
        sink = await node.run(tunnel(b"", b"/v1/models", [], method=b"GET"))
        assert sink.status == RunEnd.OK
        assert [name for name, _ in backend.requests[0].headers] == [b"Host"]


@pytest.mark.parametrize(
    ("root", "path", "target"),
    [
        ("", b"/v1/chat/completions", b"/v1/chat/completions"),
        ("/", b"/v1/chat/completions", b"/v1/chat/completions"),
        ("/v1", b"/v1/chat/completions", b"/v1/chat/completions"),
        ("/v1/", b"/v1/models?x=1", b"/v1/models?x=1"),
        ("/openai/v1", b"/v1/embeddings", b"/openai/v1/embeddings"),
        ("/api/paas/v4", b"/v1/chat/completions", b"/api/paas/v4/chat/completions"),
        ("/v1beta/openai", b"/v1/chat/completions", b"/v1beta/openai/chat/completions"),
        ("/gpu7", b"/v1/chat/completions", b"/gpu7/v1/chat/completions"),
        ("/v1", b"/v1", b"/v1"),
        ("/v1", b"/v1/a%2Fb/../c//d;e", b"/v1/a%2Fb/../c//d;e"),
        ("/vision", b"/v1/x", b"/vision/v1/x"),
    ],
)
@on_uvloop
async def test_the_path_follows_the_endpoints_own(root: str, path: bytes, target: bytes) -> None:
    async with FakeBackend(answer(OK_JSON)) as backend, bench(backend.url + root) as node:
        await node.run(tunnel(path=path))
        assert backend.requests[0].target == target


@on_uvloop
async def test_hop_by_hop_fields_pass_in_neither_direction() -> None:
    """B19: Connection and what it names, Keep-Alive, TE, Trailer, both ways; lengths never both."""

    async def script(exchange: Exchange) -> None:
        fields = [
            (b"Connection", b"X-Secret, keep-alive"),
            (b"X-Secret", b"1"),
            (b"Keep-Alive", b"timeout=5"),
            (b"Trailer", b"X-T"),
            (b"Transfer-Encoding", b"chunked"),
            (b"Upgrade", b"h2c"),
            (b"Proxy-Authenticate", b"Basic"),
            (b"X-Kept", b"caf\xe9"),
        ]
        await exchange.head(200, fields)
        await exchange.write(b"2\r\nhi\r\n0\r\nX-T: late\r\n\r\n")

    sent = [
        (b"Connection", b"X-Private"),
        (b"X-Private", b"1"),
        (b"TE", b"trailers"),
        (b"Trailer", b"X"),
        (b"Keep-Alive", b"1"),
        (b"Transfer-Encoding", b"chunked"),
        (b"Upgrade", b"h2c"),
        (b"Expect", b"100-continue"),
        (b"Host", b"evil.example"),
        (b"Content-Length", b"9999"),
        (b"X-Kept", "안녕".encode()),
    ]
    async with FakeBackend(script) as backend, bench(backend.url) as node:
        sink = await node.run(tunnel(b"{}", headers=sent))
        assert sink.body == b"hi"
        assert sink.head is not None
        assert sink.head.headers == [(b"X-Kept", b"caf\xe9")]
        seen = sorted(backend.requests[0].headers)
        host = f"127.0.0.1:{backend.port}".encode()
        assert seen == [(b"Content-Length", b"2"), (b"Host", host), (b"X-Kept", "안녕".encode())]


@pytest.mark.parametrize("coding", [b"gzip", b"br", b"identity", b""])
@pytest.mark.parametrize("framing", ["length", "chunked", "close"])
@on_uvloop
async def test_a_coded_body_passes_untouched_beside_its_label(coding: bytes, framing: str) -> None:
    """B19: the body is never unpacked and keeps its Content-Encoding, however it is framed."""
    body = gzip.compress(random.Random(8).randbytes(700)) if coding == b"gzip" else random.Random(7).randbytes(700)

    async def script(exchange: Exchange) -> None:
        fields = [(b"Content-Encoding", coding)] if coding else []
        if framing == "length":
            await exchange.head(200, [*fields, (b"Content-Length", b"%d" % len(body))])
            await exchange.write(body)
        elif framing == "chunked":
            await exchange.head(200, [*fields, (b"Transfer-Encoding", b"chunked")])
            await exchange.chunk(body[:100])
            await exchange.chunk(body[100:])
            await exchange.chunk(b"")
        else:
            await exchange.head(200, [*fields, (b"Connection", b"close")])
            await exchange.write(body)
            exchange.close()

    async with FakeBackend(script) as backend, bench(backend.url) as node:
        accept = (b"accept-encoding", b"gzip")
        sink = await node.run(tunnel(headers=[accept]))
        assert sink.status == RunEnd.OK
        assert sink.body == body
        assert sink.header(b"content-encoding") == ([coding] if coding else [])
        assert sink.header(b"content-length") == ([b"%d" % len(body)] if framing == "length" else [])
        assert backend.requests[0].values(b"accept-encoding") == [b"gzip"]


@on_uvloop
async def test_an_event_reaches_the_caller_before_the_next_is_sent() -> None:
    """B19: a stream is passed on as it comes, gzip or not, and not in bundles."""
    proceed = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.head(200, [(b"Content-Type", b"text/event-stream"), (b"Transfer-Encoding", b"chunked")])
        for number in range(5):
            await exchange.chunk(b"data: %d\n\n" % number)
            await proceed.wait()
            proceed.clear()
        await exchange.chunk(b"")

    async with FakeBackend(script) as backend, bench(backend.url) as node:
        _, sink = node.start()
        for number in range(5):
            await until(lambda number=number: sink.body.endswith(b"data: %d\n\n" % number), f"event {number}")
            proceed.set()
        await sink.finished()
        assert sink.status == RunEnd.OK


STREAM = 'data: 안녕 😀\n\n: comment\r\n\r\ndata:{"tool":"\\u0041"}\n\ndata: a\ndata: b\n\n'.encode()


@on_uvloop
async def test_a_stream_passes_byte_for_byte_for_every_cut() -> None:
    """B20: two writes cut at every offset, and one byte a write."""
    async with FakeBackend() as backend, bench(backend.url) as node:
        cuts = [[STREAM[:cut], STREAM[cut:]] for cut in range(1, len(STREAM))]
        cuts.append([STREAM[at : at + 1] for at in range(len(STREAM))])
        for pieces in cuts:
            backend.script = sse(pieces)
            sink = await node.run()
            assert sink.body == STREAM
            assert sink.status == RunEnd.OK
        assert backend.connections == 1


@pytest.mark.parametrize("status", [204, 304, 400, 429, 500, 503, 302])
@on_uvloop
async def test_any_answer_is_an_answer_and_no_sign_of_ill_health(status: int) -> None:
    """B28: errors pass through with their fields; redirects are not followed."""

    async def script(exchange: Exchange) -> None:
        fields = [(b"Retry-After", b"7"), (b"Location", b"http://127.0.0.1:1/"), (b"Set-Cookie", b"a=b")]
        if status in (204, 304):
            await exchange.head(status, fields)
        else:
            await exchange.head(status, [*fields, (b"Content-Length", b"2")])
            await exchange.write(b"no")

    async with FakeBackend(script) as backend, bench(backend.url) as node:
        for _ in range(3):
            sink = await node.run()
            assert sink.head is not None
            assert sink.head.status == status
            assert sink.header(b"retry-after") == [b"7"]
            assert sink.end == (RunEnd.OK, "", None, 0)
        assert len(backend.requests) == 3
        assert backend.requests[2].values(b"cookie") == []
        assert node.adapter.health.state is State.UP


@on_uvloop
async def test_head_fields_up_to_64_kib_pass() -> None:
    big = b"x" * 60_000
    async with FakeBackend() as backend, bench(backend.url) as node:
        backend.script = raw([b"HTTP/1.1 200 OK\r\nX-Big: " + big + b"\r\nContent-Length: 0\r\n\r\n"])
        sink = await node.run(tunnel(headers=[(b"x-up", big)]))
        assert sink.header(b"x-big") == [big]
        assert backend.requests[0].values(b"x-up") == [big]


# Keys.


@pytest.mark.parametrize(
    ("headers", "sent"),
    [
        ([], [(b"Authorization", b"Bearer own-key")]),
        ([(b"authorization", b"Bearer forwarded")], [(b"authorization", b"Bearer forwarded")]),
        ([(b"X-Api-Key", b"forwarded")], [(b"X-Api-Key", b"forwarded")]),
    ],
)
@on_uvloop
async def test_the_own_key_goes_out_unless_one_was_forwarded(
    headers: list[tuple[bytes, bytes]], sent: list[tuple[bytes, bytes]]
) -> None:
    """B17: exactly one credential reaches the provider."""
    async with (
        FakeBackend(answer(OK_JSON)) as backend,
        bench(backend.url, {"KEY": " own-key\n"}, api_key_env="KEY") as node,
    ):
        await node.run(tunnel(headers=headers))
        names = (b"authorization", b"x-api-key")
        assert [field for field in backend.requests[0].headers if field[0].lower() in names] == sent


@on_uvloop
async def test_the_own_key_stays_here_when_the_caller_s_token_goes_by_a_name_of_its_own() -> None:
    """B17: the Edge says that the token is there, under whatever name its provider reads it."""
    async with (
        FakeBackend(answer(OK_JSON)) as backend,
        bench(backend.url, {"KEY": "own-key"}, api_key_env="KEY") as node,
    ):
        await node.run(tunnel(headers=[(b"x-vendor-token", b"forwarded")], caller_authorized=True))
        await node.run(tunnel(headers=[(b"x-vendor-token", b"by chance")]))
        marked, plain = backend.requests
        assert (marked.values(b"x-vendor-token"), marked.values(b"authorization")) == ([b"forwarded"], [])
        assert plain.values(b"authorization") == [b"Bearer own-key"]


@on_uvloop
async def test_without_a_key_there_is_no_credential() -> None:
    """B17: no empty "Bearer "."""
    async with FakeBackend(answer(OK_JSON)) as backend, bench(backend.url) as node:
        await node.run()
        assert backend.requests[0].values(b"authorization") == []


# The body's way out.


@on_uvloop
async def test_a_large_body_arrives_whole_and_its_window_is_reported() -> None:
    """B13: 10 MB, piece by piece."""
    body = random.Random(3).randbytes(10_000_000)
    async with FakeBackend(answer(OK_JSON)) as backend, bench(backend.url) as node:
        run, sink = node.start(tunnel(body[:65_000], body_complete=False, body_length=len(body)))
        feed_all(run, body[65_000:])
        await sink.finished()
        assert sink.status == RunEnd.OK
        assert hashlib.sha256(backend.requests[0].body).digest() == hashlib.sha256(body).digest()
        assert backend.requests[0].values(b"content-length") == [b"10000000"]
        assert sink.consumed == len(body)


@on_uvloop
async def test_a_server_that_does_not_read_holds_the_window_back() -> None:
    gate = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        exchange.peer.transport.pause_reading()
        await gate.wait()
        exchange.peer.transport.resume_reading()
        await exchange.read_body()
        await exchange.respond(OK_JSON)

    body = b"x" * 30_000_000
    async with FakeBackend(BeforeBody(script)) as backend, bench(backend.url) as node:
        run, sink = node.start(tunnel(b"", body_complete=False, body_length=len(body)))
        feed_all(run, body)
        await until(lambda: sink.consumed > 0, "the first bytes leave")
        before = -1
        while before != sink.consumed:
            before = sink.consumed
            await asyncio.sleep(0.1)
        assert sink.consumed < len(body)
        gate.set()
        await sink.finished()
        assert sink.status == RunEnd.OK
        assert sink.consumed == len(body)


@pytest.mark.parametrize("pieces", [[b"123456"], [b"12", b"3456"], [b"12", b"34", b""]])
@on_uvloop
async def test_a_body_of_another_length_is_refused(pieces: list[bytes]) -> None:
    async with FakeBackend(answer(OK_JSON)) as backend, bench(backend.url) as node:
        run, sink = node.start(tunnel(b"", body_complete=False, body_length=5))
        with pytest.raises(ValueError, match="expected a body of 5 bytes"):
            [run.feed(piece, number == len(pieces) - 1) for number, piece in enumerate(pieces)]
        run.cancel()
        await sink.finished()


@on_uvloop
async def test_an_answer_before_the_body_is_sent_ends_the_run() -> None:
    """A server may refuse a body by its head alone."""

    async def script(exchange: Exchange) -> None:
        await exchange.respond(b"too large", 413)
        exchange.close()

    async with FakeBackend(BeforeBody(script)) as backend, bench(backend.url) as node:
        run, sink = node.start(tunnel(b"x", body_complete=False, body_length=50_000_000))
        await sink.finished()
        assert sink.head is not None
        assert sink.head.status == 413
        assert sink.body == b"too large"
        assert sink.status == RunEnd.OK
        run.feed(b"more", False)
        await until(lambda: backend.open_connections == 0, "its connection is closed")


@pytest.mark.parametrize("target", [b"v1/x", b"http://h/x", b"/a b", b"/a#b", b"/a\r\nX: y", b"", b"/caf\xe9"])
@on_uvloop
async def test_a_target_that_is_none_is_refused_before_anything_is_sent(target: bytes) -> None:
    async with FakeBackend() as backend, bench(backend.url) as node:
        with pytest.raises(ValueError, match="request target"):
            node.start(tunnel(path=target))
        assert backend.connections == 0


# Pausing and stopping.


@on_uvloop
async def test_a_paused_run_stops_the_server_and_loses_nothing() -> None:
    body = random.Random(5).randbytes(20_000_000)
    async with FakeBackend(answer(body)) as backend, bench(backend.url) as node:
        run, sink = node.start(timeouts=TimeoutSettings(5_000, 60_000, 200))
        await until(lambda: bool(sink.pieces), "the first piece")
        run.pause()
        run.pause()
        await asyncio.sleep(0.5)  # longer than the idle limit, which must stand still
        held = len(sink.body)
        assert held < 10_000_000
        await asyncio.sleep(0.1)
        assert len(sink.body) == held
        assert backend.running == 1
        run.resume()
        run.resume()
        await sink.finished()
        assert sink.status == RunEnd.OK
        assert sink.body == body


@pytest.mark.parametrize("moment", ["connect", "head", "stream", "paused", "upload"])
@on_uvloop
async def test_a_cancelled_run_closes_the_connection_and_confirms(moment: str) -> None:
    """B01: the server sees its connection closed, at every moment of a run."""

    async def script(exchange: Exchange) -> None:
        if moment in ("stream", "paused"):
            await exchange.head(200, [(b"Transfer-Encoding", b"chunked")])
            while True:
                await exchange.chunk(b"x" * 10_000)
                await asyncio.sleep(0.001)
        await exchange.until_gone()

    chosen = BeforeBody(script) if moment == "upload" else script
    async with FakeBackend(chosen) as backend, bench(backend.url) as node:
        upload = {"body_complete": False, "body_length": 50_000_000} if moment == "upload" else {}
        run, sink = node.start(tunnel(b"x" * 60_000, **upload) if upload else tunnel())
        if moment == "upload":
            run.feed(b"x" * 20_000_000, False)
        if moment != "connect":
            await until(lambda: len(backend.requests) == 1, "the request")
        if moment in ("stream", "paused"):
            await until(lambda: bool(sink.pieces), "a piece")
        if moment == "paused":
            run.pause()
            await asyncio.sleep(0.05)
        run.cancel()
        run.cancel()
        end = await sink.finished()
        assert end.status == RunEnd.CANCELLED
        run.resume()
        run.pause()
        for request in backend.requests:
            async with asyncio.timeout(2):
                await request.closed.wait()
        await until(lambda: backend.open_connections == 0, "no connection is left")


@on_uvloop
async def test_a_run_cancelled_in_the_turn_it_started_confirms_too() -> None:
    async with FakeBackend(answer(OK_JSON)) as backend, bench(backend.url) as node:
        run, sink = node.start()
        run.cancel()
        assert (await sink.finished()).status == RunEnd.CANCELLED
        assert backend.requests == []


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


# A connection from the pool.


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


# Time (B21).


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
