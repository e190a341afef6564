"""The Edge's listener for Nodes over our own HTTP/2: sessions, and gRPC health for whoever asks.

Connections are accepted here and not by an `asyncio.Server`: each handshake takes the identity's context of that
moment, so that a replaced certificate or authority counts from the next connection on and listening never pauses; and
what is in the middle of a handshake can be cut when the server stops. A connection is a task until its handshake is
done; from then on it is a `Connection`, and a call on it is one task: of a session, which is never cancelled, or of a
health check. Until a session on it is registered (`on_registered`) it is a stranger: it may hold little, and there are
`STRANGERS_MAX` of them, the oldest cut for the next. With the end of its session a connection closes.

Ending. A session ends by status OK when its function returns. A session that is abandoned ends by UNAVAILABLE behind
what was written, and its connection closes; where a write is under way its peer does not read, or not fast enough, and
the connection is cut at once. So an abandoned call is open for `CLOSE_GRACE_S` at most, and nothing here waits for a
peer. `stop` takes its grace and a moment, whatever peers do.

Who may call: the event loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, cast

from iop_fast.wire.credentials import ALPN, ServerIdentity, certificate_names, plain_tls_error
from iop_fast.wire.ends import (
    CLOSE_GRACE_S,
    EDGE_CLOSED,
    MAX_CALLS,
    METHOD,
    SERVICE,
    OnRefused,
    OnStream,
)
from iop_fast.wire.health import CHECK, NO_SERVICE, NO_WATCH, SERVICE_UNKNOWN, WATCH, Health
from iop_fast.wire.http2.call import Call
from iop_fast.wire.http2.connection import Connection
from iop_fast.wire.http2.fields import (
    GRPC_INTERNAL,
    GRPC_OK,
    GRPC_RESOURCE_EXHAUSTED,
    GRPC_UNAVAILABLE,
    GRPC_UNIMPLEMENTED,
)
from iop_fast.wire.http2.limits import Limits
from iop_fast.wire.http2.session_end import SessionEnd
from iop_fast.wire.http2.strangers import Stranger, Strangers
from iop_fast.wire.listening import bind_sockets, join_address

GRPC_DEADLINE_EXCEEDED, GRPC_NOT_FOUND = 4, 5

# Connections of all peers, those in a handshake among them; a further one is closed without a word.
MAX_CONNECTIONS = 4096
# Those among them without a registered session: a fleet that dials in at once, not a crowd that never speaks.
STRANGERS_MAX = 1024
# Connections taken from the kernel in one turn of the loop.
ACCEPTS_A_TURN = 64
# When the process has no file descriptor left, what waits is looked at again after this.
NO_FILE_PAUSE_S = 1.0
NO_FILE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

TLS_HANDSHAKE_S = 10.0
# How long the one message of a health check may take to come.
REQUEST_LIMIT_S = 10.0
# How long the end of a session may take to leave for a peer that reads slowly.
END_LIMIT_S = 10.0
# What functions of sessions get to return in once everything has been cut.
STOP_LIMIT_S = 1.0

Serve = Callable[[Call, str], Coroutine[Any, Any, None]]


class EdgeEnd(SessionEnd):
    """The Edge's end of one session: an EdgeStream over a call."""

    __slots__ = ("_names", "_server")

    def __init__(self, call: Call, names: frozenset[str], server: Http2Server) -> None:
        super().__init__(call)
        self._names = names
        self._server = server

    @property
    def peer_names(self) -> frozenset[str]:
        """See EdgeStream."""
        return self._names

    def on_registered(self) -> None:
        """See EdgeStream."""
        connection = self._call.connection
        assert isinstance(connection, Connection)
        self._server.on_registered(connection)

    async def read(self) -> bytes | None:
        """See MessageStream."""
        if self.is_abandoned:
            return None
        return await self._call.read()  # network

    def abandon(self) -> None:
        """See MessageStream."""
        if self.is_abandoned:
            return
        self.is_abandoned = True
        if not self._call.is_over:
            self._server.give_up(self._call, is_stuck=self._is_writing)


