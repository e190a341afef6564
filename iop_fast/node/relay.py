"""The runs of one session: each stands between the link and an adapter and keeps both sides within their windows.

A `Run` is the adapter's sink and the link's run. Its states and moves are MOVES, and `_move` is the one function that
changes the state:

    RUNNING    the adapter works; what it says is passed on
    HELD       the adapter has ended; a rest of the answer waits for window, the end waits behind it
    STOPPING   the adapter was told to stop; what it still says is dropped, its end is awaited
    ENDED      RunEnd is queued; the relay, the backend and the adapter know nothing of the run any more

Windows. The answer starts with `window_bytes` of credit and never exceeds it: data beyond is held here and the adapter
is paused until the Edge grants more; what it had read already is all that can pile up. The request's body is granted
further window when half of one has left for the provider, and a sender that overruns its window ends its run.

Ends. Every run that was opened gets exactly one RunEnd, whatever happens: the adapter's own end, CANCELLED for a run
that the Edge or this Node stopped, INTERNAL for a bug on either side of the seam. The end is queued behind the run's
own data, so nothing overtakes. A cancelled run is confirmed when the adapter has let go of the provider, not before.

Ownership. `Relay.runs` holds a run from its opening frame to its end, and so does its backend. When the session is
lost the outbox is closed already; the relay stops every run and says when the last one is gone (`when_idle`), for the
next session must not start before.

Who may call: the session's reader through `dispatch_node`, and adapters, all on the event loop's thread. An exception
of one frame ends one run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from enum import Enum

from iop_fast import logs
from iop_fast._hot.frames import encode_data, encode_end, encode_head, encode_taken, encode_window
from iop_fast.node.registry import Provider, Router
from iop_fast.node.usage import UsageReader, usage_reader
from iop_fast.seams import End, Head, RunOpening, TunnelRequest, UpstreamRun
from iop_fast.wire import runtime_pb2 as pb
from iop_fast.wire.options import PIECE_BYTES, RUN_WINDOW_BYTES
from iop_fast.wire.outbox import Outbox

log = logs.get(__name__)

CANCELLED = End(pb.RunEnd.CANCELLED, "cancelled", None)


class RunState(Enum):
    """Where a run stands; the module's head says what each state means."""

    RUNNING = "running"
    HELD = "held"
    STOPPING = "stopping"
    ENDED = "ended"


class RunEvent(Enum):
    """What moves a run on."""

    STOPS = "stop"  # the Edge or this Node wants it gone
    ENDS_HELD = "end with data held"
    ENDS = "end"  # the adapter's end, or the last held byte


MOVES: Mapping[tuple[RunState, RunEvent], RunState] = {
    (RunState.RUNNING, RunEvent.STOPS): RunState.STOPPING,
    (RunState.RUNNING, RunEvent.ENDS_HELD): RunState.HELD,
    (RunState.RUNNING, RunEvent.ENDS): RunState.ENDED,
    (RunState.HELD, RunEvent.ENDS): RunState.ENDED,
    (RunState.STOPPING, RunEvent.ENDS): RunState.ENDED,
}


