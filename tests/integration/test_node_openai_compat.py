"""The HTTP adapter against a server on real sockets that does what each test tells it.

Every test runs over both clients: our own for plain HTTP, and aiohttp, which carries https and here plain HTTP too.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import random

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
