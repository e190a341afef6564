"""Take over another configuration while requests run: load, validate, compare, build aside, commit, push.

One path for dry run and apply; a dry run stops before the commit. Refreshes take turns from the reading of the file to
the pushes, so each is judged against what really runs when it commits.

    plan      in a thread (`refresh_plan`): nothing of the running Edge is touched; a failure leaves all as it was
    rehearse  on the loop: the core's step on a copy of admission, for the report
    commit    on the loop, in the same turn: the one reference is swapped and admission reconfigured (`EdgeState`)
    push      in the same turn, to the ready Nodes whose payload changed; an accepted Node gets it when it is ready
    settle    waits for the Nodes' answers, at most `edge.link.push_answer_ms`; other refreshes may go on meanwhile

A candidate with any restart-required path is not applied at all. One without any change still replaces the Runtime,
whose hash of the file is another, and leaves everything else: revision, order, rotation, deadlines, Nodes.

Who may call: the admin listener and the signal handler, on the loop. Never done here: a decision about a difference
(the schema's marks make it), a retry of a push (the Node's next registration carries the newest payload).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from iop_fast import logs
from iop_fast._core.admission import Plan
from iop_fast.considerate import considerate
from iop_fast.edge.gate import Gate
from iop_fast.edge.link import LinkState
from iop_fast.edge.links import Links
from iop_fast.edge.pushes import Push, PushStatus
from iop_fast.edge.refresh_plan import Planned, StepTimes, plan_refresh
from iop_fast.edge.refresh_report import Impact, Mode, NodePush, Report, Status
from iop_fast.edge.state import EdgeState

log = logs.get(__name__)

HISTORY_MAX = 50
# Of one report, the history names this many paths and findings: fifty reports about thousands of providers stay small.
HISTORY_PATHS_MAX = 200
# Refreshes that may wait for their turn.
WAITING_MAX = 64
# Findings of a file that a signal asked for go to the log, which nobody reads a thousand lines of.
LOGGED_FINDINGS_MAX = 20


class Busy(Exception):
    """Too many refreshes wait for their turn."""


class Asked(NamedTuple):
    """One refresh as it was asked for. `text` is a candidate (dry runs only), else the Edge's own file is read.

    `tags` are the values of If-Match, None without one; `source` is http or signal.
    """

    mode: Mode
    source: str
    text: str | None = None
    tags: Collection[str] | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the history; `report` is rendered already and names the first paths alone."""

    at: datetime
    source: str
    report: Mapping[str, Any]
    times_ms: Mapping[str, float]

    def as_plain(self) -> dict[str, Any]:
        """Render for JSON."""
        return {
            "at": self.at.isoformat(timespec="milliseconds"),
            "source": self.source,
            "steps": dict(self.times_ms),
            "report": self.report,
        }


