"""Both transports of the link at either end, for tests that hold whatever carries a session."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from iop_fast.wire import transport
from iop_fast.wire.credentials import Trust
from iop_fast.wire.transport import EdgeStream, LinkServer, NodeStream, TransportName

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 20.0

BOTH: list[TransportName] = ["builtin", "grpcio"]


async def echo(stream: EdgeStream, peer: str) -> None:
    stream.on_registered()
    while (message := await stream.read()) is not None:
        await stream.write(message)


class Pair(NamedTuple):
    """Which transport an Edge has and which its Node."""

    edge: TransportName
    node: TransportName

    def __str__(self) -> str:
        return f"{self.edge}-edge-{self.node}-node"

    async def serve(
        self, address: str, on_stream: Callable[[EdgeStream, str], Awaitable[None]] = echo, **options: Any
    ) -> LinkServer:
        return await transport.serve(address, on_stream, transport=self.edge, **options)

    async def dial(self, address: str, trust: Trust | None = None, **options: Any) -> NodeStream:
        return await transport.dial(address, trust, transport=self.node, **options)

    @asynccontextmanager
    async def running(
        self, on_stream: Callable[[EdgeStream, str], Awaitable[None]] = echo, **options: Any
    ) -> AsyncIterator[tuple[LinkServer, str]]:
        """A server on a free port, and its address; stopped and settled at the end."""
        server = await self.serve("127.0.0.1:0", on_stream, **options)
        try:
            yield server, f"127.0.0.1:{server.port}"
        finally:
            assert await server.stop(0.1)
            assert await transport.settle(LIMIT_S)

    @contextmanager
    def program(self, what: str, address: str) -> Iterator[subprocess.Popen[str]]:
        """One end in a process of its own (stream_program)."""
        by = self.edge if what == "serve" else self.node
        command = [sys.executable, "-m", "tests.integration.stream_program", what, address, by]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            yield process
        finally:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


PAIRS = [Pair(edge, node) for edge in BOTH for node in BOTH]
# For what one end decides alone.
EDGES = [Pair(edge, "grpcio") for edge in BOTH]
NODES = [Pair("grpcio", node) for node in BOTH]
