"""The built-in transport's own promises: what it cuts, what it says, what it leaves behind."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop

from iop_fast.wire import transport
from iop_fast.wire.credentials import ServerIdentity, Trust
from iop_fast.wire.ends import CROWDED
from iop_fast.wire.http2 import dialing, server
from iop_fast.wire.http2.call import Call
from iop_fast.wire.http2.client import NodeEnd
from iop_fast.wire.http2.connection import Connection
from iop_fast.wire.http2.limits import Limits
from iop_fast.wire.http2.server import EdgeEnd, Http2Server
from tests.integration.wire_pairs import LIMIT_S, Pair, echo

OURS = Pair("builtin", "builtin")
NS = 1_000_000_000


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition of this process, with a deadline."""
    async with asyncio.timeout(LIMIT_S):
        while not condition():  # noqa: ASYNC110 - a state of the transport, which nobody announces
            await asyncio.sleep(0.005)


@asynccontextmanager
async def listener(
    limits: Limits | None = None, identity: ServerIdentity | None = None, address: str = "127.0.0.1:0"
) -> AsyncIterator[tuple[Http2Server, list[str]]]:
    """A server with limits of the test's own, and what it has turned away."""
    refused: list[str] = []
    made = Http2Server(echo, identity, limits or Limits(), lambda peer, reason: refused.append(reason))
    await made.start(address)
    try:
        yield made, refused
    finally:
        assert await made.stop(0.1)
        assert await transport.settle(LIMIT_S)


def certificate(folder: Path, name: str = "edge", days: int = 2) -> tuple[Path, Path]:
    """Make a self-signed certificate for 127.0.0.1; return its file and its key's."""
    cert, key, request = (folder / f"{name}.{ending}" for ending in ("pem", "key", "csr"))
    new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", f"/CN={name}"]
    asked = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(request)]
    signed = ["-signkey", str(key), "-copy_extensions", "copy", "-days", str(days), "-out", str(cert)]
    for command in (["req", *new, *asked], ["x509", "-req", "-in", str(request), *signed]):
        subprocess.run(["openssl", *command], check=True, capture_output=True)
    return cert, key


