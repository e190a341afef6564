"""CPU per request and per streamed chunk of the Edge beside HAProxy's, in one run.

All subjects are alive at once and take turns in short slots, so that a machine that slows down slows all of them; the
figure of a subject is the median of its slots. CPU comes from the scheduler (/proc/PID/task/*/schedstat). A spinner of
idle priority runs on each core: without it a halted virtual CPU's wake-ups are billed to the subject.

`python -m benchmarks.load.run [--rounds N] [--seconds S] [--only requests|streams] [--library-node]`
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import uvloop

from benchmarks.load.client import Tally, request_bytes, run_load
from benchmarks.load.subjects import OTHER_CORES, Subject, start_edge, start_haproxy, start_upstream

Slot = dict[str, float]


@contextmanager
def spinners() -> Iterator[None]:
    """Keep every core awake at idle priority."""
    code = "import os\nos.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\nwhile True: pass"
    running = []
    for core in sorted(os.sched_getaffinity(0)):
        process = subprocess.Popen([sys.executable, "-c", code])
        os.sched_setaffinity(process.pid, {core})
        running.append(process)
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


@contextmanager
def log_sink(folder: Path) -> Iterator[None]:
    """A datagram socket that takes HAProxy's log lines and throws them away."""
    sink = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sink.bind(str(folder / "log.sock"))
    sink.setblocking(False)
    loop = asyncio.get_running_loop()
    loop.add_reader(sink, lambda: sink.recv(65536))
    try:
        yield
    finally:
        loop.remove_reader(sink)
        sink.close()


def percentile(values: list[float], share: float) -> float:
    """The value below which `share` of the values lie; 0 for none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


async def one_slot(subject: Subject, connections: int, seconds: float, streamed: bool, per_s: float) -> Slot:
    """Load one subject once; CPU in us per answer (or per chunk) by role, and what the client saw."""
    model = "bench" if subject.name.startswith("edge") else "served"
    request = request_bytes(model, streamed)
    before = subject.cpu_ns()
    tally: Tally = await run_load(subject.port, connections, seconds, request, per_s)
    after = subject.cpu_ns()
    units = tally.chunks if streamed else tally.answers
    if tally.errors or not units:
        raise SystemExit(f"{subject.name}: {tally.errors} errors, {units} units: the run measures nothing")
    slot = {f"cpu_us_{role}": (after[role] - before[role]) / units / 1000 for role in after}
    slot["per_s"] = units / seconds
    waits = tally.gaps if streamed else tally.latencies
    slot["p50_ms"] = percentile(waits, 0.5) * 1000
    slot["p99_ms"] = percentile(waits, 0.99) * 1000
    return slot


async def scenario(
    subjects: list[Subject], connections: int, seconds: float, rounds: int, streamed: bool, per_s: float = 0.0
) -> dict[str, Slot]:
    """Let the subjects take turns; medians over the rounds."""
    slots: dict[str, list[Slot]] = {subject.name: [] for subject in subjects}
    for subject in subjects:
        await one_slot(subject, connections, min(seconds, 1.0), streamed, per_s)
    for _ in range(rounds):
        for subject in subjects:
            slots[subject.name].append(await one_slot(subject, connections, seconds, streamed, per_s))
    return {
        name: {key: statistics.median(slot[key] for slot in runs) for key in runs[0]} for name, runs in slots.items()
    }


def print_table(title: str, unit: str, figures: dict[str, Slot]) -> None:
    """Print one scenario; CPU columns are us per unit."""
    print(f"\n{title}")
    print(f"{'subject':<20}{'gateway us':>12}{'node us':>10}{unit + '/s':>12}{'p50 ms':>9}{'p99 ms':>9}")
    for name, slot in figures.items():
        gateway, node = slot.get("cpu_us_gateway"), slot.get("cpu_us_node")
        print(
            f"{name:<20}{'-' if gateway is None else f'{gateway:.1f}':>12}{'-' if node is None else f'{node:.1f}':>10}"
            f"{slot['per_s']:>12.0f}{slot['p50_ms']:>9.2f}{slot['p99_ms']:>9.2f}"
        )
    for base in ("haproxy-bare", "haproxy-same-work"):
        if base in figures and "edge" in figures:
            ratio = figures["edge"]["cpu_us_gateway"] / figures[base]["cpu_us_gateway"]
            print(f"ratio {title.split(':')[0].replace(' ', '-')}-edge/{base} {ratio:.2f}")


async def run(options: argparse.Namespace) -> dict[str, object]:
    """Run the scenarios and return their figures."""
    rounds, seconds, only = options.rounds, options.seconds, options.only
    os.sched_setaffinity(0, OTHER_CORES)
    results: dict[str, object] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="iop-bench-")))
        stack.enter_context(log_sink(folder))
        subjects = [start_upstream(folder)]
        stack.callback(lambda: [subject.stop() for subject in subjects])
        for same_work in (False, True):
            subjects.append(start_haproxy(folder, subjects[0].port, same_work))
        subjects.append(start_edge(folder, subjects[0].port))
        if options.library_node:
            subjects.append(start_edge(folder, subjects[0].port, "edge-library-node", "benchmarks.load.library_node"))
        stack.enter_context(spinners())
        if only in (None, "requests"):
            for count in options.connections:
                figures = await scenario(subjects, count, seconds, rounds, streamed=False)
                results[f"requests-{count}"] = figures
                print_table(f"requests at {count} connections: CPU per request", "requests", figures)
            for rate in options.rates:
                figures = await scenario(subjects, 32, seconds, rounds, streamed=False, per_s=rate)
                results[f"offered-{rate}"] = figures
                print_table(f"{rate} requests/s offered on 32 connections: CPU per request", "requests", figures)
        if only in (None, "streams"):
            for count in options.streams:
                figures = await scenario(subjects, count, max(seconds, 4.0), rounds, streamed=True)
                results[f"streams-{count}"] = figures
                print_table(f"{count} streams of 50 chunks/s: CPU per chunk, gaps between reads", "chunks", figures)
    return results


def main() -> None:
    """Parse the arguments, run, print and store the figures where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.5, help="length of one slot")
    parser.add_argument("--only", choices=["requests", "streams"])
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 32, 128])
    parser.add_argument("--rates", type=int, nargs="*", default=[1000, 4000], help="requests/s offered")
    parser.add_argument("--streams", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--library-node", action="store_true", help="also an Edge whose Node uses aiohttp")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    results = uvloop.run(run(options))
    if options.json:
        options.json.write_text(json.dumps(results, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
