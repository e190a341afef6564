"""What `GET /events` of the admin listener says: the JSON of its parts. Stable; parts and fields may be added.

The stream is text/event-stream. The first event is `snapshot` and holds every part of `Snapshot`. Then, each second in
which something differs, an event `change` holds the parts that differ, each whole: merge it over what is there by
top-level key. While nothing differs, a comment every 15 s keeps the connection. A reader that comes again gets a new
`snapshot`.

Lists are bounded, and a total says how many there are. Times are milliseconds; moments are RFC 3339 in UTC. `class` is
`normal` or `long`, `needs` are the names of what a request needs of its provider.
"""

from __future__ import annotations

from typing import Any, TypedDict


class EdgePart(TypedDict):
    """The process. `reasons` say why it is not ready."""

    id: str
    name: str | None
    version: str
    started_at: str
    is_draining: bool
    is_ready: bool
    reasons: list[str]


class ConfigPart(TypedDict):
    """The configuration in force."""

    revision: int
    file: str
    file_sha256: str


class NodeRow(TypedDict):
    """One Node. `link` is offline, accepted, ready or draining; numbers are 0 without a session.

    `observed_revision` is the payload revision that the Node runs: not `payload_revision` while a push is under way.
    """

    node_id: str
    alias: str | None
    link: str
    generation: int
    payload_revision: int
    observed_revision: int
    runs: int


class NodesPart(TypedDict):
    """The Nodes, in file order."""

    rows: list[NodeRow]
    total: int


class ProviderRow(TypedDict):
    """One provider. `state` is up, disabled, down, offline or draining, the last two of its Node; `reason` says why.

    `capacity` and `long_capacity` are as configured, whatever the state; `queued` is its pressure.
    """

    node_id: str
    provider_id: str
    type: str
    label: str
    state: str
    reason: str
    priority: int
    capacity: int
    long_capacity: int
    in_flight: int
    long_in_flight: int
    queued: int


class ProvidersPart(TypedDict):
    """The providers, in file order."""

    rows: list[ProviderRow]
    total: int


# One who waits. `place` 1 is the first in the order of the queue; `blocked_by` counts the model's providers by what
# stands between each and the request now, `why` says that in words.
WaiterRow = TypedDict(
    "WaiterRow",
    {
        "place": int,
        "request": str,
        "principal": str,
        "model": str,
        "class": str,
        "needs": list[str],
        "age_ms": int,
        "is_readmitted": bool,
        "blocked_by": dict[str, int],
        "why": str,
    },
)

# Waiters that are alike, as one line.
LineRow = TypedDict(
    "LineRow",
    {"model": str, "class": str, "needs": list[str], "waiting": int, "oldest_ms": int, "why": str},
)


class QueuePart(TypedDict):
    """The queue. `waiters` are the first ones in its order, `lines` those whose heads are the oldest.

    `timeout_ms` 0 is no timeout. There are `waiting` waiters in all.
    """

    waiting: int
    max_queue: int
    timeout_ms: int
    oldest_ms: int
    waiters: list[WaiterRow]
    lines: list[LineRow]
    lines_total: int


class RatesPart(TypedDict):
    """What ended within the last `interval_ms`: requests by outcome, tokens as reported.

    `busy` counts the intervals in which anything ended, so that two of them that are alike differ.
    """

    busy: int
    interval_ms: int
    requests: int
    outcomes: dict[str, int]
    prompt_tokens: int
    completion_tokens: int


class DurationCounts(TypedDict):
    """How many by bucket, one more than there are bounds, and the sum of their durations."""

    counts: list[int]
    sum_ms: int


class DurationsPart(TypedDict):
    """Durations of the requests that ended within the last interval. `bounds_ms` are upper bounds, inclusive."""

    busy: int
    bounds_ms: list[int]
    queue: DurationCounts
    ttfb: DurationCounts
    total: DurationCounts


class RefreshRow(TypedDict):
    """One refresh. Paths and findings are the first few; `changes` counts all paths."""

    at: str
    source: str
    mode: str
    status: str
    revision: int
    changes: int
    changed_paths: list[dict[str, Any]]
    restart_required_paths: list[str]
    errors: list[dict[str, Any]]
    node_pushes: list[dict[str, Any]]


class Snapshot(TypedDict):
    """Every part. `refreshes` holds the last few, the newest first."""

    edge: EdgePart
    config: ConfigPart
    nodes: NodesPart
    providers: ProvidersPart
    queue: QueuePart
    rates: RatesPart
    durations: DurationsPart
    refreshes: list[RefreshRow]