def open_sockets() -> int:
    """Sockets of this process; the loop opens other files when it likes."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # that of the listing itself
            found += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
    return found


def alive(*kinds: type) -> dict[int, object]:
    """The objects of these kinds that the collector knows, by identity."""
    return {id(found): found for found in gc.get_objects() if type(found) in kinds}


# Cutting.


def test_a_peer_that_never_reads_is_cut_at_once_and_its_connection_with_it() -> None:
    async def main() -> None:
        cut = asyncio.Event()

        async def flood(stream: transport.EdgeStream, peer: str) -> None:
            writing = asyncio.ensure_future(write_for_ever(stream))
            blocked = -1
            while blocked != written[0] or not blocked:
                blocked = written[0]
                await asyncio.sleep(0.1)
            stream.abandon()
            cut.set()
            with suppress(ConnectionError):
                await writing

        written = [0]

        async def write_for_ever(stream: transport.EdgeStream) -> None:
            while True:
                await stream.write(bytes(16_384))
                written[0] += 1

        async with OURS.running(flood) as (made, address):
            assert isinstance(made, Http2Server)
            node = await OURS.dial(address)
            assert made.connections == 1
            await cut.wait()
            assert (made.abandoned, made.abandoned_pending) == (1, 0)
            await until(lambda: made.connections == 0)
            while await node.read() is not None:
                pass
            assert node.end_reason
            node.abandon()

    uvloop.run(main())


@pytest.mark.parametrize("first_words", [b"", b"PRI * HTTP/2.0\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"])
def test_a_connection_that_does_not_say_what_it_wants_is_cut(first_words: bytes) -> None:
    async def main() -> None:
        async with listener(Limits(handshake_ns=NS // 5)) as (made, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", made.port)
            writer.write(first_words)
            await until(lambda: made.connections == 1)
            with suppress(ConnectionError):
                async with asyncio.timeout(LIMIT_S):
                    await reader.read()
            await until(lambda: made.connections == 0)
            writer.close()

    uvloop.run(main())


@pytest.mark.parametrize("first_words", [b"", b"\x16\x03\x01\x02\x00\x01\x00"])
def test_a_slow_tls_handshake_is_cut(first_words: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "TLS_HANDSHAKE_S", 0.2)

    async def main() -> None:
        async with listener(identity=ServerIdentity(*certificate(tmp_path))) as (made, refused):
            reader, writer = await asyncio.open_connection("127.0.0.1", made.port)
            writer.write(first_words)
            with suppress(ConnectionError):
                async with asyncio.timeout(LIMIT_S):
                    assert await reader.read() == b""
            await until(lambda: len(refused) == 1)
            assert refused[0].startswith("no TLS handshake: ")
            assert made.connections == 0
            writer.close()

    uvloop.run(main())


def test_a_server_stops_beside_handshakes_and_idle_connections(tmp_path: Path) -> None:
    async def main() -> None:
        before = open_sockets()
        async with listener(identity=ServerIdentity(*certificate(tmp_path))) as (made, _):
            writers = [(await asyncio.open_connection("127.0.0.1", made.port))[1] for _ in range(5)]
            writers[0].write(b"\x16\x03\x01\x02\x00\x01\x00")
        for writer in writers:
            writer.close()
        await until(lambda: open_sockets() <= before)

    uvloop.run(main())


def test_connections_have_a_limit_and_give_their_place_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 2)

    async def main() -> None:
        async with listener() as (made, refused):
            address = f"127.0.0.1:{made.port}"
            nodes = [await OURS.dial(address) for _ in range(2)]
            with pytest.raises(ConnectionError):
                await OURS.dial(address)
            assert refused == ["at most 2 connections"]
            nodes[0].abandon()
            await until(lambda: made.connections == 1)
            nodes[0] = await OURS.dial(address)
            for node in nodes:
                node.abandon()

    uvloop.run(main())


@pytest.mark.parametrize("is_secure", [False, True], ids=["open", "in a handshake"])
def test_the_oldest_stranger_is_cut_for_the_next_and_no_session_is(
    is_secure: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "STRANGERS_MAX", 2)

    async def main() -> None:
        identity = ServerIdentity(*certificate(tmp_path)) if is_secure else None
        trust = Trust(tmp_path / "edge.pem") if is_secure else None
        async with listener(identity=identity) as (made, refused):
            address = f"127.0.0.1:{made.port}"
            nodes = []
            for _ in range(3):
                node = await OURS.dial(address, trust)
                await node.write(b"hello")
                assert await node.read() == b"hello"
                nodes.append(node)
            assert (made.strangers, made.strangers_cut) == (0, 0)
            silent = [await asyncio.open_connection("127.0.0.1", made.port) for _ in range(5)]
            await until(lambda: made.strangers_cut == 3)
            async with asyncio.timeout(LIMIT_S):
                for reader, _ in silent[:3]:
                    with suppress(ConnectionError):
                        await reader.read()
            assert refused.count(CROWDED) == 3
            assert made.strangers == 2
            nodes.append(await OURS.dial(address, trust))
            for node in nodes:
                await node.write(b"still here")
                assert await node.read() == b"still here"
            assert made.strangers_cut == 4
            for _, writer in silent:
                writer.close()
            await until(lambda: made.strangers == 0)
            for node in nodes:
                node.abandon()
            await until(lambda: made.connections == 0)

    uvloop.run(main())


def test_a_connection_closes_with_its_session() -> None:
    async def answer_once(stream: transport.EdgeStream, peer: str) -> None:
        assert await stream.read() == b"hello"
        stream.on_registered()

    async def main() -> None:
        async with OURS.running(answer_once) as (made, address):
            assert isinstance(made, Http2Server)
            node = await OURS.dial(address)
            await node.write(b"hello")
            assert await node.read() is None
            assert node.end_reason == ""
            await until(lambda: made.connections == 0 and made.strangers == 0)
            node.abandon()

    uvloop.run(main())


def test_a_server_without_file_descriptors_goes_on_when_there_are_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "NO_FILE_PAUSE_S", 0.05)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with listener() as (made, _):
            clients = [socket.socket() for _ in range(2)]
            highest = max(
                clients[-1].fileno(), clients[0].fileno(), *(int(name) for name in os.listdir("/proc/self/fd"))
            )
            limits = resource.getrlimit(resource.RLIMIT_NOFILE)
            holes = [os.open("/dev/null", os.O_RDONLY) for _ in range(highest + 2 - len(os.listdir("/proc/self/fd")))]
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (max(*holes, highest) + 1, limits[1]))
                for client in clients:
                    client.setblocking(False)
                    await loop.sock_connect(client, ("127.0.0.1", made.port))
                await asyncio.sleep(0.2)  # several looks at what cannot be accepted
                assert made.connections == 0
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
                for hole in holes:
                    os.close(hole)
            await until(lambda: made.connections == 2)
            for client in clients:
                client.close()

    uvloop.run(main())


# Saying.


@pytest.mark.parametrize(
    "words", [b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"]
)
def test_who_speaks_something_else_is_told_and_closed(words: bytes) -> None:
    async def main() -> None:
        async with listener() as (made, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", made.port)
            writer.write(words)
            async with asyncio.timeout(LIMIT_S):
                answer = await reader.read()
            assert b"not an HTTP/2 client" in answer
            writer.close()
            await until(lambda: made.connections == 0)

    uvloop.run(main())


def test_what_stops_a_dial_by_tls_is_said_plainly(tmp_path: Path) -> None:
    good = certificate(tmp_path)
    expired = certificate(tmp_path, "expired", days=-1)
    other = certificate(tmp_path, "other")

    async def reason(address: str, trust: Trust | None, **options: Any) -> str:
        with pytest.raises(ConnectionError) as caught:
            await OURS.dial(address, trust, **options)
        start = f"cannot connect to the Edge at {address}: "
        assert str(caught.value).startswith(start)
        return str(caught.value).removeprefix(start)

    async def main() -> None:
        async with listener(identity=ServerIdentity(*expired)) as (made, _):
            assert await reason(f"127.0.0.1:{made.port}", Trust(expired[0])) == "certificate has expired"
        async with listener(identity=ServerIdentity(*good)) as (made, refused):
            address = f"127.0.0.1:{made.port}"
            assert await reason(address, Trust(other[0])) == "self-signed certificate"
            assert await reason(address, Trust()) == "self-signed certificate"
            found = await reason(address, Trust(good[0]), server_name="edge.example")
            assert found == "hostname mismatch, certificate is not valid for 'edge.example'"
            found = await reason(f"localhost:{made.port}", Trust(good[0]))
            assert found == "hostname mismatch, certificate is not valid for 'localhost'"
            assert await reason(address, None) == "the peer closed the connection, as one that wants TLS does"
            assert len(refused) == 5
        async with listener(identity=ServerIdentity(*good, other[0])) as (made, refused):
            assert (await reason(f"127.0.0.1:{made.port}", Trust(good[0]))).endswith(
                "does not take our certificate does"
            )
            await until(lambda: refused == ["no TLS handshake: peer did not return a certificate"])
        async with listener() as (made, _):
            assert await reason(f"127.0.0.1:{made.port}", Trust(good[0])) == "it does not speak TLS"

    uvloop.run(main())


def test_a_tls_server_without_http2_is_no_edge(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)

    async def ignore(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            await reader.read()
        writer.close()

    async def main() -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key)
        other = await asyncio.start_server(ignore, "127.0.0.1", 0, ssl=context)
        with pytest.raises(ConnectionError, match="it speaks TLS but not HTTP/2"):
            await OURS.dial(f"127.0.0.1:{other.sockets[0].getsockname()[1]}", Trust(cert))
        other.close()
        await other.wait_closed()

    uvloop.run(main())


def test_a_client_that_does_not_offer_http2_is_turned_away(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)

    async def main() -> None:
        async with listener(identity=ServerIdentity(cert, key)) as (made, refused):
            context = ssl.create_default_context(cafile=str(cert))
            reader, writer = await asyncio.open_connection("127.0.0.1", made.port, ssl=context)
            with suppress(ConnectionError):
                async with asyncio.timeout(LIMIT_S):
                    await reader.read()
            assert refused == ["it did not offer HTTP/2 by ALPN"]
            writer.close()

    uvloop.run(main())


# Addresses.


@pytest.mark.parametrize(("listen", "dialled"), [("[::1]:0", "[::1]"), ("[::]:0", "127.0.0.1")])
def test_ipv6_is_an_address_like_any_other(listen: str, dialled: str) -> None:
    async def main() -> None:
        async with listener(address=listen) as (made, _):
            node = await OURS.dial(f"{dialled}:{made.port}")
            await node.write(b"hello")
            assert await node.read() == b"hello"
            node.abandon()

    uvloop.run(main())


def test_families_take_turns() -> None:
    four, six = int(socket.AF_INET), int(socket.AF_INET6)
    places = [(six, "a"), (six, "b"), (four, "c"), (six, "d"), (four, "e")]
    assert dialing.in_turns(places) == [(six, "a"), (four, "c"), (six, "b"), (four, "e"), (six, "d")]
    assert dialing.in_turns([]) == []


def test_every_address_is_tried_and_one_that_leads_nowhere_does_not_use_up_the_limit() -> None:
    """A listener whose queue is full answers no SYN, as an address behind a broken route does."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        before = open_sockets()
        with socket.socket() as full, socket.create_server(("127.0.0.1", 0)) as good, socket.socket() as closed:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            closed.bind(("127.0.0.1", 0))
            fillers = [socket.socket() for _ in range(4)]
            for filler in fillers:
                filler.setblocking(False)
                filler.connect_ex(full.getsockname())
            places = [(int(socket.AF_INET), one.getsockname()) for one in (full, closed, good)]
            start = loop.time()
            made = await dialing._first_of(list(places))
            assert made.getpeername() == good.getsockname()
            assert loop.time() - start < LIMIT_S
            made.close()
            with pytest.raises(OSError, match=r"^Connection refused$"):
                await dialing._first_of([places[1], places[1]])
            for filler in fillers:
                filler.close()
        assert open_sockets() == before

    uvloop.run(main())


