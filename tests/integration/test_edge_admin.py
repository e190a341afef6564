"""The operators' listeners and the binding of all of them, over real sockets."""

from __future__ import annotations

import asyncio
import socket
import ssl
import stat
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from iop_fast.config.loader import load_edge_text
from iop_fast.edge.app import Edge, StartError
from iop_fast.edge.sites import remove_stale_socket
from iop_fast.wire import transport
from iop_fast.wire.credentials import Trust
from tests.integration.edge_harness import bench, config, make_certificate, run, until


def made(settings: dict[str, Any]) -> Edge:
    return Edge(load_edge_text(yaml.safe_dump(settings), "edge.yaml"))


def test_probes_and_status() -> None:
    async def work() -> None:
        async with bench() as b:
            async with b.client.get(b.admin("/livez")) as answer:
                assert (answer.status, await answer.json()) == (200, {"live": True})
            async with b.client.get(b.admin("/readyz")) as answer:
                assert answer.status == 503
                assert await answer.json() == {"ready": False, "reasons": ["no node has become ready yet"]}
            node = await b.ready()
            async with b.client.get(b.admin("/readyz")) as answer:
                assert (answer.status, await answer.json()) == (200, {"ready": True, "reasons": []})
                assert answer.headers["cache-control"] == "no-store"
            status = await b.status()
            assert status["nodes"][0]["session"]["software"] == "fake 1"
            assert len(status["config"]["file_sha256"]) == 64
            async with b.client.head(b.admin("/status")) as answer:
                assert answer.status == 200
            async with b.client.get(b.admin("/nothing")) as answer:
                assert answer.status == 404
            async with b.client.get(b.admin("/openapi.json")) as answer:
                assert (await answer.json())["openapi"] == "3.1.0"
            await node.close()

    run(work())


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"X-Forwarded-For": "10.0.0.1"},
        {"Forwarded": "for=10.0.0.1"},
        {"Origin": "http://evil.example"},
        {"Sec-Fetch-Site": "cross-site"},
    ],
)
@pytest.mark.parametrize("path", ["/livez", "/readyz", "/status", "/nothing"])
def test_the_guard_stands_before_every_path(path: str, headers: dict[str, str]) -> None:
    async def work() -> None:
        async with bench() as b, b.client.get(b.admin(path), headers=headers) as answer:
            assert answer.status == 403
            assert (await answer.json())["error"]["code"] == "forbidden"

    run(work())


def test_the_guard_refuses_what_a_form_can_post() -> None:
    async def work() -> None:
        async with bench() as b:
            async with b.client.post(b.admin("/status"), data=b"a=b") as answer:
                assert answer.status == 403
            async with b.client.post(b.admin("/status"), json={}) as answer:
                assert answer.status == 405
            async with b.client.delete(b.admin("/status")) as answer:
                assert answer.status == 403

    run(work())


def test_observe_serves_probes_and_nothing_else() -> None:
    async def work() -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        async with bench(config(observe={"listen": f"127.0.0.1:{port}"})) as b:
            async with b.client.get(f"http://127.0.0.1:{port}/livez", headers={"Host": "any.example"}) as answer:
                assert answer.status == 200
            async with b.client.get(f"http://127.0.0.1:{port}/readyz") as answer:
                assert answer.status == 503
            async with b.client.get(f"http://127.0.0.1:{port}/status") as answer:
                assert answer.status == 404

    run(work())


# Binding


@pytest.mark.parametrize("section", ["edge", "openai", "admin", "observe"])
def test_a_taken_port_is_said_plainly_and_nothing_is_left_running(section: str) -> None:
    """Two Edges on one port would be two ledgers over one fleet."""

    async def work() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            second = made(config(**{section: {"listen": address}}))
            with pytest.raises(StartError, match=f"(?i)cannot listen on {address}: address already in use"):
                await second.start()
        tasks = {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}
        await until(lambda: all(task.done() for task in tasks), "the end of what was started")

    run(work())


