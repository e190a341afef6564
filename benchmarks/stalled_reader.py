"""What one client that stops reading does to eight that read: `python -m benchmarks.stalled_reader [--seconds 8]`.

An Edge, a Node and two model servers as real processes. Eight streams of one provider run with a chunk each 10 ms; in
every other round one more client asks another provider of the same Node for an endless answer and never reads it. The
clients are a process of their own. Printed: the gaps between chunks with and without it, their ratio, and what stalled
clients cost the Edge in memory; it fails above 2x, or above the documented bound of a stalled answer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import uvloop

from iop_fast.wire.options import RUN_WINDOW_BYTES
from tests.fakes.openai_backend import Exchange
from tests.fakes.openai_backend import run as serve
from tests.integration.edge_harness import CHAT, provider
from tests.integration.fleet import Fleet, fleet

STREAMS = 8
CHUNK_MS = 10
STALLED_FOR_MEMORY = 40
# A run's window and the transport's mark, and what a connection and a run cost besides (one idle stream: 64 KiB).
BOUND_KIB = 256 + 64 + 64
RATIO_MAX = 2.0
FILL_LIMIT_S = 60.0


def request(model: str) -> bytes:
    body = b'{"model":"%b","stream":true,"messages":[]}' % model.encode()
    head = b"POST %b HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % (CHAT.encode(), len(body)) + body


# The clients' process.


async def read_stream(port: int, ends_at: float, gaps: list[float]) -> None:
    """Read a stream's chunks, again and again, and note the gaps between their arrivals."""
    while time.monotonic() < ends_at:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request("steady"))
        last = 0.0
        while time.monotonic() < ends_at and (data := await reader.read(65536)):
            now = time.monotonic()
            if last:
                gaps.append(now - last)
            last = now
            if b"[DONE]" in data:
                break
        writer.close()


async def be_clients(port: int, seconds: float) -> None:
    gaps: list[float] = []
    ends_at = time.monotonic() + seconds
    await asyncio.gather(*(read_stream(port, ends_at, gaps) for _ in range(STREAMS)))
    print(json.dumps(sorted(gaps)))


# The other side.


async def flood(exchange: Exchange) -> None:
    """Answer without end, as fast as it is read."""
    await exchange.head(200, [(b"Content-Type", b"text/event-stream"), (b"Transfer-Encoding", b"chunked")])
    event = b"data: " + b"x" * 4000 + b"\n\n"
    while True:
        await exchange.chunk(event)


@asynccontextmanager
async def server(*command: str) -> AsyncIterator[str]:
    """A model server of its own process; its address."""
    process = await asyncio.create_subprocess_exec(*(sys.executable, "-m", *command), stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{(await process.stdout.readline()).split()[1].decode()}"
    finally:
        process.kill()
        await process.wait()


def stop_reading(port: int) -> socket.socket:
    """Ask for an endless answer and read nothing of it."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
    client.connect(("127.0.0.1", port))
    client.sendall(request("flood"))
    return client


async def measure(port: int, seconds: float) -> list[float]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.stalled_reader", "--client", str(port), "--seconds", str(seconds)),
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    gaps: list[float] = json.loads(output)
    return gaps


def p99_ms(gaps: list[float]) -> float:
    return sorted(gaps)[int(len(gaps) * 0.99)] * 1000


async def stalled(f: Fleet, count: int) -> int:
    """Wait until so many clients are stalled: the kernel takes the first megabytes, then windows fill. Bytes held."""
    held, ends_at = 0, time.monotonic() + FILL_LIMIT_S
    while held < count * RUN_WINDOW_BYTES // 2:
        assert time.monotonic() < ends_at, f"only {held} bytes wait for {count} clients that read nothing"
        await asyncio.sleep(0.3)
        held = (await f.status())["nodes"][0]["session"]["buffered_bytes"]
    await asyncio.sleep(1.0)
    return int((await f.status())["nodes"][0]["session"]["buffered_bytes"])


async def compare(f: Fleet, seconds: float) -> float:
    """Take turns with and without; print both and return the ratio of the 99th percentiles."""
    alone: list[float] = []
    beside: list[float] = []
    await measure(f.http_port, 1.0)
    for _ in range(3):
        alone += await measure(f.http_port, seconds / 6)
        client = stop_reading(f.http_port)
        await stalled(f, 1)
        beside += await measure(f.http_port, seconds / 6)
        client.close()
    for name, gaps in (("alone", alone), ("beside a stalled one", beside)):
        middle = sorted(gaps)[len(gaps) // 2] * 1000
        print(f"{name:<22} {len(gaps):>7,} gaps, median {middle:6.2f} ms, p99 {p99_ms(gaps):6.2f} ms")
    return p99_ms(beside) / p99_ms(alone)


async def weigh(f: Fleet) -> float:
    """Return what a stalled client costs the Edge, in KiB of resident memory."""
    assert f.edge is not None
    before = f.edge.resident_kib
    clients = [stop_reading(f.http_port) for _ in range(STALLED_FOR_MEMORY)]
    held = await stalled(f, STALLED_FOR_MEMORY)
    cost_kib = (f.edge.resident_kib - before) / STALLED_FOR_MEMORY
    for client in clients:
        client.close()
    print(f"{STALLED_FOR_MEMORY} stalled clients hold {held / 1024 / STALLED_FOR_MEMORY:.0f} KiB each")
    return cost_kib


async def run(seconds: float, folder: Path) -> int:
    steady_command = ["tests.fakes.openai_backend", "--words", "400", "--chunk-delay-ms", str(CHUNK_MS)]
    async with server("benchmarks.stalled_reader", "--server") as endless, server(*steady_command) as steady:
        nodes = {"n1": [provider("flood", 100, endpoint=endless), provider("steady", 100, endpoint=steady)]}
        models = [{"id": name, "providers": {name: "served"}} for name in ("flood", "steady")]
        async with fleet(folder, nodes, ["n1"], models=models) as f:
            ratio = await compare(f, seconds)
            cost_kib = await weigh(f)
    print(
        f"p99 ratio {ratio:.2f}, at most {RATIO_MAX:g}; a stalled client costs {cost_kib:.0f} KiB, at most {BOUND_KIB}"
    )
    return int(ratio > RATIO_MAX or cost_kib > BOUND_KIB)


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="What a client that stops reading does to others.")
    parser.add_argument("--seconds", type=float, default=12)
    parser.add_argument("--client", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--server", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.server:
        uvloop.run(serve(0, flood))
    if options.client is not None:
        uvloop.run(be_clients(options.client, options.seconds))
        return 0
    with tempfile.TemporaryDirectory(prefix="stalled-") as folder:
        return uvloop.run(run(options.seconds, Path(folder)))


if __name__ == "__main__":
    sys.exit(main())
