"""What every transport of the link is made of: its two ends, the server, and the numbers that do not depend on it.

A session is one gRPC call, `METHOD`, of raw messages in both directions. Two transports carry it, and either end may
have either: `wire/http2`, our own HTTP/2 on the event loop, and `wire/grpcio`, the library.
`wire/transport.py` picks one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

from iop_fast.config.schema.common import LinkTransport
from iop_fast.seams import MessageStream
from iop_fast.wire.health import Health
from iop_fast.wire.options import MAX_MESSAGE_BYTES

TransportName = LinkTransport

SERVICE = "iop.runtime.v1.Runtime"
METHOD = f"/{SERVICE}/Session"

# Calls that a server has open at most, of all peers and whatever they are; a further one is refused.
MAX_CALLS = 4096

# Name resolution, connection, TLS and the first words of the transport together.
CONNECT_LIMIT_S = 10.0
# How long a peer may take to end a call in order once this end has given it up.
CLOSE_GRACE_S = 1.0

# What a status says to people where its text does not.
NO_EDGE = "it speaks gRPC but is not an Edge"
EDGE_CLOSED = "the Edge closed the session"
GIVEN_UP = "the stream was given up"
CROWDED = "too many connections without a session: the oldest is cut"


class EdgeStream(MessageStream, Protocol):
    """The Edge's end of a session."""

    @property
    def peer_names(self) -> frozenset[str]:
        """Names in the client certificate that the peer has shown: its common name and its alternative names."""
        ...

    def on_registered(self) -> None:
        """The peer has shown who it is, so its messages may be larger than a registration. Idempotent."""
        ...


class NodeStream(MessageStream, Protocol):
    """The Node's end of a session."""

    @property
    def end_reason(self) -> str:
        """For people: why the stream ended, "" before it has and after an end in order."""
        ...


OnStream = Callable[[EdgeStream, str], Awaitable[None]]
OnRefused = Callable[[str, str], None]


class LinkServer(Protocol):
    """The Edge's listener for Nodes: sessions and gRPC health.

    `abandoned` counts streams that were given up, `abandoned_pending` those among them whose call is still open;
    `strangers_cut` counts connections that were cut, before they had a session, for others.
    """

    health: Health
    port: int
    abandoned: int
    abandoned_pending: int

    @property
    def strangers_cut(self) -> int:
        """How many connections without a session were cut because there were too many."""
        ...

    async def stop(self, grace_s: float) -> bool:
        """Refuse what is new at once, cut what is still open after `grace_s`; False when that did not come in time."""
        ...


def check_size(message: bytes) -> None:
    """Raise ValueError for a message that no receiver of a link takes."""
    if len(message) > MAX_MESSAGE_BYTES:
        raise ValueError(f"message too large: expected at most {MAX_MESSAGE_BYTES} bytes, got {len(message)}")


# Tasks that nobody waits for; the event loop itself holds them weakly.
_detached: set[asyncio.Task[Any]] = set()


def detach(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Run something to its end though nobody waits for it; `settle` does."""
    task = asyncio.get_running_loop().create_task(work)
    _detached.add(task)
    task.add_done_callback(_detached.discard)
    return task


async def settle(limit_s: float) -> bool:
    """Give closings that are under way a last chance before the process ends; False when the limit came first."""
    loop = asyncio.get_running_loop()
    tasks = [task for task in _detached if task.get_loop() is loop]
    if not tasks:
        return True
    _, pending = await asyncio.wait(tasks, timeout=limit_s)
    return not pending
