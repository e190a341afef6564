"""TLS of the link, replaced while it serves, and gRPC health, asked as a prober asks."""

from __future__ import annotations

import asyncio
import os
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
import uvloop

from iop_fast.wire.credentials import ServerIdentity, Trust, system_authorities
from iop_fast.wire.grpcio.credentials import channel_credentials
from iop_fast.wire.health import MAX_WATCHES, NOT_SERVING, SERVICE_UNKNOWN, SERVING, asked_service
from iop_fast.wire.options import MAX_CALLS_PER_CONNECTION
from iop_fast.wire.transport import SERVICE, NodeStream
from tests.integration.wire_pairs import EDGES, LIMIT_S, PAIRS, Pair

from grpc import StatusCode, aio  # isort: skip

pairs = pytest.mark.parametrize("pair", PAIRS, ids=str)
edges = pytest.mark.parametrize("pair", EDGES, ids=str)


# TLS.


def make_certificate(folder: Path, name: str, subject: str, *alternatives: str) -> tuple[Path, Path]:
    """Make a self-signed certificate; return its file and its key's."""
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        + ["-days", "2", "-subj", f"/CN={subject}", "-keyout", str(key), "-out", str(certificate)]
        + (["-addext", "subjectAltName=" + ",".join(alternatives)] if alternatives else []),
        check=True,
        capture_output=True,
    )
    return certificate, key


async def say_hello(stream: NodeStream) -> None:
    await stream.write(b"hello")
    assert await stream.read() == b"hello"


@pairs
def test_a_certificate_is_demanded_checked_and_replaced_while_it_serves(tmp_path: Path, pair: Pair) -> None:
    first_cert, first_key = make_certificate(tmp_path, "first", "edge", "IP:127.0.0.1")
    second_cert, second_key = make_certificate(tmp_path, "second", "edge", "IP:127.0.0.1")
    cert, key = tmp_path / "live.pem", tmp_path / "live.key"
    cert.write_bytes(first_cert.read_bytes())
    key.write_bytes(first_key.read_bytes())

    async def main() -> None:
        identity = ServerIdentity(cert, str(key))
        async with pair.running(identity=identity) as (_, address):
            old = await pair.dial(address, Trust(first_cert))
            await say_hello(old)
            with pytest.raises(ConnectionError, match=f"Edge at {address}"):
                await pair.dial(address, Trust(second_cert), limit_s=LIMIT_S)
            with pytest.raises(ConnectionError):
                await pair.dial(address, limit_s=LIMIT_S)  # no TLS

            assert not identity.reload()
            for source, target in ((second_cert, cert), (second_key, key)):
                fresh = target.with_suffix(".new")
                fresh.write_bytes(source.read_bytes())
                os.replace(fresh, target)
            assert identity.reload()
            assert not identity.reload()
            new = await pair.dial(address, Trust(second_cert))
            await say_hello(new)
            await say_hello(old)  # goes on as it began
            with pytest.raises(ConnectionError):
                await pair.dial(address, Trust(first_cert), limit_s=LIMIT_S)
            key.write_bytes(first_key.read_bytes())
            with pytest.raises(OSError, match=r"live\.key are no certificate and key: key_values_mismatch"):
                identity.reload()
            key.unlink()
            with pytest.raises(OSError, match=r"live\.key"):
                identity.reload()
            assert not identity.reload()  # said once
            kept = await pair.dial(address, Trust(second_cert))
            await say_hello(kept)
            kept.abandon()
            old.abandon()
            new.abandon()

    uvloop.run(main())


@pairs
def test_a_client_certificate_may_be_demanded(tmp_path: Path, pair: Pair) -> None:
    cert, key = make_certificate(tmp_path, "edge", "edge", "IP:127.0.0.1")
    node_cert, node_key = make_certificate(tmp_path, "node", "node")

    async def main() -> None:
        identity = ServerIdentity(cert, key, node_cert)
        async with pair.running(identity=identity) as (_, address):
            node = await pair.dial(address, Trust(cert, node_cert, node_key))
            await say_hello(node)
            node.abandon()
            stranger = None
            with suppress(ConnectionError):  # TLS 1.3: the client may be done before the server has checked it
                stranger = await pair.dial(address, Trust(cert), limit_s=LIMIT_S)
            if stranger is not None:
                assert await stranger.read() is None
                stranger.abandon()

    uvloop.run(main())


