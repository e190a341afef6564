"""Soak what the admission core takes and gives back: millions of operations, and memory stays where it was.

    python -m tests.soak.refs [PAIRS]

PAIRS (10 million) times submit and release; a tenth as often each of: wait and be granted, wait and be cancelled, drop
and be reclaimed, wait and time out. Before each, a tenth of it runs to fill free lists and arenas. Fails when a kind
leaves the process more than GROWTH_MAX larger, or with other than the references that there were.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

from iop_fast._core.admission import Admission, Plan, ProviderSpec

GROWTH_MAX = 1 << 20
PAGE = os.sysconf("SC_PAGE_SIZE")
SPECS = tuple(ProviderSpec(f"n{place % 2}", f"p{place}", 2, 1, 0, True, True, 1) for place in range(8))
PLAN = Plan(SPECS, {"m": tuple(spec[:2] for spec in SPECS), "one": (SPECS[0][:2],)}, 1000, 1000)


class Owner:
    """An owner that keeps what it last got."""

    got: Any = None

    def on_granted(self, lease: Any) -> None:
        self.got = lease

    def on_evicted(self, outcome: Any) -> None:
        self.got = outcome


class Soaked:
    """One admission and the operations on it; each leaves it as it found it."""

    def __init__(self) -> None:
        self.admission = Admission(PLAN)
        self.owner = Owner()
        self.now_ns = 1
        for node in ("n0", "n1"):
            self.admission.node_ready(1, node, 1, {})

    def pair(self, count: int) -> None:
        submit, release, owner, now_ns = self.admission.submit, self.admission.release, self.owner, self.now_ns
        for _ in range(count):
            release(now_ns, submit(now_ns, owner, "m", False, 1))

    def fill(self) -> list[Any]:
        """Take all slots of the model "one"."""
        return [self.admission.submit(self.now_ns, self.owner, "one", False, 1) for _ in range(SPECS[0].capacity)]

    def empty(self, leases: list[Any]) -> None:
        for lease in leases:
            self.admission.release(self.now_ns, lease)

    def grant(self, count: int) -> None:
        leases = self.fill()
        for _ in range(count):
            self.admission.submit(self.now_ns, self.owner, "one", False, 1)
            self.admission.release(self.now_ns, leases.pop())
            leases.append(self.owner.got)
        self.owner.got = None
        self.empty(leases)

    def cancel(self, count: int) -> None:
        leases = self.fill()
        for _ in range(count):
            waiter = self.admission.submit(self.now_ns, self.owner, "one", True, 1)
            self.admission.cancel(self.now_ns, waiter)
        self.empty(leases)

    def drop(self, count: int) -> None:
        for _ in range(count):
            self.admission.submit(self.now_ns, self.owner, "m", True, 1)
            self.admission.reclaim(self.now_ns)

    def time_out(self, count: int) -> None:
        leases = self.fill()
        for _ in range(count):
            self.admission.submit(self.now_ns, self.owner, "one", False, 1)
            self.now_ns += PLAN.queue_timeout_ns
            self.admission.tick(self.now_ns)
        self.empty(leases)


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def soak(name: str, work: Callable[[int], None], owner: Owner, count: int) -> bool:
    """Run one kind; returns whether memory and references stayed."""
    work(count // 10)
    gc.collect()
    size, references, begun = resident(), sys.getrefcount(owner), perf_counter()
    work(count)
    gc.collect()
    growth, spent = resident() - size, perf_counter() - begun
    owned = sys.getrefcount(owner) - references
    is_fine = growth <= GROWTH_MAX and owned == 0
    print(
        f"{name:9} {count:10} times  {spent * 1e9 / count:6.0f} ns each  memory {growth / 1024:+8.0f} KiB  "
        f"references {owned:+d}{'' if is_fine else '  LEAKS'}",
        flush=True,
    )
    return is_fine


def main(arguments: list[str]) -> int:
    count = int(arguments[0]) if arguments else 10_000_000
    world = Soaked()
    kinds = {
        "pair": (world.pair, count),
        "grant": (world.grant, count // 10),
        "cancel": (world.cancel, count // 10),
        "drop": (world.drop, count // 10),
        "time out": (world.time_out, count // 10),
    }
    kept = [soak(name, work, world.owner, times) for name, (work, times) in kinds.items()]
    world.admission.verify()
    assert all(row.in_flight == 0 for row in world.admission.snapshot()), "a slot is still taken"
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
