"""The tick that sweeps the Edge's age lists (`iop_fast._hot.ages`): one timer for all deadlines of seconds.

The head of the admission queue has a timer of its own; for everything else up to one tick (250 ms) late is early
enough.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from iop_fast import logs
from iop_fast._hot.ages import AgeList
from iop_fast.seams import Clock

__all__ = ["NO_HANDLE", "TICK_S", "AgeList", "Ticker"]

TICK_S = 0.25
NO_HANDLE = 0

log = logs.get(__name__)


class Ticker:
    """Calls every registered sweep with the current time, each 250 ms of the loop's time while started."""

    __slots__ = ("_clock", "_loop", "_sweeps", "_timer")

    def __init__(self, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self._clock = clock
        self._loop = loop
        self._sweeps: list[Callable[[int], object]] = []
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_running(self) -> bool:
        """True between `start` and `stop`."""
        return self._timer is not None

    def register(self, sweep: Callable[[int], object]) -> None:
        """Add `AgeList.sweep` or any other function that takes `now_ns`. The order of registration is kept."""
        self._sweeps.append(sweep)

    def start(self) -> None:
        """Begin to tick. Starting twice is an error of the caller."""
        assert self._timer is None, "the ticker runs already"
        self._timer = self._loop.call_later(TICK_S, self._tick)

    def stop(self) -> None:
        """Stop ticking; idempotent. What is registered stays registered."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self._timer = self._loop.call_later(TICK_S, self._tick)
        now_ns = self._clock.now_ns()
        for sweep in self._sweeps:
            try:
                sweep(now_ns)
            except Exception as error:  # noqa: BLE001 - the tick is everybody's
                log.failure("tick_failed", error)
