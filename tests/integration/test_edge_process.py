"""The program `iop edge`: exit codes, messages and signals of a real process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from tests.fakes.fake_node import FakeNode
from tests.fakes.openai_backend import FakeBackend
from tests.integration.edge_harness import CHAT, TOKEN, config, make_certificate, provider, run, until
from tests.integration.fleet import free_ports

LIMIT_S = 30.0


class Program:
    """A running `iop edge`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[dict[str, Any]] = []

    async def event(self, name: str) -> dict[str, Any]:
        """Read log lines up to an event."""
        assert self.process.stderr is not None
        async with asyncio.timeout(LIMIT_S):
            while line := await self.process.stderr.readline():
                entry = json.loads(line)
                self.lines.append(entry)
                if entry["event"] == name:
                    return entry
        raise AssertionError(f"the program ended without {name}: {self.lines}")

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def end(self) -> tuple[int, str]:
        """Wait for the end; the exit code and what was left to read of its log."""
        assert self.process.stderr is not None
        async with asyncio.timeout(LIMIT_S):
            rest = await self.process.stderr.read()
            return await self.process.wait(), rest.decode()


@asynccontextmanager
async def program(folder: Path, text: str, kind: str = "edge") -> AsyncIterator[Program]:
    """Start `iop edge` (or `iop node`) with a file; it is gone at the end."""
    file = folder / f"{kind}.yaml"
    file.write_text(text)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "iop_fast.cli", kind, "-c", str(file)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1", "IOP_NODE_TOKEN": TOKEN},
    )
    try:
        yield Program(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def test_a_refused_configuration_is_exit_code_2_with_every_finding(tmp_path: Path) -> None:
    async def work() -> None:
        text = "edge:\n  lisen: x\nprovider_pool:\n  max_queue: -1\n"
        async with program(tmp_path, text) as edge:
            code, said = await edge.end()
            file = tmp_path / "edge.yaml"
            assert code == 2
            lines = said.splitlines()
            assert len(lines) == 2
            assert lines[0].startswith(f"{file}:2:3: error: edge.lisen: ")
            assert lines[1].startswith(f"{file}:4:14: error: provider_pool.max_queue: ")

    run(work())


def test_a_taken_port_is_exit_code_1_without_a_traceback(tmp_path: Path) -> None:
    async def work() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            async with program(tmp_path, yaml.safe_dump(config(edge={"listen": address}))) as edge:
                code, said = await edge.end()
                assert code == 1
                assert f"iop edge: cannot listen on {address}: " in said
                assert "Traceback" not in said

    run(work())


def test_closed_standard_streams_are_no_connections_numbers(tmp_path: Path) -> None:
    """A client's connection on number 2 would be sent the log; uvloop aborts the process when it closes one of them."""

    async def work() -> None:
        (port,) = free_ports(1)
        file = tmp_path / "edge.yaml"
        file.write_text(yaml.safe_dump(config(openai={"listen": f"127.0.0.1:{port}"})))
        command = f"exec {sys.executable} -m iop_fast.cli edge -c {file} <&- >&- 2>&-"
        process = await asyncio.create_subprocess_exec("bash", "-c", command)
        try:
            async with aiohttp.ClientSession() as client:

                async def is_served() -> bool:
                    try:
                        async with client.get(f"http://127.0.0.1:{port}/v1/models") as answer:
                            return answer.status == 200
                    except aiohttp.ClientConnectionError:
                        return False

                await until(is_served, "the Edge serves")
                for descriptor in range(3):
                    assert os.readlink(f"/proc/{process.pid}/fd/{descriptor}") == os.devnull
            process.terminate()
            async with asyncio.timeout(LIMIT_S):
                assert await process.wait() == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    run(work())


def test_two_edges_never_share_a_port(tmp_path: Path) -> None:
    """Two real processes with one file: the second says why it cannot start."""

    async def work() -> None:
        async with program(tmp_path, yaml.safe_dump(config())) as first:
            started = await first.event("edge_started")
            shared = config(edge={"listen": f"127.0.0.1:{started['link_port']}"})
            async with program(tmp_path, yaml.safe_dump(shared)) as second:
                code, said = await second.end()
                assert (code, "cannot listen on" in said) == (1, True)
            first.signal(signal.SIGTERM)
            assert (await first.end())[0] == 0

    run(work())


def test_sigterm_drains_and_exits_0(tmp_path: Path) -> None:
    async def work() -> None:
        async with program(tmp_path, yaml.safe_dump(config())) as edge, aiohttp.ClientSession() as client:
            started = await edge.event("edge_started")
            node = FakeNode(started["link_port"], "n1", TOKEN)
            await node.register()
            await node.ack()
            await edge.event("node_ready")
            url = f"http://127.0.0.1:{started['http_port']}{CHAT}"
            answer = asyncio.ensure_future(client.post(url, json={"model": "m", "messages": []}))
            held = await node.next_run()
            edge.signal(signal.SIGTERM)
            await node.frame("draining")
            await held.answer(b'{"whole":true}')
            got = await answer
            assert (got.status, await got.json()) == (200, {"whole": True})
            code, said = await edge.end()
            assert code == 0
            assert "edge_stopped" in said
            assert "Traceback" not in said
            await node.close()

    run(work())


def test_a_second_signal_stops_at_once(tmp_path: Path) -> None:
    async def work() -> None:
        async with program(tmp_path, yaml.safe_dump(config())) as edge, aiohttp.ClientSession() as client:
            started = await edge.event("edge_started")
            node = FakeNode(started["link_port"], "n1", TOKEN)
            await node.register()
            await node.ack()
            await edge.event("node_ready")
            url = f"http://127.0.0.1:{started['http_port']}{CHAT}"
            answer = asyncio.ensure_future(client.post(url, json={"model": "m", "messages": []}))
            await node.next_run()
            edge.signal(signal.SIGINT)
            await edge.event("edge_draining")
            edge.signal(signal.SIGINT)
            code, said = await edge.end()
            assert code == 1
            assert "Traceback" not in said
            assert isinstance((await asyncio.gather(answer, return_exceptions=True))[0], aiohttp.ClientError)
            await node.close()

    run(work())


def test_a_frozen_node_does_not_keep_the_program(tmp_path: Path) -> None:
    """Its connection is open and it reads nothing: gRPC cannot end that call, the program ends all the same."""

    async def work() -> None:
        async with program(tmp_path, yaml.safe_dump(config())) as edge:
            started = await edge.event("edge_started")
            node = FakeNode(started["link_port"], "n1", TOKEN)
            await node.register()
            await node.ack()
            await edge.event("node_ready")
            node.freeze()
            edge.signal(signal.SIGTERM)
            assert (await edge.end())[0] == 0
            await node.close()

    run(work())


@pytest.mark.parametrize("is_encrypted", [False, True], ids=["plain", "tls"])
def test_a_real_node_serves_through_a_real_edge(tmp_path: Path, is_encrypted: bool) -> None:
    """Two programs and a model server: chat goes through, SIGTERM of the Node drains it, of the Edge ends it."""
    cert, key = make_certificate(tmp_path)
    link: dict[str, Any] = {"listen": "127.0.0.1:0"}
    dial: dict[str, Any] = {}
    if is_encrypted:
        link["tls"] = {"cert_file": str(cert), "key_file": str(key)}
        dial["tls"] = {"ca_file": str(cert)}

    async def work() -> None:
        async with FakeBackend() as backend:
            entry = provider("p1", endpoint=backend.url)
            settings = yaml.safe_dump(config({"n1": [entry]}, edge=link))
            async with program(tmp_path, settings) as edge, aiohttp.ClientSession() as client:
                started = await edge.event("edge_started")
                dial["address"] = f"localhost:{started['link_port']}"
                text = yaml.safe_dump({"id": "n1", "token_env": "IOP_NODE_TOKEN", "edge": dial})
                async with program(tmp_path, text, "node") as node:
                    await edge.event("node_ready")
                    url = f"http://127.0.0.1:{started['http_port']}{CHAT}"
                    async with client.post(url, json={"model": "m", "messages": []}) as answer:
                        assert (answer.status, answer.headers["x-iop-node"]) == (200, "n1")
                    assert json.loads(backend.requests[0].body)["model"] == "served"
                    node.signal(signal.SIGTERM)
                    await edge.event("node_draining")
                    closed = await edge.event("link_closed")
                    assert closed["runs"] == 0
                    assert (await node.end())[0] == 0
                edge.signal(signal.SIGTERM)
                assert (await edge.end())[0] == 0

    run(work())
