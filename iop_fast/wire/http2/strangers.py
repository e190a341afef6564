"""Connections of a listener on which nobody is known yet: how many there are, and whose place the next one takes.

A stranger is a connection from its accept on, through its handshakes, until a session on it is registered or it is
gone. Anybody can make one and each holds memory, so there are `most` at once. Beyond that the oldest is cut: who comes
gets its time to register however many others keep silent, and an honest one that was cut dials again. To refuse the
newest instead would let whoever holds all places keep every Node out.

Who may call: the listener, in the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from iop_fast.wire.ends import CROWDED
from iop_fast.wire.http2.connection import Connection


class Stranger:
    """One of them: the task of its handshake, then its connection."""

    __slots__ = ("connection", "handshake", "peer")

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.handshake: asyncio.Task[None] | None = None
        self.connection: Connection | None = None

    def cut(self) -> None:
        """End it at once."""
        if self.connection is not None:
            self.connection.abort(CROWDED)
        elif self.handshake is not None:
            self.handshake.cancel()


class Strangers:
    """All of them, the oldest first. `cut_count` is how many were cut for others."""

    __slots__ = ("_by_connection", "_loop", "_most", "_on_cut", "_places", "cut_count")

    def __init__(self, loop: asyncio.AbstractEventLoop, most: int, on_cut: Callable[[str, str], None]) -> None:
        """`on_cut(peer, reason)` is told of each that is cut."""
        self._loop = loop
        self._most = most
        self._on_cut = on_cut
        self._places: dict[Stranger, None] = {}
        self._by_connection: dict[Connection, Stranger] = {}
        self.cut_count = 0

    def __len__(self) -> int:
        return len(self._places)

    def add(self, peer: str) -> Stranger:
        """Give a place to a connection that was accepted; the oldest loses its own where there is none."""
        if len(self._places) >= self._most:
            oldest = next(iter(self._places))
            self.forget(oldest)
            self.cut_count += 1
            self._on_cut(oldest.peer, CROWDED)
            self._loop.call_soon(oldest.cut)  # a task that is cancelled before it began would leave its socket open
        stranger = Stranger(peer)
        self._places[stranger] = None
        return stranger

    def attach(self, stranger: Stranger, connection: Connection) -> None:
        """Its transport's handshake is done."""
        stranger.connection = connection
        if stranger in self._places:
            self._by_connection[connection] = stranger

    def forget(self, stranger: Stranger) -> None:
        """Take its place back: it was cut, or its handshake failed. Idempotent."""
        self._places.pop(stranger, None)
        if stranger.connection is not None:
            self._by_connection.pop(stranger.connection, None)

    def release(self, connection: Connection) -> None:
        """The connection is known, or gone. Idempotent."""
        stranger = self._by_connection.pop(connection, None)
        if stranger is not None:
            self._places.pop(stranger, None)
