"""Admission policy: which request runs where, which waits, and how each one leaves.

Pure decisions on the event loop's thread: nothing here awaits, logs, reads a clock or builds text for people. Every
step takes `now_ns` and leaves the core at a fixed point: no waiter has a free live candidate when a step returns.

A step first changes state, then ends what must end, then grants, and only then *delivers* its decisions by calling
the owners, so an owner always sees a core at its fixed point and may call any step from its callback. A step called
from a callback changes state and decides at once; its decisions are delivered by the outermost step, in order. So a
waiter may end, and its owner be called, before the `submit` that made it has returned, if other owners called by that
same step freed a slot for it.
"""

from collections.abc import Mapping
from typing import final

from iop_fast._core.ledger import Lease as Lease
from iop_fast._core.records import Explanation as Explanation
from iop_fast._core.records import LineRow as LineRow
from iop_fast._core.records import MeterRow as MeterRow
from iop_fast._core.records import Outcome as Outcome
from iop_fast._core.records import Owner as Owner
from iop_fast._core.records import Plan as Plan
from iop_fast._core.records import ProviderSpec as ProviderSpec
from iop_fast._core.records import SnapshotRow as SnapshotRow
from iop_fast._core.records import WaiterRow as WaiterRow
from iop_fast._core.wait_queue import Waiter as Waiter

@final
class Admission:
    """The ledger, the one global queue and the policy between them."""

    def __init__(self, plan: Plan, *, now_ns: int = 0, verify: bool = False) -> None:
        """Start with every Node offline. `verify` checks invariants I1 to I10 after each step (O(n))."""

    # Steps. `now_ns` never falls from one step to the next.
    def submit(self, now_ns: int, owner: Owner, model: str, long: bool, needs: int) -> Lease | Waiter | Outcome:
        """Admit a request: a Lease is granted at once, a Waiter queued, an Outcome REJECTED_*.

        Raises KeyError for a model that the plan does not have and ValueError when no catalog provider of the model
        can do `needs`: the shell refuses both before.
        """
    def readmit(self, now_ns: int, owner: Owner, model: str, needs: int, ended: Lease) -> Lease | Waiter | Outcome:
        """Admit again a request whose lease ended before its provider can have seen it.

        It keeps the ended lease's place (sequence, enqueue time, label), is not counted in max_queue and does not get
        the ended lease's provider. Outcome EVICTED_TIMEOUT past its deadline, EVICTED_UNAVAILABLE without another live
        candidate. Raises ValueError while `ended` is held.
        """
    def release(self, now_ns: int, lease: Lease) -> bool:
        """End a lease and grant what it frees. False, counted and without effect for one released before; False for
        one lost with its Node."""
    def cancel(self, now_ns: int, waiter: Waiter) -> bool:
        """End a waiter as EVICTED_CANCELLED without calling its owner. False when it has ended already: its owner was
        called, or will be before the running step returns."""
    def tick(self, now_ns: int) -> None:
        """End the waiters whose deadline has come."""
    def reconfigure(self, now_ns: int, plan: Plan) -> None:
        """Take over a new plan in one step. Leases, order, rotation and enqueue times are kept."""
    def node_ready(self, now_ns: int, node_id: str, generation: int, healthy: Mapping[str, bool]) -> bool:
        """Make a Node's providers candidates. `healthy` by provider id; those not named keep what they had. False
        (no change) unless the generation is newer than any seen for this Node."""
    def node_draining(self, now_ns: int, node_id: str, generation: int) -> bool:
        """Take a ready Node out of dispatch and keep its leases. False for another generation."""
    def node_down(self, now_ns: int, node_id: str, generation: int) -> bool:
        """Take a Node offline; its leases are lost in the same step. False for another generation."""
    def health(self, now_ns: int, node_id: str, generation: int, healthy: Mapping[str, bool]) -> bool:
        """Change the health of providers of a Node. False for another generation."""
    def drain(self, now_ns: int) -> None:
        """End every waiter as EVICTED_DRAINING."""
    def reclaim(self, now_ns: int) -> list[tuple[str, str]]:
        """Give back the leases that were dropped unreleased; return the key of each one's provider."""

    # Read-outs.
    @property
    def next_deadline_ns(self) -> int:
        """The earliest deadline, 0 when nothing waits with one. The shell keeps one timer on it."""
    @property
    def is_quiet(self) -> bool:
        """True when nothing waits, nothing was dropped and nothing failed: the shell has nothing to do after a step."""
    @property
    def has_dropped(self) -> bool:
        """True when `reclaim` has something to give back. O(1)."""
    @property
    def waiting(self) -> int:
        """Waiters of all models, re-admitted ones included."""
    @property
    def max_queue(self) -> int: ...
    def provider_key(self, lease: Lease) -> tuple[str, str]:
        """The (node_id, provider_id) that a lease is for."""
    def live_candidates(self, model: str, long: bool, needs: int) -> int:
        """How many live candidates a request of this kind has."""
    def snapshot(self) -> list[SnapshotRow]:
        """One row per provider of the plan, in file order; O(providers + model-provider pairs)."""
    def counters(self) -> dict[str, int]:
        """submitted, readmitted, each Outcome by lower-case name, double_release, reclaimed, callback_failed."""
    def model_outcomes(self) -> dict[str, tuple[int, ...]]:
        """How requests left admission, by model of the plan; the tuple is indexed by Outcome. A model that leaves the
        plan and returns begins at 0."""
    def meters(self) -> list[MeterRow]:
        """One row per provider of the plan, in file order."""
    def explain(self, model: str, long: bool, needs: int) -> Explanation:
        """Say what would become of a request of this kind, and why; changes nothing. KeyError for an unknown model."""
    def verdicts(self, model: str, long: bool, needs: int) -> dict[str, int]:
        """Count a model's catalog providers by what stands between each and a request of this kind now, in the words of
        `explain`; none is taken next. KeyError for an unknown model."""
    @property
    def line_count(self) -> int:
        """Lines in which somebody waits."""
    def waiting_by_model(self) -> dict[str, tuple[int, int]]:
        """How many wait, normal and long, for each model that somebody waits for. O(lines)."""
    def lines(self, limit: int) -> list[LineRow]:
        """The lines whose heads are the oldest, in the order of these, at most `limit`. O(lines)."""
    def waiters(self, limit: int) -> list[WaiterRow]:
        """Who waits, in global order, at most `limit`. O(limit)."""
    @property
    def oldest_enqueued_at_ns(self) -> int | None:
        """Since when the first in global order has waited, None when nobody waits."""
    def retry_after_s(self, model: str) -> int:
        """Estimate in how many seconds a request for the model would be served, 1 to 30: the waiters that compete with
        it over the rate at which leases of its live providers have ended in the last ten seconds or so. 30 when none
        has. KeyError for an unknown model."""
    def take_failures(self) -> list[BaseException]:
        """Exceptions raised by owners since the last call. The lease of a failed `on_granted` was given back."""
    def copy(self) -> Admission:
        """An independent copy without owners' callbacks, for a dry run: its decisions are counted, not delivered."""
    def verify(self) -> None:
        """Assert invariants I1 to I10; O(n). Raises AssertionError naming the invariant."""
