"""The admission core once more: plain Python, obvious and slow, written from the design and from nothing else.

It keeps only what cannot be computed (who holds what, who waits, what was last said about providers and Nodes) and
computes everything else anew at each question: in_flight by counting leases, candidates by walking the plan, order by
sorting. Its interface is that of `iop_fast._core.admission.Admission`, so tests drive both with the same code.

The one thing it cannot see is a Lease object that is dropped; whoever drives it says so with `drop`.
"""

from __future__ import annotations

import bisect
import math
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from iop_fast._core.admission import (
    Explanation,
    LineRow,
    MeterRow,
    Outcome,
    Plan,
    ProviderSpec,
    SnapshotRow,
    WaiterRow,
)
from iop_fast._core.ledger import DURATION_BOUNDS_NS

Key = tuple[str, str]
WINDOW_NS = 10_000_000_000


@dataclass(eq=False)
class ModelLease:
    """A lease; `state` is open, released, lost or reclaimed."""

    key: Key
    lease_id: int
    generation: int
    took_long: bool
    is_long: bool
    sequence: int
    enqueued_at_ns: int
    granted_at_ns: int
    state: str = "open"
    is_dropped: bool = False
    was_readmitted: bool = False

    @property
    def is_held(self) -> bool:
        return self.state == "open"


@dataclass(eq=False)
class ModelWaiter:
    """A request that waits, or has waited."""

    owner: Any
    model: str
    is_long: bool
    needs: int
    excluded: Key | None
    sequence: int
    enqueued_at_ns: int
    is_readmitted: bool
    is_waiting: bool = True


@dataclass
class Node:
    """What was last heard of a Node."""

    link: str = "offline"
    generation: int = -1


@dataclass
class Decision:
    """A waiter's end on its way to its owner."""

    waiter: ModelWaiter
    outcome: Outcome
    lease: ModelLease | None = None


def histogram(durations: list[int]) -> tuple[int, ...]:
    counts = [0] * (len(DURATION_BOUNDS_NS) + 1)
    for duration in durations:
        counts[bisect.bisect_left(DURATION_BOUNDS_NS, duration)] += 1
    return tuple(counts)


