"""How `bench_edge` and `bench_node` take the CPU time of operations that touch neither socket nor disk."""

from __future__ import annotations

import cProfile
import pstats
import time
from collections.abc import Awaitable, Callable

ROUNDS = 9

Work = Callable[[int], Awaitable[None]]


async def cpu_us(work: Work, count: int, turns: int) -> float:
    """The CPU time of one of `work`'s operations in us: the best of ROUNDS rounds of `turns` times `count`."""
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.process_time_ns()
        for _ in range(turns):
            await work(count)
        best = min(best, (time.process_time_ns() - start) / turns / count / 1000)
    return best


async def profile(work: Work, count: int) -> None:
    """Print where Python's time goes in `count` operations; compiled modules are one call to it."""
    with cProfile.Profile() as profiler:
        await work(count)
    pstats.Stats(profiler).sort_stats("tottime").print_stats(45)
