"""Mutual TLS of the link: a Node is known by its token and by its certificate, and both sides replace theirs."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from iop_fast.config.loader import load_node_text
from iop_fast.node.app import Node
from iop_fast.wire import runtime_pb2 as pb
from tests.integration.edge_harness import TOKEN, Bench, bench, config, make_certificate, provider, run, until


def openssl(*command: str) -> None:
    subprocess.run(["openssl", *command], check=True, capture_output=True)


class Authority:
    """Signs client certificates."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.cert, self._key = folder / f"{name}.pem", folder / f"{name}.key"
        new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        self._new = new
        openssl(
            "req",
            "-x509",
            *new,
            "-subj",
            f"/CN={name}",
            "-days",
            "2",
            "-keyout",
            str(self._key),
            "-out",
            str(self.cert),
        )

    def issue(self, stem: str, common_name: str, alternative: str = "") -> tuple[Path, Path]:
        """Write (or replace) a certificate and its key; both are whole at every moment."""
        cert, key, request = (self.folder / f"{stem}.{ending}" for ending in ("pem", "key", "csr"))
        fresh_cert, fresh_key = cert.with_suffix(".new-pem"), key.with_suffix(".new-key")
        names = ["-addext", f"subjectAltName={alternative}"] if alternative else []
        openssl(
            "req", *self._new, "-subj", f"/CN={common_name}", *names, "-keyout", str(fresh_key), "-out", str(request)
        )
        signed = ["-CA", str(self.cert), "-CAkey", str(self._key), "-days", "2", "-copy_extensions", "copy"]
        openssl("x509", "-req", "-in", str(request), *signed, "-out", str(fresh_cert))
        os.replace(fresh_key, key)
        os.replace(fresh_cert, cert)
        return cert, key


@asynccontextmanager
async def node(b: Bench, edge_cert: Path, cert: Path, key: Path) -> AsyncIterator[Node]:
    """A real Node that shows a certificate."""
    tls = {"ca_file": str(edge_cert), "cert_file": str(cert), "key_file": str(key)}
    text = f"""
id: n1
token_env: IOP_NODE_TOKEN
edge:
  address: localhost:{b.edge.link_port}
  tls: {tls}
"""
    made = Node(load_node_text(text, "node.yaml").config, TOKEN)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


def settings(edge_cert: Path, edge_key: Path, client_ca: Path) -> dict[str, Any]:
    tls = {"cert_file": str(edge_cert), "key_file": str(edge_key), "client_ca_file": str(client_ca)}
    return config({"n1": [provider("p1")]}, edge={"listen": "127.0.0.1:0", "tls": tls})


def is_connected(b: Bench) -> bool:
    return b.edge.links.current("n1") is not None


@pytest.mark.parametrize(
    ("common_name", "alternative"),
    [("n1", ""), ("box-17", "DNS:n1"), ("box-17", "DNS:box,URI:n1")],
    ids=["common name", "alternative name", "one of several"],
)
def test_a_node_whose_certificate_names_it_is_let_in(tmp_path: Path, common_name: str, alternative: str) -> None:
    edge_cert, edge_key = make_certificate(tmp_path)
    authority = Authority(tmp_path, "ca")
    cert, key = authority.issue("node", common_name, alternative)

    async def work() -> None:
        async with bench(settings(edge_cert, edge_key, authority.cert)) as b, node(b, edge_cert, cert, key):
            await until(lambda: is_connected(b), "the session")

    run(work())