def test_a_host_that_nobody_knows_is_said_plainly() -> None:
    async def main() -> None:
        with pytest.raises(ConnectionError, match=r"Edge at no-such-host.invalid:80: .*[Nn]ame"):
            await OURS.dial("no-such-host.invalid:80")

    uvloop.run(main())


# Loops.


@pytest.mark.parametrize("is_secure", [False, True], ids=["plain", "tls"])
def test_any_asyncio_loop_will_do(is_secure: bool, tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)

    async def main() -> None:
        async with listener(identity=ServerIdentity(cert, key) if is_secure else None) as (made, refused):
            node = await OURS.dial(f"127.0.0.1:{made.port}", Trust(cert) if is_secure else None)
            for message in (b"", b"hello", bytes(1024 * 1024)):
                await node.write(message)
                assert await node.read() == message
            node.abandon()
            await until(lambda: made.connections == 0)
            with pytest.raises(ConnectionError):
                await OURS.dial(f"127.0.0.1:{made.port}", None if is_secure else Trust(cert))
            assert len(refused) == is_secure

    asyncio.run(main())


# Leaving nothing behind.


@pytest.mark.parametrize("is_secure", [False, True], ids=["plain", "tls"])
def test_two_hundred_connections_leave_no_descriptor_and_nothing_for_the_collector(
    is_secure: bool, tmp_path: Path
) -> None:
    cert, key = certificate(tmp_path)

    async def use(address: str, trust: Trust | None) -> None:
        node = await OURS.dial(address, trust)
        await node.write(b"hello")
        assert await node.read() == b"hello"
        node.abandon()

    async def main() -> None:
        trust = Trust(cert) if is_secure else None
        async with listener(identity=ServerIdentity(cert, key) if is_secure else None) as (made, _):
            address = f"127.0.0.1:{made.port}"
            await use(address, trust)
            await until(lambda: made.connections == 0)
            before = open_sockets()
            gc.collect()
            gc.disable()
            ours = (Connection, Call, NodeEnd, EdgeEnd)
            known = alive(*ours)  # a failure that another test provoked may hold some
            try:
                for _ in range(200):
                    await use(address, trust)
                assert await transport.settle(LIMIT_S)
                await until(lambda: made.connections == 0 and not made._calls)
                await until(lambda: open_sockets() <= before)
                await until(lambda: alive(*ours).keys() <= known.keys())
            finally:
                gc.enable()

    uvloop.run(main())
