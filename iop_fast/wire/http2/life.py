"""The life of a connection: its beginning, its calls, its one timer and its ends.

`connection_made` sends preface (client), SETTINGS and the connection's window. One timer runs, for the handshake, for
silence, or for the closing; none a call, none a message. Ways to end, each at most once:

- `drain`: GOAWAY; closes when the last call is over.
- `close`, and `shut` with an error code: every call is over, GOAWAY, then our end of the transport; input is dropped
  until the peer ends too (an immediate close with unread input would make the kernel take the GOAWAY back), at most
  `close_ns`.
- `abort`: the transport is cut, unsent bytes are lost. It is what frees us of a peer that does not read.

Nothing refers back when it is over: calls are forgotten as they end, `connection_lost` drops the transport, the timer
and the callbacks, and the object is freed without a garbage collection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from iop_fast.wire.http2 import fields, frames
from iop_fast.wire.http2.call import Call
from iop_fast.wire.http2.frames import END_HEADERS, HEADERS, PING
from iop_fast.wire.http2.limits import FRAME_BYTES_MAX, Limits
from iop_fast.wire.http2.peer import Peer
from iop_fast.wire.http2.states import CLOSED, CLOSING, DRAINING, NEW, OPEN

# The connection's own window, given back on receipt: wider than a call's, so that it is never what stops one.
CONNECTION_WINDOWS = 4

CHECK = b"iop-idle"  # what our PINGs carry

NS = 1e-9

CLOSED_TEXT = "the connection was closed"
# How the reasons begin when the peer went without a word.
LOST = "the connection was lost"
PEER_LEFT = "the peer closed the connection"

# When the loop itself was held up, or the machine slept, what the peer sent meanwhile is unread: timers run before
# sockets. A timer that is so late looks again when they have been read.
LATE_S = 1.0
LAST_LOOK_NS = 100_000_000

OnLost = Callable[[Any], None]


class Life(Peer):
    """See the module's text; `Connection` is the one subclass."""

    __slots__ = (
        "_block_ticks",
        "_calls",
        "_due",
        "_idle_since",
        "_initial_window",
        "_is_acked",
        "_is_block_open",
        "_is_heard",
        "_is_pinged",
        "_is_told",
        "_last_id",
        "_on_lost",
        "_recv_initial",
        "_recv_window",
        "_timer",
        "peer_calls_max",
        "ready",
    )

    def __init__(
        self, loop: asyncio.AbstractEventLoop, limits: Limits, is_server: bool, on_lost: OnLost | None
    ) -> None:
        super().__init__(loop, limits, is_server)
        self.ready: asyncio.Future[None] | None = None if is_server else loop.create_future()
        """For a client: done when the server's SETTINGS have come, ConnectionError if they never do."""
        self.peer_calls_max = frames.MAX_STREAM_ID
        self._on_lost = on_lost
        self._calls: dict[int, Call] = {}
        self._last_id = 0  # of the calls that were opened, by whichever side opens them
        self._initial_window = frames.DEFAULT_WINDOW_BYTES  # of calls, towards the peer
        # Our own windows. Until the peer has acknowledged our SETTINGS it may use the larger of both.
        self._recv_initial = max(limits.window_bytes, frames.DEFAULT_WINDOW_BYTES)
        self._recv_window = min(CONNECTION_WINDOWS * self._recv_initial, frames.MAX_WINDOW_BYTES)
        self._is_acked = False  # the peer knows our SETTINGS
        self._is_heard = False  # something came since the timer was set
        self._is_pinged = False
        self._is_told = False  # GOAWAY was sent
        self._is_block_open = False  # a header block is not whole
        self._block_ticks = 0
        self._idle_since = 0.0
        self._due = 0.0  # when the timer is to run
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        state = ("new", "open", "draining", "closing", "closed")[self._state]
        return f"<Connection {'server' if self.is_server else 'client'}, {state}, {len(self._calls)} calls>"

    # What the upper half has.

    def drop_input(self) -> None:
        """Nothing is read any more: let go of what came in part."""
        raise NotImplementedError

    # For the owner.

    @property
    def is_ready(self) -> bool:
        """True once the peer's SETTINGS have come."""
        return NEW < self._state < CLOSING

    @property
    def is_open(self) -> bool:
        """True while calls can be opened."""
        return self._state == OPEN

    @property
    def calls(self) -> int:
        """Number of calls that are open."""
        return len(self._calls)

    def open_call(self, path: bytes, authority: bytes, scheme: bytes = b"http") -> Call:
        """Open a call (client). Raises ConnectionError with a plain reason when it is not possible."""
        assert not self.is_server, "a server opens no calls"
        if self._state != OPEN:
            raise ConnectionError(self.end_reason or "the connection takes no calls")
        if len(self._calls) >= self.peer_calls_max:
            raise ConnectionError(f"the peer takes at most {self.peer_calls_max} calls")
        stream_id = self._last_id + 2 if self._last_id else 1
        if stream_id > frames.MAX_STREAM_ID:
            raise ConnectionError("the connection has used up its stream numbers")
        self._last_id = stream_id
        call = Call(self, stream_id, path, self._initial_window, self._recv_initial)
        self._calls[stream_id] = call
        block = fields.request_block(path, authority, scheme)
        self.put([frames.frame(HEADERS, END_HEADERS, stream_id, block)])
        return call

    def drain(self) -> None:
        """Take no further call and close once the last one is over. Idempotent."""
        if self._state == NEW:
            self.close()
        elif self._state == OPEN:
            self._state = DRAINING
            self._tell(frames.NO_ERROR, "")
            self._close_if_drained()
        elif self._state == DRAINING:
            self._tell(frames.NO_ERROR, "")

    def close(self, reason: str = "") -> None:
        """End every call, say so to the peer, send what is left and close. Idempotent."""
        self.shut(frames.NO_ERROR, reason, reason)

    def abort(self, reason: str) -> None:
        """Cut the connection at once, whatever is unsent. Idempotent."""
        if self._state == CLOSED:
            return
        if self._state != CLOSING:
            self._enter_closing(reason)
        if self.transport is not None:
            self.transport.abort()

    # The transport.

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Send what opens a connection."""
        self.transport = transport
        if self._state == CLOSING:  # closed before it was connected
            transport.abort()
            return
        limits = self.limits
        self._refilled_at = self._idle_since = self.loop.time()
        values = {
            frames.INITIAL_WINDOW_SIZE: limits.window_bytes,
            frames.MAX_FRAME_SIZE: FRAME_BYTES_MAX,
            frames.MAX_HEADER_LIST_SIZE: fields.BLOCK_BYTES_MAX,
            (frames.MAX_CONCURRENT_STREAMS if self.is_server else frames.ENABLE_PUSH): (
                limits.max_calls if self.is_server else 0
            ),
        }
        widened = frames.window_update(0, self._recv_window - frames.DEFAULT_WINDOW_BYTES)
        self.put([b"" if self.is_server else frames.PREFACE, frames.settings(values), widened])
        self._set_timer(limits.handshake_ns)

    def connection_lost(self, error: Exception | None) -> None:
        """The transport has ended."""
        if self._state < CLOSING:
            had_use = bool(self._calls) or self._state == NEW
            reason = self.end_reason
            if not reason and error is not None:
                reason = f"{LOST}: {error}"
            elif not reason and had_use:
                reason = PEER_LEFT
            self._enter_closing(reason)
        self._state = CLOSED
        self.transport = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        on_lost, self._on_lost = self._on_lost, None
        if on_lost is not None:
            on_lost(self)

    def eof_received(self) -> bool:
        """The peer has ended its direction: the transport closes itself."""
        return False

    def pause_writing(self) -> None:
        """The transport is above its high-water mark."""
        self.is_writable = False

    def resume_writing(self) -> None:
        """The transport is below its low-water mark again."""
        self.is_writable = True
        self._answer_bytes = 0
        self._flush_calls()

    # Life.

    def on_call_over(self, call: Call) -> None:
        """A call is over: forget it."""
        self._calls.pop(call.id, None)
        if not self._calls:
            self._idle_since = self.loop.time()
            if self._state == DRAINING:
                self.loop.call_soon(self._close_if_drained)

    def _flush_calls(self) -> None:
        """Let calls go on that wait for the connection's window or for the transport, in the order of their opening."""
        for call in list(self._calls.values()):
            call.flush()

    def _close_if_drained(self) -> None:
        if self._state == DRAINING and not self._calls:
            self.shut(frames.NO_ERROR, "", self.end_reason)

    def _tell(self, code: int, text: str) -> None:
        """Send GOAWAY: no further call of the peer is taken. Once without, and once with an error."""
        if self._is_told and code == frames.NO_ERROR:
            return
        self._is_told = True
        self.put([frames.goaway(self._last_id if self.is_server else 0, code, text)])

    def shut(self, code: int, text: str, reason: str) -> None:
        """End the connection properly, with an error code and a text for the peer, a reason for us. Idempotent."""
        if self._state >= CLOSING:
            return
        if self.is_server and code == frames.NO_ERROR:
            self._finish_calls(reason)
        self.put_answers()
        if self._state >= CLOSING:
            return
        self._tell(code, text)
        self._enter_closing(reason)
        transport = self.transport
        if transport is None:
            return
        self._set_timer(self.limits.close_ns)
        try:
            if transport.can_write_eof():
                transport.write_eof()
            elif not self.is_server:
                transport.close()
        except (RuntimeError, OSError):  # it has ended already, and says so by connection_lost
            transport.abort()

    def _finish_calls(self, reason: str) -> None:
        """Tell the clients of open calls: over TLS our end of the transport would not."""
        for call in list(self._calls.values()):
            call.finish(fields.GRPC_UNAVAILABLE, reason or CLOSED_TEXT)
            call.reset(frames.CANCEL)  # where a message waits before the status

    def _enter_closing(self, reason: str) -> None:
        """Nothing is written or read from here on; every call is over."""
        self._state = CLOSING
        self.end_reason = reason
        self._answers = []
        self.drop_input()
        for call in list(self._calls.values()):
            call.end(fields.GRPC_UNAVAILABLE, reason or CLOSED_TEXT)
        if self.ready is not None and not self.ready.done():
            self.ready.set_exception(ConnectionError(reason or CLOSED_TEXT))
            self.ready.exception()  # who does not wait for it need not hear of it

    def _set_timer(self, delay_ns: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due = self.loop.time() + delay_ns * NS
        self._timer = self.loop.call_at(self._due, self._on_timer)

    def _on_timer(self) -> None:
        """The time is up for the handshake, for silence, or for the closing."""
        self._timer = None
        limits = self.limits
        if self.loop.time() - self._due > LATE_S:
            self._set_timer(LAST_LOOK_NS)
        elif self._state == CLOSING:
            self.abort(self.end_reason)
        elif not self._is_acked:
            self.shut(frames.SETTINGS_TIMEOUT, "no SETTINGS in time", "the peer did not shake hands in time")
        elif not self._is_heard and self._is_pinged:
            self.abort("the peer does not answer")
        elif not self._is_heard:
            self._is_pinged = True
            self.answer(frames.frame(PING, 0, 0, CHECK))
            self._set_timer(limits.ping_timeout_ns)
        else:
            self._is_heard = self._is_pinged = False
            self._set_timer(limits.keepalive_ns)
            self._look_for_idleness()

    def _look_for_idleness(self) -> None:
        """Every `keepalive_ns`: a block that does not become whole, a peer's connection without a call."""
        limits = self.limits
        if self._is_block_open:
            self._block_ticks += 1
            if self._block_ticks * limits.keepalive_ns > limits.handshake_ns:
                self.abort("a header block did not become whole in time")
        elif self.is_server and not self._calls and self.loop.time() - self._idle_since >= limits.idle_ns * NS:
            self.close("no call for long")
