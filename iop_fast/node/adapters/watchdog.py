"""One timer that looks for progress, set at most once a limit however often progress is noted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Watchdog:
    """Calls `on_silent(limit_ms)` once when `note` was not called for the current limit. Silent until `watch`.

    A timer that is set stays set: when it fires it looks whether it is due, and is set again for the rest if not. So
    whoever watches one thing after another, as a pooled connection does, sets no timer for each.
    """

    __slots__ = ("_is_watching", "_limit_s", "_loop", "_noted_s", "_on_silent", "_timer", "_timer_s")

    def __init__(self, loop: asyncio.AbstractEventLoop, on_silent: Callable[[int], None]) -> None:
        self._loop = loop
        self._on_silent = on_silent
        self._limit_s = 0.0
        self._noted_s = 0.0
        self._is_watching = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0  # when it fires

    def watch(self, limit_ms: int) -> None:
        """Begin, or go over to another limit; this is progress too."""
        self._limit_s = limit_ms / 1000
        self.go_on()

    def note(self) -> None:
        """There was progress. No timer is touched."""
        self._noted_s = self._loop.time()

    def hold(self) -> None:
        """Stand still until `go_on` or `watch`. Idempotent."""
        self._is_watching = False

    def go_on(self) -> None:
        """Watch from now on for a whole limit."""
        self._is_watching = True
        self.note()
        due_s = self._noted_s + self._limit_s
        if self._timer is not None:
            if self._timer_s <= due_s:
                return
            self._timer.cancel()
        self._set_timer(due_s)

    def close(self) -> None:
        """Stop for good and let go of whoever listened."""
        self._is_watching = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._on_silent = ignore

    def _set_timer(self, due_s: float) -> None:
        self._timer_s = due_s
        self._timer = self._loop.call_at(due_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if not self._is_watching:
            return
        due_s = self._noted_s + self._limit_s
        # Event loops round timers to a millisecond, either way.
        if self._loop.time() >= due_s - 0.001:
            self._is_watching = False
            self._on_silent(round(self._limit_s * 1000))
        else:
            self._set_timer(due_s)


def ignore(_: int) -> None:
    """Nobody listens any more."""
