"""The lower half of a connection: its transport, and what the peer lets us send.

It knows no frames that come and no calls; the halves above (`life.py`, `connection.py`) do, and have what raises here:
C classes know no abstract methods. States, in order:

    NEW       the peer's first SETTINGS have not come
    OPEN      calls come and go
    DRAINING  no new call; closes when the last one is over
    CLOSING   our last frame is written; input is dropped
    CLOSED    connection_lost was called

What is written:
- Nothing from CLOSING on. uvloop raises on a transport that has ended, even before it says so by connection_lost: that
  error is the end of this connection and is seen by nobody else.
- Bytes of messages only while `is_writable`: the transport is below its high-water mark. So at most that mark and one
  message wait in a transport.
- Answers (acknowledgements, window updates, resets, ends of calls) always, because a peer may need them before it reads
  on; those of one read leave together, in one write. While the transport is above its mark they count, and more than
  `ANSWER_BYTES_MAX` of them cut the connection: a peer that asks and does not read is given no memory.

Allowance. A frame that makes us work and brings no message is paid for (`charge`) out of an allowance of so much a
second; messages, either way, earn some. What is heavy (header blocks, calls, resets, SETTINGS) has an allowance of its
own, which nothing earns. Whoever has spent one within the second is told ENHANCE_YOUR_CALM and cut off.

Strangers. A client is not known (`is_known`) until the owner says so by `on_known`; its calls hold little until then.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from iop_fast.wire.http2 import frames
from iop_fast.wire.http2.frames import ProtocolError
from iop_fast.wire.http2.limits import ALLOWANCE, ALLOWANCE_S, ANSWER_BYTES_MAX, HEAVY_ALLOWANCE, Limits
from iop_fast.wire.http2.states import CLOSING, NEW

if TYPE_CHECKING:
    from iop_fast.wire.http2.call import Call

# Pieces of a write are joined up to this size: a copy is cheaper there than the system call's second buffer.
JOIN_BYTES_MAX = 32 * 1024


class Peer:
    """See the module's text; `Life` is the one subclass."""

    __slots__ = (
        "_allowance",
        "_answer_bytes",
        "_answers",
        "_heavy",
        "_heavy_at",
        "_is_feeding",
        "_refilled_at",
        "_state",
        "end_reason",
        "frame_bytes_max",
        "is_known",
        "is_server",
        "is_writable",
        "limits",
        "loop",
        "message_bytes_max",
        "receive_bytes_max",
        "transport",
        "window",
        "window_bytes",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, limits: Limits, is_server: bool) -> None:
        self.loop = loop
        self.limits = limits
        self.is_server = is_server
        self.transport: asyncio.Transport | None = None
        self.end_reason = ""
        self.is_writable = True
        self.window = frames.DEFAULT_WINDOW_BYTES  # of the connection, towards the peer
        self.frame_bytes_max = frames.DEFAULT_FRAME_BYTES  # the peer's
        self.message_bytes_max = limits.max_message_bytes
        self.is_known = not is_server
        self.receive_bytes_max = (
            min(limits.stranger_bytes_max, limits.max_receive_bytes) if is_server else limits.max_receive_bytes
        )
        self.window_bytes = limits.window_bytes
        self._state = NEW
        self._is_feeding = False
        self._answers: list[bytes] = []
        self._answer_bytes = 0
        self._allowance = ALLOWANCE
        self._refilled_at = 0.0
        self._heavy = HEAVY_ALLOWANCE
        self._heavy_at = loop.time()

    # For the owner.

    def on_known(self) -> None:
        """The client has shown who it is: window and message alone bound what its calls hold. Idempotent."""
        self.is_known = True
        self.receive_bytes_max = self.limits.max_receive_bytes

    # What the upper halves have.

    def on_call_over(self, call: Call) -> None:
        """A call is over: forget it."""
        raise NotImplementedError

    def abort(self, reason: str) -> None:
        """Cut the connection at once, whatever is unsent. Idempotent."""
        raise NotImplementedError

    # Writing.

    def put(self, pieces: list[Any]) -> None:
        """Write pieces of frames, in one system call. Nothing happens from CLOSING on."""
        transport = self.transport
        if self._state >= CLOSING or transport is None:
            return
        size = 0
        for piece in pieces:
            size += len(piece)
        try:
            if len(pieces) == 1:
                transport.write(pieces[0])  # network
            elif size <= JOIN_BYTES_MAX:
                transport.write(b"".join(pieces))  # network
            else:
                transport.writelines(pieces)  # network
        except RuntimeError as error:
            self.abort(f"the connection is gone: {error}")

    def put_whole(self, head: bytes, message: bytes) -> None:
        """Write a message that is one frame."""
        transport = self.transport
        if self._state >= CLOSING or transport is None:
            return
        try:
            if len(message) <= JOIN_BYTES_MAX:
                transport.write(head + message)  # network
            else:
                transport.writelines((head, message))  # network
        except RuntimeError as error:
            self.abort(f"the connection is gone: {error}")

    def answer(self, frame: bytes) -> None:
        """Write a small frame; while frames are being read, behind all of them."""
        self._answers.append(frame)
        if not self._is_feeding:
            self.put_answers()

    def put_answers(self) -> None:
        """Write the answers that were collected."""
        if not self._answers:
            return
        answers, self._answers = self._answers, []
        if not self.is_writable:
            for frame in answers:
                self._answer_bytes += len(frame)
            if self._answer_bytes > ANSWER_BYTES_MAX:
                self.abort("the peer does not read")
                return
        self.put(answers)

    # Paying for work.

    def charge(self, cost: int) -> None:
        """Pay for a frame of the peer. Raises ProtocolError when it has nothing left."""
        self._allowance -= cost
        if self._allowance < 0:
            now = self.loop.time()
            if now - self._refilled_at < ALLOWANCE_S:
                raise ProtocolError(frames.ENHANCE_YOUR_CALM, "too many frames that bring nothing")
            self._refilled_at = now
            self._allowance = ALLOWANCE - cost

    def charge_heavy(self, cost: int) -> None:
        """Pay for what a peer makes us do that is heavy. Raises ProtocolError when it has nothing left."""
        self._heavy -= cost
        if self._heavy < 0:
            now = self.loop.time()
            if now - self._heavy_at < ALLOWANCE_S:
                raise ProtocolError(frames.ENHANCE_YOUR_CALM, "too many frames that bring nothing")
            self._heavy_at = now
            self._heavy = HEAVY_ALLOWANCE - cost

    def earn(self, gain: int) -> None:
        """Give back some of the allowance, for work that was worth it."""
        self._allowance = min(self._allowance + gain, ALLOWANCE)


def read_word(block: bytes, at: int) -> int:
    """Return the big-endian number of 32 bits at a place of a block."""
    word = block[at]  # a local of its own: C would shift the byte into a sign
    word = word << 8 | block[at + 1]
    word = word << 8 | block[at + 2]
    return word << 8 | block[at + 3]
