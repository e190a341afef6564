"""A gateway under strain: a line that is always full, ten times too much, refreshes, a pool that stalls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from itertools import count

from benchmarks.load.bench import (
    SLOT_S,
    Bench,
    Result,
    Slots,
    closed,
    measured,
    offered,
    times,
)
from benchmarks.load.clients import ClosedLoad, Load, StreamLoad
from benchmarks.load.figures import Slot, order_kept
from benchmarks.load.pacing import now_ns
from benchmarks.load.subjects import LINE, SLOTS, Subject, Target

WAIT_MS = 20
# What a narrow target can serve by its slots alone.
PEAK_PER_S = SLOTS * 1000 / WAIT_MS
WAITING = 40
# Requests sent so close to each other may swap: they travel on connections of their own, on both sides.
ORDER_SLACK_NS = 5_000_000
OVERLOAD = 10
# A slot holds a line several times over.
FULL_S = 2.0
OVERLOAD_S = 3.0
# Those that have a line, and those that refuse at once what does not fit.
LINED = ["haproxy-same-work", "litellm", "edge"]
REFUSING = ["haproxy-same-work", "nginx", "edge"]
# Numbers that a slot may use.
A_SLOT = 1_000_000


async def capacity_bound(bench: Bench) -> Result:
    """A line that never empties: throughput beside what the slots allow, and whether service keeps the order.

    What they allow is what as many connections get from the upstream itself in the same round (`direct`).
    """
    result = Result(f"{SLOTS} slots of {WAIT_MS} ms, {SLOTS + WAITING} connections: the line is never empty", "request")
    slots = count()
    peak_per_s = PEAK_PER_S

    async def slot(subject: Subject) -> Slot:
        nonlocal peak_per_s
        if subject is bench.upstream:
            figures = await measured(bench, subject, closed(subject.wide, SLOTS, wait=WAIT_MS), FULL_S, "request")
            peak_per_s = figures["answers_per_s"]
            return figures
        assert subject.narrow is not None
        sent: dict[int, int] = {}
        load = ClosedLoad(subject.narrow.port, SLOTS + WAITING, noting(subject.narrow, sent, next(slots) * A_SLOT))
        figures = await measured(bench, subject, load, FULL_S, "request")
        served = [
            number for number in await served_order(bench) if number in sent
        ]  # some of the slot before it came late
        order = order_kept(sent, served, ORDER_SLACK_NS)
        figures |= {"overtaken": float(order.overtaken), "overtaken_worst_ms": order.worst_ns / 1e6}
        figures["of_peak"] = figures["answers_per_s"] / peak_per_s
        return figures

    await bench.turns(["direct", *LINED], slot, result)
    result.missing |= {name: one.note for name, one in bench.subjects.items() if not one.has_line and one.note}
    return result


def noting(target: Target, sent: dict[int, int], first: int) -> Callable[[int], bytes]:
    """Requests that carry a number of their own, from `first` on, and a note of when each was made."""

    def request(number: int) -> bytes:
        content = target.request(n=first + number, wait=WAIT_MS)
        sent[first + number] = now_ns()
        return content

    return request


async def served_order(bench: Bench) -> list[int]:
    """Ask the upstream in which order it saw numbered requests; it forgets them."""
    reader, writer = await asyncio.open_connection("127.0.0.1", bench.upstream.wide.port, limit=2**24)
    try:
        writer.write(b"GET /order HTTP/1.1\r\nHost: a\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        return [int(number) for number in (await reader.readexactly(length)).split()]
    finally:
        writer.close()
        await writer.wait_closed()


async def overload(bench: Bench) -> Result:
    """Ten times what the slots serve: what is served beside the peak, how fast the rest is refused, memory."""
    rate = OVERLOAD * PEAK_PER_S
    title = f"{rate:.0f} requests/s offered where {PEAK_PER_S:.0f} can be served"
    return await too_much(bench, title, lambda target: offered(target, 512, rate, wait=WAIT_MS))


async def retry_storm(bench: Bench) -> Result:
    """512 clients that ask again the moment they are refused: as much overload as the gateway's core can take."""
    title = f"512 clients that ask again at once where {SLOTS} are served and {LINE} may wait"
    return await too_much(bench, title, lambda target: closed(target, 512, wait=WAIT_MS))


