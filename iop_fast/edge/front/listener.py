"""The HTTP front: listening sockets, what all connections share, and the way down.

Life: made -> started -> (stop_accepting, drain, close_idle in any order) -> closed. A front that drains answers what
comes with `Connection: close`, so that clients leave by themselves; the application decides how long it waits for
`wait_empty` and then calls `close`.

All times and clocks come from outside, but for the wall clock of the Date field.
"""

from __future__ import annotations

import asyncio
import email.utils
import errno
import http
import os
import socket
import ssl
from collections.abc import Callable
from typing import Any, cast

from iop_fast import logs
from iop_fast.config.schema.front import HttpLimits
from iop_fast.edge.ages import AgeList, Ticker
from iop_fast.edge.front.connection import Connection
from iop_fast.edge.front.shared import MS_PER_S, Render, Shared
from iop_fast.errors import Failure, error_body
from iop_fast.seams import Clock, Head, Service

NS_PER_MS = 1_000_000
BACKLOG = 4_096
# How long input is dropped after our end of a connection, before it is closed under the client.
LINGER_NS = 5_000 * NS_PER_MS
# Connections above the limit that are being told so; those beyond are cut without a word.
REFUSED_CONNECTIONS_MAX = 1_024
TLS_HANDSHAKE_S = 10.0
# A client whose host or network is gone sends no FIN: it is asked after a minute of silence and given up 30 s later.
PROBE_AFTER_S, PROBE_EACH_S, PROBES = 60, 10, 3

log = logs.get(__name__)


def render_failure(failure: Failure, message: str, path: bytes) -> tuple[Head, bytes]:
    """Render a refusal without a request id; a service gives the front its own form."""
    row = failure.value
    headers = [(b"content-type", b"application/json"), (b"x-iop-reason", failure.reason.encode("ascii"))]
    return Head(row.status, reason_phrase(row.status), headers), error_body(failure, message)


def reason_phrase(status: int) -> bytes:
    """Return the registered reason phrase of a status, b"" for one that has none."""
    try:
        return http.HTTPStatus(status).phrase.encode("ascii")
    except ValueError:
        return b""


