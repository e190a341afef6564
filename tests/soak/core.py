"""Soak the admission core: random steps from one seed against the plain-Python model, in worlds of a few hundred steps.

    python -m tests.soak.core [STEPS] [SEED]

The seed is printed first and repeats the run exactly; on a difference the world's seed and its last steps are printed.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter

from iop_fast._core.admission import Admission
from tests.model.admission_model import ModelAdmission
from tests.model.random_steps import random_plan, random_step
from tests.model.world import Step, World, compare

WORLD_STEPS = 400


def run_world(seed: int, count: int) -> Counter[str]:
    """Run one world of `count` steps; returns what was seen, by kind."""
    draw = random.Random(seed)
    plan = random_plan(draw)
    real = World(Admission(plan, verify=True), plan)
    model = World(ModelAdmission(plan), plan)
    steps: list[Step] = []
    seen: Counter[str] = Counter()
    try:
        for _ in range(count):
            steps.append(random_step(draw, model))
            real.apply(steps[-1])
            model.apply(steps[-1])
            compare(real, model)
            seen.update(event[0] for event in model.log)
            real.log.clear()
            model.log.clear()
    except BaseException:
        print(f"world seed {seed}, plan {plan}", file=sys.stderr)
        for place, step in enumerate(steps):
            print(f"{place:4} {step}", file=sys.stderr)
        raise
    seen.update({f"ended {name}": value for name, value in real.admission.counters().items()})
    return seen


def main(arguments: list[str]) -> int:
    count = int(arguments[0]) if arguments else 20_000
    seed = int(arguments[1]) if len(arguments) > 1 else time.time_ns() & 0xFFFFFFFF
    print(f"soak of the core: {count} steps, seed {seed}", flush=True)
    seen: Counter[str] = Counter()
    for world in range(-(-count // WORLD_STEPS)):
        seen += run_world(seed * 1_000_003 + world, min(WORLD_STEPS, count - world * WORLD_STEPS))
    for name, value in sorted(seen.items()):
        print(f"  {name:28} {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
