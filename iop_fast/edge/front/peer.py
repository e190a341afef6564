"""One client's transport: what is written to it, its deadlines, and the ways it ends.

The lower half of a connection; it knows no HTTP. The upper half (`connection.py`) owns the states up to CLOSING.
Entering CLOSING or CLOSED ends a request that is still open: nothing is written from then on.

Ways to end, each entered at most once:
- `close`: everything written leaves, then FIN. For a client that has nothing more to say.
- `linger`: our FIN first, then input is dropped until the client closes or 5 s have passed. For a client that may still
  be sending: closing with unread input makes the kernel reset the connection, and an answer could be lost to it.
- `reset`: RST at once, whatever is unwritten.

Deadlines are the front's age lists. A peer stands in at most one of them for its phase (head, body rate, idle, linger)
and, while its client has something to take, in the list of stalls. A stall is an interval without one byte taken;
a client that reads slowly is not cut.

Nothing is written after `connection_lost`: uvloop raises there. `_transport` is None from then on; is_closing() is not
asked, it is true too early.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import TYPE_CHECKING, Any

from iop_fast._hot.ages import AgeList
from iop_fast.edge.ages import NO_HANDLE

if TYPE_CHECKING:
    from iop_fast.edge.front.shared import Shared

HEAD, BODY, SERVING, DRAINING, CLOSING, CLOSED = range(6)

RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Peer:
    """See the module's text. `Connection` is the one subclass, and has what raises here: C classes know no abstract
    methods."""

    __slots__ = (
        "_address",
        "_front",
        "_is_writable",
        "_phase_handle",
        "_phase_list",
        "_stall_handle",
        "_stall_taken",
        "_state",
        "_transport",
        "_written",
    )

    def __init__(self, front: Shared) -> None:
        self._front = front
        self._transport: asyncio.Transport | None = None
        self._address: str | None = None
        self._state = HEAD
        self._is_writable = True
        self._written = 0
        self._phase_list: AgeList[Any] | None = None
        self._phase_handle = NO_HANDLE
        self._stall_handle = NO_HANDLE
        self._stall_taken = 0

    @property
    def address(self) -> str:
        """The client's IP address, "" where it has none. Asked for the first time while the transport is there."""
        if self._address is None:
            assert self._transport is not None
            name = self._transport.get_extra_info("peername")
            self._address = str(name[0]) if isinstance(name, tuple) else ""
        return self._address

    def write(self, block: bytes) -> None:
        """Hand bytes to the transport. Only an open answer calls this, so the connection is not lost."""
        transport = self._transport
        assert transport is not None
        self._written += len(block)
        transport.write(block)  # network

    # What an answer asks and calls of the connection that it belongs to.

    def date_line(self) -> bytes:
        """Return the Date field for an answer that has none."""
        return self._front.date_line

    def can_keep(self) -> bool:
        """True when the connection can outlive an answer that begins now."""
        raise NotImplementedError

    def on_answer_end(self, keeps: bool) -> None:
        """The open answer is whole and written; `keeps` is what its head said about the connection."""
        raise NotImplementedError

    def on_answer_cut(self, is_ended_by_close: bool) -> None:
        """The open answer ended without being whole. The argument: its end would have been the connection's."""
        raise NotImplementedError

    # Ways to end.

    def close(self) -> None:
        """Close once everything is written."""
        transport = self._enter_closing()
        transport.close()
        if transport.get_write_buffer_size():
            self._watch_stall()

    def linger(self) -> None:
        """End our side, then drop input for a while (RFC 9112, 9.6)."""
        transport = self._enter_closing()
        if transport.can_write_eof():
            transport.write_eof()
        self._watch(self._front.lingers)
        if transport.get_write_buffer_size():
            self._watch_stall()

    def reset(self) -> None:
        """Cut the connection at once, with RST."""
        transport = self._enter_closing()
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        transport.abort()

    def _enter_closing(self) -> asyncio.Transport:
        transport = self._transport
        assert transport is not None
        self._state = CLOSING
        self._unwatch()
        self._drop_all()
        return transport

    def _drop_all(self) -> None:
        """Let go of the input and of a request that is not finished: nothing is written from here on. Never raises."""
        raise NotImplementedError

    def _enter_closed(self) -> None:
        self._state = CLOSED
        self._unwatch()
        self._unwatch_stall()
        self._transport = None
        self._drop_all()

    # Deadlines.

    def on_linger_late(self) -> None:
        """The client did not close after our end."""
        self._phase_list = None
        transport = self._transport
        if transport is not None and not transport.get_write_buffer_size():
            transport.close()

    def on_stall_late(self) -> None:
        """Look whether the client took anything since this was set."""
        self._stall_handle = NO_HANDLE
        transport = self._transport
        assert transport is not None
        unsent = transport.get_write_buffer_size()
        if unsent and self._written - unsent <= self._stall_taken:
            self._front.counters.stalls += 1
            self.reset()
        elif unsent:
            self._watch_stall()
        elif self._state == CLOSING:
            transport.close()

    def _watch(self, ages: AgeList[Any]) -> None:
        if self._phase_list is not None:
            self._phase_list.remove(self._phase_handle)
        self._phase_list = ages
        self._phase_handle = ages.add(self)

    def _unwatch(self) -> None:
        if self._phase_list is not None:
            self._phase_list.remove(self._phase_handle)
            self._phase_list = None

    def _watch_stall(self) -> None:
        transport = self._transport
        if transport is not None and self._stall_handle == NO_HANDLE:
            self._stall_taken = self._written - transport.get_write_buffer_size()
            self._stall_handle = self._front.stalls.add(self)

    def _unwatch_stall(self) -> None:
        if self._stall_handle != NO_HANDLE:
            self._front.stalls.remove(self._stall_handle)
            self._stall_handle = NO_HANDLE
