"""What a message pair on the link costs: our own gRPC transport beside grpcio's, in one run.

    python -m benchmarks.bench_link [--rounds 5] [--seconds 0.5] [--json]

A server process of each transport echoes the messages of one call, on core 0; the clients, of the same transport as
their server, are this process, on core 1. Per line so many messages are in flight at once. The figure is CPU of the
server process, all its threads and the kernel's part, per message pair (one in, one out): the median of alternating
slots, and the same for this process. A process of idle priority spins on each core, so that no virtual CPU halts.
`bare` is the floor: a protocol without messages that sends back what it reads.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import Any, NamedTuple, Protocol, cast

import uvloop

from benchmarks.load.bench import spinners
from benchmarks.load.proc import cpu_ns
from iop_fast.heap import keep_freed_memory
from iop_fast.wire.grpcio.options import channel_options, server_options
from iop_fast.wire.http2.call import Call
from iop_fast.wire.http2.connection import Connection
from iop_fast.wire.http2.limits import Limits

import grpc  # isort: skip
from grpc import aio  # isort: skip

SUBJECTS = ("bare", "builtin", "grpcio")
CASES = ((200, 1), (200, 16), (9_000, 1), (9_000, 16), (131_072, 1))
METHOD = "/iop.bench.Link/Echo"
SERVICE, NAME = METHOD.strip("/").split("/")


class Stream(Protocol):
    """The client's end of a call of either transport."""

    async def read(self) -> Any: ...
    async def write(self, message: bytes) -> None: ...


# The servers' process.


async def echo(call: Call) -> None:
    """Send every message back."""
    while (message := await call.read()) is not None:
        await call.write(message)
    call.finish(0)


