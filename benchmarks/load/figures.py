"""The arithmetic of the load runs: percentiles, medians over rounds, slopes, order. No clock, no sockets.

Times are nanoseconds where a name ends in `_ns`, else what the caller gives.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Slot = dict[str, float]
"""What one slot of one subject came to, by the name of the figure."""


def percentile(values: Sequence[float], share: float) -> float:
    """Give the smallest value that at least `share` of the values do not exceed (nearest rank); 0 for none."""
    if not 0 < share <= 1:
        raise ValueError(f"a share above 0 and up to 1 expected, got {share!r}")
    if not values:
        return 0.0
    ordered = sorted(values)
    return float(ordered[max(0, math.ceil(share * len(ordered) - 1e-9) - 1)])


def median(values: Sequence[float]) -> float:
    """Give the middle value, or the mean of the two middle ones; 0 for none."""
    if not values:
        return 0.0
    ordered = sorted(values)
    half = len(ordered) // 2
    return float(ordered[half]) if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def medians(slots: Sequence[Slot]) -> Slot:
    """Give the median of each figure over those slots that have it."""
    names = dict.fromkeys(name for slot in slots for name in slot)
    return {name: median([slot[name] for slot in slots if name in slot]) for name in names}


def spreads(slots: Sequence[Slot]) -> dict[str, list[float]]:
    """Give the smallest and largest value of each figure over the slots."""
    names = dict.fromkeys(name for slot in slots for name in slot)
    columns = {name: [slot[name] for slot in slots if name in slot] for name in names}
    return {name: [min(column), max(column)] for name, column in columns.items()}


def ratio(value: float | None, base: float | None) -> float | None:
    """Give value / base, or None where one of them is not to be had."""
    return None if value is None or not base else value / base


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Give the slope of the line of least squares through (x, y) points; 0 for fewer than two different x."""
    if not points:
        return 0.0
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0


# Above this share of its core the bench, not the gateway, bounds what is seen.
BENCH_BOUND = 0.95


def is_bench_bound(slot: Mapping[str, float]) -> bool:
    """True when the core of client, upstream and Node was full and the gateway's was not."""
    return slot.get("busy_rest", 0) > BENCH_BOUND and slot.get("busy_gateway", 1) < BENCH_BOUND


@dataclass(frozen=True)
class Order:
    """How far service kept the order in which requests were sent."""

    requests: int
    overtaken: int
    """Requests that had been waiting longer than the slack when a later one was served before them."""
    worst_ns: int
    """By how much the most overtaken request had been sent before one that was served earlier; 0 for none."""


def order_kept(sent_ns: Mapping[int, int], served: Sequence[int], slack_ns: int) -> Order:
    """Compare the order of service with that of sending.

    `sent_ns` says when each numbered request was sent, `served` names them in the order in which the upstream saw them.
    Requests sent within `slack_ns` of each other may swap: they travel on connections of their own.
    """
    overtaken = worst = 0
    latest = None
    for number in served:
        sent = sent_ns[number]
        if latest is None or sent >= latest:
            latest = sent
            continue
        worst = max(worst, latest - sent)
        overtaken += latest - sent > slack_ns
    return Order(len(served), overtaken, worst)


class GapGauge:
    """What a gateway adds to the time between two chunks of one stream.

    The upstream stamps each chunk with the time of its write. A chunk's added gap is how much further apart it and its
    predecessor arrived than they were sent, 0 if they came closer together. Chunks that share a read arrived together,
    so that a gateway which bundles them pays with the wait of the first.
    """

    __slots__ = ("_came_ns", "_sent_ns")

    def __init__(self) -> None:
        self._sent_ns = self._came_ns = 0

    def begin(self) -> None:
        """Begin a stream: its first chunk has no predecessor."""
        self._sent_ns = 0

    def on_chunk(self, sent_ns: int, came_ns: int) -> int | None:
        """Take a chunk; return its added gap in ns, or None for the first of a stream."""
        added = None if not self._sent_ns else max(0, (came_ns - self._came_ns) - (sent_ns - self._sent_ns))
        self._sent_ns, self._came_ns = sent_ns, came_ns
        return added


def lateness_share(before: Mapping[float, float], after: Mapping[float, float], share: float) -> float:
    """Give the bound under which `share` of what a cumulative histogram counted between two readings lies.

    The keys are upper bounds, inf the last. 0 when nothing was counted, the largest finite bound when it was above.
    """
    counted = {bound: after[bound] - before.get(bound, 0.0) for bound in sorted(after)}
    total = counted[max(counted)] if counted else 0.0
    if not total:
        return 0.0
    finite = [bound for bound in counted if not math.isinf(bound)]
    wanted = share * total - 1e-9
    return next((bound for bound in finite if counted[bound] >= wanted), finite[-1] if finite else 0.0)


def histogram_of(text: str, family: str) -> dict[float, float]:
    """Read the cumulative buckets of a histogram without labels of its own from Prometheus text."""
    start = f'{family}_bucket{{le="'
    rows = (line[len(start) :].split('"} ') for line in text.splitlines() if line.startswith(start))
    return {float(bound.replace("+Inf", "inf")): float(count) for bound, count in rows}


def gauge_of(text: str, family: str) -> float:
    """Read the sum of all series of a gauge or counter from Prometheus text; 0 where there is none."""
    rows = [line for line in text.splitlines() if line.startswith((f"{family} ", f"{family}{{"))]
    return sum(float(line.rpartition(" ")[2]) for line in rows)
