"""Newline-delimited JSON: bytes as they arrive become whole lines, wherever they are cut."""

from __future__ import annotations

from collections.abc import Iterator


class LineTooLongError(ValueError):
    """A line is longer than allowed."""


class LineReader:
    """Collects bytes until lines are whole. A line may end with CRLF; empty ones are left out.

    What is kept is the line that is not whole, at most `line_bytes_max` of it.
    """

    __slots__ = ("_kept_bytes", "_line_bytes_max", "_pieces")

    def __init__(self, line_bytes_max: int) -> None:
        self._line_bytes_max = line_bytes_max
        self._pieces: list[bytes] = []
        self._kept_bytes = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take bytes and yield the lines that they complete, each before the next is looked at; raise LineTooLongError
        in the place of one that is too long. Whoever stops half way reads no more."""
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            self._keep(data[start:end])
            start = end + 1
            if line := self.finish():
                yield line
        self._keep(data[start:])

    def finish(self) -> bytes:
        """Return what came after the last line end, b"" for nothing, and forget it."""
        line = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._kept_bytes = 0
        return line.strip()

    def _keep(self, piece: bytes) -> None:
        if piece:
            self._pieces.append(piece)
            self._kept_bytes += len(piece)
            if self._kept_bytes > self._line_bytes_max:
                raise LineTooLongError(f"a line is over {self._line_bytes_max} bytes")
