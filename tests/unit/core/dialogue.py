"""Words for dialogues with the admission core: owners that remember, plans in one line, a clock that is moved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from iop_fast._core.admission import Admission, Lease, Outcome, Plan, ProviderSpec, Waiter

MS = 1_000_000
Key = tuple[str, str]


class Caller:
    """The owner of one request; `ended` is what came of it."""

    def __init__(self, name: str = "", then: Callable[[Caller], None] | None = None) -> None:
        self.name = name
        self.then = then
        self.ended: Lease | Outcome | None = None
        self.calls = 0

    def on_granted(self, lease: Lease) -> None:
        self._end(lease)

    def on_evicted(self, outcome: Outcome) -> None:
        self._end(outcome)

    def _end(self, what: Lease | Outcome) -> None:
        self.ended = what
        self.calls += 1
        if self.then is not None:
            self.then(self)


def provider(
    name: str,
    capacity: int = 1,
    *,
    node: str = "n1",
    long: int = 0,
    priority: int = 0,
    enabled: bool = True,
    healthy: bool = True,
    can: int = 1,
) -> ProviderSpec:
    return ProviderSpec(node, name, capacity, long, priority, enabled, healthy, can)


def plan(
    *providers: ProviderSpec, models: dict[str, list[str]] | None = None, queue: int = 16, timeout_ms: int = 0
) -> Plan:
    """A plan; models name providers by id, and without any the model "m" has them all."""
    keys: dict[str, Key] = {spec.provider_id: (spec.node_id, spec.provider_id) for spec in providers}
    named = {"m": list(keys)} if models is None else models
    mapping = {model: tuple(keys[name] for name in names) for model, names in named.items()}
    return Plan(providers, mapping, queue, timeout_ms * MS)


class Desk:
    """An admission under verification with a clock in milliseconds, all its Nodes ready."""

    def __init__(self, start: Plan) -> None:
        self.plan = start
        self.core = Admission(start, verify=True)
        self.ms = 0
        self.callers: list[Caller] = []
        for node in sorted({spec.node_id for spec in start.providers}):
            assert self.core.node_ready(0, node, 1, {})

    @property
    def now(self) -> int:
        return self.ms * MS

    def ask(
        self, model: str = "m", *, long: bool = False, needs: int = 1, then: Callable[[Caller], None] | None = None
    ) -> Any:
        """Submit a request; returns a Lease, a Waiter or an Outcome. The caller stands in `callers`."""
        caller = Caller(str(len(self.callers)), then)
        self.callers.append(caller)
        return self.core.submit(self.now, caller, model, long, needs)

    def queue(self, count: int, model: str = "m", **rest: Any) -> list[Caller]:
        """Submit `count` requests that must wait; returns their callers."""
        for _ in range(count):
            assert isinstance(self.ask(model, **rest), Waiter)
        return self.callers[-count:]

    def release(self, lease: Lease) -> bool:
        return self.core.release(self.now, lease)

    def change(self, after: Plan) -> None:
        self.plan = after
        self.core.reconfigure(self.now, after)

    def at(self, ms: int) -> Desk:
        self.ms = ms
        return self

    def key(self, lease: Any) -> str:
        assert isinstance(lease, Lease), lease
        return self.core.provider_key(lease)[1]

    def row(self, name: str) -> Any:
        return next(row for row in self.core.snapshot() if row.provider_id == name)


def ends(callers: list[Caller]) -> list[Any]:
    """What came of each: an Outcome, "lease", or None for one that waits."""
    return ["lease" if isinstance(caller.ended, Lease) else caller.ended for caller in callers]
