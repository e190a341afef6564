"""A request's body on its way from the link to the HTTP client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

# What is kept of a body for sending it once more: one window, hence the whole of most bodies.
REPLAY_BYTES_MAX = 256 * 1024


class Upload:
    """Pieces that arrive by `feed` and leave by iteration, one at a time as the transport has room.

    Iterating again starts from the front and is allowed while `can_replay`: until the body is written to its end, or
    more than REPLAY_BYTES_MAX of it. `on_written(byte_count)` reports bytes that left for the first time, `on_end` that
    the last one did, once.
    """

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
        self._fed_bytes = 0
        self._reported_bytes = 0
        self._is_complete = False
        self._is_closed = False
        self._waiter: asyncio.Future[None] | None = None
        self.can_replay = True

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
        self._is_closed = True
        self.can_replay = False
        self._on_written = ignore
        self._on_end = ignore

    async def __aiter__(self) -> AsyncIterator[bytes]:
        position = index = 0
        while True:
            while index < len(self._pieces):
                piece = self._pieces[index]
                yield piece  # network: goes on when the transport has room again
                position += len(piece)
                index = self._let_go(index, position)
            if self._is_complete:
                break
            self._waiter = self._loop.create_future()
            await self._waiter
        self.can_replay = False
        self._pieces.clear()
        self._on_end()

    def _let_go(self, index: int, position: int) -> int:
        """A piece is written up to `position`: report it, drop what need not be kept, return the next index."""
        if position > self._reported_bytes:
            self._on_written(position - self._reported_bytes)
            self._reported_bytes = position
        if position > REPLAY_BYTES_MAX:
            self.can_replay = False
        if self.can_replay:
            return index + 1
        del self._pieces[: index + 1]
        return 0


def ignore(*_: object) -> None:
    """Nobody listens any more."""
