"""Lines for files and collectors, written beside the loop: access lines to standard error, usage to a file.

A line is rendered by whoever writes it, on the loop, in one call of a C library; what may block (a full pipe, a slow
disk) happens in a thread of the writer. Lines are handed over in batches, when a batch is full and by every tick, so a
line is at most a tick (250 ms) late and a request wakes no thread.

Bounds. At most `lines_max` lines are under way; with more, new ones are dropped and counted: the log loses, the service
does not wait. A failed write loses its batch, is counted, and is said once until a write succeeds again.

Who may call: `put`, `flush` and `close` on the loop's thread alone. The thread touches nothing but the batches that it
was handed and its own two counters.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

from iop_fast import logs
from iop_fast.config.schema import EdgeConfig
from iop_fast.edge.ages import Ticker

if TYPE_CHECKING:
    from iop_fast.edge.books import Books

BATCH_LINES = 256
LINES_MAX = 16_384
# What lines under way get to be written when the program ends.
CLOSE_LIMIT_S = 2.0
# POSIX writes so much to a pipe in one piece: lines of two writers do not mix.
PIPE_BYTES = 4096

Write = Callable[[bytes], None]

log = logs.get(__name__)


class _Handed:
    """Counters between the two sides: `given` is the loop's, the others are the thread's."""

    __slots__ = ("done", "failed", "given")

    def __init__(self) -> None:
        self.given = self.done = self.failed = 0


class LineWriter:
    """Writes lines by `write`, in order, in a thread of its own."""

    __slots__ = ("_batch", "_handed", "_is_failing", "_lines_max", "_name", "_queue", "_thread", "_write", "dropped")

    def __init__(self, name: str, write: Write, *, lines_max: int = LINES_MAX) -> None:
        """Start the thread. `name` says in the log which writer it is."""
        self.dropped = 0
        self._name = name
        self._write = write
        self._lines_max = lines_max
        self._batch: list[bytes] = []
        self._handed = _Handed()
        self._is_failing = False
        self._queue: SimpleQueue[list[bytes] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"lines-{name}", daemon=True)
        self._thread.start()

    @property
    def failed(self) -> int:
        """Lines that a write could not take."""
        return self._handed.failed

    @property
    def pending(self) -> int:
        """Lines that are not written yet."""
        return len(self._batch) + self._handed.given - self._handed.done

    def put(self, line: bytes) -> None:
        """Take a line, its end included; drop it when too many are under way."""
        if len(self._batch) + self._handed.given - self._handed.done >= self._lines_max:
            self.dropped += 1
            return
        self._batch.append(line)
        if len(self._batch) >= BATCH_LINES:
            self.flush()

    def flush(self, now_ns: int = 0) -> None:
        """Hand over what has gathered. Registered with the Edge's ticker."""
        if self._batch:
            self._handed.given += len(self._batch)
            self._queue.put(self._batch)
            self._batch = []

    def close(self) -> None:
        """Write what is under way and end the thread; a write that hangs is given up."""
        self.flush()
        self._queue.put(None)
        self._thread.join(CLOSE_LIMIT_S)
        if self.dropped or self.failed or self._thread.is_alive():
            log.warning("lines_lost", writer=self._name, dropped=self.dropped, failed=self.failed, left=self.pending)

    def _run(self) -> None:
        handed = self._handed
        while (batch := self._queue.get()) is not None:
            try:
                self._write(b"".join(batch))
                self._is_failing = False
            except OSError as error:
                handed.failed += len(batch)
                if not self._is_failing:
                    self._is_failing = True
                    log.error("lines_not_written", writer=self._name, lines=len(batch), error=error)
            handed.done += len(batch)


def write_to(descriptor: int) -> Write:
    """Return a writer of whole lines to an open file or pipe that others write to too."""

    def write(block: bytes) -> None:
        start = 0
        while start < len(block):
            end = len(block)
            if end - start > PIPE_BYTES:
                end = block.rfind(b"\n", start, start + PIPE_BYTES) + 1 or block.find(b"\n", start) + 1 or end
            start += os.write(descriptor, block[start:end])

    return write


class RotatedFile:
    """A file that is appended to and renamed when it is full: PATH, then PATH.1, PATH.2, the oldest removed.

    Whoever moves the file away gets a new one in its place with the next write.
    """

    def __init__(self, path: str, file_bytes: int, files: int) -> None:
        """Open the file; raise OSError where it cannot be written."""
        self._path = Path(path)
        self._file_bytes = file_bytes
        self._files = files
        self._descriptor = -1
        self._size = 0
        self._open()

    def write(self, block: bytes) -> None:
        """Append whole lines; a file holds no part of a line."""
        if self._is_moved():
            self.close()
        if self._descriptor >= 0 and self._size and self._size + len(block) > self._file_bytes:
            self.close()
            self._rotate()
        if self._descriptor < 0:
            self._open()
        view = memoryview(block)
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError:
            os.ftruncate(self._descriptor, self._size)  # a full disk took a part of it
            raise
        self._size += len(block)

    def close(self) -> None:
        """Close the file. Idempotent; the next write opens it again."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _open(self) -> None:
        self._descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        self._size = os.fstat(self._descriptor).st_size

    def _is_moved(self) -> bool:
        if self._descriptor < 0:
            return False
        try:
            there = os.stat(self._path)
        except FileNotFoundError:
            return True
        mine = os.fstat(self._descriptor)
        return (there.st_dev, there.st_ino) != (mine.st_dev, mine.st_ino)

    def _rotate(self) -> None:
        if self._files == 1:
            self._path.unlink(missing_ok=True)
            return
        for number in range(self._files - 1, 0, -1):
            older = self._numbered(number - 1)
            if older.exists():
                older.replace(self._numbered(number))

    def _numbered(self, number: int) -> Path:
        return self._path if number == 0 else self._path.with_name(f"{self._path.name}.{number}")


def open_books(books: Books, config: EdgeConfig, ticker: Ticker, stack: AsyncExitStack) -> None:
    """Begin to write the lines that the configuration asks for; `stack` ends it. Raises OSError for the usage log."""
    if config.edge.log.access:
        access = LineWriter("access", write_to(sys.stderr.fileno()))
        stack.callback(access.close)
        ticker.register(access.flush)
        books.write_access(access)
    setting = config.openai.usage_log
    if setting is not None:
        try:
            file = RotatedFile(setting.path, setting.file_bytes, setting.files)
        except OSError as error:
            raise OSError(error.errno, f"openai.usage_log: cannot write {setting.path}: {error.strerror}") from None
        stack.callback(file.close)
        usage = LineWriter("usage", file.write)
        stack.callback(usage.close)
        ticker.register(usage.flush)
        books.write_usage(usage)
