"""The HTTP front over real loopback sockets on uvloop: what only a real transport shows."""

from __future__ import annotations

import asyncio
import gc
import io
import socket
import ssl
import struct
import subprocess
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import uvloop

from iop_fast._core.clock import MonotonicClock
from iop_fast.config.schema.front import HttpLimits
from iop_fast.edge.front.listener import Front
from tests.unit.edge.front.harness import Recorder, ScriptedService

LIMIT_S = 10.0
GET = b"GET /%s HTTP/1.1\r\nHost: a\r\n\r\n"
OK = b"HTTP/1.1 200 OK"


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a test's coroutine on uvloop; what the loop could only report fails the test."""
    failures: list[dict[str, Any]] = []

    async def watched() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: failures.append(context))
        async with asyncio.timeout(LIMIT_S * 3):
            await work()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(watched())
    gc.collect()
    assert failures == []


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition, with a deadline."""
    async with asyncio.timeout(LIMIT_S):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.002)


class Peer:
    """A raw client."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.loop = asyncio.get_running_loop()
        self.input = b""

    async def send(self, data: bytes) -> None:
        await self.loop.sock_sendall(self.sock, data)

    async def read_until(self, condition: Callable[[bytes], object]) -> bytes:
        async with asyncio.timeout(LIMIT_S):
            while not condition(self.input):
                data = await self.loop.sock_recv(self.sock, 65_536)
                assert data, f"the server closed after {self.input!r}"
                self.input += data
        return self.input

    async def read_to_end(self) -> bytes:
        async with asyncio.timeout(LIMIT_S):
            while data := await self.loop.sock_recv(self.sock, 65_536):
                self.input += data
        return self.input

    def end(self) -> None:
        self.sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.sock.close()

    def reset(self) -> None:
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


class World:
    """A listening front with a scripted service."""

    def __init__(self, front: Front, service: ScriptedService) -> None:
        self.front = front
        self.service = service
        self.peers: list[Peer] = []

    async def connect(self, receive_buffer: int | None = None) -> Peer:
        sock = socket.socket()
        sock.setblocking(False)
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.front.port))
        self.peers.append(Peer(sock))
        return self.peers[-1]

    async def request(self, count: int = 1) -> Recorder:
        """Wait for request number `count` to be complete and return it."""
        await until(lambda: len(self.service.requests) >= count and self.service.requests[count - 1].is_complete)
        return self.service.requests[count - 1]


@asynccontextmanager
async def listening(tls: ssl.SSLContext | None = None, **limits: int) -> AsyncIterator[World]:
    service = ScriptedService()
    front = Front(service, HttpLimits(**limits), MonotonicClock(), asyncio.get_running_loop())
    await front.start("127.0.0.1", 0, tls)
    world = World(front, service)
    try:
        yield world
    finally:
        for peer in world.peers:
            peer.close()
        front.close()
        await until(lambda: front.connections == 0)
        assert front.counters.internal_errors == 0


def answer(request: Recorder) -> None:
    request.answer(bytes(request.body) or b"ok")


# Clients that leave.


@pytest.mark.parametrize("leave", [Peer.end, Peer.close, Peer.reset])
@pytest.mark.parametrize("has_begun", [False, True])
def test_a_client_that_leaves_while_its_request_waits_is_noticed(
    leave: Callable[[Peer], None], has_begun: bool
) -> None:
    async def work() -> None:
        async with listening() as world:
            peer = await world.connect()
            await peer.send(GET % b"1")
            request = await world.request()
            if has_begun:
                request.send(pieces=[b"ab"])
                await peer.read_until(lambda data: data.endswith(b"ab\r\n"))
            leave(peer)
            await until(lambda: request.is_gone)
            assert not request.downstream.is_open
            request.downstream.send(None, [b"late"], True)
            await until(lambda: world.front.connections == 0)

    run(work)


