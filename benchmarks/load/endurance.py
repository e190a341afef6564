"""What is held: memory of an idle gateway, of a stream, of a waiter; and whether anything grows under churn."""

from __future__ import annotations

import asyncio
import random
import time

from benchmarks.load import proc
from benchmarks.load.bench import Bench, Result, closed, fresh, offered, streams
from benchmarks.load.clients import Load, StreamLoad
from benchmarks.load.figures import Slot, gauge_of, slope
from benchmarks.load.fleet import Fleet
from benchmarks.load.strained import until_idle
from benchmarks.load.subjects import LINE, Subject

STREAMS = 1000
WAITERS = 1000
HOLD_S = 2.0
SAMPLE_S = 1.0
# Memory is still being found in the first part of a soak; the slope is that of the rest.
WARM_SHARE = 0.4
SLOPE_MINUTES_MIN = 0.5
CHURN_STREAMS = 64
LEAVE_S = 0.2
SEED = 20240229


async def memory(bench: Bench) -> Result:
    """Resident memory: at rest before any load, with idle connections, with open streams, with waiters."""
    result = Result("resident memory", "process")
    for name in ("haproxy-bare", "nginx", "litellm", "portkey", "edge"):
        subject = bench.subjects.get(name)
        if subject is None:
            continue
        try:
            result.subjects[name] = await held_memory(bench, subject)
        except (OSError, TimeoutError) as why:
            result.missing[name] = f"{type(why).__name__}: {why}"
    return result


async def held_memory(bench: Bench, subject: Subject) -> Slot:
    """Figures of one subject."""
    figures: Slot = {"rss_before_mib": subject.rss() / 2**20}
    if subject.pids("node"):
        figures["node_rss_before_mib"] = subject.rss("node") / 2**20
    number = 100 if subject.name in ("litellm", "portkey") else STREAMS
    figures |= await grown_kib(subject, streams(subject.wide, number, every=500, chunks=20), number, "stream")
    if isinstance(subject, Fleet):
        await until_idle(bench)
        figures |= await waiters_kib(bench, subject)
    figures["rss_after_mib"] = subject.rss() / 2**20
    return figures


async def grown_kib(subject: Subject, load: Load, number: int, what: str) -> Slot:
    """What each of so many things held costs in memory, over what gateway and Node had before."""
    roles = {role: prefix for role, prefix in (("gateway", ""), ("node", "node_")) if subject.pids(role)}
    before = {role: subject.rss(role) for role in roles}
    await load.open()
    try:
        await load.start()
        await asyncio.sleep(HOLD_S)
        grown = {role: subject.rss(role) - before[role] for role in roles}
        return {f"{prefix}rss_kib_{what}": grown[role] / number / 1024 for role, prefix in roles.items()}
    finally:
        await load.close()
        await asyncio.sleep(0.5)


async def waiters_kib(bench: Bench, fleet: Fleet) -> Slot:
    """Memory of a waiting request, its connection and 1 KiB of body included."""
    fleet.configure(line=2 * WAITERS)
    await asyncio.to_thread(fleet.refresh)
    load = StreamLoad(fleet.stalled.port, WAITERS, fleet.stalled.requests(streamed=True, stall=1))
    grown = await grown_kib(fleet, load, WAITERS, "waiter")
    await until_idle(bench)
    fleet.configure(line=LINE)
    await asyncio.to_thread(fleet.refresh)
    return grown


async def soak(bench: Bench) -> Result:
    """Everything at once for minutes, clients that leave included: memory, files and tasks must not grow."""
    fleet = bench.fleet
    minutes = bench.plan.soak_minutes
    result = Result(f"{minutes:g} minutes of churn", "soak")
    before = held(fleet)
    samples: list[tuple[float, Slot]] = []
    loads = [closed(fleet.narrow or fleet.wide, 16, wait=5), fresh(fleet.wide, 8), offered(fleet.wide, 32, 300)]
    leavers = Leavers(fleet)
    for load in loads:
        await load.open()
        await load.start()
    running = asyncio.ensure_future(leavers.run())
    began = time.monotonic()
    while (passed := time.monotonic() - began) < minutes * 60:
        await asyncio.sleep(SAMPLE_S)
        samples.append((passed / 60, {"rss": fleet.rss() / 1024, "node_rss": fleet.rss("node") / 1024}))
        for load in loads:
            load.tally.latencies = load.tally.latencies[:0]
    leavers.stop()
    await running
    requests = sum(load.tally.statuses.total() for load in loads) + leavers.left
    errors = sum(load.tally.errors for load in loads)
    for load in loads:
        await load.close()
    await until_idle(bench)
    await asyncio.sleep(5.0)  # upstream connections of the Node idle out after 4 s
    figures = soak_figures(before, held(fleet), samples, requests, errors)
    if minutes < SLOPE_MINUTES_MIN:  # of seconds a slope says nothing
        figures = {name: value for name, value in figures.items() if "slope" not in name}
    result.subjects["edge"] = figures
    return result


def held(fleet: Fleet) -> Slot:
    """What the processes hold."""
    return {
        "fds": float(proc.open_files(fleet.pids("gateway")[0])),
        "node_fds": float(proc.open_files(fleet.pids("node")[0])),
        "node_tasks": gauge_of(fleet.node_metrics(), "iop_node_tasks"),
        "faults": gauge_of(fleet.metrics(), "iop_faults_total"),
    }


def soak_figures(before: Slot, after: Slot, samples: list[tuple[float, Slot]], requests: int, errors: int) -> Slot:
    """Slopes of the later part of the samples, and what is held more than at the beginning."""
    later = samples[int(len(samples) * WARM_SHARE) :]
    figures = {f"{name}_grown": after[name] - value for name, value in before.items()}
    figures["rss_slope_kib_min"] = slope([(at, one["rss"]) for at, one in later])
    figures["node_rss_slope_kib_min"] = slope([(at, one["node_rss"]) for at, one in later])
    figures["rss_mib"] = later[-1][1]["rss"] / 1024
    figures |= {"requests": float(requests), "errors": float(errors)}
    return figures


class Leavers:
    """Streams whose clients go away in the middle, over and over."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._random = random.Random(SEED)
        self._stopping = False
        self.left = 0

    async def run(self) -> None:
        """Open streams, leave them after a while, again."""
        while not self._stopping:
            number = self._random.randrange(1, CHURN_STREAMS)
            load = streams(self._fleet.wide, number)
            await load.open()
            await load.start()
            await asyncio.sleep(LEAVE_S * self._random.random())
            await load.close()
            self.left += number

    def stop(self) -> None:
        """Let the streams that run be the last."""
        self._stopping = True


ENDURANCE = {"memory": memory, "soak": soak}
