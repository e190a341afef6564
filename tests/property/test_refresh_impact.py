"""What a dry run foretells is what the apply does: to those who run, to those who wait, and to nothing else."""

from __future__ import annotations

from random import Random
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from iop_fast._core.admission import Outcome
from iop_fast._core.ledger import Lease
from iop_fast._core.wait_queue import Waiter
from iop_fast.config.catalog import build_catalog
from iop_fast.config.loader import load_edge_text
from iop_fast.config.payload import compile_payloads
from iop_fast.edge.gate import NS_PER_MS, Gate
from iop_fast.edge.needs import SURFACE_CHAT
from iop_fast.edge.refresh import impact_of
from iop_fast.edge.refresh_plan import StepTimes, plan_refresh
from iop_fast.edge.refresh_report import Impact, Status
from iop_fast.edge.runtime import Runtime
from iop_fast.edge.state import EdgeState
from tests.unit.edge.exchange_world import FakeLinks
from tests.unit.edge.refresh.refresh_world import node_of, provider_of
from tests.unit.edge.worlds import VirtualLoop

PROVIDERS = ("p1", "p2", "p3")
MODELS = ("a", "b", "c")


def provider(draw: Random, name: str, is_first: bool) -> dict[str, Any]:
    """A provider; at first small and up, so that requests wait, afterwards anything."""
    if is_first:
        return provider_of(name, capacity=draw.randint(1, 2), long_context_capacity=draw.randint(0, 1), health="up")
    return provider_of(
        name,
        capacity=draw.randint(0, 6),
        long_context_capacity=draw.choice((0, 0, 1, 2)),
        priority=draw.randint(-1, 1),
        enabled=draw.random() < 0.8,
        health=draw.choice(("up", "up", "up", "auto", "down")),
    )


def file_of(draw: Random, is_first: bool) -> dict[str, Any]:
    """A file; all of them differ in live keys and order alone."""
    made = [provider(draw, name, is_first) for name in PROVIDERS]
    models = draw.sample(MODELS, len(MODELS) if is_first else draw.randint(2, len(MODELS)))
    nodes = [node_of("n1", *made[:2]), node_of("n2", made[2])]
    timeouts_ms = (0, 500) if is_first else (0, 15, 30, 500)
    return {
        "provider_pool": {"max_queue": draw.randint(6, 20), "queue_timeout_ms": draw.choice(timeouts_ms)},
        "models": [
            {"id": name, "providers": dict.fromkeys(draw.sample(PROVIDERS, draw.randint(1, 3)), "served")}
            for name in models
        ],
        "nodes": draw.sample(nodes, 2),
    }


class Caller:
    """A request that keeps its lease."""

    def __init__(self) -> None:
        self.got: Lease | Outcome | Waiter | None = None

    def on_granted(self, lease: Lease) -> None:
        self.got = lease

    def on_evicted(self, outcome: Outcome) -> None:
        self.got = outcome


def load(settings: dict[str, Any]) -> Runtime:
    loaded = load_edge_text(yaml.safe_dump(settings), "f")
    config = loaded.config
    return Runtime.build(config, build_catalog(config), compile_payloads(config), file_sha256=loaded.sha256)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32))
def test_the_impact_of_a_dry_run_is_what_the_apply_does(seed: int) -> None:
    draw = Random(seed)
    before, after = file_of(draw, True), file_of(draw, False)
    online = draw.choice((["n1", "n2"], ["n1", "n2"], ["n1"], ["n2"]))
    reported = {name: draw.random() < 0.8 for name in PROVIDERS}

    def is_up(key: tuple[str, str]) -> bool:
        return key[0] in online and reported[key[1]]

    with VirtualLoop() as loop:
        runtime = load(before)
        gate = Gate(runtime.plan(is_up), loop.clock, loop, verify=True)
        edge = EdgeState(runtime, gate, FakeLinks(), loop.clock, Random(1))
        for node_id in online:
            gate.node_ready(node_id, 1, {})
        callers = play(draw, gate, loop)
        waiting = [caller for caller in callers if isinstance(caller.got, Waiter)]
        planned = plan_refresh(runtime, "f", yaml.safe_dump(after), None, StepTimes())
        assert planned.status in (Status.APPLIED, Status.NO_CHANGE)
        assert planned.runtime is not None
        plan = planned.runtime.plan(is_up)
        seen = gate.snapshot(), gate.counters(), gate.waiting
        foretold = impact_of(gate, plan)
        assert (gate.snapshot(), gate.counters(), gate.waiting) == seen
        edge.commit(planned.runtime, plan)
        rows = gate.snapshot()
        assert foretold == Impact(
            leases_above_capacity=sum(max(0, row.in_flight - row.capacity) for row in rows),
            long_leases_above_capacity=sum(max(0, row.long_in_flight - row.long_capacity) for row in rows),
            waiters_granted=sum(isinstance(caller.got, Lease) for caller in waiting),
            waiters_evicted_timeout=sum(caller.got is Outcome.EVICTED_TIMEOUT for caller in waiting),
            waiters_evicted_unavailable=sum(caller.got is Outcome.EVICTED_UNAVAILABLE for caller in waiting),
        )
        again = plan_refresh(edge.runtime, "f", yaml.safe_dump(after), None, StepTimes())
        assert again.status is Status.NO_CHANGE
        assert again.runtime is not None
        assert impact_of(gate, again.runtime.plan(is_up)).waiters_granted == 0
        gate.close()


def play(draw: Random, gate: Gate, loop: VirtualLoop) -> list[Caller]:
    """Requests come and end, time passes."""
    callers: list[Caller] = []
    for _ in range(draw.randint(10, 40)):
        kind = draw.choice(("submit", "submit", "submit", "pass", "release"))
        if kind == "pass":
            loop.clock.advance_to(loop.clock.now_ns() + draw.randint(1, 10) * NS_PER_MS)
        elif kind == "submit":
            caller = Caller()
            result = gate.submit(caller, draw.choice(MODELS), draw.random() < 0.3, SURFACE_CHAT)
            caller.got = result if caller.got is None else caller.got
            callers.append(caller)
        else:
            running = [caller.got for caller in callers if isinstance(caller.got, Lease) and caller.got.is_held]
            if running:
                gate.release(draw.choice(running))
    return callers
