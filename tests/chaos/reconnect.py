"""A whole fleet dials again at once: `python -m tests.chaos.reconnect --nodes 200 [--rounds 3]`.

One Edge as a real process, so many scripted Nodes in this one, and one real Node with the echo model, which a client of
its own process asks all the time. Every round the Nodes' connections are cut in one turn of the loop and all register
again at once. Printed: the time until the Edge holds every one ready, and what the client's requests took before and
meanwhile. It fails when a Node is not ready in time, or when a request on the other Node is not answered well.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path

import aiohttp

from tests.fakes.fake_node import FakeNode
from tests.integration.edge_harness import CHAT, TOKEN, provider, run
from tests.integration.fleet import Fleet, fleet

READY_LIMIT_S = 60.0
QUIET_S = 3.0

Asked = tuple[float, float, int]  # when (monotonic), seconds, status


async def ask_until_stopped(url: str) -> None:
    """Be the client: ask one request after the other until standard input ends, then print them all."""
    asked: list[Asked] = []
    ended = asyncio.ensure_future(asyncio.to_thread(sys.stdin.read))
    body = {"model": "echo", "messages": [{"role": "user", "content": "a b c"}]}
    async with aiohttp.ClientSession() as session:
        while not ended.done():
            began = time.monotonic()
            async with session.post(url, json=body) as answer:
                await answer.read()
            asked.append((began, time.monotonic() - began, answer.status))
            await asyncio.sleep(0.005)
    print(json.dumps(asked))


def figures(name: str, asked: list[Asked]) -> str:
    """Say how long requests took."""
    times = sorted(took_s * 1000 for _, took_s, _ in asked)
    median, p99 = times[len(times) // 2], times[int(len(times) * 0.99)]
    return f"{name}: {len(times)} requests, median {median:.1f} ms, p99 {p99:.1f} ms, slowest {times[-1]:.1f} ms"


class Reconnect:
    """One run."""

    def __init__(self, nodes: int, rounds: int) -> None:
        self.nodes = nodes
        self.rounds = rounds
        self.fakes: list[FakeNode] = []
        self.took_s: list[float] = []
        self.spans: list[tuple[float, float]] = []

    async def live(self, folder: Path) -> list[Asked]:
        echo = {"id": "echo-1", "type": "native", "profile": "echo", "models": ["echo"], "capacity": 8}
        names = [f"f{number}" for number in range(self.nodes)]
        nodes = {"n0": [echo], **{name: [provider(f"p-{name}", 4)] for name in names}}
        models = [
            {"id": "echo", "providers": {"echo-1": "echo"}},
            {"id": "m", "providers": {f"p-{name}": "served" for name in names}},
        ]
        async with fleet(folder, nodes, models=models) as f:
            await f.start_node("n0", native_models=[{"id": "echo", "adapter": "echo"}])
            url = f"http://127.0.0.1:{f.http_port}{CHAT}"
            client = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.chaos.reconnect", "--client", url),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
            await self._connect(f, names)
            for _ in range(self.rounds):
                await asyncio.sleep(QUIET_S)
                await self._reconnect(f, names)
            await asyncio.sleep(QUIET_S)
            output, _ = await client.communicate(b"")
            await asyncio.gather(*(fake.close() for fake in self.fakes))
        asked: list[Asked] = [tuple(entry) for entry in json.loads(output)]
        return asked

    async def _reconnect(self, f: Fleet, names: list[str]) -> None:
        gone, self.fakes = self.fakes, []
        began = time.monotonic()
        closing = asyncio.gather(*(fake.close() for fake in gone))
        await self._connect(f, names)
        self.took_s.append(time.monotonic() - began)
        self.spans.append((began, time.monotonic()))
        await closing

    async def _connect(self, f: Fleet, names: list[str]) -> None:
        """Register every Node at once and wait until the Edge holds all of them ready."""
        self.fakes = [FakeNode(f.link_port, name, TOKEN, instance_id=f"i-{name}") for name in names]
        await asyncio.gather(*(self._register(fake) for fake in self.fakes))
        limit = time.monotonic() + READY_LIMIT_S
        while True:
            away = [node["node_id"] for node in (await f.status())["nodes"] if node["link"] != "ready"]
            if not away:
                return
            assert time.monotonic() < limit, f"not ready within {READY_LIMIT_S:g} s: {away}"
            await asyncio.sleep(0.02)

    async def _register(self, fake: FakeNode) -> None:
        answer = await fake.register()
        assert not answer.refusal, answer
        await fake.ack()
        fake.beat_every(5.0)

    def judge(self, asked: list[Asked]) -> int:
        """Print the figures; 1 when a request was disturbed."""
        print(f"{self.nodes} Nodes ready again after " + ", ".join(f"{took_s:.2f} s" for took_s in self.took_s))
        first = self.spans[0][0]
        meanwhile = [
            entry for entry in asked if any(b <= entry[0] <= e or b <= entry[0] + entry[1] <= e for b, e in self.spans)
        ]
        before = [entry for entry in asked if first - QUIET_S <= entry[0] < first]
        print(figures("before", before))
        print(figures("meanwhile", meanwhile))
        bad = [entry for entry in asked if entry[2] != 200]
        print(f"{len(bad)} of {len(asked)} requests on the other Node were not answered well")
        return bool(bad)


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="A whole fleet dials again at once.")
    parser.add_argument("--nodes", type=int, default=200, help="how many")
    parser.add_argument("--rounds", type=int, default=3, help="how often")
    parser.add_argument("--client", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client is not None:
        asyncio.run(ask_until_stopped(options.client))
        return 0
    reconnect = Reconnect(options.nodes, options.rounds)
    with tempfile.TemporaryDirectory(prefix="reconnect-") as folder:
        asked = run(reconnect.live(Path(folder)))
    return reconnect.judge(asked)


if __name__ == "__main__":
    sys.exit(main())