class Http2Server:
    """See `ends.LinkServer`. `start` once, `stop` once."""

    def __init__(
        self, on_stream: OnStream, identity: ServerIdentity | None, limits: Limits, on_refused: OnRefused | None
    ) -> None:
        """`on_refused(peer, reason)` is told of connections that came to nothing before they spoke HTTP/2."""
        self._loop = asyncio.get_running_loop()
        self._on_stream = on_stream
        self._identity = identity
        self._limits = limits
        self._on_refused = on_refused
        self._listeners: list[socket.socket] = []
        self._connections: dict[Connection, None] = {}
        self._handshakes: dict[asyncio.Task[None], None] = {}
        self._strangers = Strangers(self._loop, STRANGERS_MAX, self._refuse)
        self._calls: dict[asyncio.Task[None], None] = {}
        self._serves: dict[bytes, Serve] = {
            METHOD.encode(): self._serve_session,
            CHECK.encode(): self._serve_check,
            WATCH.encode(): self._serve_watch,
        }
        self._has_changed: asyncio.Future[None] | None = None
        self._is_stopping = False
        self.health = Health(SERVICE)
        self.port = 0
        self.abandoned = 0
        self.abandoned_pending = 0

    @property
    def connections(self) -> int:
        """Connections whose handshake is done."""
        return len(self._connections)

    @property
    def strangers(self) -> int:
        """Connections without a registered session, those in a handshake among them."""
        return len(self._strangers)

    @property
    def strangers_cut(self) -> int:
        """See LinkServer."""
        return self._strangers.cut_count

    # Listening.

    async def start(self, address: str) -> None:
        """Bind and serve; raise OSError that names the address."""
        self._listeners = await bind_sockets(address)
        self.port = int(self._listeners[0].getsockname()[1])
        for listener in self._listeners:
            self._loop.add_reader(listener, self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(ACCEPTS_A_TURN):
            try:
                accepted, place = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in NO_FILE:
                    raise
                self._loop.remove_reader(listener)
                self._loop.call_later(NO_FILE_PAUSE_S, self._accept_again, listener)
                return
            self._welcome(accepted, join_address(place[0], place[1]))

    def _accept_again(self, listener: socket.socket) -> None:
        if not self._is_stopping:
            self._loop.add_reader(listener, self._accept, listener)

    def _welcome(self, accepted: socket.socket, peer: str) -> None:
        if len(self._connections) + len(self._handshakes) >= MAX_CONNECTIONS:
            accepted.close()
            self._refuse(peer, f"at most {MAX_CONNECTIONS} connections")
            return
        accepted.setblocking(False)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stranger = self._strangers.add(peer)
        stranger.handshake = self._track(self._handshakes, self._shake_hands(accepted, stranger))

    async def _shake_hands(self, accepted: socket.socket, stranger: Stranger) -> None:
        """Make a connection of a socket; its handshake is cut by cancelling this."""
        peer = stranger.peer
        context = None if self._identity is None else self._identity.context
        make = partial(
            Connection,
            self._loop,
            self._limits,
            is_server=True,
            on_call=partial(self._on_call, peer),
            on_lost=self._on_lost,
        )
        made: list[Connection] = []

        def remember() -> asyncio.Protocol:
            made.append(make())
            return cast(asyncio.Protocol, made[0])

        try:
            await self._loop.connect_accepted_socket(
                remember, accepted, ssl=context, ssl_handshake_timeout=None if context is None else TLS_HANDSHAKE_S
            )
        except OSError as error:
            reason = plain_tls_error(error) if isinstance(error, ssl.SSLError) else str(error)
            self._refuse(peer, f"no TLS handshake: {reason or 'the peer has left'}")
            return
        finally:
            if not made:
                accepted.close()
            if not made or made[0].transport is None:  # no handshake, or lost in the meantime
                self._strangers.forget(stranger)
        connection = made[0]
        transport = connection.transport
        if transport is None:
            return
        self._connections[connection] = None
        self._strangers.attach(stranger, connection)
        tls = transport.get_extra_info("ssl_object")
        if tls is not None and tls.selected_alpn_protocol() != ALPN:
            self._refuse(peer, "it did not offer HTTP/2 by ALPN")
            connection.abort("no HTTP/2 by ALPN")
        elif self._is_stopping:
            connection.abort(EDGE_CLOSED)

    def _refuse(self, peer: str, reason: str) -> None:
        if self._on_refused is not None:
            self._on_refused(peer, reason)

    def _on_lost(self, connection: Connection) -> None:
        self._connections.pop(connection, None)
        self._strangers.release(connection)
        self._wake()

    # Stopping.

    async def stop(self, grace_s: float) -> bool:
        """See LinkServer; False when a session's function did not return though its stream has ended."""
        self._is_stopping = True
        for listener in self._listeners:
            self._loop.remove_reader(listener)
            listener.close()
        self.health.stop()
        await asyncio.sleep(0)  # a task that is cancelled before it began would leave its socket open
        for handshake in list(self._handshakes):
            handshake.cancel()
        for connection in list(self._connections):
            connection.drain()
        if not await self._wait_until_idle(grace_s):
            for connection in list(self._connections):
                connection.abort("the Edge stops")
        return await self._wait_until_idle(STOP_LIMIT_S)

    async def _wait_until_idle(self, limit_s: float) -> bool:
        """Wait until there is neither a connection nor a call; False at the limit."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while self._connections or self._handshakes or self._calls:
                    self._has_changed = self._loop.create_future()
                    await self._has_changed
        return not (self._connections or self._handshakes or self._calls)

    def _track(self, tasks: dict[asyncio.Task[None], None], work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a task that `stop` waits for."""
        task = self._loop.create_task(work)
        tasks[task] = None

        def forget(_: object) -> None:
            del tasks[task]
            self._wake()

        task.add_done_callback(forget)
        return task

    def _wake(self) -> None:
        if self._has_changed is not None and not self._has_changed.done():
            self._has_changed.set_result(None)

    # Calls.

    def _on_call(self, peer: str, call: Call) -> None:
        serve = self._serves.get(call.path)
        if serve is None:
            call.finish(GRPC_UNIMPLEMENTED, "unknown method")
        elif len(self._calls) >= MAX_CALLS:
            call.finish(GRPC_RESOURCE_EXHAUSTED, f"at most {MAX_CALLS} calls")
        else:
            self._track(self._calls, serve(call, peer))

    async def _serve_session(self, call: Call, peer: str) -> None:
        transport = call.connection.transport
        names = certificate_names(None if transport is None else transport.get_extra_info("ssl_object"))
        stream, status = EdgeEnd(call, names, self), GRPC_OK
        try:
            await self._on_stream(stream, peer)
        except ConnectionError:
            pass  # the stream has ended, which is said by its reads
        except Exception as error:  # noqa: BLE001 - one session's failure ends its own stream alone
            self._loop.call_exception_handler({"message": "a session failed", "exception": error})
            status = GRPC_INTERNAL
        if not stream.is_abandoned:
            self._finish(call, status)
            connection = call.connection
            assert isinstance(connection, Connection)
            connection.drain()

    def on_registered(self, connection: Connection) -> None:
        """The session on a connection is registered: its peer is no stranger any more. Idempotent."""
        connection.on_known()
        self._strangers.release(connection)

    def _finish(self, call: Call, status: int) -> None:
        """End a call, and cut its connection where the peer does not take that."""
        call.finish(status)
        if not call.is_over:
            cut = self._loop.call_later(END_LIMIT_S, call.connection.abort, "it does not read")
            call.on_over = partial(_cancel, cut)

    def give_up(self, call: Call, *, is_stuck: bool) -> None:
        """End a session that was abandoned: behind what was written, or at once where a write is stuck."""
        self.abandoned += 1
        connection = call.connection
        assert isinstance(connection, Connection)
        if is_stuck:
            connection.abort(EDGE_CLOSED)
            return
        call.finish(GRPC_UNAVAILABLE, EDGE_CLOSED)
        if not call.is_over:
            self.abandoned_pending += 1
            cut = self._loop.call_later(CLOSE_GRACE_S, connection.abort, EDGE_CLOSED)
            call.on_over = partial(self._on_given_up, cut)
        connection.drain()

    def _on_given_up(self, cut: asyncio.TimerHandle, _: Call) -> None:
        cut.cancel()
        self.abandoned_pending -= 1

    # Health.

    async def _request(self, call: Call) -> bytes | None:
        """Read the one message of a call; None when it did not come, and the call has ended."""
        limit = self._loop.call_later(REQUEST_LIMIT_S, call.finish, GRPC_DEADLINE_EXCEEDED, "no request")
        request = await call.read()  # network
        limit.cancel()
        if request is None:
            call.finish(GRPC_INTERNAL, "no request")
        return request

    async def _serve_check(self, call: Call, _: str) -> None:
        request = await self._request(call)
        if request is None:
            return
        status = self.health.status(request)
        if status is SERVICE_UNKNOWN:
            call.finish(GRPC_NOT_FOUND, NO_SERVICE)
            return
        await self._say(call, call.write(status))

    async def _serve_watch(self, call: Call, _: str) -> None:
        request = await self._request(call)
        if request is None:
            return
        if not self.health.has_room:
            call.finish(GRPC_RESOURCE_EXHAUSTED, NO_WATCH)
            return
        watching = asyncio.current_task()
        assert watching is not None
        call.on_over = partial(_cancel, watching)
        with contextlib.suppress(asyncio.CancelledError):
            if not call.is_over:
                await self._say(call, self.health.watch(request, call.write))

    async def _say(self, call: Call, saying: Awaitable[None]) -> None:
        """Send what a health call is answered with, and end it."""
        with contextlib.suppress(ConnectionError):
            await saying
            call.on_over = None
            self._finish(call, GRPC_OK)


def _cancel(what: asyncio.Task[None] | asyncio.TimerHandle, _: Call) -> None:
    what.cancel()


async def serve(
    address: str,
    on_stream: OnStream,
    *,
    identity: ServerIdentity | None,
    window_bytes: int,
    on_refused: OnRefused | None,
) -> Http2Server:
    """See `wire/transport.py`."""
    server = Http2Server(on_stream, identity, Limits(window_bytes=window_bytes), on_refused)
    await server.start(address)
    return server