class ModelAdmission:
    """Admission, by the letter of the design."""

    def __init__(self, plan: Plan, *, now_ns: int = 0) -> None:
        self.now_ns = now_ns
        self.plan = plan
        self.nodes: dict[str, Node] = {}
        self.healthy: dict[Key, bool] = {}
        self.last_grant: dict[Key, int] = {}
        self.leases: list[ModelLease] = []
        self.dropped: list[ModelLease] = []
        self.queued: list[ModelWaiter] = []
        self.decisions: list[Decision] = []
        self.failures: list[BaseException] = []
        self.is_delivering = False
        self.grants = 0
        self.sequences = 0
        self.counts: Counter[str] = Counter()
        self.outcomes: dict[str, Counter[Outcome]] = {}
        self.waits: list[tuple[Key, int]] = []
        self.ends: list[tuple[Key, int, int]] = []  # provider, when, how long the lease lasted
        self.reconfigure(now_ns, plan)

    # What follows from the state.

    def spec(self, key: Key) -> ProviderSpec | None:
        for spec in self.plan.providers:
            if (spec.node_id, spec.provider_id) == key:
                return spec
        return None

    def held(self, key: Key) -> list[ModelLease]:
        return [lease for lease in self.leases if lease.is_held and lease.key == key]

    def in_flight(self, key: Key) -> int:
        return len(self.held(key))

    def long_in_flight(self, key: Key) -> int:
        return len([lease for lease in self.held(key) if lease.took_long])

    def catalog(self, model: str) -> list[ProviderSpec]:
        return [spec for key in self.plan.models.get(model, ()) if (spec := self.spec(tuple(key))) is not None]

    def is_constrained(self, model: str, is_long: bool) -> bool:
        return is_long and any(spec.long_capacity > 0 for spec in self.catalog(model))

    def eligible(self, model: str, is_long: bool, needs: int, excluded: Key | None = None) -> list[ProviderSpec]:
        constrained = self.is_constrained(model, is_long)
        return [
            spec
            for spec in self.catalog(model)
            if spec.can & needs == needs
            and spec.capacity > 0
            and (not constrained or spec.long_capacity > 0)
            and spec[:2] != excluded
        ]

    def live(self, model: str, is_long: bool, needs: int, excluded: Key | None = None) -> list[ProviderSpec]:
        return [
            spec
            for spec in self.eligible(model, is_long, needs, excluded)
            if self.link(spec.node_id) == "ready" and spec.enabled and self.healthy[spec[:2]]
        ]

    def free(self, model: str, is_long: bool, needs: int, excluded: Key | None = None) -> list[ProviderSpec]:
        constrained = self.is_constrained(model, is_long)
        return [
            spec
            for spec in self.live(model, is_long, needs, excluded)
            if self.in_flight(spec[:2]) < spec.capacity
            and (not constrained or self.long_in_flight(spec[:2]) < spec.long_capacity)
        ]

    def choose(self, model: str, is_long: bool, needs: int, excluded: Key | None = None) -> Key | None:
        free = [spec[:2] for spec in self.free(model, is_long, needs, excluded)]
        if not free:
            return None
        order = {tuple(key): place for place, key in enumerate(self.plan.models[model])}
        priority = {spec[:2]: spec.priority for spec in self.plan.providers}
        return min(free, key=lambda key: (self.in_flight(key), priority[key], self.last_grant.get(key, 0), order[key]))

    def link(self, node_id: str) -> str:
        return self.nodes[node_id].link if node_id in self.nodes else "offline"

    def deadline(self, enqueued_at_ns: int) -> int | None:
        return enqueued_at_ns + self.plan.queue_timeout_ns if self.plan.queue_timeout_ns else None

    def is_due(self, enqueued_at_ns: int) -> bool:
        deadline = self.deadline(enqueued_at_ns)
        return deadline is not None and deadline <= self.now_ns

    # Steps.

    def submit(self, now_ns: int, owner: Any, model: str, long: bool, needs: int) -> Any:
        if model not in self.plan.models:
            raise KeyError(model)
        if not any(spec.can & needs == needs for spec in self.catalog(model)):
            raise ValueError("nobody can")
        self._begin(now_ns)
        self.counts["submitted"] += 1
        self.sequences += 1
        return self._admit(ModelWaiter(owner, model, long, needs, None, self.sequences, now_ns, False))

    def readmit(self, now_ns: int, owner: Any, model: str, needs: int, ended: ModelLease) -> Any:
        if ended.is_held or ended.was_readmitted:
            raise ValueError("held or re-admitted before")
        self._begin(now_ns)
        ended.was_readmitted = True
        self.counts["readmitted"] += 1
        return self._admit(
            ModelWaiter(owner, model, ended.is_long, needs, ended.key, ended.sequence, ended.enqueued_at_ns, True)
        )

    def _admit(self, waiter: ModelWaiter) -> Any:
        self._expire()
        answer = self._answer(waiter)
        if isinstance(answer, Outcome):
            self._count(waiter.model, answer)
        self._finish()
        return answer

    def _answer(self, waiter: ModelWaiter) -> Any:
        kind = (waiter.model, waiter.is_long, waiter.needs, waiter.excluded)
        if waiter.is_readmitted and self.is_due(waiter.enqueued_at_ns):
            return Outcome.EVICTED_TIMEOUT
        if not self.live(*kind):
            return Outcome.EVICTED_UNAVAILABLE if waiter.is_readmitted else Outcome.REJECTED_UNAVAILABLE
        if (key := self.choose(*kind)) is not None:
            return self._take(waiter, key)
        fresh = [other for other in self.queued if not other.is_readmitted]
        if not waiter.is_readmitted and len(fresh) >= self.plan.max_queue:
            return Outcome.REJECTED_QUEUE_FULL
        self.queued.append(waiter)
        return waiter

    def release(self, now_ns: int, lease: ModelLease) -> bool:
        if lease.state == "released":
            self.counts["double_release"] += 1
        if not lease.is_held:
            return False
        self._begin(now_ns)
        self._end_lease(lease, "released")
        self._settle()
        return True

    def cancel(self, now_ns: int, waiter: ModelWaiter) -> bool:
        if not waiter.is_waiting:
            return False
        self._begin(now_ns)
        self.queued.remove(waiter)
        waiter.is_waiting = False
        self._count(waiter.model, Outcome.EVICTED_CANCELLED)
        self._settle()
        return True

    def tick(self, now_ns: int) -> None:
        self._begin(now_ns)
        self._settle()

    def drain(self, now_ns: int) -> None:
        self._begin(now_ns)
        for waiter in self._ordered():
            self._evict(waiter, Outcome.EVICTED_DRAINING)
        self._settle()

    def drop(self, lease: ModelLease) -> None:
        """Say that nobody has the Lease object any more."""
        if lease.is_held:
            lease.is_dropped = True
            self.dropped.append(lease)

    def reclaim(self, now_ns: int) -> list[Key]:
        dropped = [lease for lease in self.dropped if lease.is_held]
        if not dropped:
            return []
        self._begin(now_ns)
        for lease in dropped:
            self._end_lease(lease, "reclaimed")
        self.dropped = []
        self.counts["reclaimed"] += len(dropped)
        self._settle()
        return [lease.key for lease in dropped]

    def reconfigure(self, now_ns: int, plan: Plan) -> None:
        keys = [spec[:2] for spec in plan.providers]
        named = [tuple(key) for mapping in plan.models.values() for key in mapping]
        if len(set(keys)) < len(keys) or not set(named) <= set(keys):
            raise ValueError("a provider stands twice, or a model names one that is not there")
        if any(len(set(mapping)) < len(mapping) for mapping in plan.models.values()):
            raise ValueError("a model names a provider twice")
        self._begin(now_ns)
        self.plan = plan
        self.outcomes = {model: self.outcomes.get(model, Counter()) for model in plan.models}
        for spec in plan.providers:
            self.healthy[spec[:2]] = spec.healthy
        self._settle()

    def node_ready(self, now_ns: int, node_id: str, generation: int, healthy: dict[str, bool]) -> bool:
        node = self.nodes.setdefault(node_id, Node())
        if generation <= node.generation:
            return False
        self._begin(now_ns)
        self._lose(node_id)
        node.link = "ready"
        node.generation = generation
        self._hear(node_id, healthy)
        self._settle()
        return True

    def node_draining(self, now_ns: int, node_id: str, generation: int) -> bool:
        if not self._is_current(node_id, generation):
            return False
        self._begin(now_ns)
        self.nodes[node_id].link = "draining"
        self._settle()
        return True

    def node_down(self, now_ns: int, node_id: str, generation: int) -> bool:
        if not self._is_current(node_id, generation):
            return False
        self._begin(now_ns)
        self.nodes[node_id].link = "offline"
        self._lose(node_id)
        self._settle()
        return True

    def health(self, now_ns: int, node_id: str, generation: int, healthy: dict[str, bool]) -> bool:
        if not self._is_current(node_id, generation):
            return False
        self._begin(now_ns)
        self._hear(node_id, healthy)
        self._settle()
        return True

    def _is_current(self, node_id: str, generation: int) -> bool:
        return self.link(node_id) != "offline" and self.nodes[node_id].generation == generation

    def _lose(self, node_id: str) -> None:
        for lease in self.leases:
            if lease.is_held and lease.key[0] == node_id:
                self._end_lease(lease, "lost")

    def _end_lease(self, lease: ModelLease, state: str) -> None:
        lease.state = state
        self.ends.append((lease.key, self.now_ns, self.now_ns - lease.granted_at_ns))

    def _count(self, model: str, outcome: Outcome) -> None:
        self.counts[outcome.name.lower()] += 1
        if model in self.outcomes:
            self.outcomes[model][outcome] += 1

    def _hear(self, node_id: str, healthy: dict[str, bool]) -> None:
        for key in self.healthy:
            if key[0] == node_id and key[1] in healthy:
                self.healthy[key] = healthy[key[1]]

    # The parts of a step.

    def _begin(self, now_ns: int) -> None:
        assert now_ns >= self.now_ns
        self.now_ns = now_ns

    def _ordered(self) -> list[ModelWaiter]:
        return sorted(self.queued, key=lambda waiter: waiter.sequence)

    def _expire(self) -> None:
        for waiter in self._ordered():
            if self.is_due(waiter.enqueued_at_ns):
                self._evict(waiter, Outcome.EVICTED_TIMEOUT)

    def _settle(self) -> None:
        self._expire()
        for waiter in self._ordered():
            if not self.live(waiter.model, waiter.is_long, waiter.needs, waiter.excluded):
                self._evict(waiter, Outcome.EVICTED_UNAVAILABLE)
        while self._grant_one():
            pass
        self._finish()

    def _grant_one(self) -> bool:
        for waiter in self._ordered():
            key = self.choose(waiter.model, waiter.is_long, waiter.needs, waiter.excluded)
            if key is not None:
                self._end(waiter, Decision(waiter, Outcome.GRANTED, self._take(waiter, key)))
                return True
        return False

    def _take(self, waiter: ModelWaiter, key: Key) -> ModelLease:
        self.grants += 1
        self._count(waiter.model, Outcome.GRANTED)
        self.waits.append((key, self.now_ns - waiter.enqueued_at_ns))
        self.last_grant[key] = self.grants
        lease = ModelLease(
            key,
            self.grants,
            self.nodes[key[0]].generation,
            self.is_constrained(waiter.model, waiter.is_long),
            waiter.is_long,
            waiter.sequence,
            waiter.enqueued_at_ns,
            self.now_ns,
        )
        self.leases.append(lease)
        return lease

    def _evict(self, waiter: ModelWaiter, outcome: Outcome) -> None:
        self._count(waiter.model, outcome)
        self._end(waiter, Decision(waiter, outcome))

    def _end(self, waiter: ModelWaiter, decision: Decision) -> None:
        self.queued.remove(waiter)
        waiter.is_waiting = False
        self.decisions.append(decision)

    def _finish(self) -> None:
        self.leases = [lease for lease in self.leases if lease.is_held]
        if self.is_delivering:
            return
        self.is_delivering = True
        while self.decisions:
            self._deliver(self.decisions.pop(0))
        self.is_delivering = False

    def _deliver(self, decision: Decision) -> None:
        try:
            if decision.lease is None:
                decision.waiter.owner.on_evicted(decision.outcome)
            else:
                decision.waiter.owner.on_granted(decision.lease)
        except Exception as failure:  # noqa: BLE001 the contract: an owner's exception never leaves
            self.failures.append(failure)
            self.counts["callback_failed"] += 1
            if decision.lease is not None and decision.lease.state in ("open", "lost"):
                self.release(self.now_ns, decision.lease)

    # Read-outs.

    @property
    def next_deadline_ns(self) -> int:
        deadlines = [deadline for waiter in self.queued if (deadline := self.deadline(waiter.enqueued_at_ns))]
        return min(deadlines, default=0)

    @property
    def has_dropped(self) -> bool:
        return any(lease.is_held for lease in self.dropped)

    @property
    def waiting(self) -> int:
        return len(self.queued)

    @property
    def max_queue(self) -> int:
        return self.plan.max_queue

    def provider_key(self, lease: ModelLease) -> Key:
        return lease.key

    def live_candidates(self, model: str, long: bool, needs: int) -> int:
        if model not in self.plan.models:
            raise KeyError(model)
        return len(self.live(model, long, needs))

    def snapshot(self) -> list[SnapshotRow]:
        return [self._row(spec) for spec in self.plan.providers]

    def _row(self, spec: ProviderSpec) -> SnapshotRow:
        key = spec[:2]
        online = self.link(spec.node_id) != "offline"
        queued = [w for w in self.queued if spec in self.eligible(w.model, w.is_long, w.needs, w.excluded)]
        return SnapshotRow(
            node_id=spec.node_id,
            provider_id=spec.provider_id,
            link=self.link(spec.node_id),
            enabled=spec.enabled,
            healthy=self.healthy[key],
            priority=spec.priority,
            configured_capacity=spec.capacity,
            configured_long_capacity=spec.long_capacity,
            capacity=spec.capacity if online else 0,
            long_capacity=spec.long_capacity if online else 0,
            in_flight=self.in_flight(key) if online else 0,
            long_in_flight=self.long_in_flight(key) if online else 0,
            queued=len(queued) if online else 0,
        )

    def counters(self) -> dict[str, int]:
        names = ["submitted", "readmitted", *(outcome.name.lower() for outcome in Outcome)]
        names += ["double_release", "reclaimed", "callback_failed"]
        return {name: self.counts[name] for name in names}

    def model_outcomes(self) -> dict[str, tuple[int, ...]]:
        return {model: tuple(counts[outcome] for outcome in Outcome) for model, counts in self.outcomes.items()}

    def meters(self) -> list[MeterRow]:
        rows = []
        for spec in self.plan.providers:
            waits = [wait for key, wait in self.waits if key == spec[:2]]
            lasted = [duration for key, _, duration in self.ends if key == spec[:2]]
            rows.append(MeterRow(*spec[:2], histogram(waits), sum(waits), histogram(lasted), sum(lasted)))
        return rows

    def _competing(self, rivals: list[ProviderSpec]) -> int:
        return len(
            [
                waiter
                for waiter in self.queued
                if any(
                    spec in rivals
                    for spec in self.eligible(waiter.model, waiter.is_long, waiter.needs, waiter.excluded)
                )
            ]
        )

    def explain(self, model: str, long: bool, needs: int) -> Explanation:
        if model not in self.plan.models:
            raise KeyError(model)
        live, chosen = self.live(model, long, needs), self.choose(model, long, needs)
        position = None if not live else 0 if chosen is not None else 1 + self._competing(live)
        free = [spec[:2] for spec in self.free(model, long, needs)]
        candidates = []
        for spec in self.catalog(model):
            key = spec[:2]
            if spec.can & needs != needs:
                verdict = "cannot"
            elif not spec.enabled:
                verdict = "disabled"
            elif self.link(spec.node_id) == "offline":
                verdict = "node_offline"
            elif not self.healthy[key]:
                verdict = "unhealthy"
            elif self.link(spec.node_id) == "draining":
                verdict = "draining"
            elif self.in_flight(key) >= spec.capacity:
                verdict = "full"
            elif key not in free:
                verdict = "no_long_slot"
            else:
                verdict = "taken_next" if key == chosen else "free"
            candidates.append((key, verdict))
        return Explanation(position, candidates)

    def verdicts(self, model: str, long: bool, needs: int) -> dict[str, int]:
        explained = self.explain(model, long, needs).candidates
        return dict(Counter("free" if verdict == "taken_next" else verdict for _, verdict in explained))

    def in_order(self) -> list[ModelWaiter]:
        return sorted(self.queued, key=lambda waiter: waiter.sequence)

    def waiting_by_model(self) -> dict[str, tuple[int, int]]:
        names = dict.fromkeys(waiter.model for waiter in self.queued)
        return {
            name: tuple(  # type: ignore[misc]
                sum(waiter.model == name and waiter.is_long is is_long for waiter in self.queued)
                for is_long in (False, True)
            )
            for name in names
        }

    def waiters_by_line(self) -> dict[tuple[Any, ...], list[ModelWaiter]]:
        lines: dict[tuple[Any, ...], list[ModelWaiter]] = {}
        for waiter in self.in_order():
            lines.setdefault((waiter.model, waiter.is_long, waiter.needs, waiter.excluded), []).append(waiter)
        return lines

    @property
    def line_count(self) -> int:
        return len(self.waiters_by_line())

    def lines(self, limit: int) -> list[LineRow]:
        return [LineRow(*kind, len(alike), alike[0].enqueued_at_ns) for kind, alike in self.waiters_by_line().items()][
            :limit
        ]

    def waiters(self, limit: int) -> list[WaiterRow]:
        return [
            WaiterRow(w.owner, w.model, w.is_long, w.needs, w.excluded, w.enqueued_at_ns, w.is_readmitted)
            for w in self.in_order()[:limit]
        ]

    @property
    def oldest_enqueued_at_ns(self) -> int | None:
        return self.in_order()[0].enqueued_at_ns if self.queued else None

    def retry_after_s(self, model: str) -> int:
        if model not in self.plan.models:
            raise KeyError(model)
        live = self.live(model, False, 0)
        window = self.now_ns // WINDOW_NS
        left = 1 - Fraction(self.now_ns % WINDOW_NS, WINDOW_NS)
        ends = Fraction(0)
        for key, at_ns, _ in self.ends:
            if key in [spec[:2] for spec in live]:
                ends += {window: Fraction(1), window - 1: left}.get(at_ns // WINDOW_NS, Fraction(0))
        if ends == 0:
            return 30
        rate = ends / Fraction(WINDOW_NS, 10**9)
        return max(1, min(30, math.ceil((1 + self._competing(live)) / rate)))

    def take_failures(self) -> list[BaseException]:
        failures, self.failures = self.failures, []
        return failures

    def verify(self) -> None:
        """The model has nothing that could disagree with itself."""