def test_a_token_is_not_enough_and_the_refusal_names_both_sides(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    edge_cert, edge_key = make_certificate(tmp_path)
    authority = Authority(tmp_path, "ca")
    cert, key = authority.issue("node", "n2", "DNS:n10")

    async def work() -> None:
        async with bench(settings(edge_cert, edge_key, authority.cert)) as b, node(b, edge_cert, cert, key):
            await until(lambda: b.edge.links.counters.refused >= 1, "the refusal")
            assert not is_connected(b)

    run(work())
    said = next(record for record in caplog.records if record.getMessage() == "registration_refused")
    text = str(vars(said))
    assert pb.Refusal.Name(pb.BAD_CERTIFICATE).lower() in text
    assert "'n1'" in text
    assert "'n10', 'n2'" in text


def test_replaced_certificates_and_authorities_are_taken_over_on_both_sides(tmp_path: Path) -> None:
    """The Edge trusts another authority from now on; the Node shows its new certificate when it dials."""
    edge_cert, edge_key = make_certificate(tmp_path)
    first, second = Authority(tmp_path, "first"), Authority(tmp_path, "second")
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(first.cert.read_bytes())
    cert, key = first.issue("node", "n1")

    async def work() -> None:
        async with bench(settings(edge_cert, edge_key, trusted)) as b, node(b, edge_cert, cert, key) as n:
            await until(lambda: n.dialer.is_ready, "the first session")
            fresh = tmp_path / "trusted.new"
            await asyncio.to_thread(fresh.write_bytes, second.cert.read_bytes())
            os.replace(fresh, trusted)

            async def is_turned_away() -> bool:
                """New handshakes are judged by the new authorities; an open session is left alone."""
                link = b.edge.links.current("n1")
                if link is not None:
                    link.close("the test wants another handshake")
                await asyncio.sleep(0.05)
                return not n.dialer.is_ready and b.edge.links.current("n1") is None

            for _ in range(3):
                await until(is_turned_away, "the old certificate to be refused")
            await asyncio.to_thread(second.issue, "node", "n1")
            await until(lambda: n.dialer.is_ready, "the session with the new certificate")

    run(work())


def test_clients_of_another_authority_are_let_in_and_those_of_the_first_no_more(tmp_path: Path) -> None:
    """The HTTP listener takes the new authorities over: a ticket of an earlier session lets nobody in past them."""
    cert, key = make_certificate(tmp_path)
    first, second = Authority(tmp_path, "first"), Authority(tmp_path, "second")
    trusted = tmp_path / "clients.pem"
    trusted.write_bytes(first.cert.read_bytes())
    tls = {"cert_file": str(cert), "key_file": str(key), "client_ca_file": str(trusted)}
    contexts = []
    for authority in (first, second):
        context = ssl.create_default_context(cafile=str(cert))
        context.load_cert_chain(*authority.issue("client", "client"))
        contexts.append(context)

    async def work() -> None:
        async with bench(config(openai={"listen": "127.0.0.1:0", "tls": tls})) as b:
            sessions: list[ssl.SSLSession | None] = [None, None]

            def ask(number: int) -> bool:
                """One request on a connection of its own, with the ticket of the last one."""
                with socket.create_connection(("127.0.0.1", b.edge.http_port), timeout=10) as plain:
                    try:
                        session = sessions[number]
                        with contexts[number].wrap_socket(
                            plain, server_hostname="localhost", session=session
                        ) as secure:
                            secure.sendall(b"GET /v1/models HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
                            answer = secure.recv(65536)
                            sessions[number] = secure.session
                            return answer.startswith(b"HTTP/1.1 200 ")
                    except (ssl.SSLError, ConnectionError):
                        return False

            async def let_in() -> list[bool]:
                return [await asyncio.to_thread(ask, number) for number in (0, 1)]

            async def is_turned() -> bool:
                return await let_in() == [False, True]

            assert await let_in() == [True, False]
            assert sessions[0] is not None
            kept = aiohttp.TCPConnector(ssl=contexts[0])
            async with aiohttp.ClientSession(connector=kept) as client:
                url = f"https://localhost:{b.edge.http_port}/v1/models"
                async with client.get(url) as answer:
                    assert answer.status == 200
                port = b.edge.http_port
                trusted.write_bytes(second.cert.read_bytes())
                await until(is_turned, "the other authority's clients to be let in")
                assert b.edge.http_port == port
                async with client.get(url) as answer:
                    assert answer.status == 200, "a connection that was open goes on"

    run(work())


def test_authorities_that_are_none_are_refused_at_the_start(tmp_path: Path) -> None:
    edge_cert, edge_key = make_certificate(tmp_path)
    empty = tmp_path / "empty.pem"
    empty.write_text("nothing")

    async def work() -> None:
        async with bench(settings(edge_cert, edge_key, empty)):
            raise AssertionError("it started")

    with pytest.raises(Exception, match=r"edge\.tls: cannot use .*empty\.pem holds no certificates"):
        run(work())