def test_the_admin_socket_is_its_owners_alone(tmp_path: Path) -> None:
    async def work() -> None:
        path = tmp_path / "admin.sock"
        async with bench(config(admin={"listen": f"unix:{path}"})) as b:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert b.edge.admin_port == 0
            connector = aiohttp.UnixConnector(str(path))
            async with aiohttp.ClientSession(connector=connector) as client:
                async with client.get("http://localhost/livez") as answer:
                    assert answer.status == 200
                async with client.get("http://evil.example/livez") as answer:
                    assert answer.status == 403
            second = made(config(admin={"listen": f"unix:{path}"}))
            with pytest.raises(StartError, match=r"cannot listen on unix:.*: address already in use"):
                await second.start()
            assert path.exists()

    run(work())


def test_a_stale_socket_is_replaced_and_nothing_else_is(tmp_path: Path) -> None:
    stale, file = tmp_path / "stale.sock", tmp_path / "file"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(stale))
    remove_stale_socket(str(stale))
    assert not stale.exists()
    remove_stale_socket(str(stale))
    file.write_text("keep")
    with pytest.raises(OSError, match="no socket"):
        remove_stale_socket(str(file))
    assert file.read_text() == "keep"


# TLS


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    return make_certificate(tmp_path)


def test_both_listeners_speak_tls(certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    tls = {"cert_file": str(cert), "key_file": str(key)}

    async def work() -> None:
        settings = config(openai={"listen": "127.0.0.1:0", "tls": tls}, edge={"listen": "127.0.0.1:0", "tls": tls})
        async with bench(settings) as b:
            context = ssl.create_default_context(cafile=str(cert))
            url = f"https://localhost:{b.edge.http_port}/v1/models"
            async with b.client.get(url, ssl=context) as answer:
                assert answer.status == 200
            stream = await transport.dial(f"localhost:{b.edge.link_port}", Trust(cert))
            stream.abandon()
            with pytest.raises(ConnectionError):
                await transport.dial(f"localhost:{b.edge.link_port}")

    run(work())


def test_a_replaced_certificate_is_taken_over_and_a_broken_one_is_not(
    certificate: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    cert, key = certificate
    tls = {"cert_file": str(cert), "key_file": str(key)}

    async def shown(port: int) -> str:
        """The certificate that a new connection is shown."""
        return await asyncio.to_thread(ssl.get_server_certificate, ("localhost", port), timeout=10)

    async def work() -> None:
        settings = config(openai={"listen": "127.0.0.1:0", "tls": tls}, edge={"listen": "127.0.0.1:0", "tls": tls})
        async with bench(settings) as b:
            ports = (b.edge.http_port, b.edge.link_port)
            for port in ports:
                assert await shown(port) == cert.read_text()
            make_certificate(cert.parent)
            second = cert.read_text()

            async def is_taken_over() -> bool:
                return [await shown(port) for port in ports] == [second, second]

            await until(is_taken_over, "the new certificate")

            def complaints() -> int:
                return sum(record.message == "certificate_kept" for record in caplog.records)

            before = complaints()  # a pair half replaced may have been refused on the way
            cert.write_text("broken")
            await until(lambda: complaints() == before + 2, "both listeners to refuse the broken one")
            assert [await shown(port) for port in ports] == [second, second]
            make_certificate(cert.parent)
            third = cert.read_text()

            async def is_mended() -> bool:
                return [await shown(port) for port in ports] == [third, third]

            await until(is_mended, "the third certificate")

    run(work())


@pytest.mark.parametrize("section", ["edge", "openai"])
def test_files_that_are_no_certificate_are_said_plainly(section: str, tmp_path: Path) -> None:
    async def work() -> None:
        tls = {"cert_file": str(tmp_path / "none.pem"), "key_file": str(tmp_path / "none.key")}
        edge = made(config(**{section: {"listen": "127.0.0.1:0", "tls": tls}}))
        with pytest.raises(StartError, match=rf"{section}.tls: cannot use .*none\.pem"):
            await edge.start()

    run(work())
