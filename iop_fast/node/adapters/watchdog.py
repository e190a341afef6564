"""One timer that looks for progress, set at most once a limit however often progress is noted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Watchdog:
    """Calls `on_silent(limit_ms)` once when `note` was not called for the current limit. Silent until `watch`."""

    __slots__ = ("_limit_ms", "_loop", "_noted_s", "_on_silent", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, on_silent: Callable[[int], None]) -> None:
        self._loop = loop
        self._on_silent = on_silent
        self._limit_ms = 0
        self._noted_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, limit_ms: int) -> None:
        """Begin, or go over to another limit; this is progress too."""
        self._limit_ms = limit_ms
        self.go_on()

    def note(self) -> None:
        """There was progress. No timer is touched."""
        self._noted_s = self._loop.time()

    def hold(self) -> None:
        """Stand still until `go_on`. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def go_on(self) -> None:
        """Watch from now on for a whole limit."""
        self.hold()
        self.note()
        self._timer = self._loop.call_at(self._noted_s + self._limit_ms / 1000, self._on_timer)

    def close(self) -> None:
        """Stop for good and let go of whoever listened."""
        self.hold()
        self._on_silent = ignore

    def _on_timer(self) -> None:
        due_s = self._noted_s + self._limit_ms / 1000
        # Event loops round timers to a millisecond, either way.
        if self._loop.time() >= due_s - 0.001:
            self._timer = None
            self._on_silent(self._limit_ms)
        else:
            self._timer = self._loop.call_at(due_s, self._on_timer)


def ignore(_: int) -> None:
    """Nobody listens any more."""
