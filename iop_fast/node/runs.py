"""A run between the link and an adapter: the states and the windows that both kinds have, tunnels and normalized runs.

A `Run` is the adapter's sink and the link's run. Its states and moves are MOVES, and `_move` is the one function that
changes the state:

    RUNNING    the adapter works; what it says is passed on
    HELD       the adapter has ended; a rest of the answer waits for window, the end waits behind it
    STOPPING   the adapter was told to stop; what it still says is dropped, its end is awaited
    ENDED      RunEnd is queued; the relay, the backend and the adapter know nothing of the run any more

Windows. The answer starts with a window of credit; what is beyond it is held here and the adapter is paused until the
Edge grants more; what it had read already is all that can pile up. What is sent to the run is granted further window
when half of one has been used, and a sender that overruns its window ends its run.

Ends. Every run that was opened gets exactly one RunEnd, whatever happens: the adapter's own end, CANCELLED for a run
that the Edge or this Node stopped, INTERNAL for a bug on either side of the seam. The end is queued behind the run's
own data, so nothing overtakes. A cancelled run is confirmed when the adapter has let go of the provider, not before.

Ownership. The table (`Relay.runs`) holds a run from its opening frame to its end, and so does its backend.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from iop_fast import logs
from iop_fast._hot.frames import encode_end, encode_taken, encode_window
from iop_fast.node.backends import Provider
from iop_fast.node.traces import RunTrace
from iop_fast.seams import End, RunHandle
from iop_fast.wire import runtime_pb2 as pb
from iop_fast.wire.outbox import Outbox

log = logs.get(__name__)


class RunState(IntEnum):
    """Where a run stands; the module's head says what each state means."""

    RUNNING = 0
    HELD = 1
    STOPPING = 2
    ENDED = 3


class RunEvent(IntEnum):
    """What moves a run on."""

    STOPS = 0  # the Edge or this Node wants it gone
    ENDS_HELD = 1  # the adapter's end, with data held
    ENDS = 2  # the adapter's end, or the last that was held


MOVES: Mapping[tuple[RunState, RunEvent], RunState] = {
    (RunState.RUNNING, RunEvent.STOPS): RunState.STOPPING,
    (RunState.RUNNING, RunEvent.ENDS_HELD): RunState.HELD,
    (RunState.RUNNING, RunEvent.ENDS): RunState.ENDED,
    (RunState.HELD, RunEvent.ENDS): RunState.ENDED,
    (RunState.STOPPING, RunEvent.ENDS): RunState.ENDED,
}
# The same by state and event, None where there is no move.
NEXT = tuple(tuple(MOVES.get((state, event)) for event in RunEvent) for state in RunState)

RUNNING, HELD, STOPPING, ENDED = RunState
STOPS, ENDS_HELD, ENDS = RunEvent


class Table:
    """What a run knows of the relay that holds it, which is the one subclass and has what raises here: C classes know
    no abstract methods. `window_bytes` is what each direction of a run starts with."""

    __slots__ = ("outbox", "window_bytes")

    def __init__(self, outbox: Outbox, window_bytes: int) -> None:
        self.outbox = outbox
        self.window_bytes = window_bytes

    def stop(self, run: Run, end: End) -> None:
        """Stop a run whatever its adapter does."""
        raise NotImplementedError

    def forget(self, run: Run) -> None:
        """Take out a run that has ended."""
        raise NotImplementedError

    def flush_soon(self, run: Run) -> None:
        """Call the run's `flush` once, when this turn of the loop is over."""
        raise NotImplementedError


