"""What the Edge's metrics stand at: rows of the families of `metric_table`, read piece by piece on the event loop.

Each step of `read` is a short piece of work, and others may run between two: what one family says may be a turn older
than the next. Rows are of the configuration in force alone: whatever is counted of a model or provider that has left it
is not shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from typing import NamedTuple

from iop_fast._core.admission import Outcome, SnapshotRow
from iop_fast.edge import metric_table as table
from iop_fast.edge.admin import Readiness
from iop_fast.edge.books import NOBODY, OTHER
from iop_fast.edge.front.listener import Front
from iop_fast.edge.links import Links
from iop_fast.edge.refresh import Refresher
from iop_fast.edge.refresh_report import Status
from iop_fast.edge.state import EdgeState
from iop_fast.edge.status import lines_lost
from iop_fast.edge.usage import UsageRow
from iop_fast.metrics import Family, Rows, Total, long, short

NS_PER_S = 1_000_000_000
MS_PER_S = 1_000

# Usage rows that one piece sums up.
USAGE_PIECE = 1_000

OUTCOMES = tuple(outcome.name.lower() for outcome in Outcome)
CLASSES = ("normal", "long")
SUCCESSES = (Status.APPLIED.value, Status.NO_CHANGE.value)


class MetricSources(NamedTuple):
    """Where the metrics are read from."""

    edge: EdgeState
    links: Links
    front: Front
    refresher: Refresher
    readiness: Readiness


def read(sources: MetricSources) -> Iterator[Rows]:
    """Yield everything that /metrics of an Edge shows beside what every process has."""
    edge, links = sources.edge, sources.links
    yield from request_rows(edge)
    yield from queue_rows(edge)
    yield from model_rows(edge)
    yield from provider_rows(edge)
    yield from node_rows(edge, links)
    yield from link_rows(edge, links)
    yield from usage_rows(edge)
    yield from config_rows(edge, sources.refresher)
    yield from http_rows(edge, sources.front)
    yield from process_rows(edge, links, sources.front, sources.readiness)


def one(family: Family, value: float) -> Rows:
    """A family without labels."""
    return family, [((), value)]


def request_rows(edge: EdgeState) -> Iterator[Rows]:
    """What became of requests and how long their parts took."""
    models, providers, meters = edge.runtime.models, edge.runtime.can, edge.books.meters
    yield (
        table.REQUESTS,
        [
            (key, count)
            for key, count in meters.outcomes()
            if (key[0] in models or key[0] == OTHER) and ((key[1], key[2]) in providers or key[2] == NOBODY)
        ],
    )
    for model, normal_waits, long_waits, first_bytes, totals in meters.models():
        if model not in models and model != OTHER:
            continue
        label = (model,)
        yield table.REQUEST_DURATION, [(label, long(totals))] if totals.count else ()
        if model != OTHER:
            yield (
                table.REQUEST_QUEUE,
                [
                    ((model, name), long(waits))
                    for name, waits in zip(CLASSES, (normal_waits, long_waits), strict=True)
                    if waits.count
                ],
            )
            yield table.REQUEST_TTFB, [(label, long(first_bytes))] if first_bytes.count else ()
    yield table.REQUEST_OVERHEAD, [((), short(meters.overhead))]
    yield one(table.READMISSIONS, edge.counters["readmitted"])


def queue_rows(edge: EdgeState) -> Iterator[Rows]:
    """The queue as a whole."""
    gate, pool = edge.gate, edge.runtime.config.provider_pool
    yield one(table.QUEUE_WAITING, gate.waiting)
    yield one(table.QUEUE_LIMIT, gate.max_queue)
    yield one(table.QUEUE_TIMEOUT, pool.queue_timeout_ms / MS_PER_S)
    yield one(table.QUEUE_OLDEST, gate.oldest_wait_ns / NS_PER_S)


def model_rows(edge: EdgeState) -> Iterator[Rows]:
    """Each model's queue, candidates and outcomes of admission."""
    gate = edge.gate
    yield (
        table.ADMISSION,
        [
            ((model, OUTCOMES[outcome]), count)
            for model, counts in gate.model_outcomes().items()
            for outcome, count in enumerate(counts)
            if count
        ],
    )
    waiting = gate.waiting_by_model()
    yield (
        table.MODEL_WAITING,
        [
            ((model, name), count)
            for model in edge.runtime.models
            for name, count in zip(CLASSES, waiting.get(model, (0, 0)), strict=True)
        ],
    )
    yield table.MODEL_CANDIDATES, [((model,), gate.live_candidates(model, False, 0)) for model in edge.runtime.models]


