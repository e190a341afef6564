"""Who waits and why, what runs where, what would become of a request: plain data for JSON, read-outs alone.

Every list is bounded by a limit and stands beside its total, and no view costs more than its limit, the number of lines
in the queue or the number of providers: a queue of 100,000 is shown as quickly as one of ten. Nothing that a client
sent is shown; its request goes by the id that it got here.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from itertools import islice
from typing import NamedTuple, cast

from iop_fast._core.admission import SnapshotRow
from iop_fast.edge.event_shapes import (
    CandidateRow,
    ExplainPage,
    LineRow,
    QueuePart,
    RunRow,
    RunsPage,
    WaiterRow,
)
from iop_fast.edge.exchange import Exchange
from iop_fast.edge.gate import Gate
from iop_fast.edge.links import Links
from iop_fast.edge.needs import NAMES
from iop_fast.edge.normalized.run import NormalizedRun
from iop_fast.edge.refusals import is_supported
from iop_fast.edge.runtime import Key
from iop_fast.edge.state import EdgeState
from iop_fast.seams import EdgeRun

NS_PER_MS = 1_000_000

LIMIT_DEFAULT, LIMIT_MAX = 100, 500

# How each verdict of admission on a provider reads after a number of them, as they would be looked at.
VERDICTS: Mapping[str, str] = {
    "taken_next": "taken next",
    "free": "free",
    "full": "full",
    "no_long_slot": "without a free long slot",
    "unhealthy": "down",
    "disabled": "disabled",
    "node_offline": "on a node that is offline",
    "draining": "on a node that shuts down",
    "cannot": "unable to do it",
    "failed_before": "tried before",
}

Kind = tuple[str, bool, int, Key | None]  # model, is long, needs, a provider that is not asked again


class Block(NamedTuple):
    """What stands between requests of one kind and a slot."""

    needs: list[str]
    verdicts: dict[str, int]
    why: str


class Blocks:
    """Why requests wait, looked up once for each kind of them."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._known: dict[Kind, Block] = {}

    def of(self, kind: Kind) -> Block:
        """Say what stands between requests of a kind and a slot."""
        found = self._known.get(kind)
        if found is None:
            model, is_long, needs, excluded = kind
            verdicts = self._gate.verdicts(model, is_long, needs)
            if excluded is not None and verdicts.get("free"):
                verdicts["free"] -= 1
                verdicts["failed_before"] = 1
            counts = {word: count for word, count in verdicts.items() if count}
            found = self._known[kind] = Block(need_names(needs), counts, in_words(counts))
        return found


def in_words(verdicts: Mapping[str, int]) -> str:
    """Say verdicts in words: "2 full, 1 disabled"."""
    return ", ".join(f"{verdicts[word]} {text}" for word, text in VERDICTS.items() if word in verdicts)


def need_names(needs: int) -> list[str]:
    """Name what a request needs of its provider."""
    return [name for bit, name in NAMES.items() if bit & needs]


def class_of(is_long: bool) -> str:
    """Name a context class."""
    return "long" if is_long else "normal"


def queue_view(edge: EdgeState, limit: int) -> QueuePart:
    """The queue: its first waiters and its oldest lines, at most `limit` of each."""
    gate, now_ns = edge.gate, edge.clock.now_ns()
    blocks = Blocks(gate)
    waiters: list[WaiterRow] = []
    for place, row in enumerate(gate.waiters(limit), 1):
        block = blocks.of((row.model, row.is_long, row.needs, row.excluded))
        request = cast(Exchange, row.owner).request
        waiters.append(
            {
                "place": place,
                "request": request.id.decode(),
                "principal": request.principal.principal,
                "model": row.model,
                "class": class_of(row.is_long),
                "needs": block.needs,
                "age_ms": (now_ns - row.enqueued_at_ns) // NS_PER_MS,
                "is_readmitted": row.is_readmitted,
                "blocked_by": block.verdicts,
                "why": block.why,
            }
        )
    lines: list[LineRow] = []
    for line in gate.lines(limit):
        block = blocks.of((line.model, line.is_long, line.needs, line.excluded))
        lines.append(
            {
                "model": line.model,
                "class": class_of(line.is_long),
                "needs": block.needs,
                "waiting": line.waiting,
                "oldest_ms": (now_ns - line.enqueued_at_ns) // NS_PER_MS,
                "why": block.why,
            }
        )
    return {
        "waiting": gate.waiting,
        "max_queue": gate.max_queue,
        "timeout_ms": edge.runtime.config.provider_pool.queue_timeout_ms,
        "oldest_ms": gate.oldest_wait_ns // NS_PER_MS,
        "waiters": waiters,
        "lines": lines,
        "lines_total": gate.line_count,
    }


