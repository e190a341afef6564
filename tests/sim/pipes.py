"""An in-memory session: two MessageStream ends joined by two one-way lanes, with faults to order.

    pipe = Pipe(loop, delay_s=0.002)
    edge, node = pipe.edge, pipe.node       # each a MessageStream
    pipe.to_edge.stall()                    # the Edge does not read, as far as the Node can tell
    pipe.to_edge.resume()
    pipe.to_node.delay_s = 0.2              # for what is written from then on; nothing overtakes
    pipe.silence()                          # nothing arrives any more and nobody is told
    pipe.lose(node_after_s=3.0)             # it breaks: the Edge learns of it at once, the Node in 3 s

It behaves as a gRPC stream under our options does, as far as a session can see:

- A write waits until what is in flight, written and not yet read by the peer, leaves room in the window; a message
  larger than the window is let through alone. One above the sender's limit is refused with ValueError.
- Messages arrive in order, after the lane's delay and at its rate. A read and a write take a turn of the loop at least.
- `abandon`: this end's reads return None and its writes raise, those in flight too. The peer reads what was written,
  then None, and from then on its writes raise. With `lane.loses_tail` it does not get what was still on its way, as
  when a call is cancelled. The peer of a stalled lane learns nothing before the lane resumes.
- A loss takes what is on its way. Each end reads what had arrived, then None, and its writes raise, from the moment it
  learns of the loss; until then its writes fill the window and wait.
- Two reads or two writes at once, or a cancelled one, break a gRPC stream. Here they are noted in `pipe.misuses` (and
  the second one raises Misuse); a test ends with `assert not pipe.misuses`.

Only the loop's `call_at`, `time` and futures are used, so on a virtual loop a run repeats exactly. Arrivals are the
pipe's own loop's; who reads or writes waits on the loop it runs on, which may be frozen (tests/sim/process.py).
"""

from __future__ import annotations

import asyncio
from collections import deque

from iop_fast.wire.options import LINK_WINDOW_BYTES, MAX_MESSAGE_BYTES

END = None  # stands behind the last message of a lane


class Misuse(AssertionError):
    """A stream was used in a way that breaks a gRPC stream."""


class Lane:
    """One direction.

    `bytes_in_flight` counts what was written and not read, `written` and `arrived` are messages; `is_stalled` holds
    arrivals back, `is_cut` loses them.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, delay_s: float, window_bytes: int, bytes_per_s: float) -> None:
        self.delay_s = delay_s
        self.window_bytes = window_bytes
        self.bytes_per_s = bytes_per_s  # 0: without limit
        self.loses_tail = False
        self.is_stalled = False
        self.is_cut = False
        self.bytes_in_flight = 0
        self.written = 0
        self.arrived = 0
        self._loop = loop
        self._reader: End | None = None
        self._writer: End | None = None
        self._travelling: deque[tuple[float, bytes | None]] = deque()  # with the time of arrival
        self._timer: asyncio.TimerHandle | None = None  # set for the first of them
        self._held: deque[bytes | None] = deque()  # arrived at a stalled lane
        self._last_arrival = loop.time()

    def join(self, writer: End, reader: End) -> None:
        """Say which ends it joins; once."""
        self._writer = writer
        self._reader = reader

    def has_room(self, size: int) -> bool:
        """True when a message of this size may be written."""
        return not self.bytes_in_flight or self.bytes_in_flight + size <= self.window_bytes

    def put(self, message: bytes | None) -> None:
        """Send a message, or the end, on its way."""
        size = 0
        if message is not None:
            size = len(message)
            self.written += 1
            self.bytes_in_flight += size
        if self.is_cut:
            return
        arrival = max(self._loop.time() + self.delay_s, self._last_arrival)
        if self.bytes_per_s:
            arrival += size / self.bytes_per_s
        self._last_arrival = arrival
        self._travelling.append((arrival, message))
        if self._timer is None:
            self._timer = self._loop.call_at(arrival, self._arrive)

    def take(self, size: int) -> None:
        """The reader has read, or threw away, so many bytes."""
        self.bytes_in_flight -= size
        assert self._writer is not None
        self._writer.on_room()

    def stall(self) -> None:
        """Hold back what arrives, until `resume`."""
        self.is_stalled = True

    def resume(self) -> None:
        """Let what was held back arrive."""
        self.is_stalled = False
        while self._held:
            self._hand_over(self._held.popleft())

    def cut(self) -> None:
        """Lose what is on its way and all that follows; its bytes stay in flight for the writer."""
        self.is_cut = True
        self.drop_tail()

    def drop_tail(self) -> None:
        """Lose what is on its way."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._travelling.clear()
        self._held.clear()

    def _arrive(self) -> None:
        self._timer = None
        due = self._loop.time()
        while self._travelling:
            arrival, message = self._travelling[0]
            if arrival > due:
                self._timer = self._loop.call_at(arrival, self._arrive)
                return
            self._travelling.popleft()
            if self.is_stalled:
                self._held.append(message)
            else:
                self._hand_over(message)

    def _hand_over(self, message: bytes | None) -> None:
        assert self._reader is not None
        if message is END:
            self._reader.on_end()
        else:
            self.arrived += 1
            self._reader.on_message(message)


