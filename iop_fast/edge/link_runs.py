"""The runs of one session: opening, feeding, ending them, and what happens to one that fails.

A run is in the table under its lease's id from `open` until one of these, after which nothing more is delivered to it
and what the Node still sends for it is dropped:

- its RunEnd was delivered (the dispatch removes it from the table that it was given);
- it was withdrawn before its opening frame was put into a message: the Node never hears of it;
- its owner forgot it, because the Node does not confirm a cancel;
- its own callback raised, or its frames make no answer: the Node is told to stop and the run gets an end;
- the Node turns out not to know it, in two heartbeats;
- the session ended: `on_link_lost`.

Memory. What waits in this process for one session is bounded by `buffered_bytes_max`: what is queued to the Node, and
what clients have not read of its answers (`hold`). Bodies have half of it: then a run's owner hands on no further piece
and is called when half of that has left (`wait_to_send`), so that uploads over a slow line keep no new run out. At the
bound itself `has_room` is false, and a run granted for this session is not opened here. What can come on top is what
was agreed before: one opening frame, and for each run that is open already a window in each direction.

A run's callback that raises ends that run and nothing else. The lease is never touched here: the run's owner releases
it when it gets its end, and the core has taken it back already when the session is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from iop_fast import logs
from iop_fast._hot.frames import (
    FrameError,
    encode_cancel,
    encode_request_body,
    encode_run_request,
    encode_tunnel_request,
    encode_window,
)
from iop_fast.edge.reconcile import Reconciler
from iop_fast.seams import EdgeRun, End, RunOpening, TunnelRequest
from iop_fast.wire import runtime_pb2 as pb
from iop_fast.wire.outbox import Outbox

log = logs.get(__name__)

# The table of sent message numbers may hold this many ended runs before it is swept.
SENT_SLACK = 1024


@dataclass(slots=True)
class LinkCounters:
    """What happened to sessions, over the life of the Edge process and all its Nodes."""

    accepted: int = 0
    refused: int = 0
    superseded: int = 0
    silent: int = 0
    malformed: int = 0
    ready_acks_ignored: int = 0
    runs_lost: int = 0
    runs_reclaimed: int = 0
    runs_failed: int = 0


class LinkRuns:
    """The table of a session's runs and their way to its outbox. `NodeLink` is the one subclass, and has what raises
    here: C classes know no abstract methods."""

    __slots__ = (
        "_buffered_max",
        "_counters",
        "_held",
        "_held_bytes",
        "_outbox",
        "_reconciler",
        "_runs",
        "_sent_in",
        "_waiting",
        "generation",
        "node_id",
    )

    def __init__(
        self, node_id: str, generation: int, outbox: Outbox, counters: LinkCounters, buffered_bytes_max: int
    ) -> None:
        self.node_id = node_id
        self.generation = generation
        self._outbox = outbox
        self._counters = counters
        self._runs: dict[int, EdgeRun] = {}
        self._sent_in: dict[int, int] = {}  # run id -> number of the message with its opening frame
        self._reconciler = Reconciler()
        self._buffered_max = buffered_bytes_max
        self._held: dict[int, int] = {}  # run id -> bytes that its client has not read; ended runs go when it matters
        self._held_bytes = 0
        self._waiting: dict[int, None] = {}  # runs whose body waits for the queue to Node to empty, in their order

    @property
    def is_up(self) -> bool:
        """True while runs may be opened: their leases were granted for this very session."""
        raise NotImplementedError

    @property
    def run_count(self) -> int:
        """Runs in the table."""
        return len(self._runs)

    def listed_runs(self) -> Iterable[tuple[int, EdgeRun]]:
        """Run ids and runs, in the order of their opening, for a look within one turn of the loop."""
        return self._runs.items()

    @property
    def buffered_bytes(self) -> int:
        """What waits here for this session, in both directions."""
        self._drop_ended()
        return self._outbox.queued_bytes + self._held_bytes

    @property
    def has_room(self) -> bool:
        """True while a run may be opened as far as memory goes."""
        limit = self._buffered_max
        return self._outbox.queued_bytes + self._held_bytes < limit or self.buffered_bytes < limit

    def _drop_ended(self) -> None:
        self._held = {run_id: count for run_id, count in self._held.items() if run_id in self._runs}
        self._held_bytes = sum(self._held.values())

    # What a run's owner calls. All but `open` do nothing for a run that is not in the table.

    def open(self, run_id: int, run: EdgeRun, opening: TunnelRequest | RunOpening) -> None:
        """Register a run and queue its opening frame. `run_id` is its lease's id; the session must be up."""
        if not self.is_up:
            raise RuntimeError(f"{self!r}: run {run_id} opened on a session that is not up")
        assert run_id not in self._runs, f"run {run_id} is open already"
        self._runs[run_id] = run
        if isinstance(opening, TunnelRequest):
            entry = encode_tunnel_request(run_id, opening)
        else:
            entry = encode_run_request(run_id, opening)
        self._outbox.send_open(run_id, entry, self._on_opening_sent)

    def send_body(self, run_id: int, piece: bytes | bytearray | memoryview, complete: bool) -> None:
        """Queue a piece of a run's request body, 64 KiB at most."""
        if run_id in self._runs:
            self._outbox.send_run(run_id, encode_request_body(run_id, piece, complete))

    @property
    def takes_body(self) -> bool:
        """True while a run may hand on a further piece of its body; if not, `wait_to_send`."""
        return self._outbox.queued_bytes < self._buffered_max // 2

    def wait_to_send(self, run_id: int) -> None:
        """Call the run's `on_window`, with nothing granted, when half of what is queued to the Node has left."""
        if run_id in self._runs:
            self._waiting[run_id] = None
            self._outbox.call_when_low(self._buffered_max // 4, self._on_outbox_low)

    def hold(self, run_id: int, byte_count: int) -> None:
        """Say how much of a run's answer waits for its client; the next `grant` says that it waits no more."""
        if run_id in self._runs:
            self._held_bytes += byte_count - self._held.get(run_id, 0)
            self._held[run_id] = byte_count

    def grant(self, run_id: int, byte_count: int) -> None:
        """Let the Node send `byte_count` more bytes of a run's answer."""
        if run_id in self._runs:
            self._held_bytes -= self._held.pop(run_id, 0)
            self._outbox.send_control(encode_window(run_id, byte_count))

    def cancel(self, run_id: int) -> None:
        """Ask the Node to stop a run, which stays in the table until its RunEnd. Queued body pieces are dropped."""
        if run_id in self._runs:
            self._outbox.drop_run(run_id)
            self._outbox.send_control(encode_cancel(run_id))

    def withdraw(self, run_id: int) -> bool:
        """Take a run back whose opening frame is in no message yet: the Node never hears of it. Else False."""
        if run_id not in self._runs or not self._outbox.withdraw(run_id):
            return False
        del self._runs[run_id]
        return True

    def forget(self, run_id: int) -> None:
        """Drop a run whose owner no longer waits for its end."""
        if self._runs.pop(run_id, None) is not None:
            self._outbox.drop_run(run_id)

    # What happens to runs.

    def _on_outbox_low(self) -> None:
        """The queue to the Node has room again: each run that waits for it may go on, in turn."""
        waiting, self._waiting = self._waiting, {}
        for run_id in waiting:
            run = self._runs.get(run_id)
            try:
                if run is not None:
                    run.on_window(0)
            except Exception as error:  # noqa: BLE001 - one run's failure must not keep the others waiting
                self.on_frame_failed(run_id, error)

    def on_frame_failed(self, run_id: int, error: Exception) -> None:
        """End a run whose callback raised, or whose frames make no answer (called by the dispatch)."""
        run = self._runs.pop(run_id, None)
        if isinstance(error, FrameError):
            log.warning("run_malformed", node=self.node_id, generation=self.generation, run=run_id, error=error)
            end = End(pb.RunEnd.UPSTREAM_ERROR, f"the node sent what is no answer: {error}", None)
        else:
            self._note_failure(run_id, error)
            end = End(pb.RunEnd.INTERNAL, "internal error", None)
        if run is not None:
            self._outbox.drop_run(run_id)
            self._outbox.send_control(encode_cancel(run_id))
            self._deliver_end(run_id, run, end)

    def _on_opening_sent(self, run_id: int, message_number: int) -> None:
        """The outbox put a run's opening frame into a message."""
        run = self._runs.get(run_id)
        if run is None:
            return
        if len(self._sent_in) > 2 * len(self._runs) + SENT_SLACK:
            self._sent_in = {key: number for key, number in self._sent_in.items() if key in self._runs}
        self._sent_in[run_id] = message_number
        try:
            run.on_sent(message_number)
        except Exception as error:  # noqa: BLE001 - one run's failure must not end the writer
            self.on_frame_failed(run_id, error)

    def _reconcile(self, heartbeat: pb.Heartbeat) -> None:
        """End the runs that the Node does not know. Each is a bug, here or there, so each is counted and logged."""
        for run_id in self._reconciler.compare(heartbeat.messages_read, heartbeat.run_ids, self._runs, self._sent_in):
            run = self._runs.pop(run_id, None)
            if run is None:  # ended by what another one's end set off
                continue
            self._counters.runs_reclaimed += 1
            log.error("run_unknown_to_node", node=self.node_id, generation=self.generation, run=run_id)
            self._outbox.drop_run(run_id)
            self._deliver_end(run_id, run, End(pb.RunEnd.INTERNAL, "the node does not know this run", None))

    def _lose_runs(self) -> None:
        """The session is over and its leases are lost: tell every run."""
        runs = list(self._runs.items())
        self._runs.clear()
        self._sent_in.clear()
        self._waiting.clear()
        self._counters.runs_lost += len(runs)
        for run_id, run in runs:
            self._guard(run_id, run.on_link_lost)

    def _deliver_end(self, run_id: int, run: EdgeRun, end: End) -> None:
        self._guard(run_id, lambda: run.on_answer(False, None, [], end))

    def _guard(self, run_id: int, call: Callable[[], None]) -> None:
        """Call a run for the last time; what it raises is reported and does not reach the other runs."""
        try:
            call()
        except Exception as error:  # noqa: BLE001 - the other runs of the session must hear of their end too
            self._note_failure(run_id, error)

    def _note_failure(self, run_id: int, error: Exception) -> None:
        self._counters.runs_failed += 1
        log.failure("run_failed", error, node=self.node_id, generation=self.generation, run=run_id)
