"""One gRPC call: messages out of DATA frames, and messages into them.

A call has two sides, and each ends once:

    theirs  open -> ended (END_STREAM)     whole messages that came before it can still be read
    ours    open -> ending -> ended        ending: `finish` or `half_close` was called, and waits behind a message

It is over when both have ended, when either peer reset it, or when its connection is closed; a server's call is over
with its trailers, whatever the client still wants to say. From then on the connection does not know it: `connection` is
a reference upwards, and there is none back.

Receiving. `take` gets the bytes of DATA frames as they come and cuts messages out of them. A whole message costs one
copy. The parts of one that is not whole are kept: views of what was read if they are most of it, else copies, and small
ones joined, so that what is held is at most about twice what came. A message above `receive_bytes_max` ends the call
when its prefix is seen, before a byte of it is kept. What came and was not read is bounded by the window:

    uncredited = what came since the last WINDOW_UPDATE; never above the window, or the connection is ended
    credit     = uncredited - whole messages that wait - the part of the next one, if whole ones wait

is given back when it is half the window, so a reader that stands still stops the peer, and a message larger than the
window passes when no other waits before it. Held by a call at most: the window and one message, and of a peer that is
not known `stranger_bytes_max`; a message that comes beyond that ends the call. A reader that always finds a message
lets others have their turn of the loop after `READS_A_TURN`.

Sending. A message that fits the windows and one frame is one write to the transport, made in `write`. Else as much as
fits is sent and the call keeps the message (`_message`, sent up to `_sent`): `flush` goes on when a window opens or the
transport takes more. A cancelled `write` changes nothing of that, as half a message cannot be taken back.

Rules: one reader and one writer at a time. Nobody but the connection calls what stands under "For the connection". None
of the user's methods raises for what the peer did, but `write`, by ConnectionError. `on_over` is called once, last; an
exception of it goes to the event loop's exception handler. A deadline in the request (grpc-timeout) is not kept here:
the client that set it resets the call when it has passed.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable
from typing import Any

from iop_fast.wire.http2 import fields, frames
from iop_fast.wire.http2.fields import Ending
from iop_fast.wire.http2.frames import DATA, END_HEADERS, END_STREAM, HEADERS
from iop_fast.wire.http2.limits import (
    COST_OF_RESET,
    DATA_BYTES_PER_COST,
    EARNED_BY_MESSAGE,
    MESSAGE_OVERHEAD_BYTES,
    READS_A_TURN,
)
from iop_fast.wire.http2.peer import Peer, read_word

# Length (24 bits), type, flags and stream of a DATA frame.
DATA_HEAD = struct.Struct(">HBBBI")
# The same, and gRPC's prefix of a message: not compressed, its length.
MESSAGE_HEAD = struct.Struct(">HBBBIBI")
PREFIX = struct.Struct(">BI")
PREFIX_BYTES = 5

# A part of a message that is smaller is joined to the one before it: many small frames do not cost an object each.
PART_BYTES_MIN = 4096


class Call:
    """One gRPC call; made by its connection. See the module's text.

    `status` and `details` are the peer's grpc-status and grpc-message for a client, or what stands for them when the
    call ended without; for a server's call they say how it ended. `status` is None until that is known.
    """

    __slots__ = (
        "_content_left",
        "_has_answered",
        "_has_part",
        "_is_deaf",
        "_is_ended",
        "_is_ending",
        "_last",
        "_message",
        "_messages",
        "_part_bytes",
        "_parts",
        "_peer",
        "_prefix",
        "_reader",
        "_reads",
        "_sent",
        "_size",
        "_uncredited",
        "_waiting",
        "_window",
        "_writer",
        "details",
        "id",
        "is_over",
        "is_peer_ended",
        "on_over",
        "path",
        "recv_window",
        "status",
    )

    def __init__(self, peer: Peer, stream_id: int, path: bytes, window: int, recv_window: int) -> None:
        self.id = stream_id
        self.path = path
        self.is_over = False
        self.status: int | None = None
        self.details = ""
        self.on_over: Callable[[Call], None] | None = None
        self._peer = peer
        # Receiving.
        self.recv_window = recv_window  # what the peer may still send
        self._messages: deque[bytes] = deque()
        self._waiting = 0  # bytes of whole messages that wait, with their prefixes
        self._uncredited = 0
        self._prefix = b""  # a part of the next message's prefix
        self._size = -1  # of the message of which a part is here, else -1
        self._parts: list[Any] = []
        self._part_bytes = 0
        self._content_left = -1  # of the request's content-length, or -1
        self.is_peer_ended = False
        self._is_deaf = False  # nobody will read any more
        self._has_answered = False  # the answer's first fields were sent (server) or have come (client)
        self._reader: asyncio.Future[None] | None = None
        self._reads = 0  # messages that were read without waiting
        # Sending.
        self._window = window
        self._message: bytes | None = None
        self._sent = 0  # bytes of the prefix and of `_message`
        self._last = b""  # what ends our side, while it waits
        self._is_ending = False
        self._is_ended = False
        self._writer: asyncio.Future[bool] | None = None

    def __repr__(self) -> str:
        state = f"over, status {self.status}" if self.is_over else "open"
        return f"<Call {self.id} {self.path!r} {state}>"

    @property
    def connection(self) -> Peer:
        """The connection that the call belongs to, also after its end."""
        return self._peer

    # For the user: receiving.

    async def read(self) -> bytes | None:
        """Return the next whole message, or None for ever once the peer has ended its side or the call is over.

        One reader at a time. A cancelled read loses nothing.
        """
        if self._reads >= READS_A_TURN:
            self._reads = 0
            await asyncio.sleep(0)
        while not self._messages:
            self._reads = 0
            if self.is_peer_ended or self._is_deaf or self.is_over:
                return None
            await self._sleep_reader()
        return self._pop()

    async def _sleep_reader(self) -> None:
        assert self._reader is None, "a second read at a time"
        self._reader = self._peer.loop.create_future()
        try:
            await self._reader
        finally:
            self._reader = None

    def _pop(self) -> bytes:
        message = self._messages.popleft()
        self._reads += 1
        self._waiting -= PREFIX_BYTES + len(message)
        self._give_credit()
        return message

    # For the user: sending.

    async def write(self, message: bytes) -> None:
        """Send one message; return once it is handed to the transport, within the peer's windows.

        One writer at a time. A write that is cancelled half way is still sent whole. Raises ValueError above
        `Limits.max_message_bytes`, ConnectionError once the call is over or was ended by us.
        """
        if not self._put_whole(message):
            await self._write_in_parts(message)

    async def _write_in_parts(self, message: bytes) -> None:
        assert self._writer is None, "a second write at a time"
        while self._message is not None:  # the rest of a write that was cancelled
            await self._sleep_writer()
        self._check_open()
        self._message = message
        self._sent = 0
        self.flush()
        while self._message is not None:
            await self._sleep_writer()

    async def _sleep_writer(self) -> None:
        self._writer = self._peer.loop.create_future()
        try:
            is_sent = await self._writer
        finally:
            self._writer = None
        if not is_sent:
            raise ConnectionError(self.details or "the call is over")

    def _check_open(self) -> None:
        if self.is_over:
            raise ConnectionError(self.details or "the call is over")
        if self._is_ending:
            raise ConnectionError("the call was ended")

    def finish(self, status: int, details: str = "") -> None:
        """End the call (server) by a gRPC status, behind what was written. Idempotent, never raises.

        Nothing is read any more. What was written may wait for a peer that does not read: `is_over` then comes late, or
        `reset` makes it.
        """
        if self._is_ending or self.is_over:
            return
        self.status, self.details = status, details
        self._drop_received()
        is_alone = not self._has_answered and self._message is None
        block = fields.trailers_block(status, details, is_alone)
        self._end_ours(frames.frame(HEADERS, END_HEADERS | END_STREAM, self.id, block))

    def half_close(self) -> None:
        """Say that no further message follows (client), behind what was written. Idempotent, never raises."""
        if not self._is_ending and not self.is_over:
            self._end_ours(frames.frame(DATA, END_STREAM, self.id))

    def reset(self, code: int) -> None:
        """End the call at once by RST_STREAM with an error code of RFC 9113, section 7; what waits is dropped.

        Idempotent, never raises.
        """
        if self.is_over:
            return
        self._peer.answer(frames.rst_stream(self.id, code))
        self._drop_received()
        self.end(fields.GRPC_CANCELLED, f"the call was reset: {frames.error_name(code)}")

    def _drop_received(self) -> None:
        """Nobody will read any more: let go of what came."""
        self._is_deaf = True
        self._messages.clear()
        self._parts = []
        self._waiting = 0
        self._wake_reader()

    def _end_ours(self, last: bytes) -> None:
        self._is_ending = True
        self._last = last
        if self._message is None:
            self._put_last()

    def _put_last(self) -> None:
        """Send what ends our side, and see whether that was the end of the call."""
        last, self._last = self._last, b""
        peer = self._peer
        self._is_ended = True
        if peer.is_server and not self.is_peer_ended:
            last += frames.rst_stream(self.id, frames.NO_ERROR)  # section 8.1: the client need not send the rest
        peer.answer(last)
        if peer.is_server or self.is_peer_ended:
            self.end(fields.GRPC_OK, "")

    # For the connection: sending.

    def _put_whole(self, message: bytes) -> bool:
        """Send a message at once if it is one frame and everything is open; return whether it was."""
        size = len(message)
        peer = self._peer
        if size > peer.message_bytes_max:
            raise ValueError(f"message too large: expected at most {peer.message_bytes_max} bytes, got {size}")
        self._check_open()
        total = size + PREFIX_BYTES
        if (
            self._message is not None
            or not peer.is_writable
            or total > self._window
            or total > peer.window
            or total > peer.frame_bytes_max
        ):
            return False
        self._window -= total
        peer.window -= total
        head = MESSAGE_HEAD.pack(total >> 8, total & 0xFF, DATA, 0, self.id, 0, size)
        if not self._has_answered and peer.is_server:
            head = self._answer_head() + head
        peer.earn(EARNED_BY_MESSAGE)
        peer.put_whole(head, message)
        return True

    def _answer_head(self) -> bytes:
        self._has_answered = True
        return frames.frame(HEADERS, END_HEADERS, self.id, fields.RESPONSE_FIELDS)

    def flush(self) -> None:
        """Send what the windows and the transport take of the message that waits."""
        message = self._message
        peer = self._peer
        if message is None or not peer.is_writable:
            return
        pieces: list[Any] = []
        total = len(message) + PREFIX_BYTES
        while self._sent < total:
            size = min(total - self._sent, self._window, peer.window, peer.frame_bytes_max)
            if size <= 0:
                break
            self._add_part(pieces, message, size)
        if not pieces:
            return
        if not self._has_answered and peer.is_server:
            pieces.insert(0, self._answer_head())
        is_whole = self._sent == total
        if is_whole:
            self._message = None
        peer.put(pieces)
        if is_whole and not self.is_over:
            self._wake_writer(True)
            if self._last:
                self._put_last()

    def _add_part(self, pieces: list[Any], message: bytes, size: int) -> None:
        """Append one DATA frame with the next bytes of the prefix and the message."""
        start = self._sent
        end = self._sent = start + size
        self._window -= size
        self._peer.window -= size
        if size >= DATA_BYTES_PER_COST:  # a peer that opens its window by single bytes earns nothing (CVE-2019-9511)
            self._peer.earn(EARNED_BY_MESSAGE)
        pieces.append(DATA_HEAD.pack(size >> 8, size & 0xFF, DATA, 0, self.id))
        if start < PREFIX_BYTES:
            pieces.append(PREFIX.pack(0, len(message))[start : min(end, PREFIX_BYTES)])
            start = PREFIX_BYTES
        if end > start:
            pieces.append(memoryview(message)[start - PREFIX_BYTES : end - PREFIX_BYTES])

    def widen(self, byte_count: int) -> bool:
        """The peer lets us send so much more (or less, by its SETTINGS); False when no window is that large."""
        self._window += byte_count
        if self._window > frames.MAX_WINDOW_BYTES:
            return False
        if self._message is not None:
            self.flush()
        return True

    def refuse(self, http_status: int) -> None:
        """Answer a request that is no gRPC call."""
        self._drop_received()
        self.details = f"no gRPC request (HTTP status {http_status})"
        block = fields.refusal_block(http_status)
        self._end_ours(frames.frame(HEADERS, END_HEADERS | END_STREAM, self.id, block))

    # For the connection: receiving.

    def expect_content(self, byte_count: int) -> None:
        """The request has named its length."""
        self._content_left = byte_count

    def take(self, chunk: bytes, start: int, end: int) -> None:
        """Take bytes of a DATA frame: `chunk[start:end]`."""
        size = end - start
        self._uncredited += size
        if self._content_left >= 0:
            self._content_left -= size
            if self._content_left < 0:
                self.fail(frames.PROTOCOL_ERROR, "the request is longer than its content-length")
        while start < end and not self._is_deaf:
            start = self._take_prefix(chunk, start, end) if self._size < 0 else self._take_part(chunk, start, end)
        if not self._messages and not self._is_deaf:
            self._give_credit()

    def _take_prefix(self, chunk: bytes, start: int, end: int) -> int:
        """Take the next message's prefix, or a part of it, and the message if it is whole; return what is taken."""
        if self._prefix or end - start < PREFIX_BYTES:
            stop = min(start + PREFIX_BYTES - len(self._prefix), end)
            prefix = self._prefix + chunk[start:stop]
            if len(prefix) < PREFIX_BYTES:
                self._prefix = prefix
                return stop
            self._prefix = b""
            at = 0
        else:
            prefix, at, stop = chunk, start, start + PREFIX_BYTES
        size = read_word(prefix, at + 1)
        if prefix[at] or size > self._peer.receive_bytes_max or (not self._peer.is_known and self._is_crowded(size)):
            self._refuse_message(prefix[at], size)
            return end
        if end - stop < size:
            self._size = size
            return stop
        self._deliver(chunk[stop : stop + size])
        return stop + size

    def _take_part(self, chunk: bytes, start: int, end: int) -> int:
        """Take the next bytes of a message that came in parts; return what is taken."""
        stop = min(start + self._size - self._part_bytes, end)
        size = stop - start
        if size < PART_BYTES_MIN:
            if self._parts and type(self._parts[-1]) is bytearray:
                self._parts[-1] += chunk[start:stop]
            else:
                self._parts.append(bytearray(chunk[start:stop]))
        elif size * 2 >= len(chunk):
            self._parts.append(memoryview(chunk)[start:stop])
        else:
            self._parts.append(chunk[start:stop])
        self._part_bytes += size
        if self._part_bytes == self._size:
            message = b"".join(self._parts)
            self._parts = []
            self._part_bytes = 0
            self._size = -1
            self._deliver(message)
        return stop

    def _deliver(self, message: bytes) -> None:
        self._waiting += PREFIX_BYTES + len(message)
        self._messages.append(message)
        self._peer.earn(EARNED_BY_MESSAGE)
        if self._reader is not None:
            self._wake_reader()

    def _is_crowded(self, size: int) -> bool:
        """True when a message of this size is more than a peer that is not known may leave here unread."""
        held = self._waiting + MESSAGE_OVERHEAD_BYTES * len(self._messages)
        return held + size > self._peer.receive_bytes_max

    def _refuse_message(self, flag: int, size: int) -> None:
        """A message that we do not take ends the call (gRPC, PROTOCOL-HTTP2.md and compression.md)."""
        if flag == 1:
            status, text = fields.GRPC_UNIMPLEMENTED, "compressed messages are not taken"
        elif flag:
            status, text = fields.GRPC_INTERNAL, "a message with an unknown flag"
        elif size <= self._peer.receive_bytes_max:
            status, text = fields.GRPC_RESOURCE_EXHAUSTED, "too many messages of a peer that is not known yet"
        else:
            most = self._peer.receive_bytes_max
            status, text = fields.GRPC_RESOURCE_EXHAUSTED, f"message too large: {size} bytes, at most {most} are taken"
        self._give_up(status, text)

    def _give_up(self, status: int, text: str) -> None:
        """The peer's messages cannot be read on. Raises ProtocolError when that happens too often."""
        self._peer.charge_heavy(COST_OF_RESET)
        if self._peer.is_server:
            self.finish(status, text)
        elif not self.is_over:
            self._peer.answer(frames.rst_stream(self.id, frames.CANCEL))
            self._drop_received()
            self.end(status, text)

    def _give_credit(self) -> None:
        """Let the peer send more, once that is half a window."""
        credit = self._uncredited - self._waiting
        if self._messages:
            credit -= self._part_bytes + len(self._prefix) + (PREFIX_BYTES if self._size >= 0 else 0)
        peer = self._peer
        if credit * 2 >= peer.window_bytes and not self.is_peer_ended and not self.is_over:
            self._uncredited -= credit
            self.recv_window += credit
            peer.answer(frames.window_update(self.id, credit))

    def take_padding(self, byte_count: int) -> None:
        """Bytes of the window that brought nothing."""
        self._uncredited += byte_count
        if not self._is_deaf:
            self._give_credit()

    def end_peer(self) -> None:
        """The peer has ended its side by END_STREAM."""
        self.is_peer_ended = True
        self._wake_reader()
        if not self._peer.is_server:
            self.end_by(Ending(fields.GRPC_INTERNAL, "the peer ended the call without trailers"))
        elif self._content_left > 0:
            self.fail(frames.PROTOCOL_ERROR, "the request is shorter than its content-length")
        elif (self._size >= 0 or self._prefix) and not self._is_deaf:
            self._give_up(fields.GRPC_INTERNAL, "the request ended within a message")

    def on_fields(self, block: fields.Fields, is_end: bool) -> None:
        """Fields came on this call after those that opened it. Raises MalformedError."""
        if self._peer.is_server:
            if not is_end:
                raise fields.MalformedError("trailers that do not end the stream")
            fields.read_trailers(block)
            self.end_peer()
        elif self._has_answered:
            if not is_end:
                raise fields.MalformedError("trailers that do not end the stream")
            self.end_by(fields.read_trailers(block))
        else:
            response = fields.read_response(block, is_end)
            if response.ending is not None:
                self.end_by(response.ending)
            elif not response.is_informational:
                self._has_answered = True

    def end_by(self, ending: Ending) -> None:
        """The peer has ended the call (client)."""
        if (self._size >= 0 or self._prefix) and ending.status == fields.GRPC_OK:
            ending = Ending(fields.GRPC_INTERNAL, "the answer ended within a message")
        self.is_peer_ended = True
        if not self._is_ended:
            self._peer.answer(frames.rst_stream(self.id, frames.NO_ERROR))
        self.end(ending.status, ending.details)

    def fail(self, code: int, text: str) -> None:
        """The peer broke HTTP/2 on this call alone: reset it. Raises ProtocolError when that happens too often."""
        self._peer.charge_heavy(COST_OF_RESET)
        if not self.is_over:
            self._peer.answer(frames.rst_stream(self.id, code))
            self._drop_received()
            self.end(fields.GRPC_INTERNAL, text)

    def end(self, status: int, details: str) -> None:
        """The call is over: wake who waits and tell who asked. Idempotent, never raises."""
        if self.is_over:
            return
        self.is_over = self._is_ending = True
        if self.status is None:
            self.status, self.details = status, details
        self._message = None
        self._last = b""
        self._parts = []
        self._wake_reader()
        self._wake_writer(False)
        self._peer.on_call_over(self)
        on_over, self.on_over = self.on_over, None
        if on_over is not None:
            try:
                on_over(self)
            except Exception as error:  # noqa: BLE001 - the end of one call must not be another's
                self._peer.loop.call_exception_handler({"message": "the end of a call failed", "exception": error})

    def _wake_reader(self) -> None:
        reader = self._reader
        if reader is not None and not reader.done():
            reader.set_result(None)

    def _wake_writer(self, is_sent: bool) -> None:
        writer = self._writer
        if writer is not None and not writer.done():
            writer.set_result(is_sent)