def provider_rows(edge: EdgeState) -> Iterator[Rows]:
    """Each provider's slots, what it runs and what it has run."""
    rows = edge.gate.snapshot()
    labels = [(row.node_id, row.provider_id) for row in rows]
    for family, values in provider_values(rows):
        yield family, list(zip(labels, values, strict=True))
    first_bytes = {key: Total(count, sum_ns) for key, count, sum_ns in edge.books.meters.providers()}
    none = Total(0, 0)
    yield table.PROVIDER_TTFB, [(label, first_bytes.get(label, none)) for label in labels]
    meters = edge.gate.meters()
    yield (
        table.PROVIDER_QUEUE,
        [((row.node_id, row.provider_id), Total(sum(row.wait_counts), row.wait_sum_ns)) for row in meters],
    )
    yield (
        table.PROVIDER_LEASE,
        [((row.node_id, row.provider_id), Total(sum(row.lease_counts), row.lease_sum_ns)) for row in meters],
    )


def provider_values(rows: Sequence[SnapshotRow]) -> Iterator[tuple[Family, list[int]]]:
    """The gauges of providers, each with its values in the order of the rows."""
    yield table.PROVIDER_UP, [int(row.link == "ready" and row.enabled and row.healthy) for row in rows]
    yield table.PROVIDER_ENABLED, [int(row.enabled) for row in rows]
    yield table.PROVIDER_HEALTHY, [int(row.healthy and row.link != "offline") for row in rows]
    yield table.PROVIDER_IN_FLIGHT, [row.in_flight for row in rows]
    yield table.PROVIDER_LONG_IN_FLIGHT, [row.long_in_flight for row in rows]
    yield table.PROVIDER_CAPACITY, [row.capacity for row in rows]
    yield table.PROVIDER_LONG_CAPACITY, [row.long_capacity for row in rows]
    yield table.PROVIDER_CONFIGURED, [row.configured_capacity for row in rows]
    yield table.PROVIDER_LONG_CONFIGURED, [row.configured_long_capacity for row in rows]
    yield table.PROVIDER_QUEUED, [row.queued for row in rows]


def node_rows(edge: EdgeState, links: Links) -> Iterator[Rows]:
    """Each Node's session."""
    up, generations, revisions, observed, silences = [], [], [], [], []
    for node_id, revision in edge.runtime.payload_revisions.items():
        link, label = links.current(node_id), (node_id,)
        up.append((label, int(link is not None and link.state.value == "ready")))
        generations.append((label, 0 if link is None else link.generation))
        revisions.append((label, revision))
        observed.append((label, 0 if link is None else link.pushes.observed_revision or 0))
        silences.append((label, 0.0 if link is None else link.silence.silent_ns / NS_PER_S))
    yield table.NODE_UP, up
    yield table.NODE_GENERATION, generations
    yield table.NODE_PAYLOAD_REVISION, revisions
    yield table.NODE_OBSERVED_REVISION, observed
    yield table.NODE_SILENCE, silences


def link_rows(edge: EdgeState, links: Links) -> Iterator[Rows]:
    """What runs on each Node and what went over its links."""
    nodes = list(edge.runtime.payload_revisions)
    current = [(node_id, links.current(node_id)) for node_id in nodes]
    yield table.LINK_RUNS, [((node_id,), 0 if link is None else link.run_count) for node_id, link in current]
    yield table.LINK_BUFFERED, [((node_id,), 0 if link is None else link.buffered_bytes) for node_id, link in current]
    traffic = [(node_id, links.traffic(node_id)) for node_id in nodes]
    for family, unit in ((table.LINK_BYTES, "bytes"), (table.LINK_MESSAGES, "messages"), (table.LINK_FRAMES, "frames")):
        yield (
            family,
            [
                ((node_id, direction), getattr(each, f"{direction}_{unit}"))
                for node_id, each in traffic
                for direction in ("sent", "received")
            ],
        )
    yield table.LINK_EVENTS, [((name,), count) for name, count in asdict(links.counters).items()]


