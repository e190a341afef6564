"""The running Edge's references: where requests, links, refresh and status find each other.

One object, made at start and handed around. What changes over its life is the Runtime (whole, by `commit` alone) and
the draining flag; everything else is fixed. It is no place for logic.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Protocol

from iop_fast._core.admission import Plan
from iop_fast._hot.ages import AgeList
from iop_fast._hot.text import part
from iop_fast.edge.body import ByteBudget
from iop_fast.edge.books import Books
from iop_fast.edge.gate import NS_PER_MS, Gate
from iop_fast.edge.runtime import Key, Runtime
from iop_fast.seams import Clock, EdgeRun, RunOpening, TunnelRequest

if TYPE_CHECKING:
    from iop_fast.edge.exchange import Exchange

# Hexadecimal digits of a request's id, and how many ids are drawn at a time.
ID_SIZE = 32
IDS_DRAWN = 64


def system_time() -> int:
    """Return whole seconds since 1970."""
    return int(time.time())


class RunLink(Protocol):
    """What an exchange uses of one session with a Node (`iop_fast.edge.link.NodeLink`)."""

    @property
    def is_up(self) -> bool:
        """True while runs may be opened."""
        ...

    def open(self, run_id: int, run: EdgeRun, opening: TunnelRequest | RunOpening) -> None:
        """Register a run and queue its opening frame."""
        ...

    def send_body(self, run_id: int, piece: bytes | memoryview, complete: bool) -> None:
        """Queue a piece of the run's request body, which is copied before this returns."""
        ...

    @property
    def has_room(self) -> bool:
        """True while this process may hold more for the session."""
        ...

    @property
    def takes_body(self) -> bool:
        """True while further pieces of bodies may be queued."""
        ...

    def wait_to_send(self, run_id: int) -> None:
        """Call the run's `on_window(0)` when `takes_body` is true again."""
        ...

    def hold(self, run_id: int, byte_count: int) -> None:
        """Say how much of the run's answer waits for a client that does not read."""
        ...

    def grant(self, run_id: int, byte_count: int) -> None:
        """Let the Node send `byte_count` more bytes of the answer."""
        ...

    def cancel(self, run_id: int) -> None:
        """Ask the Node to stop the run; its end still comes."""
        ...

    def withdraw(self, run_id: int) -> bool:
        """Take the run back if the Node cannot have heard of it."""
        ...

    def forget(self, run_id: int) -> None:
        """Stop waiting for the run's end."""
        ...


class LinkTable(Protocol):
    """What an exchange uses of `iop_fast.edge.links.Links`."""

    def for_lease(self, node_id: str, generation: int) -> RunLink | None:
        """Return the session that a lease was granted for, None unless that very one is up."""
        ...


class EdgeState:
    """The references of one running Edge."""

    __slots__ = (
        "_id_at",
        "_ids",
        "_random",
        "books",
        "budget",
        "cancelling",
        "clock",
        "gate",
        "is_draining",
        "links",
        "quiet",
        "runtime",
        "unix_time",
    )

    def __init__(
        self,
        runtime: Runtime,
        gate: Gate,
        links: LinkTable,
        clock: Clock,
        random: Random,
        unix_time: Callable[[], int] = system_time,
    ) -> None:
        """`unix_time` returns whole seconds since 1970, for what is dated in answers."""
        config = runtime.config
        self.runtime = runtime
        self.gate = gate
        self.links = links
        self.clock = clock
        self.unix_time = unix_time
        self.is_draining = False
        self.budget = ByteBudget(config.openai.limits.buffered_bytes)
        self.books = Books()
        # Exchanges whose client has left and whose Node has not confirmed yet. Swept by the Edge's ticker.
        self.cancelling: AgeList[Exchange] = AgeList(
            clock, config.edge.link.cancel_confirm_ms * NS_PER_MS, expire_confirmation
        )
        # Exchanges whose client reads a stream of events, None while such streams are left as they are. Swept too.
        keep_alive_ms = config.openai.sse_keep_alive_ms
        self.quiet: AgeList[Exchange] | None = None
        if keep_alive_ms:
            self.quiet = AgeList(clock, keep_alive_ms * NS_PER_MS, keep_alive)
        self._random = random
        # Ids that were drawn and not used: one draw for many of them costs what one id did.
        self._ids = b""
        self._id_at = 0

    @property
    def counters(self) -> dict[str, int]:
        """Requests by outcome, and what should not happen."""
        return self.books.counters

    def count(self, name: str) -> None:
        """Add one to a counter."""
        self.books.count(name)

    def new_request_id(self) -> bytes:
        """Return a fresh value for `x-request-id`: 32 hex digits."""
        at = self._id_at
        if at == len(self._ids):
            self._ids = self._random.randbytes(IDS_DRAWN * ID_SIZE // 2).hex().encode()
            at = 0
        self._id_at = at + ID_SIZE
        return part(self._ids, at, at + ID_SIZE)

    def swap(self, runtime: Runtime, is_reported_up: Callable[[Key], bool]) -> None:
        """Take over a new Runtime with the plan that it makes of the Nodes' reports of now."""
        self.commit(runtime, runtime.plan(is_reported_up))

    def commit(self, runtime: Runtime, plan: Plan) -> None:
        """Take over a new Runtime and reconfigure admission in one step: the commitment point of a refresh.

        The reference changes first, so that what the step grants is dispatched by the new revision. A plan that
        admission refuses changes nothing.
        """
        previous, self.runtime = self.runtime, runtime
        try:
            self.gate.reconfigure(plan)
        except BaseException:
            self.runtime = previous
            raise

    def start_draining(self) -> None:
        """Refuse new requests from here on and end those that wait."""
        self.is_draining = True
        self.gate.drain()


def keep_alive(exchange: Exchange) -> None:
    """Look after a stream that may have been silent for a while."""
    exchange.on_quiet()


def expire_confirmation(exchange: Exchange) -> None:
    """End a cancelled run whose Node did not confirm in time."""
    exchange.on_confirm_expired()
