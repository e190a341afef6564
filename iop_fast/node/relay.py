"""The run table of one session: opens runs on the providers' adapters, hands them their frames, and sees them all end.

What a run is stands in `iop_fast.node.runs`. `Relay.runs` holds each from its opening frame to its end. When the
session is lost the outbox is closed already; the relay stops every run and says when the last one is gone
(`when_idle`), for the next session must not start before.

Who may call: the session's reader through `dispatch_node`, and adapters, all on the event loop's thread. An exception
of one frame ends one run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from iop_fast import logs
from iop_fast._hot.frames import encode_end
from iop_fast.node.backends import Provider
from iop_fast.node.normalized import NormalizedRun
from iop_fast.node.registry import Router
from iop_fast.node.runs import Run, Table
from iop_fast.node.traces import RunTrace, RunTraces
from iop_fast.node.tunnel import TunnelRun
from iop_fast.seams import End, RunOpening, TunnelRequest
from iop_fast.wire import runtime_pb2 as pb
from iop_fast.wire.options import MIB, RUN_WINDOW_BYTES
from iop_fast.wire.outbox import Outbox

log = logs.get(__name__)

CANCELLED = End(pb.RunEnd.CANCELLED, "cancelled", None)
TOO_LARGE = 413

# What one normalized run may be given, unless the configuration says otherwise.
INPUT_BYTES_MAX = 32 * MIB


class Relay(Table):
    """The run table of one session; the run half of `dispatch_node`'s side.

    Until `accept` every run is refused, and again after `refuse`. `traces` makes the runs' spans where tracing is on.
    """

    __slots__ = (
        "_input_bytes_max",
        "_loop",
        "_on_idle",
        "_refusal",
        "_router",
        "_traces",
        "_unsaid",
        "runs",
    )

    def __init__(
        self,
        router: Router,
        outbox: Outbox,
        loop: asyncio.AbstractEventLoop,
        window_bytes: int = RUN_WINDOW_BYTES,
        input_bytes_max: int = INPUT_BYTES_MAX,
        traces: RunTraces | None = None,
    ) -> None:
        Table.__init__(self, outbox, window_bytes)
        self.runs: dict[int, Run] = {}
        self._router = router
        self._loop = loop
        self._input_bytes_max = input_bytes_max
        self._traces = traces
        self._unsaid: list[Run] = []
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
        """Open a tunnel, or say why not."""
        provider = self._admitted(run_id, request.provider_id)
        if provider is None:
            return
        if provider.upstream is None:
            self.refuse_run(run_id, pb.RunEnd.UNKNOWN_PROVIDER, f"the provider {unusable(provider, 'tunnels')}")
            return
        trace: RunTrace | None = None
        if self._traces is not None:
            trace, request = self._traces.tunnel(provider, request)
        run = TunnelRun(self, run_id, provider, request)
        run.trace = trace
        self._enter(run, provider)
        run.start(provider.upstream, request)

    def on_open_run(self, run_id: int, opening: RunOpening) -> None:
        """Open a normalized run, or say why not."""
        provider = self._admitted(run_id, opening.provider_id)
        if provider is None:
            return
        if provider.run_adapter is None:
            self.refuse_run(run_id, pb.RunEnd.UNKNOWN_PROVIDER, f"the provider {unusable(provider, 'normalized runs')}")
        elif opening.body_length > self._input_bytes_max:
            log.warning("request_too_large", run=run_id, bytes=opening.body_length, limit=self._input_bytes_max)
            too_large = f"the request is larger than the provider's Node takes, {self._input_bytes_max} bytes"
            self.refuse_run(run_id, pb.RunEnd.REFUSED, too_large, TOO_LARGE)
        else:
            trace: RunTrace | None = None
            if self._traces is not None:
                trace, opening = self._traces.normalized(provider, opening)
            run = NormalizedRun(self, run_id, provider, provider.run_adapter, opening)
            run.trace = trace
            self._enter(run, provider)
            run.start(opening)

    def _admitted(self, run_id: int, provider_id: str) -> Provider | None:
        """Return the provider of a run that may be opened; else say why not and return None."""
        provider = self._router.route(provider_id)
        if run_id in self.runs:
            log.warning("run_opened_twice", run=run_id)
        elif self._refusal:
            self.refuse_run(run_id, pb.RunEnd.NODE_DRAINING, self._refusal)
        elif provider is None:
            self.refuse_run(run_id, pb.RunEnd.UNKNOWN_PROVIDER, "this Node has no such provider")
        else:
            return provider
        return None

    def _enter(self, run: Run, provider: Provider) -> None:
        self.runs[run.run_id] = run
        provider.backend.enter(run)

    def refuse_run(self, run_id: int, status: int, detail: str, refusal_status: int = 0) -> None:
        """End a run that was never opened."""
        log.debug("run_refused", run=run_id, status=status, detail=detail)
        self.outbox.send_run(run_id, encode_end(run_id, End(status, detail, None, refusal_status)), bulk=False)

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
        end = run._end
        assert end is not None, "a run is forgotten when it has ended"
        self._router.count_end(run._provider.id, end.status)
        if run.trace is not None:
            run.trace.close(end.status)
        if not self.runs and self._on_idle:
            waiting, self._on_idle = self._on_idle, []
            for on_idle in waiting:
                on_idle()

    def flush_soon(self, run: Run) -> None:
        """Have a run send what it said when this turn of the loop is over (called by it)."""
        if not self._unsaid:
            self._loop.call_soon(self._flush)
        self._unsaid.append(run)

    def _flush(self) -> None:
        unsaid, self._unsaid = self._unsaid, []
        for run in unsaid:
            try:
                run.flush()
            except Exception as error:  # noqa: BLE001 - what one adapter said must not keep the others' events back
                self.on_frame_failed(run.run_id, error)


def unusable(provider: Provider, kind: str) -> str:
    """Say why a provider does not do runs of a kind."""
    reason = provider.backend.health.reason
    return f"takes no {kind}" if provider.backend.adapter is not None else f"is broken: {reason}"
