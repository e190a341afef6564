"""What goes into admission and comes out of it, besides leases and waiters: plans, outcomes, read-outs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple, Protocol

from iop_fast._core.ledger import Lease


class Outcome(IntEnum):
    """How a request left admission; a rejected one never waited, an evicted one did."""

    GRANTED = 0
    REJECTED_QUEUE_FULL = 1
    REJECTED_UNAVAILABLE = 2
    EVICTED_TIMEOUT = 3
    EVICTED_UNAVAILABLE = 4
    EVICTED_CANCELLED = 5
    EVICTED_DRAINING = 6


class Owner(Protocol):
    """The request behind a waiter. Each waiter ends by exactly one of these calls (none after a successful cancel)."""

    def on_granted(self, lease: Lease) -> None:
        """Take over the lease: from here on the owner must release it. It may have been lost already (`is_held`)."""

    def on_evicted(self, outcome: Outcome) -> None:
        """The waiter left the queue without a lease."""


class ProviderSpec(NamedTuple):
    """One provider of a plan. `healthy` is the file's word, or the Node's last report where the file says auto."""

    node_id: str
    provider_id: str
    capacity: int
    long_capacity: int
    priority: int
    enabled: bool
    healthy: bool
    can: int


class Plan(NamedTuple):
    """What admission needs of one configuration revision. Immutable.

    `providers` stand in file order. `models` maps a model id to keys (node_id, provider_id) in file order, each of
    which is in `providers`. `queue_timeout_ns` 0 means none.
    """

    providers: Sequence[ProviderSpec]
    models: Mapping[str, Sequence[tuple[str, str]]]
    max_queue: int
    queue_timeout_ns: int


class SnapshotRow(NamedTuple):
    """One provider as it stands. The effective values are all 0 while its Node is offline."""

    node_id: str
    provider_id: str
    link: str  # "offline" | "ready" | "draining"
    enabled: bool
    healthy: bool
    priority: int
    configured_capacity: int
    configured_long_capacity: int
    capacity: int
    long_capacity: int
    in_flight: int
    long_in_flight: int
    queued: int


class MeterRow(NamedTuple):
    """What one provider has done since the start: how long requests granted to it had waited, how long its leases
    lasted (however they ended). Counts stand by bucket of `DURATION_BOUNDS_NS`, the last one for all above."""

    node_id: str
    provider_id: str
    wait_counts: tuple[int, ...]
    wait_sum_ns: int
    lease_counts: tuple[int, ...]
    lease_sum_ns: int


class Explanation(NamedTuple):
    """What would become of a request now.

    `position`: 0 when it would run at once, else the place it would have among the waiters that compete with it for a
    provider, 1 for the next; None when no candidate is live. `candidates`: each catalog provider of the model in its
    order with a verdict: "taken_next", "free" (but another is taken), "full", "no_long_slot", "cannot", "disabled",
    "node_offline", "unhealthy", "draining"; of several reasons the one that lasts longest. Of a Node that is offline
    nobody knows the health.
    """

    position: int | None
    candidates: list[tuple[tuple[str, str], str]]


class LineRow(NamedTuple):
    """A line of waiters that are alike. `excluded` is a provider that they do not get, the time is that of its head."""

    model: str
    is_long: bool
    needs: int
    excluded: tuple[str, str] | None
    waiting: int
    enqueued_at_ns: int


class WaiterRow(NamedTuple):
    """One who waits, and the line it stands in."""

    owner: Owner
    model: str
    is_long: bool
    needs: int
    excluded: tuple[str, str] | None
    enqueued_at_ns: int
    is_readmitted: bool
