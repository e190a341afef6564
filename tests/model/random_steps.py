"""Random steps for a world of a few Nodes, providers and models, drawn from one generator."""

from __future__ import annotations

import random

from iop_fast._core.admission import Plan, ProviderSpec
from tests.model.world import SCRIPTS, Step, World

NODES = ("n1", "n2", "n3", "n4")
KEYS = tuple((NODES[place % 4], f"p{place}") for place in range(9))
MODELS = ("a", "b", "c", "d")


def random_spec(draw: random.Random, key: tuple[str, str]) -> ProviderSpec:
    return ProviderSpec(
        *key,
        capacity=draw.choice((0, 1, 1, 2, 3)),
        long_capacity=draw.choice((0, 0, 0, 1, 2)),
        priority=draw.choice((-1, 0, 0, 1)),
        enabled=draw.random() < 0.93,
        healthy=draw.random() < 0.93,
        can=draw.choice((0, 1, 3, 3, 7, 7, 7)),
    )


def random_plan(draw: random.Random) -> Plan:
    keys = draw.sample(KEYS, draw.randint(3, len(KEYS)))
    names = draw.sample(MODELS, draw.randint(2, len(MODELS)))
    return Plan(
        tuple(random_spec(draw, key) for key in keys),
        {name: tuple(draw.sample(keys, draw.randint(1, len(keys)))) for name in names},
        draw.choice((1, 3, 8, 20, 20)),
        draw.choice((0, 0, 15, 100, 2_000_000_000)),
    )


def changed_plan(draw: random.Random, plan: Plan) -> Plan:
    """A plan near another one, sharing most of its objects."""
    kind = draw.random()
    if kind < 0.08:
        return random_plan(draw)
    if kind < 0.3:
        return plan
    if kind < 0.45:
        return plan._replace(max_queue=draw.choice((0, 2, 8, 20)), queue_timeout_ns=draw.choice((0, 5, 40, 200)))
    providers = list(plan.providers)
    place = draw.randrange(len(providers))
    providers[place] = random_spec(draw, providers[place][:2])
    return plan._replace(providers=tuple(providers))


def random_step(draw: random.Random, world: World) -> Step:
    """One step that makes sense in `world` or is refused there."""
    node = draw.choice(NODES)
    generation = world.generations.get(node, 0)
    stale = generation + draw.choice((0, 0, 0, 0, -1, 1))
    healthy = {key[1]: draw.random() < 0.85 for key in draw.sample(KEYS, draw.randint(0, 4))}
    script = draw.choice(SCRIPTS) if draw.random() < 0.25 else "keep"
    number = draw.randrange(max(0, len(world.requests) - 40), len(world.requests)) if world.requests else None
    steps: list[tuple[float, Step]] = [
        (
            45,
            (
                "submit",
                draw.choice(list(world.plan.models) if draw.random() < 0.95 else MODELS),
                draw.random() < 0.3,
                draw.choice((0, 0, 1, 1, 2, 5)),
                script,
            ),
        ),
        (8, ("advance", draw.choice((1, 1, 2, 5, 30, 400_000_000)))),
        (3, ("tick",)),
        (2, ("reclaim",)),
        (0.1, ("drain",)),
        (4, ("reconfigure", changed_plan(draw, world.plan))),
        (6, ("node_ready", node, generation + draw.choice((1, 1, 1, 0, -1)), healthy)),
        (0.5, ("node_draining", node, stale)),
        (1, ("node_down", node, stale)),
        (2.5, ("health", node, stale, healthy)),
    ]
    if number is not None:
        steps += [
            (18, ("release", number)),
            (6, ("cancel", number)),
            (3, ("drop", number)),
            (6, ("readmit", number, script)),
        ]
    return draw.choices([step for _, step in steps], [weight for weight, _ in steps])[0]
