"""Torture the cli adapter: every ugly program again and again, to its end, cancelled, and over a limit.

    python -m tests.soak.cli [ROUNDS]

In a round (of 100) each program runs three times at once: once as long as it likes (those that never end: until a limit
of time), once cancelled at some point of its life, once into a limit. Then nothing may be left: no run without its end,
no child of a spawner, no zombie, no process of a run anywhere, no more open files than before, no directory. When each
run is cancelled comes from a seed, which is printed; `SEED=` in the environment repeats it.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any, NamedTuple

import uvloop

from iop_fast.node.adapters.cli import DIRECTORY_PREFIX
from tests.fakes.cli_tools import tool
from tests.integration.cli_bench import CliBench, RunEnd, TaskSink, chat, cli_bench, open_files
from tests.integration.node_bench import until

ROUNDS = 100
END_LIMIT_S = 30.0
CANCEL_WITHIN_S = 0.4

# Ends of a run that nobody cancelled.
WHOLE = frozenset((RunEnd.OK,))
FAILED = frozenset((RunEnd.REFUSED, RunEnd.UPSTREAM_ERROR))
LATE = frozenset((RunEnd.UPSTREAM_TIMEOUT,))
JSON = {"output": "json_lines", "fields": {"text": {"path": "t"}}}


class Ugly(NamedTuple):
    """A program, how it is told, and how it ends by itself and in its limit."""

    command: Sequence[str]
    ends: frozenset[int] = WHOLE
    limited: frozenset[int] = LATE
    text: str = "hello"
    keys: dict[str, Any] = {}
    limit: dict[str, Any] = {"run_ms_max": 150}


UGLY = {
    "long line": Ugly(tool("long_line", "10000000"), limited=WHOLE, limit={"output_bytes_max": 1_000_000}),
    "long JSON line": Ugly(tool("long_line", "10000000"), FAILED, FAILED, keys=JSON, limit={"line_bytes_max": 1_024}),
    "both pipes": Ugly(
        tool("flood", "50000000"),
        limited=WHOLE,
        keys={"output_bytes_max": 100_000_000},
        limit={"output_bytes_max": 1_000_000},
    ),
    "ignores SIGTERM": Ugly(tool("stubborn"), ends=LATE, keys={"run_ms_max": 500}),
    "pipe holder": Ugly(tool("holder"), limited=WHOLE | LATE),
    "straggler": Ugly(tool("straggler"), limited=WHOLE | LATE),
    "daemon": Ugly(tool("escapee", "0.2")),
    "hidden daemon": Ugly(tool("escapee", "0.2", "--hidden")),
    "family": Ugly(tool("family"), ends=LATE, keys={"run_ms_max": 500}),
    "no line end": Ugly(tool("raw", "61", "62"), limited=WHOLE | LATE),
    "invalid UTF-8": Ugly(tool("raw", "ff", "c3", "28"), limited=WHOLE | LATE),
    "exit 3": Ugly(tool("fail", "3", "sorry"), FAILED, FAILED | LATE),
    "exit 3 after output": Ugly(tool("fail", "3", "sorry", "text"), FAILED, FAILED | LATE),
    "killed": Ugly(tool("die", "11"), FAILED, FAILED | LATE),
    "never reads": Ugly(tool("deaf", "0.3"), text="x" * 5_000_000),
    "closes output early": Ugly(tool("mute", "0.3")),
    "trickle": Ugly(tool("trickle", "5", "60")),
    "cat": Ugly(["cat"], limited=WHOLE | LATE, text="y" * 1_000_000),
}


class Torture:
    """The adapters of every program, and what was there before."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.benches: dict[str, tuple[CliBench, CliBench]] = {}
        self.fds: list[int] = []

    async def open(self, stack: AsyncExitStack) -> None:
        """Make the adapters: one without and one with the limit for each program."""
        for name, ugly in UGLY.items():
            free = await stack.enter_async_context(cli_bench(ugly.command, **ugly.keys))
            limited = await stack.enter_async_context(cli_bench(ugly.command, **(ugly.keys | ugly.limit)))
            self.benches[name] = (free, limited)

    async def round(self) -> None:
        """Run everything once, all at the same time, and look at what is left."""
        names = list(UGLY)
        self.random.shuffle(names)
        await asyncio.gather(*(self.one(name) for name in names))
        for name, benches in self.benches.items():
            for bench in benches:
                assert bench.children() == [], f"{name}: children left"
        fds = self.open_files()
        if self.fds:
            assert fds == self.fds, "open files grew"
        self.fds = fds
        await until(lambda: directories() == [], "the directories of runs are gone")

    async def one(self, name: str) -> None:
        """One program: to its end, cancelled, into its limit."""
        ugly = UGLY[name]
        free, limited = self.benches[name]
        sinks = [bench.start(chat(ugly.text)) for bench in (free, free, limited)]
        loop = asyncio.get_running_loop()
        handle = sinks[1].handle
        assert handle is not None
        loop.call_later(self.random.random() * CANCEL_WITHIN_S, handle.cancel)
        pausing = loop.create_task(self.pause_now_and_then(sinks[0]))
        for sink, ends in zip(sinks, (ugly.ends, ugly.ends | {RunEnd.CANCELLED}, ugly.limited), strict=True):
            end = await sink.ended(END_LIMIT_S)
            assert end.status in ends, f"{name}: {end}"
        await pausing

    async def pause_now_and_then(self, sink: TaskSink) -> None:
        """Stop and go, as a slow client does."""
        assert sink.handle is not None
        for _ in range(self.random.randrange(4)):
            sink.handle.pause()
            await asyncio.sleep(self.random.random() * 0.05)
            sink.handle.resume()
            await asyncio.sleep(self.random.random() * 0.05)

    def open_files(self) -> list[int]:
        """Open files of this process and of every spawner."""
        spawners = [bench.spawner_fds() for benches in self.benches.values() for bench in benches]
        return [open_files(os.getpid()), *spawners]


def directories() -> list[Path]:
    """Directories of runs that are there."""
    return list(Path(tempfile.gettempdir()).glob(f"{DIRECTORY_PREFIX}*"))


async def torture(rounds: int, seed: int) -> None:
    """Run so many rounds; raise AssertionError for anything that is left."""
    work = Torture(Random(seed))
    async with AsyncExitStack() as stack:
        await work.open(stack)
        for _ in range(rounds):
            await work.round()


def main(argv: Sequence[str]) -> int:
    """Run the rounds that were asked for, in a directory for temporary files of its own."""
    rounds = int(argv[1]) if len(argv) > 1 else ROUNDS
    seed = int(os.environ.get("SEED") or Random().getrandbits(32))
    print(f"{rounds} rounds of {len(UGLY)} programs, seed {seed}", flush=True)
    began_s = perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = folder
        uvloop.run(torture(rounds, seed))
        tempfile.tempdir = None
    runs = rounds * len(UGLY) * 3
    print(f"{runs} runs in {perf_counter() - began_s:.0f} s, nothing left", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