def explain_view(edge: EdgeState, model: str, tokens: int, needs: int, limit: int) -> ExplainPage:
    """What would become of a request for a model of that many tokens now, and what each provider has to do with it.

    Raises KeyError for an unknown model.
    """
    gate, runtime = edge.gate, edge.runtime
    entry = runtime.models[model]
    is_long = tokens >= runtime.long_threshold_tokens
    found = gate.explain(model, is_long, needs)
    rows = {(row.node_id, row.provider_id): row for row in gate.snapshot()}
    decision = decide(gate, is_supported(entry.abilities, needs), found.position)
    return {
        "model": model,
        "tokens": tokens,
        "class": class_of(is_long),
        "needs": need_names(needs),
        "decision": decision,
        "position": found.position,
        "why": in_words(gate.verdicts(model, is_long, needs)) if found.position != 0 else "",
        "retry_after_s": gate.retry_after_s(model) if decision == "queue_full" else None,
        "candidates": [
            candidate_row(rows[key], entry.served[key].name, verdict) for key, verdict in found.candidates[:limit]
        ],
        "candidates_total": len(found.candidates),
    }


def decide(gate: Gate, is_able: bool, position: int | None) -> str:
    """Name what a request would meet, by the code of the error where it would get one."""
    if not is_able:
        return "unsupported_by_model"
    if position is None:
        return "provider_unavailable"
    if position == 0:
        return "run"
    return "wait" if gate.waiting < gate.max_queue else "queue_full"


def candidate_row(row: SnapshotRow, served: str, verdict: str) -> CandidateRow:
    """One provider of a model, and what stands between it and the request."""
    return {
        "node_id": row.node_id,
        "provider_id": row.provider_id,
        "served": served,
        "verdict": verdict,
        "reason": VERDICTS[verdict],
        "priority": row.priority,
        "in_flight": row.in_flight,
        "capacity": row.configured_capacity,
        "long_in_flight": row.long_in_flight,
        "long_capacity": row.configured_long_capacity,
        "queued": row.queued,
    }


def runs_view(edge: EdgeState, links: Links, limit: int) -> RunsPage:
    """What runs on the Nodes, the oldest run first."""
    now_ns = edge.clock.now_ns()
    found = (links.current(node_id) for node_id in edge.runtime.payloads)
    tables = [link.listed_runs() for link in found if link is not None]
    first = islice(heapq.merge(*tables, key=run_id), limit)
    return {
        "total": links.run_count,
        "runs": [run_row(number, exchange_of(run), now_ns) for number, run in first],
    }


def run_id(listed: tuple[int, object]) -> int:
    """The number of a run; the numbers rise in the order of the grants."""
    return listed[0]


def exchange_of(run: EdgeRun) -> Exchange:
    """Return the exchange behind a run of a session's table."""
    return cast(Exchange, run.exchange if isinstance(run, NormalizedRun) else run)


def run_row(number: int, run: Exchange, now_ns: int) -> RunRow:
    """One run: whose, where, since when, and how far it is."""
    return {
        "run": number,
        "request": run.request.id.decode(),
        "principal": run.request.principal.principal,
        "model": run.model,
        "node_id": run.node_id,
        "provider_id": run.provider_id,
        "class": class_of(run.is_long),
        "state": run.state.name.lower(),
        "queue_ms": run.queue_ns // NS_PER_MS,
        "age_ms": (now_ns - run.granted_ns) // NS_PER_MS,
        "ttfb_ms": (run.head_ns - run.began_ns) // NS_PER_MS if run.head_ns else None,
        "estimated_tokens": run.estimated_tokens,
        "bytes_out": run.reply.bytes_out,
    }