@pairs
def test_another_server_name_can_be_expected(tmp_path: Path, pair: Pair) -> None:
    cert, key = make_certificate(tmp_path, "edge", "edge", "DNS:edge.internal")

    async def main() -> None:
        async with pair.running(identity=ServerIdentity(cert, key)) as (_, address):
            with pytest.raises(ConnectionError):
                await pair.dial(address, Trust(cert), limit_s=LIMIT_S)
            node = await pair.dial(address, Trust(cert), server_name="edge.internal")
            await say_hello(node)
            node.abandon()

    uvloop.run(main())


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="no-such"):
        ServerIdentity(tmp_path / "no-such.pem", tmp_path / "no-such.key")
    with pytest.raises(OSError, match="no-such"):
        Trust(tmp_path / "no-such.pem")


def test_a_key_that_cannot_be_used_is_refused_before_it_is_served(tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path, "edge", "edge")
    sealed = tmp_path / "sealed.key"
    command = ["openssl", "pkcs8", "-topk8", "-v2", "aes-256-cbc", "-passout", "pass:x"]
    subprocess.run([*command, "-in", str(key), "-out", str(sealed)], check=True, capture_output=True)
    with pytest.raises(OSError, match=r"sealed\.key are no certificate and key"):
        ServerIdentity(cert, sealed)
    with pytest.raises(OSError, match="are no certificate and key"):
        ServerIdentity(key, cert)


def test_without_a_file_the_system_s_authorities_are_trusted() -> None:
    bundle = system_authorities()
    assert bundle is None or b"BEGIN" in bundle
    assert channel_credentials(Trust()) is not None


# Health.


class Prober:
    """Asks as grpc_health_probe does."""

    def __init__(self, address: str) -> None:
        self.channel = aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
        self.check = self.channel.unary_unary("/grpc.health.v1.Health/Check")
        self.watch = self.channel.unary_stream("/grpc.health.v1.Health/Watch")


def request(service: bytes) -> bytes:
    return b"\x0a" + bytes([len(service)]) + service if service else b""


@edges
def test_a_prober_is_answered(pair: Pair) -> None:
    async def main() -> None:
        async with pair.running() as (server, address):
            prober = Prober(address)
            assert await prober.check(b"") == SERVING
            assert await prober.check(request(SERVICE.encode())) == SERVING
            server.health.set_serving(False)
            assert await prober.check(b"") == NOT_SERVING
            for wrong in (request(b"no.such.Service"), b"\x0a\x05abc", b"\xff"):
                with pytest.raises(aio.AioRpcError) as caught:
                    await prober.check(wrong)
                assert caught.value.code() is StatusCode.NOT_FOUND
            await prober.channel.close(None)

    uvloop.run(main())


@edges
def test_a_watch_sees_each_change_and_ends_with_the_server(pair: Pair) -> None:
    async def main() -> None:
        async with pair.running() as (server, address):
            prober = Prober(address)
            watch = prober.watch(b"")
            assert await watch.read() == SERVING
            server.health.set_serving(False)
            assert await watch.read() == NOT_SERVING
            server.health.set_serving(True)
            assert await watch.read() == SERVING
            unknown = prober.watch(request(b"no.such.Service"))
            assert await unknown.read() == SERVICE_UNKNOWN
            server.health.stop()
            assert await watch.read() == NOT_SERVING
            assert await watch.read() is aio.EOF
            assert await watch.code() is StatusCode.OK
            await prober.channel.close(None)

    uvloop.run(main())


@edges
def test_watches_have_a_limit_and_give_their_place_back(pair: Pair) -> None:
    async def main() -> None:
        async with pair.running() as (_, address):
            probers = [Prober(address) for _ in range(MAX_WATCHES // MAX_CALLS_PER_CONNECTION + 1)]
            watches = [probers[number // MAX_CALLS_PER_CONNECTION].watch(b"") for number in range(MAX_WATCHES)]
            for watch in watches:
                assert await watch.read() == SERVING
            refused = probers[-1].watch(b"")
            with pytest.raises(aio.AioRpcError) as caught:
                await refused.read()
            assert caught.value.code() is StatusCode.RESOURCE_EXHAUSTED
            watches[0].cancel()
            accepted = None
            for _ in range(200):
                again = probers[-1].watch(b"")
                try:
                    accepted = await again.read()
                    break
                except aio.AioRpcError:
                    await asyncio.sleep(0.01)
            assert accepted == SERVING
            for prober in probers:
                await prober.channel.close(None)

    uvloop.run(main())


@pytest.mark.parametrize(
    ("data", "service"),
    [
        (b"", b""),
        (b"\x0a\x00", b""),
        (b"\x0a\x01a", b"a"),
        (b"\x0a", None),
        (b"\x0a\x02a", None),
        (b"\x0a\x01ab", None),
        (b"\x12\x01a", None),
        (b"\x0a\x80\x01" + b"a" * 128, None),
    ],
)
def test_a_health_request_is_read_by_hand(data: bytes, service: bytes | None) -> None:
    assert asked_service(data) == service
