"""What all connections of a front share: its settings, its lists of deadlines, its counters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from iop_fast._hot.ages import AgeList
from iop_fast.config.schema.front import HttpLimits
from iop_fast.edge.front.head import HeadParser
from iop_fast.errors import Failure
from iop_fast.seams import Head, Service

MS_PER_S = 1_000

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


class Shared:
    """The part of a `Front` that its connections read; what it means stands there.

    `heads`, `bodies`, `idles`, `stalls` and `lingers` hold the connections that have a deadline of that kind.
    """

    heads: AgeList[Any]
    bodies: AgeList[Any]
    idles: AgeList[Any]
    stalls: AgeList[Any]
    lingers: AgeList[Any]

    def __init__(self, service: Service, limits: HttpLimits, loop: asyncio.AbstractEventLoop, render: Render) -> None:
        self.service = service
        self.limits = limits
        self.loop = loop
        self.render = render
        self.parser = HeadParser(limits)
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
