"""Connections without TLS to one provider: dialed, lent to one run at a time, and kept for the next.

A connection belongs to its run from `connection_made`, or from `take`, until the run gives it back or aborts it. One
that is idle is the pool's: it is closed after the keepalive time, sooner than model servers close theirs, and at once
when the server says anything or leaves. The last one given back is the first to be taken, so a pool shrinks to what is
needed.

While a connection does not read, uvloop reports no FIN; whoever pauses it has its own clock standing still.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Protocol, cast

import aiohappyeyeballs

from iop_fast.node.adapters.watchdog import Watchdog

# RFC 8305, section 8: how long the next address waits for the one before.
NEXT_ADDRESS_S = 0.25

AddressInfo = aiohappyeyeballs.AddrInfoType


class Borrower(Protocol):
    """The run that has a connection. None of these is called once it has given the connection back."""

    def on_connected(self, connection: PlainConnection) -> None:
        """A dialed connection is made and belongs to the run."""
        ...

    def on_bytes(self, data: bytes) -> None:
        """The server sent something."""
        ...

    def on_eof(self) -> None:
        """The server sends nothing more; the connection is gone after this call."""
        ...

    def on_lost(self) -> None:
        """The connection is gone; always the last call, also after `abort`."""
        ...

    def on_writable(self) -> None:
        """The transport has room again."""
        ...

    def on_silent(self, limit_ms: int) -> None:
        """The connection's watchdog saw no progress."""
        ...


class PlainConnection:
    """One connection, asyncio's protocol. `borrower` is the run that has it, None while it is idle or thrown away."""

    __slots__ = ("_idle_until_s", "_pool", "_transport", "borrower", "is_reused", "is_writable", "watchdog")

    def __init__(self, pool: PlainPool, borrower: Borrower, loop: asyncio.AbstractEventLoop) -> None:
        self._pool = pool
        self._transport: asyncio.Transport | None = None  # until connection_lost
        self.borrower: Borrower | None = borrower
        self.watchdog = Watchdog(loop, self._on_silent)
        self.is_reused = False
        self.is_writable = True
        self._idle_until_s = 0.0

    def is_usable(self) -> bool:
        """True while nothing is known to be wrong with it."""
        return self._transport is not None and not self._transport.is_closing()

    def is_lost(self) -> bool:
        """True before the connection is made and once it is gone."""
        return self._transport is None

    # What a run does with it.

    def write(self, data: bytes) -> None:
        """Send bytes; a connection that is lost swallows them."""
        if self._transport is not None:
            self._transport.write(data)  # network

    def pause_reading(self) -> None:
        """Stop reading."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Go on reading."""
        if self._transport is not None:
            self._transport.resume_reading()

    def abort(self) -> None:
        """Close at once, unsent bytes and all; `connection_lost` follows in a later turn."""
        if self._transport is not None:
            self._transport.abort()

    def throw_away(self) -> None:
        """Abort and tell nobody."""
        self.borrower = None
        self.watchdog.close()
        self.abort()

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
        if self.borrower is not None:
            self.borrower.on_connected(self)

    def data_received(self, data: bytes) -> None:
        if self.borrower is None:
            self._pool.discard(self)  # unasked: it would be taken for the next answer
        else:
            self.borrower.on_bytes(data)

    def eof_received(self) -> None:
        if self.borrower is None:
            self._pool.discard(self)
        else:
            self.borrower.on_eof()
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.watchdog.close()
        borrower, self.borrower = self.borrower, None
        if borrower is None:
            self._pool.discard(self)
        else:
            borrower.on_lost()

    def pause_writing(self) -> None:
        self.is_writable = False

    def resume_writing(self) -> None:
        self.is_writable = True
        if self.borrower is not None:
            self.borrower.on_writable()

    def _on_silent(self, limit_ms: int) -> None:
        if self.borrower is not None:
            self.borrower.on_silent(limit_ms)


class PlainPool:
    """Connections to one host and port."""

    def __init__(self, host: str, port: int, keepalive_s: float, loop: asyncio.AbstractEventLoop) -> None:
        self._host = host
        self._port = port
        self._keepalive_s = keepalive_s
        self._loop = loop
        self._idle: dict[PlainConnection, None] = {}  # in the order they were given back
        self._sweeper: asyncio.TimerHandle | None = None
        self._lookup: asyncio.Task[list[AddressInfo]] | None = None
        self._is_closed = False

    def take(self, borrower: Borrower) -> PlainConnection | None:
        """Lend an idle connection, None when there is none."""
        while self._idle:
            connection, _ = self._idle.popitem()
            if connection.is_usable() and connection._idle_until_s > self._loop.time():
                connection.is_reused = True
                connection.borrower = borrower
                return connection
            connection.throw_away()
        return None

    def give_back(self, connection: PlainConnection) -> None:
        """Keep a connection that its run is done with and on which nothing is under way."""
        connection.borrower = None
        connection.watchdog.hold()
        if self._is_closed:
            connection.throw_away()
            return
        connection._idle_until_s = self._loop.time() + self._keepalive_s
        self._idle[connection] = None
        if self._sweeper is None:
            self._sweeper = self._loop.call_at(connection._idle_until_s, self._sweep)

    def discard(self, connection: PlainConnection) -> None:
        """Keep a connection no longer, if it was kept. Idempotent."""
        self._idle.pop(connection, None)
        connection.throw_away()

    async def dial(self, borrower: Borrower, limit_ms: int) -> None:
        """Make a connection for a run, whose `on_connected` has it then; raise OSError or TimeoutError."""
        async with asyncio.timeout(limit_ms / 1000):
            sock = await aiohappyeyeballs.start_connection(
                await self._addresses(), happy_eyeballs_delay=NEXT_ADDRESS_S, interleave=1, loop=self._loop
            )
            connection = PlainConnection(self, borrower, self._loop)
            try:
                await self._loop.create_connection(lambda: cast(asyncio.Protocol, connection), sock=sock)
            except BaseException:
                sock.close()
                raise
            if connection.is_lost():
                # Aborted from within `connection_made`: uvloop has closed the descriptor before it took note of the
                # socket, which would close that number once more when it is collected.
                sock.detach()

    def close(self) -> None:
        """Close idle connections; those that are lent are closed when they come back."""
        self._is_closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        while self._idle:
            self._idle.popitem()[0].throw_away()
        if self._lookup is not None:
            self._lookup.cancel()

    async def _addresses(self) -> list[AddressInfo]:
        """Look the host up; who asks while somebody else does waits for the same answer."""
        if self._lookup is None:
            self._lookup = self._loop.create_task(self._look_up())
            self._lookup.add_done_callback(self._on_looked_up)
        return await asyncio.shield(self._lookup)

    async def _look_up(self) -> list[AddressInfo]:
        found = await self._loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        return cast("list[AddressInfo]", found)

    def _on_looked_up(self, lookup: asyncio.Task[list[AddressInfo]]) -> None:
        self._lookup = None
        if not lookup.cancelled():
            lookup.exception()  # whoever still waits for it has it too

    def _sweep(self) -> None:
        self._close_old(self._loop.time() + 0.001)  # event loops round timers to a millisecond, either way

    def _close_old(self, now_s: float) -> None:
        """Close what was idle for too long and look again when the next one will have been."""
        self._sweeper = None
        for connection in list(self._idle):
            if connection._idle_until_s > now_s:
                self._sweeper = self._loop.call_at(connection._idle_until_s, self._sweep)
                return
            self.discard(connection)
