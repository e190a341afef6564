"""`GET /events`: what an operator's page shows, as it changes. The JSON of it stands in `event_shapes`.

One loop for all readers: while there is any, each second every part is read anew, a turn of the event loop between two,
and rendered. Parts whose bytes differ get the next version, all at once. A reader knows the version that it was sent
last and gets all parts that are newer, whole: a slow one skips what it missed, nothing is queued for it, and readers
cost what their bytes cost.

Bounds: READERS_MAX readers, ROWS_MAX rows of Nodes, of providers and of models, WAITERS_MAX waiters and lines,
REFRESHES refreshes.

Who may call: the admin listener, on the loop. `stop` ends every stream, so that the listener can be taken down.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

import orjson
from aiohttp import web

import iop_fast
from iop_fast import logs
from iop_fast._core.admission import SnapshotRow
from iop_fast._hot.meters import DURATION_BOUNDS_NS, Histogram
from iop_fast.edge.admin import json_answer
from iop_fast.edge.event_shapes import (
    ConfigPart,
    DurationCounts,
    DurationsPart,
    EdgePart,
    ModelsPart,
    NodeRow,
    NodesPart,
    ProviderRow,
    ProvidersPart,
    QueuePart,
    RatesPart,
    RefreshRow,
)
from iop_fast.edge.link import NodeLink
from iop_fast.edge.metric_rows import MetricSources
from iop_fast.edge.refresh import Entry
from iop_fast.edge.status import health_status, report_of
from iop_fast.edge.views import queue_view

log = logs.get(__name__)

NS_PER_MS = 1_000_000

TICK_S = 1.0
READERS_MAX = 16
ROWS_MAX = 500
WAITERS_MAX = 20
REFRESHES = 5
REFRESH_PATHS_MAX = 20

# After so many ticks without an event, one that says so: a reader tells a quiet Edge from a connection that hangs.
QUIET_TICKS = 5
RETRY = b"retry: 2000\n\n"
QUIET = b"event: quiet\ndata: {}\n\n"

HEADERS = {"content-type": "text/event-stream", "cache-control": "no-store", "x-accel-buffering": "no"}


class Parts:
    """Reads the parts of a snapshot. Rates and durations are what came since the read before."""

    def __init__(self, sources: MetricSources, file: str) -> None:
        self._sources = sources
        self._file = file
        self._started_at = moment(datetime.now(UTC))
        self._read_at_ns = sources.edge.clock.now_ns()
        self._outcomes: Mapping[str, int] = {}
        self._tokens = (0, 0)
        self._busy_reads = 0
        self._durations = self._sums()
        self.readers: Mapping[str, Callable[[], Any]] = {
            "edge": self.edge,
            "config": self.config,
            "nodes": self.nodes,
            "providers": self.providers,
            "models": self.models,
            "queue": self.queue,
            "rates": self.rates,
            "durations": self.durations,
            "refreshes": self.refreshes,
        }

    def begin(self) -> None:
        """What has come so far is old: rates and durations count from here."""
        self.rates()
        self.durations()

    def edge(self) -> EdgePart:
        """Read the process."""
        edge = self._sources.edge
        named, reasons = edge.runtime.config.edge, self._sources.readiness.reasons()
        return {
            "id": named.id,
            "name": named.name,
            "version": iop_fast.__version__,
            "started_at": self._started_at,
            "is_draining": edge.is_draining,
            "is_ready": not reasons,
            "reasons": reasons,
        }

    def config(self) -> ConfigPart:
        """Read which configuration is in force."""
        runtime = self._sources.edge.runtime
        return {"revision": runtime.revision, "file": self._file, "file_sha256": runtime.file_sha256}

    def nodes(self) -> NodesPart:
        """Read the Nodes."""
        runtime, links = self._sources.edge.runtime, self._sources.links
        found = [links.current(node.id) for node in runtime.config.nodes]
        rows: list[NodeRow] = []
        for node, link in zip(runtime.config.nodes[:ROWS_MAX], found, strict=False):
            rows.append(
                {
                    "node_id": node.id,
                    "alias": node.alias,
                    "link": "offline" if link is None else link.state.value,
                    "generation": 0 if link is None else link.generation,
                    "payload_revision": runtime.payload_revisions[node.id],
                    "observed_revision": 0 if link is None else link.pushes.observed_revision or 0,
                    "runs": 0 if link is None else link.run_count,
                }
            )
        states = Counter("offline" if link is None else link.state.value for link in found)
        return {"rows": rows, "total": len(found), "links": dict(states)}

    def providers(self) -> ProvidersPart:
        """Read the providers."""
        edge, links = self._sources.edge, self._sources.links
        rows = edge.gate.snapshot()
        catalog = {provider.key: provider for provider in edge.runtime.catalog.providers}
        shown: list[ProviderRow] = []
        for row in rows[:ROWS_MAX]:
            provider = catalog[row.node_id, row.provider_id]
            state, reason = provider_state(row, provider.health, links.current(row.node_id))
            shown.append(
                {
                    "node_id": row.node_id,
                    "provider_id": row.provider_id,
                    "type": provider.type,
                    "label": provider.label,
                    "state": state,
                    "reason": reason,
                    "priority": row.priority,
                    "capacity": row.configured_capacity,
                    "long_capacity": row.configured_long_capacity,
                    "in_flight": row.in_flight,
                    "long_in_flight": row.long_in_flight,
                    "queued": row.queued,
                }
            )
        in_flight, capacity = sum(row.in_flight for row in rows), sum(row.configured_capacity for row in rows)
        return {"rows": shown, "total": len(rows), "in_flight": in_flight, "capacity": capacity}

    def models(self) -> ModelsPart:
        """Read what the models are called."""
        models = self._sources.edge.runtime.config.models
        return {"ids": [model.id for model in models[:ROWS_MAX]], "total": len(models)}

    def queue(self) -> QueuePart:
        """Read the queue."""
        return queue_view(self._sources.edge, WAITERS_MAX)

    def rates(self) -> RatesPart:
        """Read what has ended since the last time."""
        edge = self._sources.edge
        now_ns, before_ns = edge.clock.now_ns(), self._read_at_ns
        outcomes: dict[str, int] = {}
        for (_, _, _, outcome), count in edge.books.meters.outcomes():
            outcomes[outcome] = outcomes.get(outcome, 0) + count
        rows = edge.books.usage.rows.values()
        tokens = sum(row.prompt_tokens for row in rows), sum(row.completion_tokens for row in rows)
        ended = {name: count - self._outcomes.get(name, 0) for name, count in outcomes.items()}
        ended = {name: count for name, count in ended.items() if count > 0}
        (prompt, completion), (prompt_before, completion_before) = tokens, self._tokens
        self._read_at_ns, self._outcomes, self._tokens = now_ns, outcomes, tokens
        self._busy_reads += bool(ended)
        return {
            "busy": self._busy_reads,
            # In whole seconds, so that a quiet second differs in nothing from the one before.
            "interval_ms": max(1, round((now_ns - before_ns) / 1e9)) * 1000,
            "requests": sum(ended.values()),
            "outcomes": ended,
            "prompt_tokens": prompt - prompt_before,
            "completion_tokens": completion - completion_before,
        }

    def durations(self) -> DurationsPart:
        """Read how long that took which has ended since the last time."""
        before, self._durations = self._durations, self._sums()
        waits, first_bytes, totals = (difference(*pair) for pair in zip(before, self._durations, strict=True))
        return {
            "busy": self._busy_reads,
            "bounds_ms": [bound // NS_PER_MS for bound in DURATION_BOUNDS_NS],
            "queue": waits,
            "ttfb": first_bytes,
            "total": totals,
        }

    def refreshes(self) -> list[RefreshRow]:
        """Read the last refreshes."""
        return [refresh_row(entry) for entry in self._sources.refresher.history[:REFRESHES]]

    def _sums(self) -> tuple[Histogram, Histogram, Histogram]:
        return self._sources.edge.books.meters.sums()


def moment(at: datetime) -> str:
    """Write a moment."""
    return at.isoformat(timespec="milliseconds")


def difference(before: Histogram, after: Histogram) -> DurationCounts:
    """What was counted between two looks; models that a refresh took away count nothing."""
    counts = [max(0, new - old) for new, old in zip(after.counts(), before.counts(), strict=True)]
    return {"counts": counts, "sum_ms": max(0, after.sum_ns - before.sum_ns) // NS_PER_MS}


def provider_state(row: SnapshotRow, file_health: str, link: NodeLink | None) -> tuple[str, str]:
    """Name a provider's state, and why it is not up."""
    if not row.enabled:
        return "disabled", "the file disables it"
    if row.link == "offline":
        return "offline", "its node is offline"
    if row.link == "draining":
        return "draining", "its node shuts down"
    health = health_status(row, file_health, report_of(row, link))
    return ("up", "") if health["healthy"] else ("down", str(health["reason"] or health["reported"]))