def test_clients_that_reset_anywhere_in_a_stream_harm_nobody() -> None:
    async def work() -> None:
        async with listening() as world:
            good = [await world.connect() for _ in range(5)]
            for peer in good:
                await peer.send(GET % b"good")
            await until(lambda: len(world.service.requests) == 5)
            for request in world.service.requests:
                request.send()
            for events in range(20):
                victim = await world.connect()
                await victim.send(GET % b"bad")
                doomed = await world.request(6 + events)
                doomed.send()
                for _ in range(events):
                    doomed.downstream.send(None, [b"event"], False)
                victim.reset()
                # Writes go on until the reset is seen, as they would from a link.
                while not doomed.is_gone:
                    doomed.downstream.send(None, [b"event"], False)
                    await asyncio.sleep(0)
                doomed.downstream.send(None, [b"event"], True)
                for request in world.service.requests[:5]:
                    request.downstream.send(None, [b"x"], False)
            for request in world.service.requests[:5]:
                request.downstream.send(None, (), True)
            for peer in good:
                output = await peer.read_until(lambda data: data.endswith(b"0\r\n\r\n"))
                assert output.count(b"1\r\nx\r\n") == 20

    run(work)


def test_accepted_connections_find_clients_whose_host_is_gone() -> None:
    async def work() -> None:
        async with listening(write_stall_ms=45_000) as world:
            await world.connect()
            await until(lambda: world.front.connections == 1)
            (connection,) = world.front._connections
            assert connection._transport is not None
            sock = connection._transport.get_extra_info("socket")
            options = {
                "SO_KEEPALIVE": sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
                "TCP_KEEPIDLE": sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
                "TCP_USER_TIMEOUT": sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT),
                "TCP_NODELAY": sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY),
            }
            assert options == {"SO_KEEPALIVE": 1, "TCP_KEEPIDLE": 60, "TCP_USER_TIMEOUT": 55_000, "TCP_NODELAY": 1}

    run(work)


# Requests.


def test_pipelined_requests_are_answered_in_order() -> None:
    async def work() -> None:
        async with listening() as world:
            world.service.on_complete = lambda request: request.answer(request.head.path)
            peer = await world.connect()
            await peer.send(b"".join(GET % b"%d" % number for number in range(8)))
            output = await peer.read_until(lambda data: data.endswith(b"/7"))
            places = [output.index(b"\r\n\r\n/%d" % number) for number in range(8)]
            assert places == sorted(places)

    run(work)


@pytest.mark.parametrize("step", [1, 10_000])
@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_request_that_offers_h2c_is_served_whole(step: int, is_chunked: bool) -> None:
    async def work() -> None:
        async with listening() as world:
            world.service.on_complete = answer
            peer = await world.connect()
            framing = b"Transfer-Encoding: chunked" if is_chunked else b"Content-Length: 7"
            body = b'7\r\n{"a":1}\r\n0\r\n\r\n' if is_chunked else b'{"a":1}'
            offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
            raw = b"POST / HTTP/1.1\r\nHost: a\r\n" + offer + framing + b"\r\n\r\n" + body + GET % b"next"
            for at in range(0, len(raw), step):
                await peer.send(raw[at : at + step])
            output = await peer.read_until(lambda data: data.endswith(b"ok"))
            assert output.count(OK) == 2
            assert b'\r\n\r\n{"a":1}' in output

    run(work)


def test_a_slow_head_is_answered_408_and_an_idle_connection_closed() -> None:
    async def work() -> None:
        async with listening(header_ms=300, keep_alive_ms=300) as world:
            world.service.on_complete = answer
            slow, silent, idle = await world.connect(), await world.connect(), await world.connect()
            await slow.send(b"GET / HTT")
            await idle.send(GET % b"1")
            assert (await slow.read_to_end()).startswith(b"HTTP/1.1 408 ")
            assert await silent.read_to_end() == b""
            assert (await idle.read_to_end()).count(b"HTTP/1.1") == 1

    run(work)


def test_a_client_that_goes_on_sending_a_refused_body_sees_the_answer() -> None:
    async def work() -> None:
        async with listening(body_bytes=1_024) as world:
            peer = await world.connect()
            size = 8_000_000
            await peer.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % size)
            await peer.send(b"x" * size)
            peer.end()
            output = await peer.read_to_end()
            assert output.startswith(b"HTTP/1.1 413 ")
            assert output.endswith(b'"code":"request_too_large"}}')
            assert world.service.requests == []

    run(work)