def usage_rows(edge: EdgeState) -> Iterator[Rows]:
    """Tokens and bookings, summed up by principal and by model."""
    principals: dict[tuple[str, str], UsageRow] = {}
    models: dict[str, UsageRow] = {}
    rows = iter(list(edge.books.usage.rows.items()))
    while piece := list(islice(rows, USAGE_PIECE)):
        for key, row in piece:
            principals.setdefault((key.principal, key.token_ref), UsageRow()).merge(row)
            models.setdefault(key.model, UsageRow()).merge(row)
        yield table.TOKENS, ()
    kinds = ("prompt", "completion", "cached")
    yield (
        table.TOKENS,
        [((*label, kind), getattr(row, f"{kind}_tokens")) for label, row in principals.items() for kind in kinds],
    )
    yield (
        table.USAGE_REQUESTS,
        [
            ((*label, state), getattr(row, state))
            for label, row in principals.items()
            for state in ("complete", "partial", "unknown")
        ],
    )
    known = [(model, row) for model, row in models.items() if model in edge.runtime.models or model == OTHER]
    yield (
        table.MODEL_TOKENS,
        [((model, kind), getattr(row, f"{kind}_tokens")) for model, row in known for kind in kinds],
    )
    yield table.ESTIMATED_TOKENS, [((model,), row.estimated_tokens) for model, row in known]
    yield table.REPORTED_TOKENS, [((model,), row.measured_tokens) for model, row in known]


def config_rows(edge: EdgeState, refresher: Refresher) -> Iterator[Rows]:
    """The configuration in force and how it came to be."""
    yield one(table.CONFIG_REVISION, edge.runtime.revision)
    yield table.REFRESHES, list(refresher.counts.items())
    yield table.REFRESH_TIME, [((mode,), entry.at.timestamp()) for mode, entry in refresher.last.items()]
    last = refresher.last.get("apply")
    yield one(table.REFRESH_SUCCESS, int(last is None or last.report["status"] in SUCCESSES))


def http_rows(edge: EdgeState, front: Front) -> Iterator[Rows]:
    """The HTTP listener."""
    counters = front.counters
    yield one(table.HTTP_CONNECTIONS, front.connections)
    yield one(table.HTTP_ACCEPTED, counters.connections)
    yield table.HTTP_REFUSALS, [((failure.reason,), count) for failure, count in counters.refusals.items()]
    yield one(table.HTTP_DROPPED, counters.requests_dropped)
    yield one(table.HTTP_CUT, counters.answers_cut)
    yield one(table.HTTP_STALLS, counters.stalls)
    yield one(table.HTTP_BUFFERED, edge.budget.used)
    yield one(table.HTTP_BUFFERED_LIMIT, edge.runtime.config.openai.limits.buffered_bytes)


def process_rows(edge: EdgeState, links: Links, front: Front, readiness: Readiness) -> Iterator[Rows]:
    """The process, and what should never happen in it."""
    yield one(table.READY, int(not readiness.reasons()))
    yield one(table.DRAINING, int(edge.is_draining))
    lost = lines_lost(edge.books)
    yield table.LINES_DROPPED, [((name,), counts["dropped"]) for name, counts in lost.items()]
    yield table.LINES_FAILED, [((name,), counts["failed"]) for name, counts in lost.items()]
    if edge.books.traces is not None:
        yield table.SPANS, [((result,), count) for result, count in edge.books.traces.counts().items()]
    admission = edge.gate.counters()
    faults = {
        "double_release": admission["double_release"],
        "lease_dropped": admission["reclaimed"],
        "owner_failed": admission["callback_failed"],
        "exchange_failed": edge.counters.get("broken", 0),
        "cancel_unconfirmed": edge.counters["released_unconfirmed"],
        "run_unknown_to_node": links.counters.runs_reclaimed,
        "run_failed": links.counters.runs_failed,
        "http_failed": front.counters.internal_errors,
    }
    yield table.FAULTS, [((name,), count) for name, count in faults.items()]
