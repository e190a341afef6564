"""What a request costs the Node's own code, in process: no sockets, no transport of the link, no clock's noise.

    python -m benchmarks.bench_node [--profile]

The operations of `node_operations`, by CPU time of one each, best of several rounds, on the loop that the program runs
on. Kernel and transports come on top: see README. `--profile` shows what is left of Python; compiled modules are one
call to it.
"""

from __future__ import annotations

import argparse

import uvloop

from benchmarks.in_process import cpu_us, profile
from benchmarks.node_operations import COUNT, OPERATIONS, requests

TURNS = 10

WORDS = {
    "node_request": "a request and its answer",
    "node_chunk": "a chunk of a streamed answer",
    "node_64k_answer": "a request and its answer of 64 KiB",
    "node_64k_in_two_reads": "the same, brought by two reads",
    "node_64k_of_upload": "64 KiB of a request of a MiB",
}


async def main(is_profile: bool) -> None:
    """Print the table, or a profile of whole answers."""
    if is_profile:
        await profile(await requests(), 10 * COUNT)
        return
    for name, make in OPERATIONS.items():
        print(f"{WORDS[name]:48} {await cpu_us(await make(), COUNT, TURNS):7.2f} us", flush=True)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--profile", action="store_true")
    uvloop.run(main(arguments.parse_args().profile))
