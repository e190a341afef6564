"""The one clock. Code outside the core reads time through an injected Clock and through nothing else."""

class Clock:
    """Base of all clocks; compiled code calls `now_ns` without a Python call where the class is not overridden."""

    def now_ns(self) -> int:
        """Return nanoseconds since an arbitrary origin; never falls."""

class MonotonicClock(Clock):
    """CLOCK_MONOTONIC."""

class VirtualClock(Clock):
    """A clock that stands still until it is moved, for tests and simulation."""

    def __init__(self, now_ns: int = 0) -> None: ...
    def advance_to(self, now_ns: int) -> None:
        """Move forward to `now_ns`; raises ValueError for a time in the past."""
