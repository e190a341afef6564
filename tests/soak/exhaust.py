"""Walk a small world of the admission core exhaustively: every interleaving of a few kinds of steps, breadth first.

    python -m tests.soak.exhaust [DEPTH]

Two Nodes, three providers, two models, a timeout of three ticks and three plans. From each state that was not met
before, every step is taken in the core and in the model and all that can be seen is compared; and from each, when all
that is held is released, every waiter ends. Two paths lead to the same state when nothing that may ever matter differs:
who holds and waits where and in which order, what is left of each deadline, the order of last grants, links, health,
plan. Absolute times and numbers of requests do not.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from iop_fast._core.admission import Admission, Plan, ProviderSpec
from tests.model.admission_model import ModelAdmission
from tests.model.world import Request, Step, World, compare

P1 = ProviderSpec("n1", "p1", 1, 0, 0, True, True, 1)
P2 = ProviderSpec("n1", "p2", 1, 1, 0, True, True, 1)
P3 = ProviderSpec("n2", "p3", 1, 0, 1, True, True, 1)
MODELS = {"a": (P1[:2], P2[:2], P3[:2]), "b": (P2[:2],)}
PLANS = (
    Plan((P1, P2, P3), MODELS, 2, 3),
    Plan((P1, P2._replace(capacity=2), P3._replace(enabled=False)), MODELS, 1, 0),
    Plan((P1._replace(capacity=0), P2._replace(long_capacity=0), P3), {"a": MODELS["a"]}, 3, 2),
)


def held(world: World) -> list[Request]:
    return [request for request in world.requests if request.lease is not None and request.lease.is_held]


def waiting(world: World) -> list[Request]:
    return [request for request in world.requests if request.waiter is not None and request.waiter.is_waiting]


def ended(world: World) -> list[Request]:
    """The last request whose lease has ended and was not re-admitted."""
    again = [r for r in world.requests if r.lease is not None and not r.lease.is_held and not r.lease.was_readmitted]
    return again[-1:]


def steps(world: World) -> Iterator[tuple[Step, ...]]:
    """Every step that may be taken in a model's world; a tuple of steps is taken as one."""
    yield (("submit", "a", False, 1, "keep"),)
    yield (("submit", "a", True, 1, "keep"),)
    yield (("submit", "b", False, 1, "release"),)
    yield (("advance", 1), ("tick",))
    for number, plan in enumerate(PLANS):
        if plan is not world.plan or number == 0:
            yield (("reconfigure", plan),)
    for request in held(world)[:2]:
        yield (("release", request.number),)
    for request in held(world)[:1]:
        yield (("drop", request.number), ("reclaim",))
    for request in waiting(world):
        yield (("cancel", request.number),)
    for request in ended(world):
        yield (("readmit", request.number, "keep"),)
    for node in ("n1", "n2"):
        generation = world.generations.get(node, 0)
        if world.admission.link(node) == "offline":
            yield (("node_ready", node, generation + 1, {}),)
        else:
            yield (("node_down", node, generation),)
    yield (("node_draining", "n1", world.generations.get("n1", 0)),)
    yield (("health", "n1", world.generations.get("n1", 0), {"p2": not world.admission.healthy.get(P2[:2])}),)


def digest(world: World) -> Any:
    """All of a model's state that may ever matter, without absolute times and numbers."""
    model: ModelAdmission = world.admission
    timed = model.plan.queue_timeout_ns > 0 or any(plan.queue_timeout_ns for plan in PLANS)

    def age(enqueued_at_ns: int) -> int:
        return min(4, model.now_ns - enqueued_at_ns) if timed else 0  # no timeout is longer than three

    places = sorted(
        {request.lease.sequence for request in held(world) + ended(world)}
        | {waiter.sequence for waiter in model.queued}
    )
    grants = sorted(model.last_grant.values())
    return (
        PLANS.index(world.plan),
        tuple(sorted((node, state.link) for node, state in model.nodes.items())),
        tuple(sorted(model.healthy.items())),
        tuple(sorted((key, grants.index(grant)) for key, grant in model.last_grant.items())),
        tuple(
            (
                r.lease.key,
                r.lease.took_long,
                r.lease.is_long,
                places.index(r.lease.sequence),
                age(r.lease.enqueued_at_ns),
            )
            for r in held(world) + ended(world)
        ),
        tuple(
            (w.model, w.is_long, w.excluded, places.index(w.sequence), age(w.enqueued_at_ns), w.is_readmitted, r.script)
            for r in waiting(world)
            for w in (r.waiter,)
        ),
    )


def replay(path: tuple[Step, ...]) -> tuple[World, World]:
    real = World(Admission(PLANS[0], verify=True), PLANS[0])
    model = World(ModelAdmission(PLANS[0]), PLANS[0])
    for step in path:
        real.apply(step)
        model.apply(step)
    return real, model


def run_out(real: World, model: World) -> None:
    """Release all that is held until nobody waits: every waiter ends, and the same way in both."""
    for _ in range(len(model.requests)):
        if not waiting(model):
            break
        for request in held(model):
            for world in (real, model):
                world.apply(("release", request.number))
    assert not waiting(model), "a waiter never ends"
    compare(real, model)


def main(arguments: list[str]) -> int:
    depth = int(arguments[0]) if arguments else 6
    frontier: list[tuple[Step, ...]] = [(("node_ready", "n1", 1, {}), ("node_ready", "n2", 1, {}))]
    known = {digest(replay(frontier[0])[1])}
    transitions = 0
    for level in range(1, depth + 1):
        reached: list[tuple[Step, ...]] = []
        for path in frontier:
            for step in list(steps(replay(path)[1])):
                real, model = replay(path + step)
                transitions += 1
                try:
                    compare(real, model)
                except AssertionError:
                    print(f"after {path + step}", file=sys.stderr)
                    raise
                state = digest(model)
                if state not in known:
                    known.add(state)
                    reached.append(path + step)
                    run_out(real, model)
        frontier = reached
        print(f"depth {level}: {len(known)} states, {transitions} transitions, all alike", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