def test_a_32_mib_body_arrives_whole_in_either_framing() -> None:
    async def work() -> None:
        async with listening() as world:
            world.service.on_complete = lambda request: request.answer(b"%d" % len(request.body))
            body = b"0123456789abcdef" * (2 * 1_048_576)

            async def pieces() -> AsyncIterator[bytes]:
                for at in range(0, len(body), 100_000):
                    yield body[at : at + 100_000]

            url = f"http://127.0.0.1:{world.front.port}/"
            async with aiohttp.ClientSession() as client:
                for data in (io.BytesIO(body), pieces()):
                    async with client.post(url, data=data) as response:
                        assert await response.read() == b"33554432"
            assert all(request.body == body for request in world.service.requests)

    run(work)


# Backpressure.


def test_a_client_that_does_not_read_makes_the_answer_unwritable_until_it_reads() -> None:
    async def work() -> None:
        async with listening() as world:
            peer = await world.connect(receive_buffer=4_096)
            await peer.send(GET % b"1")
            request = await world.request()
            request.send()
            sent = 0
            while request.downstream.is_writable:
                request.downstream.send(None, [b"x" * 16_384], False)
                sent += 1
                await asyncio.sleep(0)
            assert request.writable_calls == 0
            output = await peer.read_until(lambda data: request.writable_calls == 1)
            assert request.downstream.is_writable
            request.downstream.send(None, (), True)
            output = await peer.read_until(lambda data: data.endswith(b"0\r\n\r\n"))
            assert output.count(b"4000\r\n") == sent

    run(work)


def test_a_client_that_never_reads_is_cut() -> None:
    async def work() -> None:
        async with listening(write_stall_ms=300) as world:
            peer = await world.connect(receive_buffer=4_096)
            await peer.send(GET % b"1")
            request = await world.request()
            request.send()
            while request.downstream.is_writable:
                request.downstream.send(None, [b"x" * 16_384], False)
                await asyncio.sleep(0)
            await until(lambda: request.is_gone)
            assert world.front.counters.stalls == 1
            await until(lambda: world.front.connections == 0)

    run(work)


@pytest.mark.parametrize("raw", [b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", GET % b"1"])
def test_a_cut_of_a_framed_answer_delivers_what_was_sent(raw: bytes) -> None:
    async def work() -> None:
        async with listening() as world:
            peer = await world.connect()
            await peer.send(raw)
            request = await world.request()
            request.send(pieces=[b"x" * 1_000_000])
            request.downstream.send(None, [b"error event"], False)
            request.downstream.abort()
            assert (await peer.read_to_end()).endswith(b"b\r\nerror event\r\n")

    run(work)


def test_a_cut_of_an_answer_that_ends_by_close_is_a_reset() -> None:
    async def work() -> None:
        async with listening() as world:
            peer = await world.connect()
            await peer.send(b"GET / HTTP/1.0\r\n\r\n")
            request = await world.request()
            request.send(pieces=[b"ab"])
            await peer.read_until(lambda data: data.endswith(b"\r\n\r\nab"))
            request.downstream.abort()
            with pytest.raises(ConnectionResetError):
                await peer.read_to_end()

    run(work)


# Listening and leaving.


def test_a_taken_port_is_named_and_never_shared() -> None:
    async def work() -> None:
        async with listening() as world:
            other = Front(world.service, HttpLimits(), MonotonicClock(), asyncio.get_running_loop())
            expected = f"cannot listen on 127.0.0.1:{world.front.port}: address already in use"
            with pytest.raises(OSError, match=expected):
                await other.start("127.0.0.1", world.front.port)
            with pytest.raises(OSError, match=r"cannot listen on 192\.0\.2\.1:80: cannot assign requested address"):
                await other.start("192.0.2.1", 80)
            other.close()

    run(work)


def test_a_host_that_cannot_be_found_is_named() -> None:
    async def work() -> None:
        front = Front(ScriptedService(), HttpLimits(), MonotonicClock(), asyncio.get_running_loop())
        with pytest.raises(OSError, match=r"cannot listen on no\.such\.host\.invalid:80: .*name"):
            await front.start("no.such.host.invalid", 80)
        front.close()

    run(work)


def test_several_addresses_are_listened_on() -> None:
    async def work() -> None:
        async with listening() as world:
            world.service.on_complete = answer
            await world.front.start("127.0.0.2", world.front.port)
            sock = socket.create_connection(("127.0.0.2", world.front.port))
            sock.setblocking(False)
            peer = Peer(sock)
            world.peers.append(peer)
            await peer.send(GET % b"1")
            await peer.read_until(lambda data: data.endswith(b"ok"))

    run(work)


def test_connections_above_the_limit_read_503() -> None:
    async def work() -> None:
        async with listening(connections=1) as world:
            first = await world.connect()
            await until(lambda: world.front.connections == 1)
            second = await world.connect()
            await second.send(GET % b"1")
            output = await second.read_to_end()
            assert output.startswith(b"HTTP/1.1 503 ")
            assert b'"code":"overloaded"' in output
            first.close()
            await until(lambda: world.front.connections == 0)

    run(work)


def test_the_way_down_lets_answers_end() -> None:
    async def work() -> None:
        async with listening() as world:
            busy, idle = await world.connect(), await world.connect()
            await busy.send(GET % b"1")
            request = await world.request()
            await until(lambda: world.front.connections == 2)
            front, port = world.front, world.front.port
            front.stop_accepting()
            front.drain()
            front.close_idle()
            assert await idle.read_to_end() == b""
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port)).close()
            waiter = asyncio.ensure_future(front.wait_empty())
            await asyncio.sleep(0)
            assert not waiter.done()
            request.answer()
            output = await busy.read_to_end()
            assert b"\r\nConnection: close\r\n" in output
            await waiter

    run(work)


