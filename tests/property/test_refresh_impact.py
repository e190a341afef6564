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

providers = st.fixed_dictionaries(
    {
        "capacity": st.integers(0, 3),
        "long_context_capacity": st.sampled_from((0, 0, 1, 2)),
        "priority": st.integers(-1, 1),
        "enabled": st.sampled_from((True, True, True, False)),
        "health": st.sampled_from(("auto", "auto", "up", "down")),
    }
)


@st.composite
def files(draw: st.DrawFn, names: tuple[str, ...] | None = None) -> dict[str, Any]:
    """A file; all of them differ in live keys and order alone."""
    made = [provider_of(name, **draw(providers)) for name in PROVIDERS]
    known = names if names is not None else draw(st.lists(st.sampled_from(MODELS), min_size=1, unique=True))
    mappings = st.lists(st.sampled_from(PROVIDERS), min_size=1, unique=True)
    return {
        "provider_pool": {
            "max_queue": draw(st.integers(1, 8)),
            "queue_timeout_ms": draw(st.sampled_from((0, 5, 20, 50))),
        },
        "models": [{"id": name, "providers": dict.fromkeys(draw(mappings), "served")} for name in known],
        "nodes": draw(st.permutations([node_of("n1", *made[:2]), node_of("n2", made[2])])),
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


steps = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.sampled_from(MODELS), st.booleans()),
        st.tuples(st.just("submit"), st.sampled_from(MODELS), st.booleans()),
        st.tuples(st.just("pass"), st.integers(1, 10), st.none()),
        st.tuples(st.just("release"), st.integers(0, 20), st.none()),
    ),
    max_size=25,
)


@settings(max_examples=80, deadline=None)
@given(
    before=files(MODELS),
    after=files(),
    reported=st.dictionaries(st.sampled_from(PROVIDERS), st.booleans()),
    online=st.sets(st.sampled_from(("n1", "n2")), min_size=1).map(sorted),
    steps=steps,
)
def test_the_impact_of_a_dry_run_is_what_the_apply_does(
    before: dict[str, Any], after: dict[str, Any], reported: dict[str, bool], online: list[str], steps: list[Any]
) -> None:
    def is_up(key: tuple[str, str]) -> bool:
        return key[0] in online and reported.get(key[1], True)

    with VirtualLoop() as loop:
        runtime = load(before)
        gate = Gate(runtime.plan(is_up), loop.clock, loop, verify=True)
        edge = EdgeState(runtime, gate, FakeLinks(), loop.clock, Random(1))
        for node_id in online:
            gate.node_ready(node_id, 1, {})
        callers = play(gate, loop, steps)
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


def play(gate: Gate, loop: VirtualLoop, steps: list[Any]) -> list[Caller]:
    """Requests come and end, time passes."""
    callers: list[Caller] = []
    for kind, what, is_long in steps:
        if kind == "pass":
            loop.clock.advance_to(loop.clock.now_ns() + what * NS_PER_MS)
        elif kind == "submit":
            caller = Caller()
            result = gate.submit(caller, what, is_long, SURFACE_CHAT)
            caller.got = result if caller.got is None else caller.got
            callers.append(caller)
        else:
            running = [caller.got for caller in callers if isinstance(caller.got, Lease) and caller.got.is_held]
            if running:
                gate.release(running[what % len(running)])
    return callers