def refresh_row(entry: Entry) -> RefreshRow:
    """Shorten a report."""
    report = entry.report
    return {
        "at": moment(entry.at),
        "source": entry.source,
        "mode": report["mode"],
        "status": report["status"],
        "revision": report["revision"],
        "changes": report["changed_paths_total"],
        "changed_paths": report["changed_paths"][:REFRESH_PATHS_MAX],
        "restart_required_paths": report["restart_required_paths"][:REFRESH_PATHS_MAX],
        "errors": report["errors"][:REFRESH_PATHS_MAX],
        "node_pushes": report["node_pushes"][:REFRESH_PATHS_MAX],
        "impact": report["impact"],
    }


class Feed:
    """The stream's parts and readers."""

    def __init__(self, parts: Parts, loop: asyncio.AbstractEventLoop, tick_s: float = TICK_S) -> None:
        self._parts = parts
        self._loop = loop
        self._tick_s = tick_s
        self._rendered: Mapping[str, tuple[int, bytes]] = {}  # part -> version and JSON
        self._version = 0
        self._tick: asyncio.Future[None] = loop.create_future()
        self._task: asyncio.Task[None] | None = None
        self._is_stopped = False
        self.readers = 0

    @property
    def has_room(self) -> bool:
        """True while a further reader may come."""
        return self.readers < READERS_MAX and not self._is_stopped

    async def follow(self, is_open: Callable[[], bool]) -> AsyncGenerator[bytes, None]:
        """Yield the events of one reader, until `stop` or while it is there."""
        self.readers += 1
        try:
            if self._task is None:
                self._rendered = {}
                self._parts.begin()
                self._task = self._loop.create_task(self._tick_until_alone())
            task = self._task
            yield RETRY
            version, quiet = 0, 0
            while not self._is_stopped and is_open() and self._task is task:
                newer = [(name, body) for name, (changed, body) in self._rendered.items() if changed > version]
                if newer:
                    kind, version, quiet = b"change" if version else b"snapshot", self._version, 0
                    yield event(kind, newer)
                elif quiet >= QUIET_TICKS:
                    quiet = 0
                    yield QUIET
                else:  # nothing came, nor ended, since this was looked at
                    quiet += 1
                    await asyncio.shield(self._tick)
        finally:
            self.readers -= 1

    async def stop(self) -> None:
        """End every stream, and take no further reader."""
        self._is_stopped = True
        self._wake()
        task = self._task
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _tick_until_alone(self) -> None:
        """Read while there are readers. Where reading fails the readers are ended: their coming again starts anew."""
        try:
            while self.readers:
                await self._read()
                self._wake()
                await asyncio.sleep(self._tick_s)
        except Exception as error:  # noqa: BLE001 - nobody waits for this task
            log.failure("feed_failed", error)
        finally:
            self._task = None
            self._wake()

    async def _read(self) -> None:
        """Read every part, others in between; those that differ get the next version, all at once."""
        version = self._version + 1
        rendered = dict(self._rendered)
        for name, read in self._parts.readers.items():
            body = orjson.dumps(read())
            if name not in rendered or rendered[name][1] != body:
                rendered[name] = (version, body)
            await asyncio.sleep(0)
        if any(changed == version for changed, _ in rendered.values()):
            self._rendered, self._version = rendered, version

    def _wake(self) -> None:
        tick, self._tick = self._tick, self._loop.create_future()
        tick.set_result(None)


def event(kind: bytes, parts: Sequence[tuple[str, bytes]]) -> bytes:
    """Write an event. JSON as orjson writes it holds no line break."""
    body = b",".join(b'"%b":%b' % (name.encode(), part) for name, part in parts)
    return b"event: %b\ndata: {%b}\n\n" % (kind, body)


def add_feed(app: web.Application, feed: Feed) -> None:
    """Serve the path."""

    async def get_events(request: web.Request) -> web.StreamResponse:
        if not feed.has_room:
            error = {"code": "busy", "message": f"expected at most {READERS_MAX} readers at a time"}
            return json_answer({"error": error}, HTTPStatus.SERVICE_UNAVAILABLE)
        answer = web.StreamResponse(headers=HEADERS)
        await answer.prepare(request)
        if request.method == "HEAD":
            return answer
        async with aclosing(feed.follow(lambda: request.transport is not None)) as events:
            try:
                async for piece in events:
                    await answer.write(piece)  # network
            except ConnectionError:
                pass  # the reader left
        return answer

    app.router.add_get("/events", get_events)