async def serve_builtin() -> None:
    """Our own transport."""
    loop = asyncio.get_running_loop()
    tasks: set[asyncio.Task[None]] = set()

    def on_call(call: Call) -> None:
        task = loop.create_task(echo(call))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def make() -> asyncio.Protocol:
        connection = Connection(loop, Limits(), is_server=True, on_call=on_call)
        connection.on_known()
        return cast(asyncio.Protocol, connection)

    server = await loop.create_server(make, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


class Bare(asyncio.Protocol):
    """Sends back what it reads; or, as a client, counts it."""

    def __init__(self, is_server: bool) -> None:
        self.is_server = is_server
        self.transport: asyncio.Transport | None = None
        self.missing = 0
        self.size = 0
        self.waiter: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self.is_server:
            assert self.transport is not None
            self.transport.write(data)
            return
        self.missing -= len(data)
        if self.waiter is not None and not self.waiter.done() and self.missing <= 0:
            self.waiter.set_result(None)

    async def write(self, message: bytes) -> None:
        """See Stream."""
        assert self.transport is not None
        self.size = len(message)
        self.transport.write(message)

    async def read(self) -> bytes:
        """See Stream; what it returns was not received."""
        self.missing += self.size
        if self.missing > 0:
            self.waiter = asyncio.get_running_loop().create_future()
            await self.waiter
        return bytes(self.size)


async def serve_bare() -> None:
    """The floor."""
    server = await asyncio.get_running_loop().create_server(lambda: Bare(True), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


async def serve_grpcio() -> None:
    """grpc.aio, with the link's options."""

    async def serve(_: Any, context: aio.ServicerContext[bytes, bytes]) -> None:
        while isinstance(message := await context.read(), bytes):
            await context.write(message)

    server = aio.server(options=server_options())
    method = grpc.stream_stream_rpc_method_handler(serve)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {NAME: method}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await server.stop(0)


# The clients.


@asynccontextmanager
async def connect(subject: str, port: int) -> AsyncIterator[Stream]:
    """Open a call to a server of the same transport."""
    if subject == "grpcio":
        async with aio.insecure_channel(f"127.0.0.1:{port}", options=channel_options()) as channel:
            call = channel.stream_stream(METHOD)()
            yield call
            await call.done_writing()
        return
    loop = asyncio.get_running_loop()
    if subject == "bare":
        transport, bare = await loop.create_connection(lambda: Bare(False), "127.0.0.1", port)
        yield bare
        transport.close()
        return
    connection = Connection(loop, Limits(), is_server=False)
    await loop.create_connection(lambda: cast(asyncio.Protocol, connection), "127.0.0.1", port)
    assert connection.ready is not None
    await connection.ready
    yield connection.open_call(METHOD.encode(), b"localhost", b"http")
    connection.close()


async def exchange(stream: Stream, size: int, in_flight: int, seconds: float) -> int:
    """Keep so many messages under way for a while; return how many came back."""
    message = os.urandom(size)
    for _ in range(in_flight):
        await stream.write(message)
    ends_at = time.monotonic() + seconds
    pairs = 0
    while time.monotonic() < ends_at:
        for _ in range(8):
            assert len(await stream.read()) == size
            await stream.write(message)
        pairs += 8
    for _ in range(in_flight):
        await stream.read()
    return pairs + in_flight


class Cost(NamedTuple):
    """Microseconds of CPU per message pair."""

    server_us: float
    client_us: float


async def measure(rounds: int, seconds: float) -> dict[tuple[str, int, int], Cost]:
    """Measure every case of every subject, in turns."""
    taken: dict[tuple[str, int, int], list[Cost]] = {}
    servers: dict[str, tuple[subprocess.Popen[str], int]] = {}
    with ExitStack() as stack:
        stack.enter_context(spinners())
        for subject in SUBJECTS:
            server = subprocess.Popen(  # noqa: ASYNC220 - nothing else runs yet
                [sys.executable, "-m", "benchmarks.bench_link", "--serve", subject],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.callback(server.wait)
            assert server.stdin is not None
            assert server.stdout is not None
            stack.callback(server.stdin.close)
            os.sched_setaffinity(server.pid, {0})
            servers[subject] = server, int(server.stdout.readline())
        os.sched_setaffinity(0, {1})
        for number in range(-1, rounds):
            for size, in_flight in CASES:
                for subject, (server, port) in servers.items():
                    async with connect(subject, port) as stream:
                        await exchange(stream, size, in_flight, 0.05)
                        before = cpu_ns(server.pid), cpu_ns(os.getpid())
                        pairs = await exchange(stream, size, in_flight, seconds if number >= 0 else 0.1)
                        after = cpu_ns(server.pid), cpu_ns(os.getpid())
                    if number >= 0:
                        cost = Cost((after[0] - before[0]) / pairs / 1e3, (after[1] - before[1]) / pairs / 1e3)
                        taken.setdefault((subject, size, in_flight), []).append(cost)
    return {
        case: Cost(statistics.median(c.server_us for c in costs), statistics.median(c.client_us for c in costs))
        for case, costs in taken.items()
    }


def main() -> None:
    """Measure and print, or be one of the servers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", choices=SUBJECTS, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    keep_freed_memory()  # as both programs do
    if asked.serve is not None:
        uvloop.run({"bare": serve_bare, "builtin": serve_builtin, "grpcio": serve_grpcio}[asked.serve]())
        return
    costs = uvloop.run(measure(asked.rounds, asked.seconds))
    if asked.json:
        print(json.dumps([[*case, *cost] for case, cost in costs.items()]))
        return
    print(f"{'bytes':>8} {'in flight':>9}   " + " ".join(f"{name + ' us':>10}" for name in SUBJECTS) + "   client us")
    for size, in_flight in CASES:
        found = [costs[name, size, in_flight] for name in SUBJECTS]
        servers = " ".join(f"{cost.server_us:>10.1f}" for cost in found)
        print(f"{size:>8} {in_flight:>9}   {servers}   " + ", ".join(f"{cost.client_us:.1f}" for cost in found))


if __name__ == "__main__":
    main()
