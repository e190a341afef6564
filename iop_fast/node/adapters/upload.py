"""A request's body on its way from the link to a provider's connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

# What is kept of a body for sending it once more: one window, hence the whole of most bodies.
REPLAY_BYTES_MAX = 256 * 1024


class Upload:
    """Pieces that arrive by `feed` and leave one at a time as the transport has room.

    They leave by `next_piece` and `note_written`. `rewind` starts from the front again and is allowed while
    `can_replay`: until the body is written to its end, or more than REPLAY_BYTES_MAX of it. `on_written(byte_count)`
    reports bytes that left for the first time, `on_end` that the last one did, once; `is_written` says so afterwards.
    """

    __slots__ = (
        "_fed_bytes",
        "_index",
        "_is_closed",
        "_is_complete",
        "_is_out",
        "_length",
        "_loop",
        "_on_end",
        "_on_written",
        "_pieces",
        "_position",
        "_reported_bytes",
        "_waiter",
        "can_replay",
        "is_written",
    )

    def __init__(
        self,
        length: int,
        loop: asyncio.AbstractEventLoop,
        on_written: Callable[[int], None],
        on_end: Callable[[], None],
    ) -> None:
        self._length = length
        self._loop = loop
        self._on_written = on_written
        self._on_end = on_end
        self._pieces: list[bytes] = []
        self._index = 0  # of the piece that is next
        self._position = 0  # bytes written, from the front
        self._is_out = False  # the piece at the index was handed out and has not left yet
        self._fed_bytes = 0
        self._reported_bytes = 0
        self._is_complete = False
        self._is_closed = False
        self._waiter: asyncio.Future[None] | None = None
        self.can_replay = True
        self.is_written = False

    def feed(self, piece: bytes, complete: bool) -> None:
        """Take a piece; raise ValueError when the body is not of the length that was announced."""
        self._fed_bytes += len(piece)
        if self._is_complete or self._fed_bytes > self._length or (complete and self._fed_bytes < self._length):
            raise ValueError(f"expected a body of {self._length} bytes, got {self._fed_bytes}")
        if piece and not self._is_closed:
            self._pieces.append(piece)
        self._is_complete = complete
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def close(self) -> None:
        """Drop what is left and let go of whoever listened. Idempotent; what is fed afterwards is only counted."""
        self._pieces.clear()
        self._index = 0
        self._is_out = False
        self._is_closed = True
        self.can_replay = False
        self._on_written = ignore
        self._on_end = ignore

    # Leaving.

    def rewind(self) -> None:
        """Start from the front."""
        assert self.can_replay or not self._position, "a body that is gone cannot be sent again"
        self._index = self._position = 0
        self._is_out = False

    def next_piece(self) -> bytes | None:
        """Return what is to be written next, None when there is nothing (yet). `note_written` comes in between."""
        assert not self._is_out, "the piece before has not left"
        if self._index == len(self._pieces):
            return None
        self._is_out = True
        return self._pieces[self._index]

    def note_written(self) -> None:
        """The transport has room again: what was handed out has left. Nothing may be out; the body's end is seen."""
        if self._is_out:
            self._is_out = False
            self._position += len(self._pieces[self._index])
            self._let_go()
        if self._is_complete and self._index == len(self._pieces) and not self.is_written and not self._is_closed:
            self.is_written = True
            self.can_replay = False
            self._pieces.clear()
            self._index = 0
            self._on_end()

    def is_complete(self) -> bool:
        """True when the last piece was fed."""
        return self._is_complete

    def more(self) -> asyncio.Future[None]:
        """Return what is done when the next piece is fed."""
        self._waiter = self._loop.create_future()
        return self._waiter

    def _let_go(self) -> None:
        """Report what is written up to the position, drop the piece if it need not be kept, and step on."""
        if self._position > REPLAY_BYTES_MAX:
            self.can_replay = False
        if self.can_replay:
            self._index += 1
        else:
            del self._pieces[: self._index + 1]
            self._index = 0
        if self._position > self._reported_bytes:
            byte_count = self._position - self._reported_bytes
            self._reported_bytes = self._position
            self._on_written(byte_count)


def ignore(*_: object) -> None:
    """Nobody listens any more."""
