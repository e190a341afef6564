"""A world around one admission, real or model: requests with scripted owners, and a log of all that can be seen.

The same steps applied to two worlds must give equal logs and equal states; `compare` says where they do not. Steps are
plain tuples, so a failing run can be printed and replayed:

    ("submit", model, long, needs, script)      ("readmit", request, script)
    ("release", request)   ("cancel", request)  ("drop", request)
    ("advance", ns)   ("tick",)   ("reclaim",)   ("drain",)
    ("reconfigure", plan)
    ("node_ready", node, generation, healthy)   ("health", node, generation, healthy)
    ("node_draining", node, generation)         ("node_down", node, generation)

A script is what the owner does inside its callback; see `SCRIPTS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from iop_fast._core.admission import Outcome, Plan

Step = tuple[Any, ...]

SCRIPTS = (
    "keep",
    "release",
    "raise",
    "raise_holding_nothing",
    "drop",
    "submit",
    "cancel_oldest",
    "release_oldest",
    "node_down",
    "widen",
    "readmit",
    "reclaim",
    "drain",
    "tick",
)


class ScriptedError(Exception):
    """What a scripted owner raises."""


class Request:
    """The owner of one request."""

    def __init__(self, world: World, number: int, model: str, long: bool, needs: int, script: str) -> None:
        self.world = world
        self.number = number
        self.model = model
        self.long = long
        self.needs = needs
        self.script = script
        self.lease: Any = None
        self.waiter: Any = None

    def on_granted(self, lease: Any) -> None:
        self.lease = lease
        self.world.see("granted", self.number, *self.world.facts(lease))
        del lease
        self.world.act(self)

    def on_evicted(self, outcome: Outcome) -> None:
        self.world.see("evicted", self.number, outcome)
        self.world.act(self)


class World:
    """One admission, the requests that were put to it and what was seen."""

    def __init__(self, admission: Any, plan: Plan) -> None:
        self.admission = admission
        self.plan = plan
        self.now_ns = 0
        self.requests: list[Request] = []
        self.log: list[tuple[Any, ...]] = []
        self.generations: dict[str, int] = {}

    def see(self, *what: Any) -> None:
        self.log.append(what)

    def facts(self, lease: Any) -> tuple[Any, ...]:
        return (
            self.admission.provider_key(lease),
            lease.lease_id,
            lease.generation,
            lease.took_long,
            lease.is_long,
            lease.sequence,
            lease.enqueued_at_ns,
            lease.granted_at_ns,
            lease.is_held,
        )

    # Steps.

    def apply(self, step: Step) -> None:
        name, *arguments = step
        getattr(self, name)(*arguments)

    def submit(self, model: str, long: bool, needs: int, script: str = "keep") -> None:
        request = Request(self, len(self.requests), model, long, needs, script)
        self.requests.append(request)
        self._enter(request, lambda: self.admission.submit(self.now_ns, request, model, long, needs))

    def readmit(self, number: int, script: str = "keep") -> None:
        old = self.requests[number]
        if old.lease is None:
            return
        request = Request(self, len(self.requests), old.model, old.long, old.needs, script)
        self.requests.append(request)
        self._enter(request, lambda: self.admission.readmit(self.now_ns, request, old.model, old.needs, old.lease))

    def _enter(self, request: Request, enter: Callable[[], Any]) -> None:
        try:
            answer = enter()
        except (KeyError, ValueError) as refusal:
            self.see("refused", request.number, type(refusal).__name__)
            return
        if isinstance(answer, Outcome):
            self.see("rejected", request.number, answer)
        elif hasattr(answer, "is_held"):
            request.lease = answer
            self.see("at once", request.number, *self.facts(answer))
        else:
            request.waiter = answer
            self.see("queued", request.number, answer.sequence, answer.enqueued_at_ns, answer.is_waiting)

    def release(self, number: int) -> None:
        request = self.requests[number]
        if request.lease is not None:
            self.see("released", number, self.admission.release(self.now_ns, request.lease))

    def cancel(self, number: int) -> None:
        request = self.requests[number]
        if request.waiter is not None:
            self.see("cancelled", number, self.admission.cancel(self.now_ns, request.waiter))

    def drop(self, number: int) -> None:
        request = self.requests[number]
        lease, request.lease = request.lease, None
        if lease is not None and hasattr(self.admission, "drop"):
            self.admission.drop(lease)

    def advance(self, ns: int) -> None:
        self.now_ns += ns

    def tick(self) -> None:
        self.admission.tick(self.now_ns)

    def reclaim(self) -> None:
        self.see("reclaimed", self.admission.reclaim(self.now_ns))

    def drain(self) -> None:
        self.admission.drain(self.now_ns)

    def reconfigure(self, plan: Plan) -> None:
        before, self.plan = self.plan, plan  # owners called inside the step already live under the new plan
        try:
            self.admission.reconfigure(self.now_ns, plan)
        except ValueError:
            self.plan = before
            self.see("plan refused")

    def node_ready(self, node: str, generation: int, healthy: dict[str, bool]) -> None:
        accepted = self.admission.node_ready(self.now_ns, node, generation, healthy)
        if accepted:
            self.generations[node] = generation
        self.see("node_ready", node, generation, accepted)

    def node_draining(self, node: str, generation: int) -> None:
        self.see("node_draining", node, self.admission.node_draining(self.now_ns, node, generation))

    def node_down(self, node: str, generation: int) -> None:
        self.see("node_down", node, self.admission.node_down(self.now_ns, node, generation))

    def health(self, node: str, generation: int, healthy: dict[str, bool]) -> None:
        self.see("health", node, self.admission.health(self.now_ns, node, generation, healthy))

    # Scripts.

    def act(self, request: Request) -> None:
        getattr(self, "_script_" + request.script)(request)

    def _script_keep(self, request: Request) -> None:
        pass

    def _script_release(self, request: Request) -> None:
        self.release(request.number)

    def _script_raise(self, request: Request) -> None:
        raise ScriptedError(request.number)

    def _script_raise_holding_nothing(self, request: Request) -> None:
        self.release(request.number)
        raise ScriptedError(request.number)

    def _script_drop(self, request: Request) -> None:
        self.drop(request.number)

    def _script_submit(self, request: Request) -> None:
        if request.model in self.plan.models:
            self.submit(request.model, request.long, request.needs)

    def _script_cancel_oldest(self, request: Request) -> None:
        waiting = [other for other in self.requests if other.waiter is not None and other.waiter.is_waiting]
        if waiting:
            self.cancel(waiting[0].number)

    def _script_release_oldest(self, request: Request) -> None:
        held = [other for other in self.requests if other.lease is not None and other.lease.is_held]
        if held:
            self.release(held[0].number)

    def _script_node_down(self, request: Request) -> None:
        if request.lease is not None:
            node = self.admission.provider_key(request.lease)[0]
            self.node_down(node, self.generations[node])

    def _script_widen(self, request: Request) -> None:
        wider = [spec._replace(capacity=spec.capacity + 1) for spec in self.plan.providers]
        self.reconfigure(self.plan._replace(providers=tuple(wider)))

    def _script_readmit(self, request: Request) -> None:
        self.readmit(request.number)

    def _script_reclaim(self, request: Request) -> None:
        self.reclaim()

    def _script_drain(self, request: Request) -> None:
        self.drain()

    def _script_tick(self, request: Request) -> None:
        self.tick()

    # What can be seen.

    def state(self) -> dict[str, Any]:
        admission = self.admission
        return {
            "snapshot": [tuple(row) for row in admission.snapshot()],
            "counters": admission.counters(),
            "waiting": admission.waiting,
            "max_queue": admission.max_queue,
            "next_deadline_ns": admission.next_deadline_ns,
            "has_dropped": admission.has_dropped,
            "leases": [(r.number, r.lease.is_held) for r in self.requests if r.lease is not None],
            "waiters": [(r.number, r.waiter.is_waiting) for r in self.requests if r.waiter is not None],
            "outcomes": admission.model_outcomes(),
            "meters": [tuple(row) for row in admission.meters()],
            "retry": [admission.retry_after_s(model) for model in self.plan.models],
            "explained": [
                admission.explain(model, long, needs)
                for model in self.plan.models
                for long in (False, True)
                for needs in (0, 1)
            ],
            "verdicts": [
                admission.verdicts(model, long, needs)
                for model in self.plan.models
                for long in (False, True)
                for needs in (0, 1)
            ],
            "by model": admission.waiting_by_model(),
            "lines": (admission.line_count, admission.lines(2)),
            "queue": [(row.owner.number, row[1:]) for row in admission.waiters(3)],
            "oldest": admission.oldest_enqueued_at_ns,
            "failures": [repr(failure) for failure in admission.take_failures()],
            "live": [
                admission.live_candidates(model, long, needs)
                for model in self.plan.models
                for long in (False, True)
                for needs in (0, 1)
            ],
        }


def compare(real: World, model: World) -> None:
    """Assert that two worlds have seen the same and stand alike."""
    assert real.log == model.log
    real_state, model_state = real.state(), model.state()
    for part, expected in model_state.items():
        assert real_state[part] == expected, f"{part}: the core says {real_state[part]}, the model {expected}"
