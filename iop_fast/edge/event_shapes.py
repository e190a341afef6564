"""The JSON of the admin listener's pages about requests, and of the parts of its feed. Stable; fields may be added.

`GET /queue` is a QueuePart, `/runs` a RunsPage, `/explain` an ExplainPage, and `/events` sends the parts of a Snapshot:

it is text/event-stream. The first event is `snapshot` and holds every part of `Snapshot`. Then, each second in
which something differs, an event `change` holds the parts that differ, each whole: merge it over what is there by
top-level key. While nothing differs, an event `quiet` every 5 s, with nothing in it, says that the figures still hold.
A reader that comes again gets a new `snapshot`.

Lists are bounded, and a total says how many there are. Times are milliseconds; moments are RFC 3339 in UTC. `class` is
`normal` or `long`, `needs` are the names of what a request needs of its provider.
"""

from __future__ import annotations

from typing import Any

from typing_extensions import TypedDict  # pydantic reads these, and before Python 3.12 only so


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
    """The Nodes, in file order. `links` counts all of them by their link."""

    rows: list[NodeRow]
    total: int
    links: dict[str, int]


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
    """The providers, in file order. `in_flight` and `capacity` are sums over all of them."""

    rows: list[ProviderRow]
    total: int
    in_flight: int
    capacity: int


class ModelsPart(TypedDict):
    """The ids of the models, in file order."""

    ids: list[str]
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


# One request on a Node. `age_ms` is since the grant, `ttfb_ms` null before the answer's head, `bytes_out` what has gone
# to the client of the answer. `state` is dispatched, streaming or cancelling.
RunRow = TypedDict(
    "RunRow",
    {
        "run": int,
        "request": str,
        "principal": str,
        "model": str,
        "node_id": str,
        "provider_id": str,
        "class": str,
        "state": str,
        "queue_ms": int,
        "age_ms": int,
        "ttfb_ms": int | None,
        "estimated_tokens": int,
        "bytes_out": int,
    },
)


class RunsPage(TypedDict):
    """What runs, the oldest first."""

    total: int
    runs: list[RunRow]


class CandidateRow(TypedDict):
    """One provider of a model, in the order of the file, and what stands between it and the request.

    `verdict` is taken_next, free, full, no_long_slot, node_offline, unhealthy, disabled, draining or cannot; `reason`
    says it in words. Capacities are as configured.
    """

    node_id: str
    provider_id: str
    served: str
    verdict: str
    reason: str
    priority: int
    in_flight: int
    capacity: int
    long_in_flight: int
    long_capacity: int
    queued: int


# What would become of a request now. `decision` is run, wait, queue_full, provider_unavailable or unsupported_by_model.
# `position` is 0 when it would run, else its place among those who wait for the same providers, null where no provider
# is live.
ExplainPage = TypedDict(
    "ExplainPage",
    {
        "model": str,
        "tokens": int,
        "class": str,
        "needs": list[str],
        "decision": str,
        "position": int | None,
        "why": str,
        "retry_after_s": int | None,
        "candidates": list[CandidateRow],
        "candidates_total": int,
    },
)


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
    impact: dict[str, int]


class Snapshot(TypedDict):
    """Every part. `refreshes` holds the last few, the newest first."""

    edge: EdgePart
    config: ConfigPart
    nodes: NodesPart
    providers: ProvidersPart
    models: ModelsPart
    queue: QueuePart
    rates: RatesPart
    durations: DurationsPart
    refreshes: list[RefreshRow]
