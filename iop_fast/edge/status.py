"""What an operator sees of a running Edge, as plain data for JSON. Read-outs only: nothing here changes anything.

Stable names; durations in the unit that the name ends with. A Node is `connected` from its valid ready ack to the end
of that session, so one that is merely accepted is not. A provider's `configured` numbers are always those of the
configuration in force, its `effective` ones are all 0 while its Node is offline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import iop_fast
from iop_fast._core.admission import SnapshotRow
from iop_fast.config.catalog import CatalogProvider
from iop_fast.config.schema import Node
from iop_fast.edge.books import Books
from iop_fast.edge.front.listener import Front
from iop_fast.edge.front.shared import FrontCounters
from iop_fast.edge.health import UNREPORTED, Report
from iop_fast.edge.link import NodeLink
from iop_fast.edge.links import Links
from iop_fast.edge.state import EdgeState

NS_PER_MS = 1_000_000


class Sources(NamedTuple):
    """Where the snapshot is read from. `started_at_ns` is the clock's time when the Edge was made."""

    edge: EdgeState
    links: Links
    front: Front
    file: str
    started_at_ns: int


def edge_status(sources: Sources) -> dict[str, Any]:
    """Assemble the whole snapshot."""
    edge, links = sources.edge, sources.links
    runtime = edge.runtime
    config = runtime.config
    return {
        "edge": {
            "id": config.edge.id,
            "name": config.edge.name,
            "software": f"iop_fast {iop_fast.__version__}",
            "uptime_ms": (edge.clock.now_ns() - sources.started_at_ns) // NS_PER_MS,
            "is_draining": edge.is_draining,
        },
        "config": {"revision": runtime.revision, "file": sources.file, "file_sha256": runtime.file_sha256},
        "queue": {
            "waiting": edge.gate.waiting,
            "max_queue": edge.gate.max_queue,
            "queue_timeout_ms": config.provider_pool.queue_timeout_ms,
        },
        "http": {"connections": sources.front.connections, "buffered_bytes": edge.budget.used},
        "nodes": [node_status(edge, node, links.current(node.id)) for node in config.nodes],
        "providers": provider_rows(edge.gate.snapshot(), runtime.catalog.providers, links),
        "counters": {
            "admission": edge.gate.counters(),
            "requests": dict(edge.counters),
            "links": asdict(links.counters),
            "http": front_counters(sources.front.counters),
            "lines": lines_lost(edge.books),
        },
        "usage": edge.books.usage.snapshot(),
    }


def lines_lost(books: Books) -> dict[str, dict[str, int]]:
    """Lines that the access log and the usage log have lost, of those that are written."""
    writers = {"access": books.access, "usage": books.usage_log}
    return {name: {"dropped": w.dropped, "failed": w.failed} for name, w in writers.items() if w is not None}


def front_counters(counters: FrontCounters) -> dict[str, Any]:
    """The front's counters, its refusals by reason."""
    return {
        "connections": counters.connections,
        "requests": counters.requests,
        "requests_dropped": counters.requests_dropped,
        "answers_cut": counters.answers_cut,
        "stalls": counters.stalls,
        "internal_errors": counters.internal_errors,
        "refusals": {failure.reason: count for failure, count in counters.refusals.items()},
    }


def node_status(edge: EdgeState, node: Node, link: NodeLink | None) -> dict[str, Any]:
    """One configured Node and its current session."""
    current = edge.runtime.payload_revisions.get(node.id, 0)
    if link is None:
        return {
            "node_id": node.id,
            "alias": node.alias,
            "connected": False,
            "link": "offline",
            "session": None,
            "payload": {"revision": current, "sent": None, "observed": None, "pending": False, "error": ""},
            "providers": [],
        }
    session = link.session
    now_ns = edge.clock.now_ns()
    return {
        "node_id": node.id,
        "alias": node.alias,
        "connected": link.is_up,
        "link": link.state.value,
        "session": {
            "generation": session.generation,
            "address": session.address,
            "host": session.host,
            "software": session.software,
            "protocol": session.protocol,
            "age_ms": (now_ns - link.accepted_at_ns) // NS_PER_MS,
            "silent_ms": link.silence.silent_ns // NS_PER_MS,
            "runs": link.run_count,
            "buffered_bytes": link.buffered_bytes,
        },
        "payload": {
            "revision": current,
            "sent": link.pushes.sent_revision,
            "observed": link.pushes.observed_revision or None,
            "pending": link.pushes.is_pending,
            "error": link.pushes.error,
        },
        "providers": [
            {"provider_id": provider_id, "state": report.state, "reason": report.reason}
            for provider_id, report in link.health.reports.items()
        ],
    }


def provider_rows(
    rows: Sequence[SnapshotRow], providers: Sequence[CatalogProvider], links: Links
) -> list[dict[str, Any]]:
    """One row per provider, in file order: what the file says, what admission holds, what the Node reports."""
    catalog = {provider.key: provider for provider in providers}
    return [provider_row(row, catalog[row.node_id, row.provider_id], links.current(row.node_id)) for row in rows]


def provider_row(row: SnapshotRow, provider: CatalogProvider, link: NodeLink | None) -> dict[str, Any]:
    """Join one provider's three sources."""
    report = report_of(row, link)
    return {
        "node_id": row.node_id,
        "provider_id": row.provider_id,
        "type": provider.type,
        "label": provider.label,
        "link": row.link,
        "enabled": row.enabled,
        "priority": row.priority,
        "health": health_status(row, provider.health, report),
        "configured": {"capacity": row.configured_capacity, "long_capacity": row.configured_long_capacity},
        "effective": {
            "capacity": row.capacity,
            "long_capacity": row.long_capacity,
            "in_flight": row.in_flight,
            "long_in_flight": row.long_in_flight,
            "queued": row.queued,
        },
    }


def report_of(row: SnapshotRow, link: NodeLink | None) -> Report:
    """Return what the Node says of a provider."""
    return link.health.last_report(row.provider_id) if link is not None and link.is_up else UNREPORTED


def health_status(row: SnapshotRow, file_health: str, report: Report) -> Mapping[str, Any]:
    """Say whether a provider counts as healthy, and why."""
    if row.link == "offline":
        is_healthy, reason = False, "its node is offline"
    elif file_health != "auto":
        is_healthy, reason = row.healthy, f"the file says {file_health}"
    elif report.state == "up" and not row.healthy:
        is_healthy, reason = False, "up again, not for long enough yet"
    else:
        is_healthy, reason = row.healthy, report.reason
    return {"healthy": is_healthy, "file": file_health, "reported": report.state, "reason": reason}
