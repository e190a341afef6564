"""Run simulated worlds: `python -m tests.sim.run --seeds N [--first S]`, or one with `--seed S [--trace]`."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from hashlib import sha256

from tests.sim.script import BEHAVIOURS, FAULTS
from tests.sim.world import Broken, World

# What a batch of some hundred worlds must have met, beside the faults that a script names.
MET = (
    "client_leaves_receiving",
    "client_leaves_queued",
    "client_leaves_dispatched",
    "client_leaves_streaming",
    "slow_client",
    "slow_cancel",
    "upstream_paused",
    "normalized_run",
    "refused_run",
    "ended_while_paused",
    "released_unconfirmed",
    "readmitted",
    "queued",
    "edge_drain_with_runs",
    "edge_drain_with_waiters",
    "outcome_whole",
    "outcome_cut",
    "outcome_left",
    "outcome_whole_queue_full",
    "outcome_whole_queue_timeout",
    "outcome_whole_unavailable",
    "outcome_whole_draining",
    "outcome_whole_overloaded",
    "outcome_whole_upstream_error",
    "outcome_whole_upstream_timeout",
    "log_registration_refused",
    "log_payload_pushed",
    "refresh_moved_waiters",
)


def fault_names() -> list[str]:
    """Everything that a batch must have met."""
    return [name for name, _ in FAULTS] + [name for name, _ in BEHAVIOURS if name != "ok"] + list(MET)


# So many worlds have met everything above; fewer may have missed something by chance.
ENOUGH_SEEDS = 200


def run_batch(first: int, count: int, *, until_broken: bool = False) -> tuple[Counter[str], float, list[Broken]]:
    """Run worlds of consecutive seeds; return what they met, their virtual seconds, and those that broke.

    `until_broken` ends the batch with the first one that did.
    """
    counts: Counter[str] = Counter()
    virtual_s = 0.0
    broken: list[Broken] = []
    for seed in range(first, first + count):
        world = World(seed)
        try:
            world.run()
        except Broken as error:
            broken.append(error)
        counts.update(world.counts)
        virtual_s += world.virtual_s
        if broken and until_broken:
            break
    return counts, virtual_s, broken


def run_one(seed: int, is_traced: bool) -> int:
    """Run one world and say how it went."""
    world = World(seed)
    code = 0
    error: Broken | None = None
    try:
        world.run()
    except Broken as broken:
        error = broken
        code = 1
    if is_traced:
        print("\n".join(world.trace))
    digest = sha256("\n".join(world.trace).encode()).hexdigest()
    print(f"seed {seed}: {len(world.trace)} events in {world.virtual_s:.3f} virtual s, sha256 {digest}")
    if error is not None:
        print(error, file=sys.stderr)
    return code


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Run simulated worlds of an Edge and its Nodes.")
    parser.add_argument("--seeds", type=int, default=100, help="how many worlds")
    parser.add_argument("--first", type=int, default=0, help="seed of the first")
    parser.add_argument("--until-broken", action="store_true", help="stop at the first world that breaks")
    parser.add_argument("--seed", type=int, help="run this one alone")
    parser.add_argument("--trace", action="store_true", help="print every event of the one world")
    options = parser.parse_args()
    if options.seed is not None:
        return run_one(options.seed, options.trace)
    began = time.perf_counter()
    counts, virtual_s, broken = run_batch(options.first, options.seeds, until_broken=options.until_broken)
    took_s = time.perf_counter() - began
    for name in fault_names():
        print(f"{name:<36} {counts[name]:>9,}")
    print(f"{options.seeds} worlds, {virtual_s:,.0f} virtual s in {took_s:,.1f} s: {virtual_s / took_s:,.0f} per s")
    for error in broken:
        print(error, file=sys.stderr)
    missed = [name for name in fault_names() if not counts[name]] if options.seeds >= ENOUGH_SEEDS else []
    if missed and not broken:
        print(f"never met: {', '.join(missed)}", file=sys.stderr)
        return 1
    print(f"{len(broken)} broken" if broken else "all in order")
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())
