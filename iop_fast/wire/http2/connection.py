"""One HTTP/2 connection that carries gRPC calls: the frames that come, strictly.

It faces the network before anybody has shown who they are, so what a peer can make of it is bounded here, each bound by
a number with a name (here, in `limits.py` and in `fields.py`):

    memory  unread input        a frame head and one control frame, `CONTROL_BYTES_MAX`; DATA is handed on as it comes
            header block        `BLOCK_BYTES_MAX`, encoded and decoded; the dynamic table of its fields 4 KiB
            messages            calls x (window + one message), of a peer that is not known `stranger_bytes_max`; a
                                connection's window is given back on receipt
            output              the transport's mark + one message, and `ANSWER_BYTES_MAX` of answers
            calls               `max_calls`, and then REFUSED_STREAM
    work    frames that bring nothing; header blocks, calls, resets, refusals: the allowances (`peer.py`)
    time    preface and SETTINGS both ways, a header block: `handshake_ns`; silence: `keepalive_ns` + `ping_timeout_ns`;
            without a call: `idle_ns`; closing: `close_ns`

What a frame may be, RFC 9113: an error of the connection is a ProtocolError, raised anywhere below `_feed`; it ends in
`shut`, by GOAWAY. An error of one stream ends that call alone and is paid for. Frames on a call that is over are taken
as in flight and dropped, but for DATA and HEADERS behind the peer's own END_STREAM (`_ended`, the last few). Frames of
an unknown type are skipped, whatever their length; PUSH_PROMISE is an error, as no side of gRPC allows one.

Who may call: the transport, the owner and the calls, all in the loop's thread. `on_call` and `on_lost` are the owner's;
what `on_call` raises ends its call by INTERNAL, and goes to the event loop's exception handler, as does any fault here.
Never done: waiting, a task, reading a clock but the loop's (for the allowance and the idle limit alone), more than one
write for the answers to one read.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from iop_fast.wire.http2 import fields, frames
from iop_fast.wire.http2.call import Call
from iop_fast.wire.http2.fields import BlockReader, MalformedError
from iop_fast.wire.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEAD_BYTES,
    HEADERS,
    PADDED,
    PING,
    PRIORITY,
    PRIORITY_FIELDS,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    ProtocolError,
)
from iop_fast.wire.http2.life import Life
from iop_fast.wire.http2.limits import (
    BLOCK_BYTES_FREE,
    BLOCK_BYTES_PER_COST,
    COST_OF_BLOCK,
    COST_OF_FRAME,
    COST_OF_PING,
    COST_OF_RESET,
    COST_OF_SETTINGS,
    DATA_BYTES_PER_COST,
    FIELDS_FREE,
    FRAME_BYTES_MAX,
    Limits,
)
from iop_fast.wire.http2.peer import read_word
from iop_fast.wire.http2.states import CLOSING, DRAINING, NEW, OPEN

# Any frame but DATA and those we skip. Larger ones are legal only because we announce more for DATA.
CONTROL_BYTES_MAX = 16 * 1024
# SETTINGS have six meanings; a peer may repeat itself.
SETTINGS_BYTES_MAX = 6 * 64
# Calls of which we remember that the peer has ended its side.
ENDED_MAX = 32

OnCall = Callable[[Call], None]
OnLost = Callable[["Connection"], None]


class Connection(Life):
    """One connection; a protocol for `loop.create_server` and `loop.create_connection`. See the module's text."""

    __slots__ = (
        "_block",
        "_block_flags",
        "_block_id",
        "_data_call",
        "_data_ends",
        "_data_left",
        "_ended",
        "_on_call",
        "_pad_left",
        "_preface",
        "_reader",
        "_recv_owed",
        "_rest",
        "_skip_left",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limits: Limits,
        *,
        is_server: bool,
        on_call: OnCall | None = None,
        on_lost: OnLost | None = None,
    ) -> None:
        """`on_call` is called with each call that a client opens (server), `on_lost` once, last."""
        super().__init__(loop, limits, is_server, on_lost)
        self._on_call = on_call
        self._ended: deque[int] = deque(maxlen=ENDED_MAX)
        self._recv_owed = 0  # of the connection's window
        self._rest = b""  # a part of a frame
        self._preface = len(frames.PREFACE) if is_server else 0  # bytes of it that are missing
        self._reader = BlockReader()
        self._block = b""  # a part of a header block
        self._block_id = 0
        self._block_flags = 0
        self._data_call: Call | None = None  # of the DATA frame that is coming, None if it is to be dropped
        self._data_left = 0
        self._pad_left = 0
        self._data_ends = False
        self._skip_left = 0

    def drop_input(self) -> None:
        """Nothing is read any more: let go of what came in part."""
        self._rest = self._block = b""
        self._data_call = None
        self._on_call = None

    def data_received(self, chunk: bytes) -> None:
        """Take what was read."""
        if self._state >= CLOSING:
            return
        self._is_heard = True
        self._is_feeding = True
        try:
            self._feed(self._rest + chunk if self._rest else bytes(chunk))
        except ProtocolError as error:
            self.shut(error.code, str(error), f"the peer broke HTTP/2: {error}")
        except Exception as error:  # noqa: BLE001 - a fault of ours ends this connection and no other
            self.loop.call_exception_handler({"message": "an HTTP/2 connection failed", "exception": error})
            self.shut(frames.INTERNAL_ERROR, "internal error", "internal error")
        self._is_feeding = False
        self.put_answers()

    # Frames.

    def _feed(self, chunk: bytes) -> None:
        """Take the frames of a read; keep the rest of it."""
        at = 0
        size = len(chunk)
        self._rest = b""
        if self._preface:
            at = self._take_preface(chunk)
        while at < size and self._state < CLOSING:
            if self._data_left or self._pad_left:
                at = self._take_data(chunk, at, size)
            elif self._skip_left:
                step = min(self._skip_left, size - at)
                self._skip_left -= step
                at += step
            else:
                taken = self._take_frame(chunk, at, size)
                if taken == at:
                    self._rest = chunk[at:]
                    break
                at = taken

    def _take_preface(self, chunk: bytes) -> int:
        """Take the rest of the client's preface, or a part of it; return what is taken."""
        preface = frames.PREFACE
        start = len(preface) - self._preface
        step = min(self._preface, len(chunk))
        if chunk[:step] != preface[start : start + step]:
            raise ProtocolError(frames.PROTOCOL_ERROR, "not an HTTP/2 client")
        self._preface -= step
        return step

    def _take_frame(self, chunk: bytes, at: int, size: int) -> int:
        """Take a frame, or the head of one that is handed on as it comes; return its end, `at` if more is needed."""
        start = at + HEAD_BYTES
        if size < start:
            return at
        length = chunk[at] << 16 | chunk[at + 1] << 8 | chunk[at + 2]
        kind = chunk[at + 3]
        flags = chunk[at + 4]
        stream_id = (chunk[at + 5] & 0x7F) << 24 | chunk[at + 6] << 16 | chunk[at + 7] << 8 | chunk[at + 8]
        if self._state == NEW and chunk[at : at + 5] == b"HTTP/":
            raise ProtocolError(frames.PROTOCOL_ERROR, "it speaks HTTP/1")
        if length > FRAME_BYTES_MAX:
            raise ProtocolError(frames.FRAME_SIZE_ERROR, "frame too large")
        if self._is_block_open and (kind != CONTINUATION or stream_id != self._block_id):
            raise ProtocolError(frames.PROTOCOL_ERROR, "a frame within a header block")
        if self._state == NEW and (kind != SETTINGS or flags & ACK):
            raise ProtocolError(frames.PROTOCOL_ERROR, "expected SETTINGS first")
        if kind == DATA:
            return self._start_data(chunk, at, size, length, flags, stream_id)
        if kind > CONTINUATION:
            self.charge(COST_OF_FRAME)
            self._skip_left = length
            return start
        if length > CONTROL_BYTES_MAX:
            raise ProtocolError(frames.ENHANCE_YOUR_CALM, "control frame too large")
        stop = start + length
        if size < stop:
            return at
        self._take_control(kind, flags, stream_id, chunk[start:stop])
        return stop

    def _take_control(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind == WINDOW_UPDATE:
            self._on_window_update(stream_id, payload)
        elif kind == PING:
            self._on_ping(flags, stream_id, payload)
        elif kind == HEADERS:
            self._on_headers(flags, stream_id, payload)
        elif kind == CONTINUATION:
            self._on_continuation(flags, payload)
        elif kind == SETTINGS:
            self._on_settings(flags, stream_id, payload)
        elif kind == RST_STREAM:
            self._on_rst_stream(stream_id, payload)
        elif kind == GOAWAY:
            self._on_goaway(stream_id, payload)
        elif kind == PRIORITY:
            self._on_priority(stream_id, payload)
        else:
            assert kind == PUSH_PROMISE
            raise ProtocolError(frames.PROTOCOL_ERROR, "a pushed stream")

    # DATA, section 6.1.

    def _start_data(self, chunk: bytes, at: int, size: int, length: int, flags: int, stream_id: int) -> int:
        """Take the head of a DATA frame; return where its bytes begin, `at` if more is needed."""
        start = at + HEAD_BYTES
        padding = 0
        if flags & PADDED:
            if not length:
                raise ProtocolError(frames.FRAME_SIZE_ERROR, "padding without its length")
            if size == start:
                return at
            padding = chunk[start] + 1
            start += 1
            if padding > length:
                raise ProtocolError(frames.PROTOCOL_ERROR, "more padding than frame")
        if not stream_id or self._is_idle(stream_id):
            raise ProtocolError(frames.PROTOCOL_ERROR, "DATA on no stream")
        self._pay_for_data(length, padding)
        call = self._calls.get(stream_id)
        if call is None:
            if stream_id in self._ended:
                raise ProtocolError(frames.STREAM_CLOSED, "DATA after the end of its stream")
        elif call.is_peer_ended:
            call.fail(frames.STREAM_CLOSED, "DATA after the end of its stream")
            call = None
        else:
            call.recv_window -= length
            if call.recv_window < 0:
                raise ProtocolError(frames.FLOW_CONTROL_ERROR, "more DATA than the stream's window")
            if padding:
                call.take_padding(padding)
        self._data_call = call
        self._data_left = length - padding
        self._pad_left = padding - 1 if padding else 0
        self._data_ends = bool(flags & END_STREAM)
        if not self._data_left and not self._pad_left:
            self._end_data()
        return start

    def _pay_for_data(self, length: int, padding: int) -> None:
        """The connection's window, and what an empty or small frame costs."""
        self._recv_window -= length
        if self._recv_window < 0:
            raise ProtocolError(frames.FLOW_CONTROL_ERROR, "more DATA than the connection's window")
        gain = (length - padding) // DATA_BYTES_PER_COST
        if gain:
            self.earn(gain)
        else:
            self.charge(COST_OF_FRAME)
        self._recv_owed += length
        if self._recv_owed >= self._recv_initial:
            self._recv_window += self._recv_owed
            self.answer(frames.window_update(0, self._recv_owed))
            self._recv_owed = 0

    def _take_data(self, chunk: bytes, at: int, size: int) -> int:
        """Take the next bytes of a DATA frame; return where they ended."""
        if self._data_left:
            stop = min(at + self._data_left, size)
            self._data_left -= stop - at
            call = self._data_call
            if call is not None and not call.is_over:
                call.take(chunk, at, stop)
            at = stop
        step = min(self._pad_left, size - at)
        self._pad_left -= step
        if not self._data_left and not self._pad_left:
            self._end_data()
        return at + step

    def _end_data(self) -> None:
        """A DATA frame is whole."""
        call = self._data_call
        is_end = self._data_ends
        self._data_call = None
        self._data_ends = False
        if is_end and call is not None:
            self._end_side(call)

    def _end_side(self, call: Call) -> None:
        """The peer has ended its side of a call."""
        self._ended.append(call.id)
        if not call.is_over:
            call.end_peer()

    # HEADERS and CONTINUATION, sections 6.2 and 6.10.

    def _on_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        start, stop = 0, len(payload)
        if flags & PADDED:
            if not payload:
                raise ProtocolError(frames.FRAME_SIZE_ERROR, "padding without its length")
            start = 1
            stop -= payload[0]
        if flags & PRIORITY_FIELDS:
            start += 5
        if start > stop:
            raise ProtocolError(frames.PROTOCOL_ERROR, "a header frame that is shorter than its parts")
        if flags & PRIORITY_FIELDS and read_word(payload, start - 5) & 0x7FFFFFFF == stream_id:
            raise ProtocolError(frames.PROTOCOL_ERROR, "a stream that depends on itself")
        if not stream_id % 2:
            raise ProtocolError(frames.PROTOCOL_ERROR, "HEADERS on a stream that no client opens")
        self._block_id = stream_id
        self._block_flags = flags
        self._add_block(payload[start:stop], flags)

    def _on_continuation(self, flags: int, payload: bytes) -> None:
        if not self._is_block_open:
            raise ProtocolError(frames.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        self._add_block(payload, flags)

    def _add_block(self, part: bytes, flags: int) -> None:
        """Add to the header block; read it if it is whole."""
        is_whole = bool(flags & END_HEADERS)
        self.charge(COST_OF_FRAME if is_whole or part else COST_OF_RESET)
        if len(self._block) + len(part) > fields.BLOCK_BYTES_MAX:
            raise ProtocolError(frames.ENHANCE_YOUR_CALM, "header block too large")
        self._block += part
        self._is_block_open = not is_whole
        if not is_whole:
            return
        block, self._block = self._block, b""
        self._block_ticks = 0
        size = len(block)
        self.charge_heavy(COST_OF_BLOCK + (size // BLOCK_BYTES_PER_COST if size > BLOCK_BYTES_FREE else 0))
        found = self._reader.read(block)
        if len(found) > FIELDS_FREE:
            self.charge_heavy(len(found) - FIELDS_FREE)
        self._on_block(self._block_id, found, bool(self._block_flags & END_STREAM))

    def _on_block(self, stream_id: int, block: fields.Fields, is_end: bool) -> None:
        """The fields of a stream: a new call, the first or the last ones of an old call, or of one that is over."""
        call = self._calls.get(stream_id)
        if call is not None:
            self._on_more_fields(call, block, is_end)
        elif stream_id > self._last_id:
            if not self.is_server:
                raise ProtocolError(frames.PROTOCOL_ERROR, "an answer to no call")
            if not self._is_told:
                self._last_id = stream_id
                self._open(stream_id, block, is_end)
        elif stream_id in self._ended:
            raise ProtocolError(frames.STREAM_CLOSED, "HEADERS after the end of their stream")
        else:
            self.charge(COST_OF_FRAME)

    def _on_more_fields(self, call: Call, block: fields.Fields, is_end: bool) -> None:
        if call.is_peer_ended:
            call.fail(frames.STREAM_CLOSED, "HEADERS after the end of their stream")
            return
        if is_end:
            self._ended.append(call.id)
        try:
            call.on_fields(block, is_end)
        except MalformedError as error:
            call.fail(frames.PROTOCOL_ERROR, str(error))

    def _open(self, stream_id: int, block: fields.Fields, is_end: bool) -> None:
        """A client opens a call."""
        if is_end:
            self._ended.append(stream_id)
        if len(self._calls) >= self.limits.max_calls:
            self.charge_heavy(COST_OF_RESET)
            self.answer(frames.rst_stream(stream_id, frames.REFUSED_STREAM))
            return
        try:
            request = fields.read_request(block)
        except MalformedError:
            self.charge_heavy(COST_OF_RESET)
            self.answer(frames.rst_stream(stream_id, frames.PROTOCOL_ERROR))
            return
        call = Call(self, stream_id, request.path, self._initial_window, self._recv_initial)
        self._calls[stream_id] = call
        call.expect_content(request.content_length)
        if is_end:
            call.end_peer()
        if request.refusal:
            call.refuse(request.refusal)
        elif not call.is_over and self._on_call is not None:
            try:
                self._on_call(call)
            except Exception as error:  # noqa: BLE001 - the owner's failure with one call must not be another's
                self.loop.call_exception_handler({"message": "a call could not be started", "exception": error})
                call.finish(fields.GRPC_INTERNAL, "internal error")

    # The small frames, sections 6.3 to 6.9.

    def _on_priority(self, stream_id: int, payload: bytes) -> None:
        self.charge(COST_OF_FRAME)
        if not stream_id:
            raise ProtocolError(frames.PROTOCOL_ERROR, "PRIORITY on no stream")
        if len(payload) != 5:
            raise ProtocolError(frames.FRAME_SIZE_ERROR, "PRIORITY of another size")

    def _on_rst_stream(self, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ProtocolError(frames.FRAME_SIZE_ERROR, "RST_STREAM of another size")
        if not stream_id or self._is_idle(stream_id):
            raise ProtocolError(frames.PROTOCOL_ERROR, "RST_STREAM on no stream")
        call = self._calls.get(stream_id)
        if call is None:
            self.charge(COST_OF_FRAME)
            return
        code = read_word(payload, 0)
        if self.is_server:
            self.charge_heavy(COST_OF_RESET)
        status = fields.STATUS_OF_RESET.get(code, fields.GRPC_INTERNAL)
        call.end(status, f"the peer reset the call: {frames.error_name(code)}")

    def _on_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        self.charge_heavy(COST_OF_SETTINGS)
        if stream_id:
            raise ProtocolError(frames.PROTOCOL_ERROR, "SETTINGS on a stream")
        if len(payload) % 6 or (flags & ACK and payload):
            raise ProtocolError(frames.FRAME_SIZE_ERROR, "SETTINGS of another size")
        if flags & ACK:
            self._on_settings_ack()
            return
        if len(payload) > SETTINGS_BYTES_MAX:
            raise ProtocolError(frames.ENHANCE_YOUR_CALM, "too many settings")
        for name, value in frames.read_settings(payload):
            self._set(name, value)
        self.answer(frames.SETTINGS_ACK)
        if self._state == NEW:
            self._state = OPEN
            if self.ready is not None and not self.ready.done():
                self.ready.set_result(None)

    def _on_settings_ack(self) -> None:
        """The peer knows our window: from here on it is what we said."""
        if self._is_acked:
            return
        self._is_acked = True
        change = self.window_bytes - self._recv_initial
        self._recv_initial = self.window_bytes
        if change:
            for call in self._calls.values():
                call.recv_window += change
        self._is_heard = self._is_pinged = False
        self._set_timer(self.limits.keepalive_ns)

    def _set(self, name: int, value: int) -> None:
        """Obey one setting of the peer (section 6.5.2)."""
        if name == frames.INITIAL_WINDOW_SIZE:
            change = value - self._initial_window
            if value > frames.MAX_WINDOW_BYTES:
                raise ProtocolError(frames.FLOW_CONTROL_ERROR, "a window that is too large")
            self._initial_window = value
            for call in list(self._calls.values()):
                if not call.widen(change):
                    raise ProtocolError(frames.FLOW_CONTROL_ERROR, "a window that is too large")
        elif name == frames.MAX_FRAME_SIZE:
            if not frames.DEFAULT_FRAME_BYTES <= value <= frames.MAX_FRAME_BYTES:
                raise ProtocolError(frames.PROTOCOL_ERROR, "an impossible frame size")
            self.frame_bytes_max = value
        elif name == frames.ENABLE_PUSH:
            if value > 1 or (value and not self.is_server):
                raise ProtocolError(frames.PROTOCOL_ERROR, "an impossible push setting")
        elif name == frames.MAX_CONCURRENT_STREAMS:
            self.peer_calls_max = value

    def _on_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        self.charge(COST_OF_PING)
        if stream_id:
            raise ProtocolError(frames.PROTOCOL_ERROR, "PING on a stream")
        if len(payload) != 8:
            raise ProtocolError(frames.FRAME_SIZE_ERROR, "PING of another size")
        if not flags & ACK:
            self.answer(frames.frame(PING, ACK, 0, payload))

    def _on_goaway(self, stream_id: int, payload: bytes) -> None:
        self.charge(COST_OF_FRAME)
        if stream_id:
            raise ProtocolError(frames.PROTOCOL_ERROR, "GOAWAY on a stream")
        if len(payload) < 8:
            raise ProtocolError(frames.FRAME_SIZE_ERROR, "GOAWAY of another size")
        last_id, code = read_word(payload, 0) & 0x7FFFFFFF, read_word(payload, 4)
        if code != frames.NO_ERROR:
            text = payload[8:208].decode("ascii", "replace")
            said = "".join(c for c in text if c.isprintable())
            self.end_reason = f"the peer closed the connection: {frames.error_name(code)}{': ' if said else ''}{said}"
        if self.is_server:
            return
        if self._state == OPEN:
            self._state = DRAINING
        for call in [call for number, call in self._calls.items() if number > last_id]:
            call.end(fields.GRPC_UNAVAILABLE, self.end_reason or "the peer takes no more calls")
        self._close_if_drained()

    def _on_window_update(self, stream_id: int, payload: bytes) -> None:
        self.charge(COST_OF_FRAME)
        if len(payload) != 4:
            raise ProtocolError(frames.FRAME_SIZE_ERROR, "WINDOW_UPDATE of another size")
        byte_count = read_word(payload, 0) & 0x7FFFFFFF
        if not stream_id:
            if not byte_count:
                raise ProtocolError(frames.PROTOCOL_ERROR, "a window update of nothing")
            self.window += byte_count
            if self.window > frames.MAX_WINDOW_BYTES:
                raise ProtocolError(frames.FLOW_CONTROL_ERROR, "a window that is too large")
            self._flush_calls()
            return
        if self._is_idle(stream_id):
            raise ProtocolError(frames.PROTOCOL_ERROR, "WINDOW_UPDATE on no stream")
        call = self._calls.get(stream_id)
        if call is None:
            return
        if not byte_count:
            call.fail(frames.PROTOCOL_ERROR, "a window update of nothing")
        elif not call.widen(byte_count):
            call.fail(frames.FLOW_CONTROL_ERROR, "a window that is too large")

    def _is_idle(self, stream_id: int) -> bool:
        """True for a stream that nobody has opened."""
        return not stream_id % 2 or (stream_id > self._last_id and not self._is_told)
