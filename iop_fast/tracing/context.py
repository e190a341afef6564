"""Which trace a request belongs to: W3C's traceparent read, decided on and written.

Trace Context, level 1 (w3.org/TR/trace-context-1). A value that breaks its rules, and one that stands twice, begins a
new trace, and its tracestate goes no further. Of the flags only "sampled" is known; the others are sent as 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from random import Random
from typing import NamedTuple

Field = tuple[bytes, bytes]

TRACEPARENT, TRACESTATE = b"traceparent", b"tracestate"
CONTEXT_FIELDS = frozenset({TRACEPARENT, TRACESTATE})

# Section 3.2.2. A later version may say more behind the flags, never less before them.
VERSION_0 = b"00"
FORM = re.compile(rb"(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)
SAMPLED = 0x01

# OpenTelemetry's TraceIdRatioBased looks at these bits: programs with one ratio decide alike.
RATIO_MASK = (1 << 64) - 1


class Place(NamedTuple):
    """A span of a trace, as its children and other programs know it."""

    trace_id: int
    span_id: int
    is_sampled: bool

    def render(self) -> bytes:
        """Return the traceparent of what this span calls."""
        return b"00-%032x-%016x-%02x" % (self.trace_id, self.span_id, SAMPLED if self.is_sampled else 0)


def read_place(value: bytes) -> Place | None:
    """Return what a traceparent says, None for one that is malformed."""
    match = FORM.fullmatch(value)
    if match is None or (match[1] == VERSION_0 and match[5] is not None):
        return None
    trace_id, span_id = int(match[2], 16), int(match[3], 16)
    if not trace_id or not span_id:
        return None
    return Place(trace_id, span_id, bool(int(match[4], 16) & SAMPLED))


def find_place(fields: Iterable[Field]) -> Place | None:
    """Return the place that a request's fields name, whose names are in lower case."""
    values = [value for name, value in fields if name == TRACEPARENT]
    return read_place(values[0].strip(b" \t")) if len(values) == 1 else None


def renamed(fields: Iterable[Field], parent: Place | None, place: Place) -> list[Field]:
    """Return a request's fields with `place` as the caller; the state of `parent`'s trace goes on with it."""
    dropped = CONTEXT_FIELDS if parent is None else frozenset({TRACEPARENT})
    return [*(field for field in fields if field[0] not in dropped), (TRACEPARENT, place.render())]


class Sampler:
    """Decides which traces are recorded, and makes ids by the injected generator.

    A caller's decision stands; of the traces that begin here a share of `ratio` is recorded.
    """

    __slots__ = ("_bound", "_random")

    def __init__(self, ratio: float, random: Random) -> None:
        self._bound = round(ratio * (RATIO_MASK + 1))
        self._random = random

    def begin(self, parent: Place | None) -> Place:
        """Return the place of a new span below `parent`, or at the root of a new trace."""
        if parent is not None:
            return self.below(parent)
        trace_id = self._nonzero(128)
        return Place(trace_id, self._nonzero(64), trace_id & RATIO_MASK < self._bound)

    def below(self, parent: Place) -> Place:
        """Return the place of a new span of the same trace."""
        return Place(parent.trace_id, self._nonzero(64), parent.is_sampled)

    def _nonzero(self, bits: int) -> int:
        return self._random.getrandbits(bits) or 1
