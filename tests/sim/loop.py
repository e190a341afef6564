"""An asyncio loop on virtual time: it never sleeps, it moves the clock to the next timer.

The production code of both programs runs on it unchanged. Everything that happens is in the ready queue, in timers or
in the pipes of tests/sim/pipes.py. When nothing is left to happen the world is stuck, which is always a fault.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any

from iop_fast._core.clock import VirtualClock

NS = 1_000_000_000

# So many turns without a move of the clock are programs that keep each other busy for ever.
TURNS_MAX = 100_000


class Stuck(AssertionError):
    """Nothing is ready and no timer is set, or time stands still, and the main task has not ended."""


class _TimeSelector(selectors.BaseSelector):
    """A selector without files whose wait moves the virtual clock."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._keys: dict[Any, selectors.SelectorKey] = {}
        self._turns = 0  # since time moved

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = selectors.SelectorKey(fileobj, fileobj if isinstance(fileobj, int) else fileobj.fileno(), events, data)
        self._keys[fileobj] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj)

    def get_map(self) -> dict[Any, selectors.SelectorKey]:
        return self._keys

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Stuck("nothing is ready and no timer is set")
        self._turns += 1
        if self._turns > TURNS_MAX:
            raise Stuck(f"{TURNS_MAX} turns of the loop at one time")
        if timeout > 0:
            self._turns = 0
            # One nanosecond more than asked, so that a float rounded down cannot make the loop spin.
            self._clock.advance_to(self._clock.now_ns() + int(timeout * NS) + 1)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop; `clock` is the Clock to inject, in step with `time()`."""

    def __init__(self) -> None:
        self.clock = VirtualClock(NS)  # not 0: a time of 0 means "none" in the core
        self.failures: list[dict[str, Any]] = []
        super().__init__(_TimeSelector(self.clock))
        self.set_exception_handler(lambda loop, context: self.failures.append(context))

    def time(self) -> float:
        return self.clock.now_ns() / NS


def run_virtual(main: Coroutine[Any, Any, None], loop: VirtualLoop) -> None:
    """Run to the end; an exception that nobody handled anywhere fails the run."""
    try:
        loop.run_until_complete(main)
        pending = [task for task in asyncio.all_tasks(loop) if not task.done()]
        assert not pending, f"tasks left: {pending}"
        assert not loop.failures, f"unhandled in the loop: {loop.failures}"
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