# A client library of others, and TLS.


async def use(session: aiohttp.ClientSession, url: str) -> None:
    """Everything a client library does."""

    async def pieces() -> AsyncIterator[bytes]:
        for number in range(10):
            yield b"piece %d;" % number

    for _ in range(3):
        async with session.post(url, data=b"whole") as response:
            assert (response.status, await response.read()) == (200, b"whole")
        async with session.post(url, data=pieces()) as response:
            assert (await response.read()).endswith(b"piece 9;")
        async with session.post(url, data=b"asked", expect100=True) as response:
            assert await response.read() == b"asked"
        async with session.head(url) as response:
            assert (response.headers["Content-Length"], await response.read()) == ("2", b"")
        async with session.get(url) as response:
            assert await response.read() == b"ok"


def test_a_client_library_keeps_its_connection_through_every_kind_of_request() -> None:
    async def work() -> None:
        async with listening() as world:
            world.service.on_complete = answer
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(LIMIT_S)) as session:
                await use(session, f"http://127.0.0.1:{world.front.port}/")
            assert world.front.counters.connections == 1

    run(work)


def certificate(directory: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Make a self-signed certificate; return the server's context and a client's that trusts it."""
    key, pem = directory / "key.pem", directory / "cert.pem"
    subprocess.run(
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost "
        f"-addext subjectAltName=IP:127.0.0.1 -keyout {key} -out {pem}".split(),
        check=True,
        capture_output=True,
    )
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(pem, key)
    return server, ssl.create_default_context(cafile=str(pem))


def test_tls_serves_the_same_and_refusals_reach_the_client(tmp_path: Path) -> None:
    server, client = certificate(tmp_path)

    async def work() -> None:
        async with listening(server, body_bytes=1_024) as world:
            world.service.on_complete = answer
            url = f"https://127.0.0.1:{world.front.port}/"
            connector = aiohttp.TCPConnector(ssl=client)
            async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(LIMIT_S)) as session:
                await use(session, url)
                assert world.front.counters.connections == 1
                async with session.post(url, data=b"x" * 2_000) as response:
                    assert response.status == 413
                    assert (await response.json())["error"]["code"] == "request_too_large"

    run(work)


def test_a_tls_client_that_leaves_while_its_request_waits_is_noticed(tmp_path: Path) -> None:
    server, client = certificate(tmp_path)

    async def work() -> None:
        async with listening(server) as world:
            reader, writer = await asyncio.open_connection("127.0.0.1", world.front.port, ssl=client)
            writer.write(GET % b"1")
            request = await world.request()
            writer.transport.abort()
            await until(lambda: request.is_gone)
            await until(lambda: world.front.connections == 0)
            assert reader.at_eof() or reader.exception() is not None

    run(work)
