"""What a request costs the Edge's own code, in process: no sockets, no gRPC, no clock's noise.

    python -m benchmarks.bench_edge [--profile]

The operations of `edge_operations`, by CPU time per request and per chunk, best of several rounds. Kernel and gRPC come
on top: see README. `--profile` shows what is left of Python; compiled modules are one call to it.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import pstats
import time

from benchmarks.edge_operations import COUNT, Work, chunks, large_answers, requests, upload_pieces
from iop_fast.heap import keep_freed_memory

ROUNDS = 9
TURNS = 3


async def measure(work: Work) -> float:
    """Best CPU time of one operation in us."""
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.process_time_ns()
        for _ in range(TURNS):
            await work(COUNT)
        best = min(best, (time.process_time_ns() - start) / TURNS / COUNT / 1000)
    return best


async def main(is_profile: bool) -> None:
    """Print the table, or a profile of whole answers."""
    keep_freed_memory()
    if is_profile:
        work = await requests()
        with cProfile.Profile() as profile:
            await work(COUNT)
        pstats.Stats(profile).sort_stats("tottime").print_stats(45)
        return
    print(f"a request and its answer, access line included   {await measure(await requests()):7.2f} us")
    print(f"a chunk of a streamed answer                     {await measure(await chunks()):7.2f} us")
    print(f"a request with an answer of 64 KiB               {await measure(await large_answers()):7.2f} us")
    print(f"64 KiB of a request body of 1 MiB                {await measure(await upload_pieces()):7.2f} us")


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--profile", action="store_true")
    asyncio.run(main(arguments.parse_args().profile))