class Front(Shared):
    """Serves HTTP/1.1 and 1.0 for one `Service`, on any number of addresses."""

    def __init__(
        self,
        service: Service,
        limits: HttpLimits,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        *,
        render: Render = render_failure,
        ticker: Ticker | None = None,
    ) -> None:
        """`render` makes the head and body of the front's own refusals. A `ticker` given is the caller's to start and
        stop; without one the front has its own."""
        super().__init__(service, limits, clock, loop, render)
        self._refresh_date(clock.now_ns())
        self.heads = AgeList(clock, limits.header_ms * NS_PER_MS, Connection.on_head_late)
        self.bodies = AgeList(clock, limits.body_grace_ms * NS_PER_MS, Connection.on_body_late)
        self.idles = AgeList(clock, max(limits.keep_alive_ms, 1) * NS_PER_MS, Connection.on_idle_late)
        self.stalls = AgeList(clock, limits.write_stall_ms * NS_PER_MS, Connection.on_stall_late)
        self.lingers = AgeList(clock, LINGER_NS, Connection.on_linger_late)
        self._own_ticker = Ticker(clock, loop) if ticker is None else None
        self._register(ticker or self._own_ticker)

        self._servers: list[asyncio.Server] = []
        self._renewals: asyncio.Task[None] | None = None
        self._connections: dict[Connection, None] = {}
        self._by_address: dict[str, int] = {}  # open connections, counted only where they are limited
        self._refused: dict[Connection, None] = {}
        self._empty_waiters: list[asyncio.Future[None]] = []

    def _register(self, ticker: Ticker | None) -> None:
        assert ticker is not None
        for ages in (self.heads, self.bodies, self.idles, self.stalls, self.lingers):
            ticker.register(ages.sweep)
        ticker.register(self._refresh_date)

    def _refresh_date(self, now_ns: int) -> None:
        self.date_line = b"Date: %s\r\n" % email.utils.formatdate(usegmt=True).encode("ascii")

    @property
    def connections(self) -> int:
        """Open connections within the limit."""
        return len(self._connections)

    @property
    def port(self) -> int:
        """Port of the first address; for a listener on port 0 the one that the system chose."""
        return int(self._servers[0].sockets[0].getsockname()[1])

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        """Listen on an address, port 0 for any free one. Raises OSError that names the address where it cannot be had.

        The port is never shared: two Edges on one port would be two ledgers over one fleet.
        """
        try:
            server = await self._listen(tls, host=host, port=port, reuse_port=False)
        except OSError as error:
            raise _named(error, host, port) from None
        for sock in server.sockets:
            self._find_dead_clients(sock)
        self._servers.append(server)
        if self._own_ticker is not None and not self._own_ticker.is_running:
            self._own_ticker.start()
        log.info("http_listening", host=host, port=server.sockets[0].getsockname()[1], tls=tls is not None)

    def renew_tls(self, tls: ssl.SSLContext) -> None:
        """Take new connections by another context from the next turn on; open ones keep theirs.

        A context cannot forget an authority, and it hands out tickets that spare a client the check: so the listening
        sockets, which stay bound, pass to servers with the new one.
        """
        self._renewals = self.loop.create_task(self._renew_tls(tls, self._renewals))

    async def _renew_tls(self, tls: ssl.SSLContext, earlier: asyncio.Task[None] | None) -> None:
        if earlier is not None:
            await earlier
        kept: list[asyncio.Server] = []
        dropped = self._servers
        try:
            for server in dropped:
                for listening in server.sockets:
                    kept.append(await self._listen(tls, sock=socket.socket(fileno=os.dup(listening.fileno()))))
        except OSError as error:
            log.error("certificate_not_used", section="openai.tls", error=error)
            kept, dropped = dropped, kept
        if all(server.is_serving() for server in self._servers):
            self._servers = kept
        else:
            dropped = [*kept, *dropped]  # accepting was stopped meanwhile
        for server in dropped:
            server.close()

    async def _listen(self, tls: ssl.SSLContext | None, **where: Any) -> asyncio.Server:
        return await self.loop.create_server(
            cast(Callable[[], asyncio.BaseProtocol], self._make_connection),
            backlog=BACKLOG,
            ssl=tls,
            ssl_handshake_timeout=TLS_HANDSHAKE_S if tls is not None else None,
            **where,
        )

    def _find_dead_clients(self, listener: socket.socket) -> None:
        """Have the kernel end connections whose other end is gone; accepted sockets inherit the options (Linux)."""
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBE_AFTER_S)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_EACH_S)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)
        # How long written bytes may stay unacknowledged; the kernel's own limit is 15 minutes. Behind our own stall
        # limit, which counts and sees more.
        unacknowledged_ms = self.limits.write_stall_ms + PROBE_EACH_S * MS_PER_S
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, unacknowledged_ms)

    def stop_accepting(self) -> None:
        """Close the listening sockets; connections stay."""
        for server in self._servers:
            server.close()

    def drain(self) -> None:
        """Close each connection after the answer under way: every answer from here on says `Connection: close`."""
        self.is_draining = True

    def close_idle(self) -> None:
        """Close the connections that have no request."""
        for connection in list(self._connections):
            connection.close_if_idle()

    async def wait_empty(self) -> None:
        """Return once no connection is left."""
        if self._connections:
            waiter = self.loop.create_future()
            self._empty_waiters.append(waiter)
            await waiter

    def close(self) -> None:
        """Stop listening and cut everything that is left. Idempotent."""
        self.stop_accepting()
        self.is_draining = True
        for connection in [*self._connections, *self._refused]:
            connection.close_now()
        if self._own_ticker is not None:
            self._own_ticker.stop()

    def _make_connection(self) -> Connection:
        return Connection(self)

    # What connections call.

    def on_connection(self, connection: Connection) -> bool:
        """Take a new connection in; return False when it was refused instead."""
        self.counters.connections += 1
        if len(self._connections) < self.limits.connections and self._enter_address(connection):
            self._connections[connection] = None
            return True
        is_told = len(self._refused) < REFUSED_CONNECTIONS_MAX
        self._refused[connection] = None
        if is_told:
            connection.refuse_overload()
        else:
            connection.close_now()
        return False

    def on_connection_lost(self, connection: Connection) -> None:
        """Forget a connection that is gone."""
        self._refused.pop(connection, None)
        self._leave_address(connection)
        self._connections.pop(connection, None)
        if not self._connections and self._empty_waiters:
            waiters, self._empty_waiters = self._empty_waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def _enter_address(self, connection: Connection) -> bool:
        """Count a connection under its client's address; False when that has as many as it may."""
        limit = self.limits.connections_per_address
        if not limit:
            return True
        address = connection.address
        count = self._by_address.get(address, 0)
        if count >= limit:
            return False
        self._by_address[address] = count + 1
        return True

    def _leave_address(self, connection: Connection) -> None:
        if connection in self._connections and self.limits.connections_per_address:
            left = self._by_address[connection.address] - 1
            if left:
                self._by_address[connection.address] = left
            else:
                del self._by_address[connection.address]


def _named(error: OSError, host: str, port: int) -> OSError:
    """Say in one line which address cannot be had and why; the loop's own text varies with the loop."""
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    number = error.errno or errno.EINVAL
    reason = error.strerror if isinstance(error, socket.gaierror) else os.strerror(number)
    return OSError(number, f"cannot listen on {address}: {str(reason).lower()}")
