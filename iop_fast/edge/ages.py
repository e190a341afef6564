"""Deadlines that many things share: age-ordered lists, swept by one tick.

A timer per request costs 2 to 4 microseconds to set and cancel, an entry here a tenth of that. It works because every
entry of a list has the same time to live: entries are then in the order of their deadlines as they come, and a sweep
looks only at the oldest ones.

Rules:
- An entry is in its list from `add` until `remove` or until it expires, whatever comes first, and expires at most once.
- `on_expired` is called with the entry's item, oldest first, after the entry left the list. It may add to and remove
  from any list, this one too; what it removes does not expire in the same sweep.
- An expiry is never early. It is late by up to one tick (250 ms), so this is for limits of seconds; the head of the
  admission queue has a timer of its own.
- An exception of one `on_expired` is logged and the sweep goes on: one bad connection does not keep others for ever.

The list is a dict by handle. A dict keeps the order of insertion, deletes in O(1) without a search and links no two
items to each other, so that nothing here keeps a finished object alive or makes a reference cycle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from iop_fast import logs
from iop_fast.seams import Clock

Item = TypeVar("Item")

TICK_S = 0.25
NO_HANDLE = 0

log = logs.get(__name__)


class AgeList(Generic[Item]):
    """Things that expire `limit_ns` after they were added."""

    __slots__ = ("_clock", "_entries", "_last_handle", "_limit_ns", "_on_expired")

    def __init__(self, clock: Clock, limit_ns: int, on_expired: Callable[[Item], object]) -> None:
        if limit_ns <= 0:
            raise ValueError(f"limit_ns must be positive, got {limit_ns}")
        self._clock = clock
        self._limit_ns = limit_ns
        self._on_expired = on_expired
        self._entries: dict[int, tuple[int, Item]] = {}
        self._last_handle = NO_HANDLE

    def add(self, item: Item) -> int:
        """Add `item` as the youngest and return the handle that removes it; never NO_HANDLE."""
        self._last_handle = handle = self._last_handle + 1
        self._entries[handle] = (self._clock.now_ns(), item)
        return handle

    def remove(self, handle: int) -> None:
        """Take an entry out; one that expired or was removed already is no error."""
        self._entries.pop(handle, None)

    def sweep(self, now_ns: int) -> int:
        """Expire everything that is `limit_ns` old at `now_ns`, oldest first; return how many that were."""
        latest_start_ns = now_ns - self._limit_ns
        # Handles are collected first: taking the first key of a dict again and again walks over all that were deleted.
        due: list[int] = []
        for handle, (since_ns, _) in self._entries.items():
            if since_ns > latest_start_ns:
                break
            due.append(handle)
        expired = 0
        for handle in due:
            entry = self._entries.pop(handle, None)
            if entry is None:
                continue
            expired += 1
            try:
                self._on_expired(entry[1])
            except Exception as error:  # noqa: BLE001 - one bad item must not keep the others for ever
                log.failure("expiry_failed", error)
        return expired

    def items(self) -> list[Item]:
        """Everything in the list, oldest first."""
        return [item for _, item in self._entries.values()]

    def __len__(self) -> int:
        return len(self._entries)


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
