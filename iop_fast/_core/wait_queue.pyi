"""Lines of waiters and the order between them. Admission alone uses the queue; requests keep a `Waiter` each."""

from typing import final

@final
class Waiter:
    """A request in the queue. Only admission makes one; the owner keeps it to cancel."""

    @property
    def is_waiting(self) -> bool:
        """False from the decision that ends it on, which is a little before its owner hears of it."""
    @property
    def enqueued_at_ns(self) -> int: ...
    @property
    def sequence(self) -> int:
        """Its place in the global enqueue order. A re-admitted request keeps the one it had."""

@final
class WaitQueue:
    """The one queue behind an Admission. It has no Python interface."""
