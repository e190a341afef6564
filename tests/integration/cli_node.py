"""A process that runs programs as a Node does and tells their pids, until it is killed."""

from __future__ import annotations

import asyncio

import uvloop

from tests.fakes.cli_tools import tool
from tests.integration.cli_bench import chat, cli_bench
from tests.integration.node_bench import until


async def main() -> None:
    async with (
        cli_bench(tool("stubborn")) as one,
        cli_bench([*tool("escapee"), "{last_user}"], input="argument") as two,
    ):
        stubborn, _ = one.start(), two.start(chat("3600"))
        await stubborn.said("I stay")
        await until(lambda: len(two.marked()) == 2, "the daemon is there")
        spawners = [bench.adapter.spawner.pid for bench in (one, two)]
        print(*spawners, *one.marked(), *two.marked(), flush=True)
        await asyncio.Event().wait()


uvloop.run(main())