class Run:
    """One run. What is said of UpstreamSink and RunSink alike is here; what raises is its subclasses'."""

    __slots__ = (
        "_consumed_bytes",
        "_credit_bytes",
        "_end",
        "_handle",
        "_is_body_complete",
        "_is_paused",
        "_provider",
        "_receivable_bytes",
        "_state",
        "_table",
        "run_id",
        "trace",
    )

    def __init__(self, table: Table, run_id: int, provider: Provider, first_bytes: int, is_body_complete: bool) -> None:
        self._set_up(table, run_id, provider, first_bytes, is_body_complete)

    def _set_up(self, table: Table, run_id: int, provider: Provider, first_bytes: int, is_body_complete: bool) -> None:
        """Set everything up. A C subclass calls this: a base's constructor is a call through Python's."""
        self.run_id = run_id
        self.trace: RunTrace | None = None
        self._table = table
        self._provider = provider
        self._state = RUNNING
        # A started run as its adapter gave it: pause, resume and cancel are the same for both kinds.
        self._handle: RunHandle | None = None
        self._credit_bytes = table.window_bytes
        self._receivable_bytes = table.window_bytes - first_bytes
        self._consumed_bytes = 0
        self._is_body_complete = is_body_complete
        self._is_paused = False
        self._end: End | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.run_id} {self._state.name.lower()}>"

    @property
    def state(self) -> RunState:
        """Where the run stands."""
        return self._state

    @property
    def provider_id(self) -> str:
        """The provider that it runs on."""
        return self._provider.id

    def _move(self, event: RunEvent) -> None:
        """Change the state as the table says; a move that it does not have is a bug of ours."""
        state = NEXT[self._state][event]
        if state is None:
            raise RuntimeError(f"{self!r}: no move on {event.name.lower()}")
        self._state = state

    # From the link.

    def feed(self, piece: bytes, complete: bool) -> None:
        """Take a piece of what is sent to the run; raise ValueError for one that the window does not allow."""
        raise NotImplementedError

    def flush(self) -> None:
        """Send what was said in this turn of the loop (called by the table)."""
        raise NotImplementedError

    def grant(self, byte_count: int) -> None:
        """Take credit for the answer."""
        self._credit_bytes += byte_count
        if not self._send_held():
            return
        if self._state is HELD:
            self._finish(ENDS)
        elif self._is_paused and self._credit_bytes > 0 and self._state is RUNNING:
            self._is_paused = False
            if self._handle is not None:
                self._handle.resume()

    def stop(self, end: End) -> None:
        """Stop the adapter; the run ends with `end` once it has let go. Idempotent, and too late is harmless."""
        if self._state is HELD:
            self._drop_held()
            self._end = end
            self._finish(ENDS)
        elif self._state is RUNNING:
            self._move(STOPS)
            self._drop_held()
            self._end = end
            if self._handle is None:  # it was not started, or its start raised
                self._finish(ENDS)
            else:
                self._handle.cancel()

    def cut(self, detail: str) -> None:
        """Stop for a reason of this Node's (see Cuttable)."""
        self._table.stop(self, End(pb.RunEnd.CANCELLED, detail, None))

    def _hold(self, handle: RunHandle) -> None:
        """Keep what the adapter's start returned; it may have said much already, and even its end."""
        if self._state is ENDED:
            return
        self._handle = handle
        if self._is_paused:
            handle.pause()

    def _receive(self, piece: bytes, complete: bool) -> None:
        """Account for a piece that came."""
        self._receivable_bytes -= len(piece)
        if self._receivable_bytes < 0:
            raise ValueError(f"the request's body overran its window by {-self._receivable_bytes} bytes")
        self._is_body_complete = self._is_body_complete or complete

    # From the adapter.

    def on_taken(self) -> None:
        """See UpstreamSink. Nobody waits for this frame: with a fast provider it shares the answer's first message."""
        if self._state is RUNNING:
            self._table.outbox.send_patient(self.run_id, encode_taken(self.run_id))

    def on_consumed(self, byte_count: int) -> None:
        """See UpstreamSink. Grants window when half of one is used and there is more to come."""
        self._consumed_bytes += byte_count
        if self._is_body_complete or self._state is not RUNNING:
            return
        if self._consumed_bytes >= self._table.window_bytes // 2:
            self._table.outbox.send_control(encode_window(self.run_id, self._consumed_bytes))
            self._receivable_bytes += self._consumed_bytes
            self._consumed_bytes = 0

    def on_end(self, end: End) -> None:
        """See UpstreamSink."""
        if self._state is STOPPING:
            assert self._end is not None, "a run that stops knows its end"
            self._finish(ENDS)
        elif self._state is RUNNING:
            self._end = end
            if self._send_held():
                self._finish(ENDS)
            else:
                self._move(ENDS_HELD)
        else:
            log.error("run_ended_twice", run=self.run_id, state=self._state.name.lower())

    # Passing on.

    def _send_held(self) -> bool:
        """Send what is held as far as the credit goes; True when nothing is left."""
        raise NotImplementedError

    def _drop_held(self) -> None:
        """Forget what is held."""
        raise NotImplementedError

    def _pause_if_used_up(self) -> None:
        """Stop the adapter's reading once there is no credit."""
        if self._credit_bytes <= 0 and not self._is_paused:
            self._is_paused = True
            if self._handle is not None:
                self._handle.pause()

    def _finish(self, event: RunEvent) -> None:
        """Say the end and be forgotten."""
        assert self._end is not None, "a run ends without an end"
        self._move(event)
        self._handle = None  # it holds this run as its sink
        self._table.outbox.send_run(self.run_id, encode_end(self.run_id, self._end), bulk=False)
        self._provider.backend.leave(self)
        self._table.forget(self)
        if log.is_debug:
            log.debug("run_ended", run=self.run_id, provider=self._provider.id, status=self._end.status)
