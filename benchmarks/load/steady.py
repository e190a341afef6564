"""Scenarios of one load that is held: closed loops, offered rates, new connections, sizes, streams, both at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from benchmarks.load.bench import (
    SETTLE_S,
    SLOT_S,
    Bench,
    Gauge,
    Result,
    closed,
    fresh,
    measured,
    offered,
    quiet_collector,
    streams,
    times,
)
from benchmarks.load.clients import Load
from benchmarks.load.figures import Slot
from benchmarks.load.subjects import Subject, Target

# Those that carry thousands of requests a second; the others would only wait for their own queues.
OURS = ["edge", "edge-library-node", "edge-grpcio"]
FAST = ["direct", "haproxy-bare", "haproxy-same-work", "nginx", *OURS]
ALL = ["direct", "haproxy-bare", "haproxy-same-work", "nginx", "litellm", "portkey", *OURS]

# What the slowest subject carries with something to spare, so that all of them can be compared at one rate.
COMMON_RATE = 25
STREAM_SECONDS = 2.0

Scenario = Callable[[Bench], Awaitable[Result]]


async def steady(
    bench: Bench,
    title: str,
    names: list[str],
    make: Callable[[Target], Load],
    unit: str = "request",
    seconds: float = SLOT_S,
) -> Result:
    """One load on each subject in turns."""
    result = Result(title, unit)

    async def slot(subject: Subject) -> Slot:
        return await measured(bench, subject, make(subject.wide), seconds, unit)

    await bench.turns(names, slot, result)
    return result


def closed_loop(connections: int, names: list[str]) -> Scenario:
    """Each of so many connections sends when its answer has ended."""
    title = f"{connections} connection{'s' if connections > 1 else ''}, closed loop"
    return partial(steady, title=title, names=names, make=partial(closed, connections=connections))


def offered_rate(per_s: int, names: list[str], seconds: float = SLOT_S) -> Scenario:
    """So many requests a second on 128 connections, answered or not."""
    make = partial(offered, connections=128, per_s=per_s)
    title = f"{per_s} requests/s offered on 128 connections"
    return partial(steady, title=title, names=names, make=make, seconds=seconds)


def calm(scenario: Scenario, title: str) -> Scenario:
    """A scenario while the spinners rest, for its latencies; its CPU figures hold the waking of a virtual machine."""

    async def run(bench: Bench) -> Result:
        with bench.calm():
            result = await scenario(bench)
        result.title = title
        return result

    return run


def on_one_core(scenario: Scenario) -> Scenario:
    """A scenario with Edge and Node on the measured core, both."""

    async def run(bench: Bench) -> Result:
        with bench.together():
            result = await scenario(bench)
        result.title += ", Edge and Node on one core"
        return result

    return run


def paced_streams(number: int, every_ms: int, names: list[str]) -> Scenario:
    """So many streams at once."""
    make = partial(streams, connections=number, every=every_ms)
    title = f"{number} streams of {1000 // every_ms} chunks/s"
    return partial(steady, title=title, names=names, make=make, unit="chunk", seconds=STREAM_SECONDS)


async def mixed(bench: Bench) -> Result:
    """Short requests by a schedule beside long streams: neither may make the other wait."""
    result = Result("64 streams and 200 short requests/s at once", "chunk")

    async def slot(subject: Subject) -> Slot:
        long = streams(subject.wide, 64)
        short = offered(subject.wide, 64, 200)
        with quiet_collector():
            await asyncio.gather(long.open(), short.open())
            try:
                await asyncio.gather(long.start(), short.start())
                await asyncio.sleep(SETTLE_S)
                long.tally.reset()
                short.tally.reset()
                gauge = Gauge(bench, subject)
                await asyncio.sleep(bench.length(STREAM_SECONDS))
                figures = gauge.read(long, "chunk")
                short.settle()
                figures |= times("short_", short.tally.latencies)
                figures["errors"] += short.tally.errors
            finally:
                await asyncio.gather(long.close(), short.close())
        return figures

    await bench.turns(FAST, slot, result)
    return result


STEADY: dict[str, Scenario] = {
    "calm-1": calm(closed_loop(1, FAST), "1 connection, closed loop, spinners at rest"),
    "calm-1000": calm(offered_rate(1000, FAST, 2.0), "1000 requests/s on 128 connections, spinners at rest"),
    "calm-common": calm(offered_rate(COMMON_RATE, ALL, 3.0), f"{COMMON_RATE} requests/s, spinners at rest"),
    "closed-1": closed_loop(1, FAST),
    "closed-32": closed_loop(32, ALL),
    "closed-128": closed_loop(128, FAST),
    "closed-512": closed_loop(512, FAST),
    "offered-1000": offered_rate(1000, FAST),
    "offered-4000": offered_rate(4000, FAST),
    "new-connections": partial(
        steady, title="32 at a time, each on a new connection", names=FAST, make=partial(fresh, connections=32)
    ),
    "large-answers": partial(
        steady, title="answers of 64 KiB, 32 connections", names=FAST, make=partial(closed, connections=32, big=1)
    ),
    "uploads": partial(
        steady,
        title="request bodies of 1 MiB, 8 connections",
        names=FAST,
        make=partial(closed, connections=8, size=2**20),
    ),
    "streams-64": paced_streams(64, 20, FAST),
    "streams-256": paced_streams(256, 20, FAST),
    "streams-1000": on_one_core(paced_streams(1000, 20, FAST)),
    "streams-1000-slow": paced_streams(1000, 50, FAST),
    "mixed": mixed,
}