async def too_much(bench: Bench, title: str, make: Callable[[Target], Load]) -> Result:
    """A load far beyond the slots, after one that just fills them."""
    result = Result(title, "request")
    result.missing |= {name: one.note for name, one in bench.subjects.items() if not one.refusal and one.note}
    first_rss: dict[str, int] = {}

    async def slot(subject: Subject) -> Slot:
        assert subject.narrow is not None
        first_rss.setdefault(subject.name, subject.rss())
        peak_load = closed(subject.narrow, 2 * SLOTS if subject.has_line else SLOTS, wait=WAIT_MS)
        peak = await measured(bench, subject, peak_load, SLOT_S, "request")
        load = make(subject.narrow)
        figures = await measured(bench, subject, load, OVERLOAD_S, "request")
        figures |= times("refused_", load.tally.refusals)
        figures["peak_per_s"] = peak["answers_per_s"]
        figures["goodput_of_peak"] = figures["answers_per_s"] / peak["answers_per_s"]
        figures["rss_grown_mib"] = (subject.rss() - first_rss[subject.name]) / 2**20
        figures["errors"] = float(load.tally.errors - load.tally.statuses[subject.refusal])
        return figures

    await bench.turns(REFUSING, slot, result)
    return result


async def refresh_storm(bench: Bench) -> Result:
    """Refreshes back to back that each change a provider's capacity, beside 1,000 requests/s; without them first."""
    result = Result("1000 requests/s offered while the configuration is refreshed without pause", "request")
    fleet = bench.fleet
    slots: Slots = {"edge": [], "edge, refreshed": []}
    for _ in range(bench.rounds):
        load = offered(fleet.wide, 128, 1000)
        slots["edge"].append(await measured(bench, fleet, load, FULL_S, "request"))
        storm = Storm(bench)
        load = offered(fleet.wide, 128, 1000)
        running = asyncio.ensure_future(storm.run())
        figures = await measured(bench, fleet, load, FULL_S, "request")
        storm.stop()
        await running
        slots["edge, refreshed"].append(figures | {"refreshes_per_s": storm.per_s()})
    result.take(slots)
    fleet.configure(capacity=8000)
    await asyncio.to_thread(fleet.refresh)
    return result


class Storm:
    """One refresh after the other, until stopped."""

    def __init__(self, bench: Bench) -> None:
        self._fleet = bench.fleet
        self._stopping = False
        self._applied = 0
        self._seconds = 0.0

    async def run(self) -> None:
        """Change the file, apply it, again."""
        began = now_ns()
        while not self._stopping:
            self._fleet.configure(capacity=7000 + (self._fleet.settings["capacity"] == 7000))
            report = await asyncio.to_thread(self._fleet.refresh)
            if report["status"] != "applied":
                raise RuntimeError(f"a refresh under load came out {report['status']}: {report}")
            self._applied += 1
        self._seconds = (now_ns() - began) / 1e9

    def stop(self) -> None:
        """Let the one that runs be the last."""
        self._stopping = True

    def per_s(self) -> float:
        """Refreshes applied a second."""
        return self._applied / self._seconds


async def pools(bench: Bench) -> Result:
    """A backend that stalls, with a line of its own, beside a healthy one that must not care."""
    result = Result("200 requests/s on a healthy pool, alone and beside one that stalls", "request")
    fleet = bench.fleet
    stalled, beside = fleet.stalled, fleet.beside
    slots: Slots = {"edge": [], "edge, one stalls": []}
    for _ in range(bench.rounds):
        slots["edge"].append(await beside_load(bench, beside))
        async with AsyncExitStack() as stack:
            hung = StreamLoad(stalled.port, LINE_OF_THE_STALLED, stalled.requests(streamed=True, stall=1))
            await hung.open()
            stack.push_async_callback(hung.close)
            await hung.start()
            figures = await beside_load(bench, beside)
            row = next(one for one in fleet.status()["providers"] if one["provider_id"] == "p4")["effective"]
            figures |= {"stalled_running": row["in_flight"], "stalled_waiting": row["queued"]}
            slots["edge, one stalls"].append(figures)
        await until_idle(bench)
    result.take(slots)
    return result


LINE_OF_THE_STALLED = 34


async def beside_load(bench: Bench, target: Target) -> Slot:
    """A healthy pool's own load."""
    return await measured(bench, bench.fleet, offered(target, 32, 200), FULL_S, "request")


async def until_idle(bench: Bench) -> None:
    """Wait until nothing runs or waits in the Edge."""
    for _ in range(200):
        if await asyncio.to_thread(bench.fleet.is_idle):
            return
        await asyncio.sleep(0.05)
    raise TimeoutError("requests still run or wait in the Edge 10 s after their clients have left")


STRAINED = {
    "capacity": capacity_bound,
    "overload": overload,
    "retry-storm": retry_storm,
    "refresh-storm": refresh_storm,
    "pools": pools,
}
