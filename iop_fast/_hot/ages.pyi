"""Deadlines that many things share: things in the order of their age, each of which expires when it is old enough.

A timer per request costs 2 to 4 microseconds to set and cancel, an entry here a twentieth of that. It works because
every entry of a list has the same time to live: entries are then in the order of their deadlines as they come, and a
sweep looks only at the oldest ones.

Rules:
- An entry is in its list from `add` until `remove` or until it expires, whatever comes first, and expires at most once.
- `on_expired` is called with the entry's item, oldest first, after the entry left the list. It may add to and remove
  from any list, this one too; what it removes does not expire in the same sweep.
- An expiry is never early. It is late by up to one tick of whoever calls `sweep`.
- An exception of one `on_expired` is logged and the sweep goes on: one bad item does not keep others for ever.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

from iop_fast.seams import Clock

Item = TypeVar("Item")

class AgeList(Generic[Item]):
    """Things that expire `limit_ns` after they were added."""

    def __init__(self, clock: Clock, limit_ns: int, on_expired: Callable[[Item], object]) -> None:
        """`clock` is an `iop_fast._core.clock.Clock`."""
    def add(self, item: Item) -> int:
        """Add `item` as the youngest and return the handle that removes it; never 0."""

    def remove(self, handle: int) -> None:
        """Take an entry out; one that expired or was removed already is no error."""

    def sweep(self, now_ns: int) -> int:
        """Expire everything that is `limit_ns` old at `now_ns`, oldest first; return how many that were."""

    def items(self) -> list[Item]:
        """Everything in the list, oldest first."""

    def __len__(self) -> int: ...