class Run:
    """One tunnel. An UpstreamSink for its adapter."""

    __slots__ = (
        "_consumed_bytes",
        "_credit_bytes",
        "_end",
        "_has_data",
        "_held",
        "_is_body_complete",
        "_is_paused",
        "_provider",
        "_receivable_bytes",
        "_relay",
        "_state",
        "_upstream",
        "_usage",
        "run_id",
    )

    def __init__(self, relay: Relay, run_id: int, provider: Provider, request: TunnelRequest) -> None:
        self.run_id = run_id
        self._relay = relay
        self._provider = provider
        self._state = RunState.RUNNING
        self._upstream: UpstreamRun | None = None
        self._usage: UsageReader | None = None
        self._credit_bytes = relay.window_bytes
        self._receivable_bytes = relay.window_bytes - len(request.body)
        self._consumed_bytes = 0
        self._is_body_complete = request.body_complete
        self._held: deque[memoryview] = deque()
        self._is_paused = False
        self._has_data = False
        self._end: End | None = None

    def __repr__(self) -> str:
        return f"<Run {self.run_id} {self._state.value}>"

    @property
    def state(self) -> RunState:
        """Where the run stands."""
        return self._state

    def _move(self, event: RunEvent) -> None:
        """Change the state as the table says; a move that it does not have is a bug of ours."""
        try:
            self._state = MOVES[self._state, event]
        except KeyError:
            raise RuntimeError(f"{self!r}: no move on {event.value}") from None

    # From the link.

    def start(self, request: TunnelRequest) -> None:
        """Hand the request to the adapter."""
        assert self._provider.upstream is not None, "a run on a broken provider"
        try:
            self._upstream = self._provider.upstream.start(request, self)
        except ValueError as error:
            log.warning("request_unusable", run=self.run_id, error=error)
            self.on_end(End(pb.RunEnd.INTERNAL, f"the request cannot be sent: {error}", None))

    def feed(self, piece: bytes, complete: bool) -> None:
        """Take a piece of the body; raise ValueError for one that the window does not allow."""
        self._receivable_bytes -= len(piece)
        if self._receivable_bytes < 0:
            raise ValueError(f"the request's body overran its window by {-self._receivable_bytes} bytes")
        self._is_body_complete = self._is_body_complete or complete
        if self._state is RunState.RUNNING and self._upstream is not None:
            self._upstream.feed(piece, complete)

    def grant(self, byte_count: int) -> None:
        """Take credit for the answer."""
        self._credit_bytes += byte_count
        self._send_held()
        if self._held:
            return
        if self._state is RunState.HELD:
            self._finish(RunEvent.ENDS)
        elif self._is_paused and self._credit_bytes > 0 and self._state is RunState.RUNNING:
            self._is_paused = False
            if self._upstream is not None:
                self._upstream.resume()

    def stop(self, end: End) -> None:
        """Stop the adapter; the run ends with `end` once it has let go. Idempotent, and too late is harmless."""
        if self._state is RunState.HELD:
            self._held.clear()
            self._end = end
            self._finish(RunEvent.ENDS)
        elif self._state is RunState.RUNNING:
            self._move(RunEvent.STOPS)
            self._held.clear()
            self._end = end
            if self._upstream is None:  # its start raised
                self._finish(RunEvent.ENDS)
            else:
                self._upstream.cancel()

    def cut(self, detail: str) -> None:
        """Stop for a reason of this Node's (see Cuttable)."""
        self._relay.stop(self, End(pb.RunEnd.CANCELLED, detail, None))

    # From the adapter.

    def on_taken(self) -> None:
        """See UpstreamSink. Nobody waits for this frame: with a fast provider it shares the head's message."""
        if self._state is RunState.RUNNING:
            self._relay.outbox.send_patient(self.run_id, encode_taken(self.run_id))

    def on_consumed(self, byte_count: int) -> None:
        """See UpstreamSink. Grants window when half of one is used and there is more to come."""
        self._consumed_bytes += byte_count
        if self._is_body_complete or self._state is not RunState.RUNNING:
            return
        if self._consumed_bytes >= self._relay.window_bytes // 2:
            self._relay.outbox.send_control(encode_window(self.run_id, self._consumed_bytes))
            self._receivable_bytes += self._consumed_bytes
            self._consumed_bytes = 0

    def on_head(self, head: Head) -> None:
        """See UpstreamSink."""
        if self._state is RunState.RUNNING:
            self._usage = usage_reader(head)
            self._relay.outbox.send_run(self.run_id, encode_head(self.run_id, head), bulk=False)

    def on_data(self, data: bytes) -> None:
        """See UpstreamSink."""
        if self._state is not RunState.RUNNING or not data:
            return
        if self._usage is not None:
            self._usage.feed(data)
        if not self._held and len(data) <= self._credit_bytes and len(data) <= PIECE_BYTES:
            self._send(data)  # fast path: nothing to hold or to cut
        else:
            self._held.append(memoryview(data))
            self._send_held()
        if self._credit_bytes == 0 and not self._is_paused:
            self._is_paused = True
            if self._upstream is not None:
                self._upstream.pause()

    def on_end(self, end: End) -> None:
        """See UpstreamSink."""
        if self._state is RunState.STOPPING:
            assert self._end is not None, "a run that stops knows its end"
            self._finish(RunEvent.ENDS)
        elif self._state is RunState.RUNNING:
            self._end = end
            if self._held:
                self._move(RunEvent.ENDS_HELD)
            else:
                self._finish(RunEvent.ENDS)
        else:
            log.error("run_ended_twice", run=self.run_id, state=self._state.value)

    # Passing on.

    def _send(self, piece: bytes | memoryview) -> None:
        self._credit_bytes -= len(piece)
        self._relay.outbox.send_run(self.run_id, encode_data(self.run_id, piece), bulk=self._has_data)
        self._has_data = True

    def _send_held(self) -> None:
        """Send what is held as far as the credit goes."""
        while self._held and self._credit_bytes > 0:
            held = self._held[0]
            size = min(len(held), self._credit_bytes, PIECE_BYTES)
            self._send(held[:size])
            if size == len(held):
                self._held.popleft()
            else:
                self._held[0] = held[size:]

    def _finish(self, event: RunEvent) -> None:
        """Say the end and be forgotten."""
        assert self._end is not None, "a run ends without an end"
        self._move(event)
        self._upstream = None  # it holds this run as its sink
        end = self._end
        if end.usage is None and self._usage is not None:
            end = end._replace(usage=self._usage.result())
        self._relay.outbox.send_run(self.run_id, encode_end(self.run_id, end), bulk=False)
        self._provider.backend.leave(self)
        self._relay.forget(self)
        log.debug("run_ended", run=self.run_id, provider=self._provider.payload.id, status=end.status)


