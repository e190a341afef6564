"""What a refresh costs those who are served meanwhile: how late the Edge's loop gets, and how long each step takes.

    python -m benchmarks.bench_refresh [--providers 100,2000] [--rounds 20]

An Edge in this process with ten ready Nodes (which take their payloads and look at nothing) refreshes a file in which
every provider's capacity and one model change. Beside it a timer of 1 ms measures by how much each tick is late: idle,
during dry runs, during applies. The target for 100 providers is 5 ms; the figures for 2,000 are printed.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Any

import uvloop
import yaml

from iop_fast.config.loader import load_edge
from iop_fast.edge.app import Edge, tune_collector
from iop_fast.edge.refresh import Asked
from iop_fast.wire import runtime_pb2 as pb
from tests.fakes.fake_node import FakeNode
from tests.integration.edge_harness import TOKEN, config, provider, until

NODES = 10
TICK_S = 0.001
TARGET_MS = 5.0


class DeafNode(FakeNode):
    """A Node that registers, acks and then reads without looking: its work must not be counted as the Edge's."""

    is_deaf = False

    def _take(self, frame: pb.Frame) -> None:
        if not self.is_deaf:
            super()._take(frame)

    async def _read(self) -> None:
        while not self.is_deaf:
            message = await self._call.read()
            for frame in pb.Batch.FromString(message).frames:
                self._take(frame)
            self._changed.set()
        while await self._call.read():
            pass


class Lateness:
    """Ticks of a timer, and by how many milliseconds each was late; `worst_ms` since the last `begin`."""

    def __init__(self) -> None:
        self.worst_ms = 0.0
        self._loop = asyncio.get_running_loop()
        self._due = 0.0
        self._handle: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Begin a round."""
        self.worst_ms = 0.0

    def __enter__(self) -> Lateness:
        self._arm()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._handle is not None
        self._handle.cancel()

    def _arm(self) -> None:
        self._due = time.perf_counter() + TICK_S
        self._handle = self._loop.call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        self.worst_ms = max(self.worst_ms, (time.perf_counter() - self._due) * 1000)
        self._arm()


def settings(count: int, round_number: int) -> dict[str, Any]:
    """A fleet of `count` providers; each round changes all their capacities and one model."""
    nodes = {
        f"node-{node}": [provider(f"p-{node}-{index}", 4 + round_number % 2) for index in range(count // NODES)]
        for node in range(NODES)
    }
    # Nobody answers the pushes here, and nobody waits for it.
    made = config(nodes, edge={"link": {"push_answer_ms": 0}})
    known = [entry["id"] for entries in nodes.values() for entry in entries]
    made["models"] = [
        {"id": f"m-{index}", "providers": {str(name): "served" for name in known[index::10]}} for index in range(10)
    ]
    if round_number % 2:
        made["models"].append({"id": "extra", "providers": {str(known[0]): "served"}})
    return made


async def measure(count: int, rounds: int, file: Path) -> None:
    """Print the table for one size of fleet."""
    texts = [yaml.dump(settings(count, number), Dumper=yaml.CSafeDumper) for number in (0, 1)]
    await asyncio.to_thread(file.write_text, texts[0])
    edge = Edge(load_edge(file))
    await edge.start()
    nodes = []
    for number in range(NODES):
        node = DeafNode(edge.link_port, f"node-{number}", TOKEN, instance_id=f"i-{number}")
        await node.register()
        await node.ack()
        await until(lambda: edge.gate.live_candidates("m-0", False, 0) >= (number + 1) * count // NODES // 10, "ready")  # noqa: B023
        node.is_deaf = True
        node.beat_every(1.0)
        nodes.append(node)
    print(f"{count} providers on {NODES} nodes, file of {len(texts[0]) // 1024} KiB")
    print("  latest tick of a round, ms      best   median    worst")
    steps: dict[str, list[float]] = {}

    async def refresh(mode: Any, number: int) -> None:
        await asyncio.to_thread(file.write_text, texts[(number + 1) % 2])
        await edge.refresher.refresh(Asked(mode, "http"))
        entry = edge.refresher.history[0]
        assert entry.report["status"] == "applied", entry.report
        for name, value in entry.times_ms.items():
            steps.setdefault(name, []).append(value)

    async def idle(_: Any, __: int) -> None:
        await asyncio.sleep(0.05)

    await late_during("idle for 50 ms", idle, rounds)
    await late_during("dry_run", refresh, rounds)
    typical = await late_during("apply", refresh, rounds)
    told = ", ".join(f"{name} {median(steps[name]):.2f}" for name in steps if name not in ("wait_ms", "settle_ms"))
    print(f"  steps, median: {told}")
    touched = median(steps["commit_ms"]) * 1000 / count
    print(f"  commit {touched:.2f} us a touched provider; loop late by {typical:.2f} ms (target {TARGET_MS} for 100)")
    for node in nodes:
        await node.close()
    await edge.stop()


async def late_during(name: str, work: Callable[[Any, int], Awaitable[None]], rounds: int) -> float:
    """Print the latest tick of each round of some work; return the median of them."""
    latest = []
    with Lateness() as late:
        for number in range(rounds):
            late.begin()
            await work(name, number if name == "apply" else 0)
            latest.append(late.worst_ms)
    print(f"  {name:26} {min(latest):8.2f} {median(latest):8.2f} {max(latest):8.2f}")
    return median(latest)


def main() -> None:
    """Measure each size asked for."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--providers", default="100,2000")
    arguments.add_argument("--rounds", type=int, default=20)
    asked = arguments.parse_args()
    logging.disable(logging.CRITICAL)
    tune_collector()
    with tempfile.TemporaryDirectory(prefix="iop-bench-") as folder:
        for count in asked.providers.split(","):
            uvloop.run(measure(int(count), asked.rounds, Path(folder) / "edge.yaml"))


if __name__ == "__main__":
    main()
