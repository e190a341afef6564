"""The Node's end of a session over our own HTTP/2: one connection for one call.

Ending. A stream that is abandoned closes its direction behind what was written, gives the Edge `CLOSE_GRACE_S` to end
the call, and reads away meanwhile what the Edge still sends; then the connection is closed, or cut where the Edge did
not end the call. With a write under way it is cut at once: what is half sent helps nobody.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import suppress
from typing import cast

from iop_fast.wire.credentials import ALPN, Trust, plain_tls_error
from iop_fast.wire.ends import CLOSE_GRACE_S, GIVEN_UP, METHOD, NO_EDGE, detach
from iop_fast.wire.http2.call import Call
from iop_fast.wire.http2.connection import Connection
from iop_fast.wire.http2.dialing import connect
from iop_fast.wire.http2.fields import GRPC_OK, GRPC_UNIMPLEMENTED
from iop_fast.wire.http2.life import LOST, PEER_LEFT
from iop_fast.wire.http2.limits import Limits
from iop_fast.wire.http2.session_end import SessionEnd
from iop_fast.wire.listening import split_address

NS_PER_S = 1_000_000_000

# gRPC's status codes (grpc/doc/statuscodes.md), for an end that says nothing else.
STATUS_NAMES = (
    "ok",
    "cancelled",
    "unknown",
    "invalid argument",
    "deadline exceeded",
    "not found",
    "already exists",
    "permission denied",
    "resource exhausted",
    "failed precondition",
    "aborted",
    "out of range",
    "unimplemented",
    "internal",
    "unavailable",
    "data loss",
    "unauthenticated",
)


class NodeEnd(SessionEnd):
    """The Node's end of one session: a NodeStream over a call and the connection that was made for it."""

    __slots__ = ("_connection", "_is_reading", "_lost", "end_reason")

    def __init__(self, connection: Connection, call: Call, lost: asyncio.Event) -> None:
        """`lost` is set when the transport is gone."""
        super().__init__(call)
        self._connection = connection
        self._lost = lost
        self._is_reading = False
        self.end_reason = ""

    async def read(self) -> bytes | None:
        """See MessageStream."""
        if self.is_abandoned:
            return None
        self._is_reading = True
        try:
            message = await self._call.read()  # network
            while message is not None and self.is_abandoned:
                message = await self._call.read()  # network; nobody wants it any more
        finally:
            self._is_reading = False
        if message is None and not self.is_abandoned:
            self.end_reason = plain_end(self._connection, self._call)
        return message

    def abandon(self) -> None:
        """See MessageStream."""
        if self.is_abandoned:
            return
        self.is_abandoned = True
        if self._call.is_over:
            self.end_reason = self.end_reason or plain_end(self._connection, self._call)
        elif self._is_writing:
            self._connection.abort(GIVEN_UP)
        else:
            self._call.half_close()
        detach(self._close())

    async def _close(self) -> None:
        """End the connection, and be done when it is gone: a loop that stops earlier leaves an open transport."""
        if not self._call.is_over:
            await self._let_it_end()
        if self._call.is_over:
            self._connection.close()
        else:
            self._connection.abort(GIVEN_UP)
        await self._lost.wait()

    async def _let_it_end(self) -> None:
        """Let the Edge end the call; it cannot while messages of its own are unread."""
        call = self._call
        over = asyncio.Event()
        call.on_over = lambda _: over.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_GRACE_S):
                while not self._is_reading and await call.read() is not None:
                    pass
                if not call.is_over:
                    await over.wait()
        call.on_over = None


def plain_end(connection: Connection, call: Call) -> str:
    """Say in one line why a call ended, "" for an end in order."""
    status = call.status
    if status is None:
        return connection.end_reason or "the connection was lost"
    if status == GRPC_OK:
        return ""
    if status == GRPC_UNIMPLEMENTED:
        return NO_EDGE
    return call.details or (STATUS_NAMES[status] if status < len(STATUS_NAMES) else f"status {status}")


async def dial(
    address: str, trust: Trust | None, *, server_name: str | None, window_bytes: int, limit_s: float
) -> NodeEnd:
    """See `wire/transport.py`. One connection, for this session alone."""
    # The connection's own limit of a handshake stands behind the caller's, which bounds all of it.
    limits = Limits(
        window_bytes=window_bytes, handshake_ns=int(2 * limit_s * NS_PER_S), close_ns=int(CLOSE_GRACE_S * NS_PER_S)
    )
    lost = asyncio.Event()
    authority = (server_name or address).encode("ascii", "backslashreplace")
    try:
        async with asyncio.timeout(limit_s):
            connection = await _open(limits, address, trust, server_name, lost)
        call = connection.open_call(METHOD.encode(), authority, b"http" if trust is None else b"https")
        return NodeEnd(connection, call, lost)
    except TimeoutError:
        raise ConnectionError(f"no answer from the Edge at {address} within {limit_s:g} s") from None
    except OSError as error:
        reason = plain_tls_error(error) if isinstance(error, ssl.SSLError) else error.strerror or error
        raise ConnectionError(f"cannot connect to the Edge at {address}: {reason}") from None


async def _open(
    limits: Limits, address: str, trust: Trust | None, server_name: str | None, lost: asyncio.Event
) -> Connection:
    """Connect by TCP, then by TLS where there is trust, and wait for the peer's SETTINGS; raises OSError."""
    host, port = split_address(address)
    connected = await connect(host, port)
    connection = Connection(asyncio.get_running_loop(), limits, is_server=False, on_lost=lambda _: lost.set())
    ready = connection.ready
    assert ready is not None, "a client's connection has it"
    if trust is None:
        await _attach(connection, connected, None, None)
    else:
        await _attach(connection, connected, trust.context, server_name or host.partition("%")[0])
    try:
        if trust is not None:
            _check_alpn(connection)
        try:
            await ready  # network
        except ConnectionError as error:
            raise ConnectionError(f"{error}{_hint(str(error), trust)}") from None
    except BaseException:
        ready.cancel()  # nobody asks for it any more
        connection.abort("the attempt was given up")
        raise
    return connection


async def _attach(
    connection: Connection, connected: socket.socket, context: ssl.SSLContext | None, name: str | None
) -> None:
    """Hand a socket over to the loop, whose it is whatever comes of it; raises OSError."""
    try:
        await asyncio.get_running_loop().create_connection(
            lambda: cast(asyncio.Protocol, connection), sock=connected, ssl=context, server_hostname=name
        )  # network
    except ssl.SSLError:
        raise
    except OSError as error:
        raise ConnectionError(str(error) or "the connection was closed during the TLS handshake") from None


def _hint(reason: str, trust: Trust | None) -> str:
    """What a peer may want that goes without a word, in the middle of a handshake: no loop sends TLS's own."""
    if not reason.startswith((PEER_LEFT, LOST)):
        return ""
    return ", as one that wants TLS does" if trust is None else ", as one that does not take our certificate does"


def _check_alpn(connection: Connection) -> None:
    tls = connection.transport.get_extra_info("ssl_object") if connection.transport is not None else None
    if tls is not None and tls.selected_alpn_protocol() != ALPN:
        raise ConnectionError("it speaks TLS but not HTTP/2")
