"""A fleet of real processes for tests: one Edge, its Nodes, all on free loopback ports, all stopped at the end."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from tests.integration.edge_harness import CHAT, TOKEN, config, until

STOP_LIMIT_S = 20.0


def free_ports(count: int) -> list[int]:
    """Loopback ports that are free now; a restarted Edge needs fixed ones."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports: list[int] = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


@dataclass
class Process:
    """One running `iop` program with its log in a file."""

    running: asyncio.subprocess.Process
    log: Path

    @property
    def pid(self) -> int:
        return self.running.pid

    @property
    def open_files(self) -> int:
        """File descriptors open now."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    @property
    def resident_kib(self) -> int:
        """Resident memory now."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmRSS:")).split()[1])

    def signal(self, number: signal.Signals) -> None:
        self.running.send_signal(number)

    async def end(self) -> int:
        """Wait for its exit code."""
        async with asyncio.timeout(STOP_LIMIT_S):
            return await self.running.wait()

    async def kill(self) -> None:
        """SIGKILL, and the end of it."""
        if self.running.returncode is None:
            self.running.kill()
        await self.end()

    def said(self, event: str) -> int:
        """How often an event stands in the log."""
        return self.log.read_text(errors="replace").count(event)


@dataclass
class Fleet:
    """Files, ports and processes. `nodes` holds the running Nodes by id."""

    folder: Path
    settings: dict[str, Any]
    client: aiohttp.ClientSession
    http_port: int
    link_port: int
    admin_port: int
    nodes: dict[str, Process] = field(default_factory=dict)
    edge: Process | None = None
    started: list[Process] = field(default_factory=list)

    @property
    def base_url(self) -> str:
        """What an OpenAI client takes as its base."""
        return f"http://127.0.0.1:{self.http_port}/v1"

    async def start_edge(self) -> Process:
        """Start (or start again) the Edge and wait until it listens."""
        file = self.folder / "edge.yaml"
        self.write_settings()
        self.edge = await self._start("edge", file)
        await until(self.is_listening, "the edge listens")
        return self.edge

    def write_settings(self) -> None:
        """Write the Edge's file as `settings` are now."""
        # The C dumper: a fleet of thousands of providers takes the other one seconds.
        (self.folder / "edge.yaml").write_text(yaml.dump(self.settings, Dumper=yaml.CSafeDumper))

    async def start_node(self, node_id: str, *, ready: bool = True, **settings: Any) -> Process:
        """Start a Node; wait until it is a candidate."""
        file = self.folder / f"node-{node_id}.yaml"
        known = {"id": node_id, "edge": {"address": f"127.0.0.1:{self.link_port}"}, "token_env": "IOP_NODE_TOKEN"}
        file.write_text(yaml.safe_dump({**known, **settings}))
        self.nodes[node_id] = await self._start("node", file)
        if ready:
            await until(lambda: self.has_link(node_id, "ready"), f"{node_id} is ready")
        return self.nodes[node_id]

    async def _start(self, kind: str, file: Path) -> Process:
        log = self.folder / f"{file.stem}-{len(self.started)}.log"
        with log.open("wb") as output:
            running = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "iop_fast.cli", kind, "-c", str(file)),
                stdout=output,
                stderr=output,
                env={**os.environ, "IOP_NODE_TOKEN": TOKEN},
            )
        process = Process(running, log)
        self.started.append(process)
        return process

    async def stop(self) -> None:
        """SIGTERM to all that still runs, Nodes first; then wait."""
        alive = [process for process in self.started if process.running.returncode is None]
        for process in reversed(alive):
            process.signal(signal.SIGCONT)
            process.signal(signal.SIGTERM)
            process.signal(signal.SIGTERM)  # the second one does not wait for runs
        for process in alive:
            try:
                await process.end()
            except TimeoutError:
                await process.kill()

    async def is_listening(self) -> bool:
        try:
            await self.status()
        except aiohttp.ClientError:
            return False
        return True

    async def status(self) -> dict[str, Any]:
        async with self.client.get(f"http://127.0.0.1:{self.admin_port}/status") as answer:
            assert answer.status == 200
            found: dict[str, Any] = await answer.json()
            return found

    async def has_link(self, node_id: str, link: str) -> bool:
        return any(node["node_id"] == node_id and node["link"] == link for node in (await self.status())["nodes"])

    async def effective(self, provider_id: str) -> dict[str, int]:
        """Effective numbers of one provider."""
        rows = (await self.status())["providers"]
        found: dict[str, int] = next(row["effective"] for row in rows if row["provider_id"] == provider_id)
        return found

    async def has_waiting(self, count: int) -> bool:
        return bool((await self.status())["queue"]["waiting"] == count)

    async def is_idle(self) -> bool:
        """The idle invariant, as far as an operator sees it."""
        status = await self.status()
        busy = [
            row["effective"][name] for row in status["providers"] for name in ("in_flight", "long_in_flight", "queued")
        ]
        return not any(busy) and status["queue"]["waiting"] == 0

    async def idle(self) -> None:
        await until(self.is_idle, "every counter is 0")
        admission = (await self.status())["counters"]["admission"]
        assert (admission["double_release"], admission["reclaimed"], admission["callback_failed"]) == (0, 0, 0)

    async def chat(self, model: str = "m", **more: Any) -> tuple[int, bytes, aiohttp.ClientResponse]:
        """One chat request; its status, body and answer."""
        body = {"model": model, "messages": [{"role": "user", "content": "hi"}], **more}
        data = io.BytesIO(json.dumps(body).encode())  # a file, so that large ones are sent in pieces
        headers = {"content-type": "application/json"}
        async with self.client.post(f"http://127.0.0.1:{self.http_port}{CHAT}", data=data, headers=headers) as answer:
            return answer.status, await answer.read(), answer

    async def stream(self, model: str = "m", **more: Any) -> aiohttp.ClientResponse:
        """Begin a streamed chat; the caller reads or closes it."""
        body = {"model": model, "stream": True, "messages": [{"role": "user", "content": "hi"}], **more}
        return await self.client.post(f"http://127.0.0.1:{self.http_port}{CHAT}", json=body)


@asynccontextmanager
async def fleet(
    folder: Path, nodes: dict[str, list[dict[str, object]]], start: Sequence[str] = (), **sections: Any
) -> AsyncIterator[Fleet]:
    """Start an Edge with the given nodes configured, and those of `start` running.

    Each request has a connection of its own, so that a kept one is never taken for a file left open.
    """
    http_port, link_port, admin_port = free_ports(3)
    settings = config(nodes, **sections)
    settings["edge"]["listen"] = f"127.0.0.1:{link_port}"
    settings["openai"]["listen"] = f"127.0.0.1:{http_port}"
    settings["admin"]["listen"] = f"127.0.0.1:{admin_port}"
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True), timeout=aiohttp.ClientTimeout(60)
    ) as client:
        made = Fleet(folder, settings, client, http_port, link_port, admin_port)
        try:
            await made.start_edge()
            for node_id in start:
                await made.start_node(node_id)
            yield made
        except BaseException:
            for process in made.started:
                print(f"--- {process.log.name}\n{process.log.read_text(errors='replace')[-3000:]}")
            raise
        finally:
            await made.stop()
