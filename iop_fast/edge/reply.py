"""The answer to one client, as far as it was sent: what goes out, how it may be broken off, what the Node is owed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from iop_fast._hot.text import part
from iop_fast.edge import answers
from iop_fast.edge.auth import Field
from iop_fast.edge.outcomes import Verdict
from iop_fast.edge.routes import Dialect
from iop_fast.seams import Downstream, Head

TAIL_BYTES = 4  # CR LF CR LF

# An event stream's comment, as an event of its own without data (WHATWG HTML, section 9.2.6).
COMMENT = b": keep-alive\n\n"


class Reply:
    """Writes to a client's side until the answer ends, is broken off or is given up; then it lets go of it.

    `status` is the answer's as the client got it, 0 before. `owed` counts the bytes handed on since the Node was last
    granted new ones.
    """

    __slots__ = ("_downstream", "_extra", "_quiet_mark", "_tail", "_takes_event", "bytes_out", "owed", "status")

    def __init__(self, downstream: Downstream, extra: Sequence[Field] = ()) -> None:
        """`extra` are fields that every answer gets, a refusal too."""
        self._downstream: Downstream | None = downstream
        self._extra = extra
        self._quiet_mark = 0  # bytes_out when `keep_alive` was called last
        self._takes_event = False
        self._tail = b""  # the last bytes of an event stream
        self.status = 0
        self.bytes_out = 0
        self.owed = 0

    @property
    def is_wanted(self) -> bool:
        """True while a client waits for (more of) this answer."""
        return self._downstream is not None and self._downstream.is_open

    @property
    def is_writable(self) -> bool:
        """True while the client takes what is written."""
        return self._downstream is not None and self._downstream.is_writable

    def give_up(self) -> bool:
        """Let go of the client's side, which is gone; False when that has happened before."""
        downstream, self._downstream = self._downstream, None
        return downstream is not None

    def begin(self, head: Head, takes_event: bool, data: list[bytes], is_whole: bool) -> None:
        """Send the head, and what came with it. `takes_event`: an error event may follow if the answer breaks off.

        Raises ValueError, and has sent nothing, for a head that cannot be written.
        """
        downstream = self._downstream
        if downstream is None:
            return
        if is_whole:
            self._downstream = None
        if self._extra:
            head.headers.extend(self._extra)
        try:
            downstream.send(head, data, is_whole)  # network
        except ValueError:
            self._downstream = downstream
            raise
        self.status = head.status
        self._takes_event = takes_event
        self._note(data)

    def go_on(self, data: list[bytes], is_whole: bool) -> None:
        """Send what came of the answer's body, the proper end last."""
        downstream = self._downstream
        if downstream is None:
            return
        if is_whole:
            self._downstream = None
        self._note(data)
        downstream.send(None, data, is_whole)  # network

    def keep_alive(self) -> None:
        """Send a stream's client a comment if nothing was sent since the last call and no event is under way."""
        downstream = self._downstream
        if downstream is None or not downstream.is_writable or not self._takes_event:
            return
        if self.bytes_out == self._quiet_mark and not answers.blank_line_after(self._tail):
            downstream.send(None, [COMMENT], False)  # network
        self._quiet_mark = self.bytes_out

    def _note(self, data: list[bytes]) -> None:
        count = 0
        for piece in data:
            count += len(piece)
        self.bytes_out += count
        self.owed += count
        if self._takes_event and count:
            last = data[len(data) - 1]
            if len(last) < TAIL_BYTES:
                last = self._tail + b"".join(data)
            self._tail = part(last, max(len(last) - TAIL_BYTES, 0), len(last))

    def refuse(
        self,
        verdict: Verdict,
        request_id: bytes,
        dialect: Dialect,
        *,
        param: str | None = None,
        extra: Iterable[Field] = (),
    ) -> None:
        """Answer with an error. Nothing was sent before."""
        assert not self.status, f"refused after a head with status {self.status}"
        downstream, self._downstream = self._downstream, None
        if downstream is not None:
            extra = (*extra, *self._extra)
            head, body = answers.error_answer(*verdict, request_id, param=param, dialect=dialect, extra=extra)
            self.status = head.status
            downstream.send(head, [body], True)

    def break_off(self, verdict: Verdict, dialect: Dialect) -> None:
        """Cut an answer short so that it cannot be taken for a whole one; an event stream is told why first."""
        downstream, self._downstream = self._downstream, None
        if downstream is None:
            return
        if self._takes_event:
            event = answers.blank_line_after(self._tail) + answers.error_event(*verdict, dialect)
            downstream.send(None, [event], False)
        downstream.abort()
