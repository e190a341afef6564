"""A tunnel's run: bytes pass as they come, within the windows of both directions.

States, windows and ends are those of `Run`. Data is cut to what is left of the window, so the answer never exceeds it.
"""

from __future__ import annotations

from collections import deque

from iop_fast import logs
from iop_fast._hot.frames import encode_data, encode_head
from iop_fast._hot.records import new_record
from iop_fast.node.backends import Provider
from iop_fast.node.runs import Run, RunEvent, RunState, Table
from iop_fast.node.usage import UsageReader, usage_reader
from iop_fast.seams import End, Head, TunnelRequest, Upstream, UpstreamRun
from iop_fast.wire import runtime_pb2 as pb
from iop_fast.wire.options import PIECE_BYTES

log = logs.get(__name__)


RUNNING = RunState.RUNNING


class TunnelRun(Run):
    """One tunnel. An UpstreamSink for its adapter."""

    __slots__ = ("_has_data", "_held", "_upstream_run", "_usage")

    def __init__(self, table: Table, run_id: int, provider: Provider, request: TunnelRequest) -> None:
        self._set_up(table, run_id, provider, len(request.body), request.body_complete)
        self._upstream_run: UpstreamRun | None = None
        self._usage: UsageReader | None = None
        self._held: deque[memoryview] = deque()
        self._has_data = False

    def start(self, upstream: Upstream, request: TunnelRequest) -> None:
        """Hand the request to the adapter."""
        try:
            started = upstream.start(request, self)
        except ValueError as error:
            log.warning("request_unusable", run=self.run_id, error=error)
            self.on_end(End(pb.RunEnd.INTERNAL, f"the request cannot be sent: {error}", None))
            return
        self._upstream_run = started
        self._hold(started)

    def feed(self, piece: bytes, complete: bool) -> None:
        """See Run. It counts as used when the adapter says so."""
        self._receive(piece, complete)
        if self._state is RUNNING and self._upstream_run is not None:
            self._upstream_run.feed(piece, complete)

    def flush(self) -> None:
        """Data is sent when it comes."""

    def on_head(self, head: Head) -> None:
        """See UpstreamSink."""
        if self._state is RUNNING:
            self._usage = usage_reader(head)
            self._table.outbox.send_run(self.run_id, encode_head(self.run_id, head), bulk=False)

    def on_data(self, data: bytes) -> None:
        """See UpstreamSink."""
        if self._state is not RUNNING or not data:
            return
        size = len(data)
        if self._usage is not None:
            self._usage.feed(data)
        if not self._held and size <= self._credit_bytes and size <= PIECE_BYTES:
            self._send(data, size)  # fast path: nothing to hold or to cut
        else:
            self._held.append(memoryview(data))
            self._send_held()
        self._pause_if_used_up()

    def _send(self, piece: bytes | memoryview, size: int) -> None:
        self._credit_bytes -= size
        self._table.outbox.send_run(self.run_id, encode_data(self.run_id, piece), bulk=self._has_data)
        self._has_data = True

    def _send_held(self) -> bool:
        while self._held and self._credit_bytes > 0:
            held = self._held[0]
            left = len(held)
            size = min(left, self._credit_bytes, PIECE_BYTES)
            self._send(held[:size], size)
            if size == left:
                self._held.popleft()
            else:
                self._held[0] = held[size:]
        return not self._held

    def _drop_held(self) -> None:
        self._held.clear()

    def _finish(self, event: RunEvent) -> None:
        if self._end is not None and self._end.usage is None and self._usage is not None:
            end = self._end
            self._end = new_record(End, (end.status, end.detail, self._usage.result(), end.refusal_status))
        Run._finish(self, event)
        self._upstream_run = None  # it holds this run as its sink
