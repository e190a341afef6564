"""What all connections of a front share: its settings, its lists of deadlines, its counters, the turns of its loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from iop_fast._hot.ages import AgeList
from iop_fast.config.schema.front import HttpLimits
from iop_fast.edge.front.head import HeadParser
from iop_fast.errors import Failure
from iop_fast.seams import Clock, Head, Service

MS_PER_S = 1_000

# How long a turn of the loop goes on starting requests. Some twenty of them: what shares a message is worth that much.
TURN_NS = 2_000_000

# Of a failure, a message and the path ("" where none was read) to the head and body of the answer.
Render = Callable[[Failure, str, bytes], tuple[Head, bytes]]


class FrontCounters:
    """What happened since the start; read by metrics and status."""

    __slots__ = (
        "answers_cut",
        "connections",
        "internal_errors",
        "refusals",
        "requests",
        "requests_dropped",
        "stalls",
    )

    def __init__(self) -> None:
        self.connections = 0  # accepted, those above the limit included
        self.requests = 0  # handed to the service
        self.requests_dropped = 0  # ended by their client or by a refusal before their answer was whole
        self.answers_cut = 0  # ended by the service without being whole
        self.stalls = 0  # connections cut because the client took nothing
        self.internal_errors = 0
        self.refusals: dict[Failure, int] = {}  # answered by the front itself

    def count_refusal(self, failure: Failure) -> None:
        """Count a refusal under its row of the error table."""
        self.refusals[failure] = self.refusals.get(failure, 0) + 1


class Turns:
    """Keeps a turn of the loop from starting requests without end.

    A storm of requests reaches the loop hundreds at a time, and a turn that starts all of them is long. What those that
    run need takes several turns each time a slot is freed (the end's frames, the grant, the next opening frame), so
    that slots would stand idle while others are refused. Hence a turn starts requests for TURN_NS; connections whose
    bytes come after that have their turn in one of the next ones, in their order.
    """

    __slots__ = ("_clock", "_is_open", "_loop", "_until_ns", "_waiting")

    def __init__(self, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self._clock = clock
        self._loop = loop
        self._waiting: deque[Any] = deque()
        self._until_ns = 0  # when the time of this turn is up
        self._is_open = False  # a turn was begun, and _next_turn is on its way

    def is_spent(self) -> bool:
        """True when a connection has to wait for a later turn."""
        now_ns = self._clock.now_ns()
        if self._is_open:
            return bool(self._waiting) or now_ns >= self._until_ns
        self._is_open = True
        self._until_ns = now_ns + TURN_NS
        self._loop.call_soon(self._next_turn)
        return False

    def wait(self, connection: Any) -> None:
        """Have `connection.on_turn()` called in a later turn, after those that wait already."""
        self._waiting.append(connection)

    def _next_turn(self) -> None:
        waiting = self._waiting
        if not waiting:
            self._is_open = False
            return
        self._loop.call_soon(self._next_turn)
        self._until_ns = self._clock.now_ns() + TURN_NS
        while waiting:
            waiting.popleft().on_turn()
            if self._clock.now_ns() >= self._until_ns:
                return


class Shared:
    """The part of a `Front` that its connections read; what it means stands there. `Front` is the one subclass, and has
    what raises here: C classes know no abstract methods.

    `heads`, `bodies`, `idles`, `stalls` and `lingers` hold the connections that have a deadline of that kind.
    """

    heads: AgeList[Any]
    bodies: AgeList[Any]
    idles: AgeList[Any]
    stalls: AgeList[Any]
    lingers: AgeList[Any]

    def __init__(
        self, service: Service, limits: HttpLimits, clock: Clock, loop: asyncio.AbstractEventLoop, render: Render
    ) -> None:
        self.service = service
        self.limits = limits
        self.loop = loop
        self.render = render
        self.parser = HeadParser(limits)
        self.turns = Turns(clock, loop)
        self.counters = FrontCounters()
        self.is_draining = False
        self.keeps_alive = limits.keep_alive_ms > 0
        self.body_bytes_max = limits.body_bytes
        self.body_window_bytes_min = limits.body_bytes_per_second * limits.body_grace_ms // MS_PER_S
        self.date_line = b""

    def on_connection(self, connection: Any) -> bool:
        """Take a new connection in; return False when it was refused instead."""
        raise NotImplementedError

    def on_connection_lost(self, connection: Any) -> None:
        """Forget a connection that is gone."""
        raise NotImplementedError