class Refresher:
    """The refreshes of one Edge. `path` is its file."""

    def __init__(self, edge: EdgeState, links: Links, path: str, loop: asyncio.AbstractEventLoop) -> None:
        self._edge = edge
        self._links = links
        self._path = path
        self._loop = loop
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._history: deque[Entry] = deque(maxlen=HISTORY_MAX)
        self._is_signal_waiting = False
        self._tasks: dict[asyncio.Task[None], None] = {}
        self.counts: dict[tuple[str, str], int] = {}
        """Refreshes by mode and status."""
        self.last: dict[str, Entry] = {}
        """The last refresh of each mode."""
        self.on_signals_answered: Callable[[], object] | None = None
        """Called when no refresh that a signal asked for is under way any more."""

    @property
    def history(self) -> list[Entry]:
        """The last reports, the newest first."""
        return list(reversed(self._history))

    async def refresh(self, asked: Asked) -> Report:
        """Refresh, or say what a refresh would do; raise Busy when too many wait already."""
        if self._waiting >= WAITING_MAX:
            raise Busy(f"{self._waiting} refreshes wait for their turn already")
        times = StepTimes()
        pushes: dict[str, Push] = {}
        self._waiting += 1
        try:
            with times.step("wait"):
                await self._turn.acquire()
        finally:
            self._waiting -= 1
        try:
            if asked.source == "signal":
                self._is_signal_waiting = False  # what changes from here on asks for another one
            planned = await self._plan(asked, times)
            impact = self._carry_out(asked, planned, times, pushes)
        finally:
            self._turn.release()
        return await self._conclude(asked, planned, impact, times, pushes)

    def apply_by_signal(self) -> None:
        """Apply the file because a signal said so. One that waits for its turn stands for all that come meanwhile."""
        if self._is_signal_waiting:
            return
        self._is_signal_waiting = True
        task = self._loop.create_task(self._answer_signal())
        self._tasks[task] = None
        task.add_done_callback(self._note_answered)

    def _note_answered(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if not self._tasks and self.on_signals_answered is not None:
            self.on_signals_answered()

    async def stop(self) -> None:
        """End what signals have started."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # The steps.

    async def _plan(self, asked: Asked, times: StepTimes) -> Planned:
        with considerate():
            return await asyncio.to_thread(plan_refresh, self._edge.runtime, self._path, asked.text, asked.tags, times)

    def _carry_out(self, asked: Asked, planned: Planned, times: StepTimes, pushes: dict[str, Push]) -> Impact:
        """Rehearse the step and, for an apply, take it: one turn of the loop."""
        if planned.runtime is None:
            return Impact()
        edge = self._edge
        plan = planned.runtime.plan(self._links.is_reported_up)
        with times.step("rehearse"):
            impact = impact_of(edge.gate, plan)
        if asked.mode == "apply":
            with times.step("commit"):
                edge.commit(planned.runtime, plan)  # commitment point
            with times.step("push"):
                pushes.update(self._links.push_changed())
        return impact

    async def _conclude(
        self, asked: Asked, planned: Planned, impact: Impact, times: StepTimes, pushes: Mapping[str, Push]
    ) -> Report:
        """Wait for the Nodes, make the report and keep it."""
        committed = planned.runtime if asked.mode == "apply" else None
        if committed is not None:
            self._edge.books.forget(self._edge.runtime)
        revision = (committed or self._edge.runtime).revision
        limit_ms = self._edge.runtime.config.edge.link.push_answer_ms
        try:
            with times.step("settle"):
                waited = [push.settled for push in pushes.values() if not push.settled.done()]
                if waited:
                    await asyncio.wait(waited, timeout=limit_ms / 1000)
        finally:  # what was committed stands in the history even if nobody waits for the answer
            report = Report(
                mode=asked.mode,
                status=planned.status,
                revision=revision,
                file_sha256=planned.file_sha256,
                diff=planned.diff,
                findings=planned.findings,
                node_pushes=self._node_pushes(asked.mode, planned, pushes, limit_ms),
                impact=impact,
            )
            self._note(asked, report, times)
        return report

    def _node_pushes(self, mode: Mode, planned: Planned, pushes: Mapping[str, Push], limit_ms: int) -> list[NodePush]:
        """Say for each Node whose payload changes where it stands."""
        assert planned.runtime is not None or not pushes, "nothing is pushed of nothing"
        told = []
        for node_id in sorted({*planned.pushed_nodes, *pushes}):
            push = pushes.get(node_id)
            if push is not None:
                revision, (status, reason) = push.revision, push_status(push, limit_ms)
            else:
                assert planned.runtime is not None
                revision = planned.runtime.payload_revisions[node_id]
                link = self._links.current(node_id)
                reason = unpushed_reason(None if link is None else link.state)
                if mode == "dry_run":
                    reason = "dry run: nothing was sent"
                status = PushStatus.PENDING.value
            told.append(NodePush(node_id, revision, status, reason))
        return told

    def _note(self, asked: Asked, report: Report, times: StepTimes) -> None:
        entry = Entry(datetime.now(UTC), asked.source, report.as_plain(HISTORY_PATHS_MAX), times.ms)
        self._history.append(entry)
        self.last[report.mode] = entry
        kind = (report.mode, report.status.value)
        self.counts[kind] = self.counts.get(kind, 0) + 1
        diff = report.diff
        level = log.info if report.status in (Status.APPLIED, Status.NO_CHANGE) else log.warning
        level(
            "refreshed",
            mode=report.mode,
            source=asked.source,
            status=report.status.value,
            revision=report.revision,
            file_sha256=report.file_sha256,
            changes=len(diff.changes),
            restart_required=len(diff.restart_required_paths),
            findings=len(report.findings),
            not_acked=[push.node_id for push in report.node_pushes if push.status != PushStatus.ACKED.value],
            **times.ms,
        )

    async def _answer_signal(self) -> None:
        try:
            report = await self.refresh(Asked("apply", "signal"))
        except Exception as error:  # noqa: BLE001 - nobody waits for this task; the Edge runs on as it was
            self._is_signal_waiting = False
            log.failure("refresh_failed", error, source="signal")
            return
        for finding in report.findings[:LOGGED_FINDINGS_MAX]:
            log.warning("config_finding", finding=finding)
        for path in report.diff.restart_required_paths[:LOGGED_FINDINGS_MAX]:
            log.warning("restart_required", path=path)


def impact_of(gate: Gate, plan: Plan) -> Impact:
    """Say what taking over a plan at this moment does to those who run and wait."""
    before, twin = gate.counters(), gate.rehearse(plan)
    after, rows = twin.counters(), twin.snapshot()
    return Impact(
        leases_above_capacity=sum(max(0, row.in_flight - row.configured_capacity) for row in rows),
        long_leases_above_capacity=sum(max(0, row.long_in_flight - row.configured_long_capacity) for row in rows),
        waiters_granted=after["granted"] - before["granted"],
        waiters_evicted_timeout=after["evicted_timeout"] - before["evicted_timeout"],
        waiters_evicted_unavailable=after["evicted_unavailable"] - before["evicted_unavailable"],
    )


def push_status(push: Push, limit_ms: int) -> tuple[str, str]:
    """Say where a push stands, as a report names it, and why it is not acked."""
    match push.status:
        case PushStatus.ACKED:
            return "acked", ""
        case PushStatus.REFUSED:
            return "refused", f"{push.error}; it keeps what it runs until it registers again"
        case PushStatus.LOST:
            return "pending", f"{push.error}; it gets the newest configuration when it registers again"
        case PushStatus.PENDING:
            return "pending", f"no answer within {limit_ms} ms"


def unpushed_reason(state: LinkState | None) -> str:
    """Say why a Node was not sent what changed for it."""
    if state is LinkState.ACCEPTED:
        return "not ready yet; it gets the newest configuration when it is"
    if state is LinkState.DRAINING:
        return "draining; it gets the newest configuration when it registers again"
    return "offline; it gets the newest configuration when it registers"