class Relay:
    """The run table of one session; the run half of `dispatch_node`'s side.

    Until `accept` every run is refused, and again once `is_draining` is set.
    """

    __slots__ = ("_on_idle", "_refusal", "_router", "outbox", "runs", "window_bytes")

    def __init__(self, router: Router, outbox: Outbox, window_bytes: int = RUN_WINDOW_BYTES) -> None:
        self.outbox = outbox
        self.window_bytes = window_bytes
        self.runs: dict[int, Run] = {}
        self._router = router
        self._refusal = "the Node is not ready"
        self._on_idle: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"<Relay {len(self.runs)} runs>"

    # The session's.

    def accept(self) -> None:
        """Take runs from now on."""
        self._refusal = ""

    def refuse(self, reason: str) -> None:
        """Take no further runs."""
        self._refusal = reason

    def stop_all(self, detail: str) -> None:
        """Stop every run."""
        for run in list(self.runs.values()):
            run.cut(detail)

    def stop(self, run: Run, end: End) -> None:
        """Stop a run; one whose adapter fails at that is ended without it."""
        try:
            run.stop(end)
        except Exception as error:  # noqa: BLE001 - an adapter beyond help must not keep the lease, nor spare the others
            log.failure("run_stop_failed", error, run=run.run_id)
            if run.run_id in self.runs:
                run.on_end(end)

    def when_idle(self, on_idle: Callable[[], None]) -> None:
        """Call back once when no run is left, at once if none is."""
        if self.runs:
            self._on_idle.append(on_idle)
        else:
            on_idle()

    # Frames of runs (see NodeSide).

    def on_open(self, run_id: int, request: TunnelRequest) -> None:
        """Open a run, or say why not."""
        if run_id in self.runs:
            log.warning("run_opened_twice", run=run_id)
            return
        provider = self._router.route(request.provider_id)
        if self._refusal:
            self.refuse_run(run_id, pb.RunEnd.NODE_DRAINING, self._refusal)
        elif provider is None:
            self.refuse_run(run_id, pb.RunEnd.UNKNOWN_PROVIDER, "this Node has no such provider")
        elif provider.upstream is None:
            self.refuse_run(
                run_id, pb.RunEnd.UNKNOWN_PROVIDER, f"the provider is broken: {provider.backend.health.reason}"
            )
        else:
            run = self.runs[run_id] = Run(self, run_id, provider, request)
            provider.backend.enter(run)
            run.start(request)

    def on_open_run(self, run_id: int, opening: RunOpening) -> None:
        """Open a normalized run, or say why not."""
        self.refuse_run(run_id, pb.RunEnd.UNKNOWN_PROVIDER, "normalized runs are not part of this build of the Node")

    def refuse_run(self, run_id: int, status: int, detail: str) -> None:
        """End a run that was never opened."""
        log.debug("run_refused", run=run_id, status=status, detail=detail)
        self.outbox.send_run(run_id, encode_end(run_id, End(status, detail, None)), bulk=False)

    def on_body(self, run_id: int, piece: bytes, complete: bool) -> None:
        """Pass a piece of a request's body on."""
        run = self.runs.get(run_id)
        if run is not None:
            run.feed(piece, complete)

    def on_window(self, run_id: int, byte_count: int) -> None:
        """Take credit for an answer."""
        run = self.runs.get(run_id)
        if run is not None:
            run.grant(byte_count)

    def on_cancel(self, run_id: int) -> None:
        """Stop a run; what it has queued is of no use to anyone."""
        run = self.runs.get(run_id)
        if run is not None:
            self.outbox.drop_run(run_id)
            self.stop(run, CANCELLED)

    def on_frame_failed(self, run_id: int, error: Exception) -> None:
        """A frame's handling raised: that run ends."""
        log.failure("frame_failed", error, run=run_id)
        run = self.runs.get(run_id)
        if run is not None:
            self.stop(run, End(pb.RunEnd.INTERNAL, "the Node failed", None))

    # The runs'.

    def forget(self, run: Run) -> None:
        """Take out a run that has ended (called by it)."""
        del self.runs[run.run_id]
        if not self.runs and self._on_idle:
            waiting, self._on_idle = self._on_idle, []
            for on_idle in waiting:
                on_idle()