class End:
    """One end of a pipe: a MessageStream. It is over once it has learnt that the peer or the connection is gone."""

    def __init__(self, pipe: Pipe, name: str, incoming: Lane, outgoing: Lane) -> None:
        self.name = name
        self.is_abandoned = False
        self.is_over = False
        self._pipe = pipe
        self._incoming = incoming
        self._outgoing = outgoing
        self._inbox: deque[bytes] = deque()
        self._reading: asyncio.Future[None] | None = None
        self._writing: asyncio.Future[None] | None = None
        self._is_reading = False
        self._is_writing = False

    def __repr__(self) -> str:
        state = "abandoned" if self.is_abandoned else "over" if self.is_over else "open"
        return f"<End {self.name} {state}, {len(self._inbox)} messages to read>"

    @property
    def is_closed(self) -> bool:
        """True when nothing is written to it any more."""
        return self.is_abandoned or self.is_over

    # The MessageStream.

    async def read(self) -> bytes | None:
        if self._is_reading:
            raise self._pipe.misuse(f"{self.name}: two reads at once")
        self._is_reading = True
        try:
            await asyncio.sleep(0)
            while not self._inbox and not self.is_over and not self.is_abandoned:
                self._reading = asyncio.get_running_loop().create_future()
                await self._reading
        except asyncio.CancelledError:
            if not self.is_abandoned:
                self._pipe.misuse(f"{self.name}: a read was cancelled")
            raise
        finally:
            self._is_reading = False
        if self.is_abandoned or not self._inbox:
            return None
        message = self._inbox.popleft()
        self._incoming.take(len(message))
        return message

    async def write(self, message: bytes) -> None:
        if type(message) is not bytes:
            raise TypeError(f"expected bytes, got {type(message).__name__}")
        if len(message) > MAX_MESSAGE_BYTES:
            raise ValueError(f"message too large: expected at most {MAX_MESSAGE_BYTES} bytes, got {len(message)}")
        if self._is_writing:
            raise self._pipe.misuse(f"{self.name}: two writes at once")
        self._is_writing = True
        try:
            await asyncio.sleep(0)
            while self._is_open() and not self._outgoing.has_room(len(message)):
                self._writing = asyncio.get_running_loop().create_future()
                await self._writing
        except asyncio.CancelledError:
            if not self.is_abandoned:
                self._pipe.misuse(f"{self.name}: a write was cancelled")
            raise
        finally:
            self._is_writing = False
        if not self._is_open():
            raise ConnectionError(f"{self.name}: the stream {'was given up' if self.is_abandoned else 'has ended'}")
        self._outgoing.put(message)

    def abandon(self) -> None:
        if self.is_abandoned:
            return
        self.is_abandoned = True
        thrown_away = sum(map(len, self._inbox))
        self._inbox.clear()
        self._wake()
        if self._outgoing.loses_tail:
            self._outgoing.drop_tail()
        self._outgoing.put(END)
        self._incoming.take(thrown_away)

    # What the lanes call.

    def on_message(self, message: bytes) -> None:
        if self.is_abandoned:
            self._incoming.take(len(message))
        elif not self.is_over:
            self._inbox.append(message)
            self._wake_reader()

    def on_end(self) -> None:
        """The peer gave up, or the connection is lost."""
        self.is_over = True
        self._wake()

    def on_room(self) -> None:
        if self._writing is not None and not self._writing.done():
            self._writing.set_result(None)

    def _is_open(self) -> bool:
        return not self.is_abandoned and not self.is_over

    def _wake_reader(self) -> None:
        if self._reading is not None and not self._reading.done():
            self._reading.set_result(None)

    def _wake(self) -> None:
        self._wake_reader()
        self.on_room()


class Pipe:
    """Two ends, `edge` and `node`, and the lanes between them, `to_edge` and `to_node`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        delay_s: float = 0.0,
        window_bytes: int = LINK_WINDOW_BYTES,
        bytes_per_s: float = 0.0,
    ) -> None:
        self.loop = loop
        self.misuses: list[str] = []
        self.to_edge = Lane(loop, delay_s, window_bytes, bytes_per_s)
        self.to_node = Lane(loop, delay_s, window_bytes, bytes_per_s)
        self.edge = End(self, "edge", self.to_edge, self.to_node)
        self.node = End(self, "node", self.to_node, self.to_edge)
        self.to_edge.join(self.node, self.edge)
        self.to_node.join(self.edge, self.node)

    def silence(self) -> None:
        """Lose what is on its way and all that follows, and tell nobody: a cable is pulled."""
        self.to_edge.cut()
        self.to_node.cut()

    def lose(self, *, edge_after_s: float = 0.0, node_after_s: float = 0.0) -> None:
        """Break the connection; each end learns of it after its own time, at once by default."""
        self.silence()
        for end, after_s in ((self.edge, edge_after_s), (self.node, node_after_s)):
            if after_s > 0:
                self.loop.call_at(self.loop.time() + after_s, end.on_end)
            else:
                end.on_end()

    def misuse(self, what: str) -> Misuse:
        """Note a misuse; returned to be raised."""
        self.misuses.append(what)
        return Misuse(what)
