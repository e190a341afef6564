"""What a request costs the Edge's own code, in process: no sockets, no transport of the link, no clock's noise.

    python -m benchmarks.bench_edge [--profile]

The operations of `edge_operations`, by CPU time per request and per chunk, best of several rounds. Kernel and link come
on top: see README. `--profile` shows what is left of Python; compiled modules are one call to it.
"""

from __future__ import annotations

import argparse
import asyncio

from benchmarks.edge_operations import COUNT, chunks, large_answers, requests, upload_pieces
from benchmarks.in_process import cpu_us, profile
from iop_fast.heap import keep_freed_memory

TURNS = 3

OPERATIONS = {
    "a request and its answer, access line included": requests,
    "a chunk of a streamed answer": chunks,
    "a request with an answer of 64 KiB": large_answers,
    "64 KiB of a request body of 1 MiB": upload_pieces,
}


async def main(is_profile: bool) -> None:
    """Print the table, or a profile of whole answers."""
    keep_freed_memory()
    if is_profile:
        await profile(await requests(), COUNT)
        return
    for words, make in OPERATIONS.items():
        print(f"{words:48} {await cpu_us(await make(), COUNT, TURNS):7.2f} us", flush=True)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--profile", action="store_true")
    asyncio.run(main(arguments.parse_args().profile))
