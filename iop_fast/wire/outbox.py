"""The writer of one session: what is queued, what goes first, and the one task that writes.

A session's frames share one stream. Callers queue entries (encoded frames of a Batch) and return at once; one writer
task makes messages of them. It wakes, lets the running turn of the event loop finish so that every entry of that turn
is queued, and writes ONE message, with one write in flight. How many entries share a message decides what a run costs.

Order. A message is filled, up to `BATCH_BYTES`, from three sources, and a later one is only touched when the earlier
ones are empty:

    control   session frames, windows, cancels; in the order of `send_control`
    prompt    small entries that are not bulk, of runs that have no queue of their own; in the order they came
    turns     runs with queued bulk, served by bytes in turn (deficit round robin)

Entries of one run keep their order. A run's entries wait in one queue, from `_Run.first` on. It starts prompt: each
entry puts the run once more into `_prompt`. With its first bulk entry it joins `_turns` and everything after follows
that entry there. Prompt entries of the run, if any are left, stand at the head of its queue, and no turn is served
while `_prompt` holds anything, so a turn never takes them. A run whose queue is empty is forgotten; its next entry
starts anew. A cancel is a control frame and does overtake: its sender drops what the run still has queued.

Dropping. `drop_run` empties the run's queue at once and marks it; its places in `_prompt` and `_turns` are skipped when
they come up. A dropped `_Run` never comes back, a later entry of the same run id makes a new one.

Pacing (the Node's side). Entries in the middle of an answer are bulk, and some prompt ones are patient. While nothing
else is queued, a message starts `pace_ns` after the previous one at the earliest; `_urgent` counts what is neither bulk
nor patient, wherever it stands.

Ending. `close` drops everything and the writer ends by itself: it is never cancelled, for a cancelled write breaks a
gRPC stream for good, and a write that hangs on a peer that does not read is left to the stream's own end. When the
stream ends first, the writer closes the outbox and calls `on_closed` once; after `close` it is never called.

Who may call: the event loop's thread. Nothing here raises for a session that is over; it swallows what it is given.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, KeysView

from iop_fast.seams import Clock, MessageStream
from iop_fast.wire.options import BATCH_BYTES, MAX_MESSAGE_BYTES
from iop_fast.wire.traffic import Traffic

# A larger entry is a body in all but name: it takes its turn with the bulk.
PROMPT_MAX_BYTES = 16 * 1024

# What a run may send in one turn before the next run gets its own.
TURN_BYTES = 32 * 1024

# Event loops round a timer to a millisecond, either way: what is due within half of one is due.
PACE_SLACK_NS = 500_000

OnSent = Callable[[int, int], None]


class _Entry:
    """An entry of a run: its bytes, whether it can wait (bulk or patient), what to call when it opens the run and is
    sent, and the next one of the run."""

    __slots__ = ("can_wait", "data", "next", "on_sent")

    def __init__(self, data: bytes, can_wait: bool, on_sent: OnSent | None) -> None:
        self.data = data
        self.can_wait = can_wait
        self.on_sent = on_sent
        self.next: _Entry | None = None


class _Run:
    """What one run has queued, from `first` to `last`: most queue one entry, and a deque costs more than that."""

    __slots__ = ("deficit", "first", "is_dropped", "is_in_turns", "last", "run_id")

    def __init__(self, run_id: int) -> None:
        self.run_id = run_id
        self.first: _Entry | None = None
        self.last: _Entry | None = None
        self.is_in_turns = False
        self.is_dropped = False
        self.deficit = TURN_BYTES


class _Message:
    """A message being filled."""

    __slots__ = ("opened", "pieces", "size")

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.opened: list[tuple[int, OnSent]] = []
        self.size = 0

    def has_room(self, size: int) -> bool:
        """True when an entry of this size fits; one that is larger than a whole message goes alone."""
        return not self.pieces or self.size + size <= BATCH_BYTES

    def add(self, entry: bytes) -> None:
        self.pieces.append(entry)
        self.size += len(entry)


class Outbox:
    """Queue and writer of one session. See the module's head for order, pacing and ending.

    `on_sent(run_id, message_number)` of an opening entry is called when its message is handed to the stream, messages
    counted from 1; what it raises goes to the event loop's exception handler. `messages_written` is the number of
    messages handed over, `queued_bytes` what waits, `is_writing` says that a write is in flight.
    """

    __slots__ = (
        "_clock",
        "_control",
        "_is_closed",
        "_loop",
        "_low_bytes",
        "_next_start_ns",
        "_on_closed",
        "_on_low",
        "_pace_ns",
        "_prompt",
        "_runs",
        "_stream",
        "_task",
        "_timer",
        "_traffic",
        "_turns",
        "_urgent",
        "_waiter",
        "is_writing",
        "messages_written",
        "queued_bytes",
    )

    def __init__(
        self,
        stream: MessageStream,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        *,
        pace_ns: int = 0,
        on_closed: Callable[[], None] | None = None,
        traffic: Traffic | None = None,
    ) -> None:
        """`traffic` is where the messages are counted, beside those of other sessions."""
        self._stream = stream
        self._traffic = Traffic() if traffic is None else traffic
        self._clock = clock
        self._loop = loop
        self._pace_ns = pace_ns
        self._on_closed = on_closed
        self._on_low: Callable[[], None] | None = None
        self._low_bytes = 0
        self._control: deque[bytes] = deque()
        self._prompt: deque[_Run] = deque()
        self._turns: deque[_Run] = deque()
        self._runs: dict[int, _Run] = {}
        self._urgent = 0
        self._is_closed = False
        self._task: asyncio.Task[None] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._next_start_ns = clock.now_ns()
        self.is_writing = False
        self.messages_written = 0
        self.queued_bytes = 0

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else f"{self.queued_bytes} bytes of {len(self._runs)} runs queued"
        return f"<Outbox {self.messages_written} messages written, {state}>"

    @property
    def queued_runs(self) -> KeysView[int]:
        """Ids of the runs that have something queued."""
        return self._runs.keys()

    # Queueing.

    def start(self) -> None:
        """Start the writer. Once; entries may be queued before."""
        assert self._task is None, "the outbox was started already"
        self._task = self._loop.create_task(self._write_until_closed())

    def send_control(self, entry: bytes) -> None:
        """Queue an entry that goes before everything else. Raises ValueError above `MAX_MESSAGE_BYTES`."""
        check_size(entry)
        if self._is_closed:
            return
        self._control.append(entry)
        self._urgent += 1
        self.queued_bytes += len(entry)
        if self._waiter is not None:
            self._wake()

    def send_run(self, run_id: int, entry: bytes, bulk: bool = True) -> None:
        """Queue an entry of a run behind the run's own. Raises ValueError above `MAX_MESSAGE_BYTES`."""
        self._send(run_id, entry, bulk, None)

    def send_patient(self, run_id: int, entry: bytes) -> None:
        """Queue a prompt entry of a run that nobody waits for: alone, it does not start a message before the pace
        allows one. Raises ValueError above `MAX_MESSAGE_BYTES`."""
        self._send(run_id, entry, False, None, is_patient=True)

    def send_open(self, run_id: int, entry: bytes, on_sent: OnSent) -> None:
        """Queue the entry that opens a run. Raises ValueError above `MAX_MESSAGE_BYTES`."""
        self._send(run_id, entry, False, on_sent)

    def withdraw(self, run_id: int) -> bool:
        """Drop a run whose opening entry is in no message yet and return True; else do nothing and return False."""
        run = self._runs.get(run_id)
        if run is None or run.first is None or run.first.on_sent is None:
            return False
        self.drop_run(run_id)
        return True

    def drop_run(self, run_id: int) -> None:
        """Drop everything that a run has queued."""
        run = self._runs.pop(run_id, None)
        if run is None:
            return
        run.is_dropped = True
        entry, run.first, run.last = run.first, None, None
        while entry is not None:
            self.queued_bytes -= len(entry.data)
            if not entry.can_wait:
                self._urgent -= 1
            # Taken apart one by one: freeing a long chain at its head would free the rest by recursion.
            following, entry.next = entry.next, None
            entry = following
        self._look_if_low()

    def call_when_low(self, low_bytes: int, on_low: Callable[[], None]) -> None:
        """Call back once, in a turn of its own, when no more than so much is queued; the last caller's word holds."""
        if not self._is_closed:
            self._low_bytes, self._on_low = low_bytes, on_low
            self._look_if_low()

    def _look_if_low(self) -> None:
        if self._on_low is not None and self.queued_bytes <= self._low_bytes:
            on_low, self._on_low = self._on_low, None
            self._loop.call_soon(on_low)

    def close(self) -> None:
        """Drop everything and let the writer end by itself. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self._on_low = None
        for run_id in [*self._runs]:
            self.drop_run(run_id)
        self._control.clear()
        self._prompt.clear()
        self._turns.clear()
        self._urgent = 0
        self.queued_bytes = 0
        self._wake()

    def _send(self, run_id: int, data: bytes, is_bulk: bool, on_sent: OnSent | None, is_patient: bool = False) -> None:
        check_size(data)
        if self._is_closed:
            return
        run = self._runs.get(run_id)
        if run is None:
            run = self._runs[run_id] = _Run(run_id)
        entry = _Entry(data, is_bulk or is_patient, on_sent)
        if run.last is None:
            run.first = entry
        else:
            run.last.next = entry
        run.last = entry
        self.queued_bytes += len(data)
        if not entry.can_wait:
            self._urgent += 1
        if not run.is_in_turns:
            if is_bulk or len(data) > PROMPT_MAX_BYTES:
                run.is_in_turns = True
                self._turns.append(run)
            else:
                self._prompt.append(run)
        if self._waiter is not None and (self._urgent or self._timer is None):
            self._wake()

    # Writing.

    async def _write_until_closed(self) -> None:
        try:
            while not self._is_closed:
                if not self.queued_bytes:
                    await self._sleep(None)
                await asyncio.sleep(0)  # the rest of this turn's entries
                if self._is_held_back():
                    await self._sleep(self._next_start_ns)
                elif self.queued_bytes:
                    await self._write(self._fill())
        except ConnectionError:
            pass  # the stream has ended: said by `on_closed`
        except Exception as error:  # noqa: BLE001 - a writer that fails by our fault must be heard of before its link ends
            self._loop.call_exception_handler({"message": "an outbox failed", "exception": error})
        finally:
            if not self._is_closed:
                self.close()
                if self._on_closed is not None:
                    self._on_closed()

    def _is_held_back(self) -> bool:
        """True while only the middle of answers is queued and the previous message is too young."""
        return (
            self._pace_ns > 0
            and not self._urgent
            and self.queued_bytes > 0
            and self._clock.now_ns() < self._next_start_ns - PACE_SLACK_NS
        )

    async def _write(self, message: _Message) -> None:
        self.messages_written += 1
        self._next_start_ns = self._clock.now_ns() + self._pace_ns
        self._look_if_low()
        for run_id, on_sent in message.opened:
            try:
                on_sent(run_id, self.messages_written)
            except Exception as error:  # noqa: BLE001 - one run's failure must not end the others' writer
                self._loop.call_exception_handler({"message": f"on_sent of run {run_id} failed", "exception": error})
        traffic = self._traffic
        traffic.sent_messages += 1
        traffic.sent_bytes += message.size
        traffic.sent_frames += len(message.pieces)
        self.is_writing = True
        try:
            await self._stream.write(b"".join(message.pieces))  # network
        finally:
            self.is_writing = False

    async def _sleep(self, until_ns: int | None) -> None:
        """Wait for `_wake`, at most until a time of the clock."""
        waiter = self._waiter = self._loop.create_future()
        if until_ns is not None:
            delay_ns = max(0, until_ns - self._clock.now_ns())
            self._timer = self._loop.call_at(self._loop.time() + delay_ns / 1e9, self._wake)
        await waiter

    def _wake(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiter is not None:
            if not self._waiter.done():
                self._waiter.set_result(None)
            self._waiter = None

    # Filling a message. Each source returns True when it is empty.

    def _fill(self) -> _Message:
        message = _Message()
        if self._fill_control(message) and self._fill_prompt(message):
            self._fill_turns(message)
        assert message.pieces, "something was queued and nothing was taken"
        return message

    def _fill_control(self, message: _Message) -> bool:
        control = self._control
        while control:
            if not message.has_room(len(control[0])):
                return False
            entry = control.popleft()
            self.queued_bytes -= len(entry)
            self._urgent -= 1
            message.add(entry)
        return True

    def _fill_prompt(self, message: _Message) -> bool:
        prompt = self._prompt
        while prompt:
            run = prompt[0]
            if not run.is_dropped:
                assert run.first is not None, "a run that is queued has an entry"
                if not message.has_room(len(run.first.data)):
                    return False
                self._take_head(run, message)
            prompt.popleft()
        return True

    def _fill_turns(self, message: _Message) -> None:
        turns = self._turns
        while turns:
            run = turns[0]
            while run.first is not None:
                size = len(run.first.data)
                if size > run.deficit:
                    break
                if not message.has_room(size):
                    return  # the run stays first, with what is left of its turn
                run.deficit -= size
                self._take_head(run, message)
            turns.popleft()
            if run.first is not None:
                run.deficit += TURN_BYTES
                turns.append(run)

    def _take_head(self, run: _Run, message: _Message) -> None:
        """Move a run's first entry into the message; forget the run with its last one."""
        entry = run.first
        assert entry is not None, "a run that is queued has an entry"
        run.first = entry.next
        self.queued_bytes -= len(entry.data)
        if not entry.can_wait:
            self._urgent -= 1
        message.add(entry.data)
        if entry.on_sent is not None:
            message.opened.append((run.run_id, entry.on_sent))
        if run.first is None:
            run.last = None
            del self._runs[run.run_id]


def check_size(entry: bytes) -> int:
    """Refuse what no receiver takes; return the entry's size."""
    size = len(entry)
    if size > MAX_MESSAGE_BYTES:
        raise ValueError(f"entry too large: expected at most {MAX_MESSAGE_BYTES} bytes, got {size}")
    return size
