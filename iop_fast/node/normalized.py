"""A normalized run: its input is gathered and read, and what the adapter says of it travels as events.

States, windows and ends are those of `Run`. Beyond them:

Input. The pieces of the RunInput are gathered up to the length that the opening named, and count as used when they are
here. With the last one the task is read and the adapter started; until then there is nothing to stop but the gathering.

Events. What is said in one turn of the loop and belongs together (texts of one choice, reasoning of one choice, pieces
of one call's arguments) becomes one event: `_said` gathers it, and it is encoded when the turn is over or something
else is said. So a model that makes tokens faster than the loop turns costs a frame a turn and not a frame a token.
Texts above PIECE_BYTES are cut, never inside a character. An event is sent whole while any credit is left and may
overdraw the window by itself alone; without credit it is held, encoded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from iop_fast import logs
from iop_fast._hot.frames import (
    EVENT_BYTES,
    encode_embedding,
    encode_finish,
    encode_reasoning,
    encode_text,
    encode_tool_call,
)
from iop_fast.node.backends import Provider
from iop_fast.node.runs import Run, RunState, Table
from iop_fast.node.tasks import TaskError, read_task
from iop_fast.seams import End, RunAdapter, RunOpening
from iop_fast.wire import runtime_pb2 as pb
from iop_fast.wire.options import PIECE_BYTES

log = logs.get(__name__)

FAILED = End(pb.RunEnd.INTERNAL, "the Node failed", None)

# No character takes more bytes in UTF-8.
CHARACTER_BYTES_MAX = 4


class TextOf(NamedTuple):
    """What gathered characters belong to: the answer or the reasoning of a choice."""

    is_reasoning: bool
    choice: int


class CallOf(NamedTuple):
    """What gathered characters belong to: the arguments of a call, which may begin here with its id and name."""

    call_index: int
    choice: int


class NormalizedRun(Run):
    """One normalized run. A RunSink for its adapter."""

    __slots__ = (
        "_adapter",
        "_call_id",
        "_call_name",
        "_has_events",
        "_held",
        "_input",
        "_opening",
        "_said",
        "_said_of",
    )

    def __init__(self, table: Table, run_id: int, provider: Provider, adapter: RunAdapter, opening: RunOpening) -> None:
        super().__init__(table, run_id, provider, len(opening.body), opening.body_complete)
        self._adapter = adapter
        self._opening = opening._replace(body=b"")
        self._input = bytearray()
        self._held: deque[bytes] = deque()
        self._has_events = False
        self._said_of: TextOf | CallOf | None = None
        self._said: list[str] = []
        self._call_id = ""
        self._call_name = ""

    # The input.

    def start(self, opening: RunOpening) -> None:
        """Take the first piece, which may be all of it."""
        self._gather(opening.body, opening.body_complete)

    def feed(self, piece: bytes, complete: bool) -> None:
        """See Run."""
        if self._is_body_complete:
            raise ValueError("the request goes on behind its end")
        self._receive(piece, complete)
        if self._state is RunState.RUNNING:
            self._gather(piece, complete)

    def _gather(self, piece: bytes, complete: bool) -> None:
        self._input += piece
        expected = self._opening.body_length
        if len(self._input) > expected or (complete and len(self._input) < expected):
            self._refuse(f"expected {expected} bytes, got {len(self._input)}")
        elif complete:
            self._begin()
        else:
            self.on_consumed(len(piece))

    def _begin(self) -> None:
        """Hand the task to the adapter."""
        data, self._input = bytes(self._input), bytearray()
        try:
            task = read_task(self._opening, data)
        except TaskError as error:
            self._refuse(str(error))
            return
        self._hold(self._adapter.start(task, self))

    def _refuse(self, detail: str) -> None:
        log.warning("request_unusable", run=self.run_id, error=detail)
        self.stop(End(pb.RunEnd.INTERNAL, f"the request cannot be read: {detail}", None))

    # From the adapter.

    def on_text(self, text: str, index: int = 0) -> None:
        """See RunSink."""
        if text and self._state is RunState.RUNNING:
            self._gather_said(TextOf(False, index), text)

    def on_reasoning(self, text: str, index: int = 0) -> None:
        """See RunSink."""
        if text and self._state is RunState.RUNNING:
            self._gather_said(TextOf(True, index), text)

    def on_tool_call(self, call_index: int, call_id: str, name: str, arguments: str, index: int = 0) -> None:
        """See RunSink."""
        if self._state is not RunState.RUNNING:
            return
        if call_id or name:
            self.flush()  # a call begins
            self._call_id, self._call_name = call_id, name
        elif not arguments:
            return
        self._gather_said(CallOf(call_index, index), arguments)

    def on_embedding(self, values: Sequence[float], index: int = 0) -> None:
        """See RunSink."""
        if self._state is RunState.RUNNING:
            self.flush()
            self._say(encode_embedding(self.run_id, values, index))

    def on_finish(self, reason: str, index: int = 0) -> None:
        """See RunSink."""
        if self._state is RunState.RUNNING:
            self.flush()
            self._say(encode_finish(self.run_id, reason, index))

    def on_end(self, end: End) -> None:
        """See RunSink. The end stands, whatever becomes of what was said last."""
        if self._state is RunState.RUNNING:
            try:
                self.flush()
            except Exception as error:  # noqa: BLE001 - an adapter said what cannot be encoded; its run must end all the same
                log.failure("event_unusable", error, run=self.run_id)
                self._drop_held()
                end = FAILED
        super().on_end(end)

    # Events.

    def _gather_said(self, of: TextOf | CallOf, text: str) -> None:
        # Of two types: named tuples are equal by their fields alone.
        if type(of) is not type(self._said_of) or of != self._said_of or not self._said:
            self.flush()
            self._said_of = of
            self._table.flush_soon(self)
        self._said.append(text)

    def flush(self) -> None:
        """Make events of what is gathered. Raises TypeError and ValueError for what no event holds."""
        if not self._said:
            return
        text, of = "".join(self._said), self._said_of
        self._said.clear()
        if isinstance(of, TextOf):
            encode = encode_reasoning if of.is_reasoning else encode_text
            for piece in pieces_of(text):
                self._say(encode(self.run_id, piece, of.choice))
        elif of is not None:
            call_id, name = self._call_id, self._call_name
            self._call_id = self._call_name = ""
            for piece in pieces_of(text):
                self._say(encode_tool_call(self.run_id, of.call_index, call_id, name, piece, of.choice))
                call_id = name = ""

    def _say(self, entry: bytes) -> None:
        if self._credit_bytes > 0 and not self._held:
            self._send(entry)
        else:
            self._held.append(entry)
        self._pause_if_used_up()

    def _send(self, entry: bytes) -> None:
        self._credit_bytes -= len(entry) + EVENT_BYTES
        self._table.outbox.send_run(self.run_id, entry, bulk=self._has_events)
        self._has_events = True

    def _send_held(self) -> bool:
        while self._held and self._credit_bytes > 0:
            self._send(self._held.popleft())
        return not self._held

    def _drop_held(self) -> None:
        self._held.clear()
        self._said.clear()


def pieces_of(text: str) -> Iterator[str]:
    """Cut a text to pieces of at most PIECE_BYTES in UTF-8, one (empty) piece for an empty text."""
    if len(text) <= PIECE_BYTES // CHARACTER_BYTES_MAX:
        yield text
        return
    data = text.encode("utf-8", "replace")
    start = 0
    while start < len(data):
        end = min(start + PIECE_BYTES, len(data))
        while end < len(data) and data[end] & 0xC0 == 0x80:  # inside a character
            end -= 1
        yield data[start:end].decode()
        start = end
