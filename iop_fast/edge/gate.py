"""The one caller of admission: gives each step its time, keeps its timer, and cleans up behind its owners.

Admission is pure: it decides when it is called and not otherwise. What it cannot do for itself happens here, after
every step and nowhere else (`_after_step`):

- **one timer**, for the earliest deadline of the queue. It is set when there is none or when the earliest deadline is
  before it, and otherwise left alone: a timer that fires early finds nothing to end and is set anew. All waiters have
  the same timeout, so under load it fires once a timeout and not once a request;
- **leases dropped unreleased** are taken back in the next turn of the loop, counted and logged: each is a bug of ours;
- **owners that raised** are logged with their traceback: each is a bug of ours too. Admission has given their lease
  back already.

Steps may be called from an owner's callback; admission delivers from the outermost step alone, and `_after_step` of an
inner one is harmless.

What is never done here: a decision, an answer, a look at a request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from iop_fast import logs
from iop_fast._core.admission import (
    Admission,
    Explanation,
    LineRow,
    MeterRow,
    Outcome,
    Owner,
    Plan,
    SnapshotRow,
    WaiterRow,
)
from iop_fast._core.ledger import Lease
from iop_fast._core.wait_queue import Waiter
from iop_fast.seams import Clock

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000

log = logs.get(__name__)


class Gate:
    """Admission with a clock and a timer. Steps are those of `iop_fast._core.admission`, without `now_ns`."""

    __slots__ = (
        "_admission",
        "_clock",
        "_is_reclaim_due",
        "_loop",
        "_timer",
        "_timer_ns",
    )

    def __init__(self, plan: Plan, clock: Clock, loop: asyncio.AbstractEventLoop, *, verify: bool = False) -> None:
        """Start with every Node offline. `verify` checks admission's invariants after each step (O(n))."""
        self._clock = clock
        self._loop = loop
        self._admission = Admission(plan, now_ns=clock.now_ns(), verify=verify)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0
        self._is_reclaim_due = False

    # -----------------------------------------------------------------------------------------------------------------
    # Steps for requests

    def submit(self, owner: Owner, model: str, long: bool, needs: int) -> Lease | Waiter | Outcome:
        """Admit a request: a Lease is granted at once, a Waiter queued, an Outcome REJECTED_*."""
        result = self._admission.submit(self._clock.now_ns(), owner, model, long, needs)
        self._after_step()
        return result

    def readmit(self, owner: Owner, model: str, needs: int, ended: Lease) -> Lease | Waiter | Outcome:
        """Admit again a request whose lease ended before its provider can have seen it."""
        result = self._admission.readmit(self._clock.now_ns(), owner, model, needs, ended)
        self._after_step()
        return result

    def release(self, lease: Lease) -> bool:
        """End a lease and grant what it frees; False when it has ended before."""
        is_released = self._admission.release(self._clock.now_ns(), lease)
        self._after_step()
        return is_released

    def cancel(self, waiter: Waiter) -> bool:
        """End a waiter without calling its owner; False when it has ended already."""
        is_cancelled = self._admission.cancel(self._clock.now_ns(), waiter)
        self._after_step()
        return is_cancelled

    # -----------------------------------------------------------------------------------------------------------------
    # Steps for Nodes, refresh and shutdown

    def node_ready(self, node_id: str, generation: int, healthy: Mapping[str, bool]) -> bool:
        """Make a Node's providers candidates; False unless the generation is newer than any seen."""
        is_changed = self._admission.node_ready(self._clock.now_ns(), node_id, generation, healthy)
        self._after_step()
        return is_changed

    def node_draining(self, node_id: str, generation: int) -> bool:
        """Take a ready Node out of dispatch and keep its leases; False for another generation."""
        is_changed = self._admission.node_draining(self._clock.now_ns(), node_id, generation)
        self._after_step()
        return is_changed

    def node_down(self, node_id: str, generation: int) -> bool:
        """Take a Node offline; its leases are lost in the same step. False for another generation."""
        is_changed = self._admission.node_down(self._clock.now_ns(), node_id, generation)
        self._after_step()
        return is_changed

    def health(self, node_id: str, generation: int, healthy: Mapping[str, bool]) -> bool:
        """Change the health of providers of a Node; False for another generation."""
        is_changed = self._admission.health(self._clock.now_ns(), node_id, generation, healthy)
        self._after_step()
        return is_changed

    def reconfigure(self, plan: Plan) -> None:
        """Take over a new plan in one step. `EdgeState.commit` is the one caller: the Runtime goes with it."""
        self._admission.reconfigure(self._clock.now_ns(), plan)
        self._after_step()

    def drain(self) -> None:
        """End every waiter as EVICTED_DRAINING."""
        self._admission.drain(self._clock.now_ns())
        self._after_step()

    # -----------------------------------------------------------------------------------------------------------------
    # Read-outs

    @property
    def waiting(self) -> int:
        """Waiters of all models, re-admitted ones included."""
        return self._admission.waiting

    @property
    def max_queue(self) -> int:
        """How many may wait."""
        return self._admission.max_queue

    def provider_key(self, lease: Lease) -> tuple[str, str]:
        """Return the (node_id, provider_id) that a lease is for."""
        return self._admission.provider_key(lease)

    def live_candidates(self, model: str, long: bool, needs: int) -> int:
        """Return how many live candidates a request of this kind has."""
        return self._admission.live_candidates(model, long, needs)

    def snapshot(self) -> list[SnapshotRow]:
        """Return one row per provider of the plan, in file order."""
        return self._admission.snapshot()

    def counters(self) -> dict[str, int]:
        """Return admission's counters by name."""
        return self._admission.counters()

    def model_outcomes(self) -> dict[str, tuple[int, ...]]:
        """Return how requests left admission, by model; the tuple is indexed by Outcome."""
        return self._admission.model_outcomes()

    def meters(self) -> list[MeterRow]:
        """Return waits and leases of each provider of the plan, in file order."""
        return self._admission.meters()

    def explain(self, model: str, long: bool, needs: int) -> Explanation:
        """Say what would become of a request of this kind now; KeyError for an unknown model."""
        return self._admission.explain(model, long, needs)

    def verdicts(self, model: str, long: bool, needs: int) -> dict[str, int]:
        """Count a model's providers by what stands between each and a request of this kind, in explain's words."""
        return self._admission.verdicts(model, long, needs)

    def waiting_by_model(self) -> dict[str, tuple[int, int]]:
        """Return how many wait, normal and long, for each model that somebody waits for."""
        return self._admission.waiting_by_model()

    @property
    def line_count(self) -> int:
        """Lines in which somebody waits."""
        return self._admission.line_count

    def lines(self, limit: int) -> list[LineRow]:
        """Return the lines whose heads are the oldest, in the order of these."""
        return self._admission.lines(limit)

    def waiters(self, limit: int) -> list[WaiterRow]:
        """Return who waits, in global order."""
        return self._admission.waiters(limit)

    @property
    def oldest_wait_ns(self) -> int:
        """How long the first in global order has waited, 0 when nobody waits."""
        since_ns = self._admission.oldest_enqueued_at_ns
        return 0 if since_ns is None else self._clock.now_ns() - since_ns

    def rehearse(self, plan: Plan) -> Admission:
        """Return a copy of admission that has taken over `plan`: its decisions are counted there and not delivered."""
        twin = self._admission.copy()
        twin.reconfigure(self._clock.now_ns(), plan)
        return twin

    def retry_after_s(self, model: str) -> int:
        """Estimate in how many seconds a request for the model would be served, 1 to 30."""
        return self._admission.retry_after_s(model)

    # -----------------------------------------------------------------------------------------------------------------
    # After a step

    def close(self) -> None:
        """Cancel the timer: nothing ends by itself any more. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _after_step(self) -> None:
        admission = self._admission
        if admission.is_quiet:
            return
        deadline_ns = admission.next_deadline_ns
        if deadline_ns and (self._timer is None or deadline_ns < self._timer_ns):
            self._set_timer(deadline_ns)
        if admission.has_dropped and not self._is_reclaim_due:
            self._is_reclaim_due = True
            self._loop.call_soon(self._reclaim)
        for error in admission.take_failures():
            log.failure("owner_failed", error)

    def _set_timer(self, deadline_ns: int) -> None:
        self.close()
        # Rounded up to the loop's milliseconds, so that the timer does not fire just before the deadline.
        delay_ms = max(-(-(deadline_ns - self._clock.now_ns()) // NS_PER_MS), 0)
        self._timer_ns = deadline_ns
        self._timer = self._loop.call_later(delay_ms / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._admission.tick(self._clock.now_ns())
        self._after_step()

    def _reclaim(self) -> None:
        self._is_reclaim_due = False
        for node_id, provider_id in self._admission.reclaim(self._clock.now_ns()):
            log.error("lease_dropped_unreleased", node=node_id, provider=provider_id)
        self._after_step()
