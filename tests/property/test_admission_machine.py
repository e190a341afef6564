"""Hypothesis drives the compiled core and the plain-Python model with the same steps and compares all that is seen."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from iop_fast._core.admission import Admission, Plan, ProviderSpec
from tests.model.admission_model import ModelAdmission
from tests.model.world import SCRIPTS, World, compare

NODES = ("n1", "n2", "n3")
KEYS = (("n1", "p1"), ("n1", "p2"), ("n2", "p3"), ("n2", "p4"), ("n3", "p5"))
MODELS = ("a", "b", "c")

specs = {
    key: st.builds(
        ProviderSpec,
        node_id=st.just(key[0]),
        provider_id=st.just(key[1]),
        capacity=st.integers(0, 3),
        long_capacity=st.sampled_from((0, 0, 1, 2)),
        priority=st.integers(-1, 1),
        enabled=st.sampled_from((True, True, True, False)),
        healthy=st.sampled_from((True, True, True, False)),
        can=st.sampled_from((0, 1, 3, 3)),
    )
    for key in KEYS
}


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    keys = draw(st.lists(st.sampled_from(KEYS), min_size=1, unique=True))
    mappings = st.lists(st.sampled_from(keys), min_size=1, unique=True).map(draw(st.sampled_from((tuple, list))))
    return Plan(
        providers=tuple(draw(specs[key]) for key in keys),
        models=draw(st.dictionaries(st.sampled_from(MODELS), mappings, min_size=1)),
        max_queue=draw(st.integers(0, 5)),
        queue_timeout_ns=draw(st.sampled_from((0, 5, 20))),
    )


healths = st.dictionaries(st.sampled_from([key[1] for key in KEYS]), st.booleans(), max_size=3)
scripts = st.one_of(st.just("keep"), st.sampled_from(SCRIPTS))


class AdmissionMachine(RuleBasedStateMachine):
    """Two worlds, one core and one model, under the same steps."""

    @initialize(plan=plans(), ready=st.sets(st.sampled_from(NODES), min_size=1).map(sorted))
    def start(self, plan: Plan, ready: list[str]) -> None:
        self.real = World(Admission(plan, verify=True), plan)
        self.model = World(ModelAdmission(plan), plan)
        for node in ready:
            self.step("node_ready", node, 1, {})

    def step(self, *step: Any) -> None:
        self.real.apply(step)
        self.model.apply(step)

    def request(self, data: st.DataObject) -> int:
        return data.draw(st.integers(0, len(self.model.requests) - 1), label="request")

    def has_requests(self) -> bool:
        return bool(self.model.requests)

    def generation(self, node: str, offset: int) -> int:
        return self.model.generations.get(node, 0) + offset

    @rule(model=st.sampled_from(MODELS), long=st.booleans(), needs=st.integers(0, 2), script=scripts)
    def submit(self, model: str, long: bool, needs: int, script: str) -> None:
        self.step("submit", model, long, needs, script)

    @rule(model=st.sampled_from(MODELS), count=st.integers(2, 6), script=scripts)
    def submit_burst(self, model: str, count: int, script: str) -> None:
        for _ in range(count):
            self.step("submit", model, False, 0, script)

    @precondition(has_requests)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.step("release", self.request(data))

    @precondition(has_requests)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.step("cancel", self.request(data))

    @precondition(has_requests)
    @rule(data=st.data(), script=scripts)
    def readmit(self, data: st.DataObject, script: str) -> None:
        self.step("readmit", self.request(data), script)

    @precondition(has_requests)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        self.step("drop", self.request(data))

    @rule()
    def reclaim(self) -> None:
        self.step("reclaim")

    @rule(seconds=st.integers(1, 12))
    def advance_far(self, seconds: int) -> None:
        """Over the windows of the rate and the buckets of the histograms."""
        self.step("advance", seconds * 1_000_000_000)

    @rule(ns=st.integers(1, 8))
    def advance(self, ns: int) -> None:
        self.step("advance", ns)

    @rule()
    def tick(self) -> None:
        self.step("tick")

    @rule()
    def drain(self) -> None:
        self.step("drain")

    @rule(plan=plans())
    def reconfigure(self, plan: Plan) -> None:
        self.step("reconfigure", plan)

    @rule()
    def reconfigure_alike(self) -> None:
        """The same plan in the same objects; nothing but reported health may move."""
        self.step("reconfigure", self.model.plan)

    @rule(data=st.data())
    def reconfigure_one(self, data: st.DataObject) -> None:
        """One provider changes, all other objects are the ones of the plan before."""
        plan = self.model.plan
        place = data.draw(st.integers(0, len(plan.providers) - 1))
        providers = list(plan.providers)
        providers[place] = data.draw(specs[providers[place][:2]])
        self.step("reconfigure", plan._replace(providers=tuple(providers)))

    @rule(max_queue=st.integers(0, 5), timeout=st.sampled_from((0, 1, 5, 20)))
    def reconfigure_queue(self, max_queue: int, timeout: int) -> None:
        self.step("reconfigure", self.model.plan._replace(max_queue=max_queue, queue_timeout_ns=timeout))

    @rule(data=st.data())
    def reconfigure_wrongly(self, data: st.DataObject) -> None:
        """A plan that names a provider twice, or one that is not there, is refused and changes nothing."""
        plan = self.model.plan
        wrong = data.draw(
            st.sampled_from(
                (
                    plan._replace(providers=(*plan.providers, plan.providers[0])),
                    plan._replace(models={**plan.models, "c": (("n9", "p9"),)}),
                    plan._replace(models={**plan.models, "c": (plan.providers[0][:2],) * 2}),
                    plan._replace(providers=plan.providers[1:]),
                )
            )
        )
        self.step("reconfigure", wrong)

    @rule(node=st.sampled_from(NODES), offset=st.sampled_from((1, 1, 1, 2, 0, -1)), healthy=healths)
    def node_ready(self, node: str, offset: int, healthy: dict[str, bool]) -> None:
        self.step("node_ready", node, self.generation(node, offset), healthy)

    @rule(node=st.sampled_from(NODES), offset=st.sampled_from((0, 0, 0, -1, 1)))
    def node_draining(self, node: str, offset: int) -> None:
        self.step("node_draining", node, self.generation(node, offset))

    @rule(node=st.sampled_from(NODES), offset=st.sampled_from((0, 0, 0, -1, 1)))
    def node_down(self, node: str, offset: int) -> None:
        self.step("node_down", node, self.generation(node, offset))

    @rule(node=st.sampled_from(NODES), offset=st.sampled_from((0, 0, 0, -1, 1)), healthy=healths)
    def health(self, node: str, offset: int, healthy: dict[str, bool]) -> None:
        self.step("health", node, self.generation(node, offset), healthy)

    @rule(plan=plans(), ns=st.integers(0, 8))
    def dry_run(self, plan: Plan, ns: int) -> None:
        """A step on a copy decides as the original would, and the original does not notice."""
        before = self.real.state()
        twin = self.real.admission.copy()
        reference = ModelAdmission(self.model.plan)
        reference.__dict__.update(copied_state(self.model.admission))
        for admission in (twin, reference):
            try:
                admission.reconfigure(self.model.now_ns + ns, plan)
            except ValueError:
                continue
        assert twin.counters() == reference.counters()
        assert twin.snapshot() == reference.snapshot()
        assert twin.model_outcomes() == reference.model_outcomes()
        assert twin.meters() == reference.meters()
        twin.drain(self.model.now_ns + ns)
        twin.verify()
        assert self.real.state() == before

    @invariant()
    def compare(self) -> None:
        if hasattr(self, "real"):
            compare(self.real, self.model)


class Deaf:
    """The owner of a waiter in a copy."""

    def on_granted(self, lease: Any) -> None:
        pass

    def on_evicted(self, outcome: Any) -> None:
        pass


def copied_state(model: ModelAdmission) -> dict[str, Any]:
    """The state of a model with nobody to call back."""
    state = dict(model.__dict__)
    state["counts"] = model.counts.copy()
    state["outcomes"] = {name: counts.copy() for name, counts in model.outcomes.items()}
    state["waits"] = list(model.waits)
    state["ends"] = list(model.ends)
    state["healthy"] = dict(model.healthy)
    state["last_grant"] = dict(model.last_grant)
    state["leases"] = list(model.leases)
    state["failures"] = []
    state["queued"] = [type(waiter)(**{**waiter.__dict__, "owner": Deaf()}) for waiter in model.queued]
    return state


AdmissionMachine.TestCase.settings = settings(deadline=None, stateful_step_count=50, print_blob=True)
TestAdmissionMachine = AdmissionMachine.TestCase
