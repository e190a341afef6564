"""What is counted of every request: outcomes and durations, in compiled arrays, for metrics. It decides nothing.

Names are kept as they come, so whoever calls gives names of the configuration alone; `forget` drops those that a new
configuration does not have. Everything is called on the event loop's thread.
"""

from collections.abc import Callable, Sequence
from typing import final

DURATION_BOUNDS_NS: tuple[int, ...]
"""Upper bounds, inclusive, for times that people wait: 1 ms to 10 minutes."""
SHORT_BOUNDS_NS: tuple[int, ...]
"""Upper bounds, inclusive, for times that a program takes: 50 us to 10 s."""

@final
class Histogram:
    """Durations counted by bucket."""

    def __init__(self, bounds_ns: Sequence[int]) -> None:
        """`bounds_ns` are upper bounds, inclusive and rising, at most 24. Raises ValueError."""
    @property
    def count(self) -> int:
        """How many durations were observed."""
    @property
    def sum_ns(self) -> int: ...
    def observe(self, duration_ns: int) -> None:
        """Count one duration."""
    def counts(self) -> tuple[int, ...]:
        """By bucket, the last one for all above the bounds."""

@final
class RequestMeters:
    """Requests by model, provider and outcome, and how long their parts took."""

    overhead: Histogram
    def close(
        self,
        model: str,
        node_id: str,
        provider_id: str,
        outcome: str,
        is_long: bool,
        queue_ns: int,
        ttfb_ns: int,
        answer_ns: int,
        total_ns: int,
        overhead_ns: int,
    ) -> int:
        """Count a request that has ended. Of the durations, -1 is one that the request did not come to: its wait in the
        queue, from its head to its answer's head, from its grant to that, from its head to its end, and what of it the
        gateway took."""
    def outcomes(self) -> list[tuple[tuple[str, str, str, str], int]]:
        """((model, node_id, provider_id, outcome), count) for each that has occurred."""
    def models(self) -> list[tuple[str, Histogram, Histogram, Histogram, Histogram]]:
        """(model, waits of normal requests, of long ones, times to first byte, total times) for each model that has had
        a request. The histograms go on counting."""
    def sums(self) -> tuple[Histogram, Histogram, Histogram]:
        """Waits, times to first byte and total times of all models, as new histograms."""
    def providers(self) -> list[tuple[tuple[str, str], int, int]]:
        """((node_id, provider_id), count, sum_ns) of the times from grant to answer."""
    def forget(self, is_model: Callable[[str], bool], is_provider: Callable[[tuple[str, str]], bool]) -> None:
        """Drop what is counted of other models and of other providers."""
