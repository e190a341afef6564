"""The link by grpcio: the Edge's server, the Node's channel, and how both give a stream up.

grpc.aio is a sound base for one long stream under rules that its API does not state:

- One read and one write at a time, none of them ever cancelled: a second one, or a write that was timed out, breaks the
  stream for good. So a stream has one reader task and one writer task, and time limits end the stream from outside.
- The end of a call cannot be waited for. While the peer does not read, neither `abort` nor a return from the handler
  ends a call; a CancelledError that leaves the handler ends it never, and the peer waits for ever. So `abandon` returns
  at once and leaves the call to one detached task; the handler runs the session in a task of its own, takes every
  cancellation as the news that the peer left, and always returns, which ends the call by a status.
- A channel per attempt, without the process-wide subchannel pool: gRPC's own back-off would outlive the channel.
- A server never shares its port (`options.py`); a host name is bound on every address that it has, or not at all.

Messages are bytes on both sides: gRPC gets no serializers.

Ending. The Edge ends a call by status OK when its session function returns, and by UNAVAILABLE when it abandons the
stream. A Node that abandons a stream closes its direction first, so that what it wrote still arrives, gives the Edge
`CLOSE_GRACE_S` to end the call and cancels it then; with a write in flight it cancels at once.
"""

from __future__ import annotations

import asyncio
import logging
import re
from contextlib import suppress
from functools import partial
from typing import Any
from urllib.parse import unquote

import grpc
from grpc import aio

from iop_fast.wire.credentials import ServerIdentity, Trust
from iop_fast.wire.ends import (
    CLOSE_GRACE_S,
    EDGE_CLOSED,
    GIVEN_UP,
    MAX_CALLS,
    METHOD,
    NO_EDGE,
    SERVICE,
    OnStream,
    check_size,
    detach,
)
from iop_fast.wire.grpcio.credentials import channel_credentials, server_credentials
from iop_fast.wire.grpcio.health import health_handler
from iop_fast.wire.grpcio.listening import bind_all
from iop_fast.wire.grpcio.options import channel_options, server_options
from iop_fast.wire.health import Health

# `grpc.aio.Server.stop` can hang for ever (grpc #40989, or an abandoned call): longer than this it is not waited for.
STOP_LIMIT_S = 3.0

# "UNKNOWN: ipv4:127.0.0.1:8081: " before "Failed to connect to remote host: Connection refused".
STATUS_LAYERS = re.compile(r"^(?:[A-Z_]+: |ipv[46]:\S+: )+")

# A server that could not be bound logs itself at debug level while it is being deallocated: a handler that keeps the
# record, or formats it late, then uses freed memory.
logging.getLogger("grpc._cython.cygrpc").setLevel(logging.INFO)


class EdgeStream:
    """The Edge's end of one session: a MessageStream over a servicer context."""

    __slots__ = ("_context", "_is_abandoned", "_is_over", "_server")

    def __init__(self, context: aio.ServicerContext[bytes, bytes], server: GrpcServer) -> None:
        self._context = context
        self._server = server
        self._is_over = False
        self._is_abandoned = False

    @property
    def peer_names(self) -> frozenset[str]:
        """Names in the client certificate that the peer has shown: its common name and its alternative names."""
        context = self._context.auth_context()
        shown = (*context.get("x509_common_name", ()), *context.get("x509_subject_alternative_name", ()))
        return frozenset(name.decode("utf-8", "replace") for name in shown)

    def on_registered(self) -> None:
        """See `ends.EdgeStream`; grpcio has one limit for all messages."""

    async def read(self) -> bytes | None:
        """See MessageStream."""
        if self._is_over or self._is_abandoned:
            return None
        message: object = None
        with suppress(aio.BaseError):  # the call has ended
            message = await self._context.read()  # network
        if isinstance(message, bytes):
            return message
        self._is_over = True
        return None

    async def write(self, message: bytes) -> None:
        """See MessageStream. Raises ValueError above `MAX_MESSAGE_BYTES`."""
        check_size(message)
        if self._is_abandoned:
            raise ConnectionError(GIVEN_UP)
        try:
            await self._context.write(message)  # network
        except aio.BaseError as error:
            raise ConnectionError(f"the stream has ended: {error}") from None

    def abandon(self) -> None:
        """See MessageStream. One abort in a detached task, whenever the peer lets it through."""
        if self._is_abandoned:
            return
        self._is_abandoned = True
        if not self._context.done():
            self._server.on_abandoned(detach(self._abort()))

    async def _abort(self) -> None:
        with suppress(aio.BaseError):  # an abort ends by raising AbortError
            await self._context.abort(grpc.StatusCode.UNAVAILABLE, EDGE_CLOSED)


class NodeStream:
    """The Node's end of one session: a MessageStream over a call and the channel that was made for it."""

    __slots__ = ("_call", "_channel", "_is_abandoned", "_is_over", "_is_reading", "_is_writing", "end_reason")

    def __init__(self, channel: aio.Channel, call: aio.StreamStreamCall[bytes, bytes]) -> None:
        self._channel = channel
        self._call = call
        self._is_over = False
        self._is_abandoned = False
        self._is_reading = False
        self._is_writing = False
        self.end_reason = ""
        """For people: why the stream ended, once it has and when gRPC knows."""

    async def read(self) -> bytes | None:
        """See MessageStream."""
        if self._is_over or self._is_abandoned:
            return None
        message: object = None
        self._is_reading = True
        try:
            message = await self._call.read()  # network
        except aio.AioRpcError as error:
            self.end_reason = plain_status(error.code(), error.details())
        except (aio.BaseError, asyncio.InvalidStateError) as error:
            self.end_reason = str(error)
        except asyncio.CancelledError:
            if not self._is_abandoned:
                raise
            # the call was cancelled, not the reader
        finally:
            self._is_reading = False
        if isinstance(message, bytes):
            return message
        self._is_over = True
        return None

    async def write(self, message: bytes) -> None:
        """See MessageStream. Raises ValueError above `MAX_MESSAGE_BYTES`."""
        check_size(message)
        if self._is_abandoned:
            raise ConnectionError(GIVEN_UP)
        self._is_writing = True
        try:
            await self._call.write(message)  # network
        except aio.AioRpcError as error:
            raise ConnectionError(plain_status(error.code(), error.details())) from None
        except (aio.BaseError, asyncio.InvalidStateError) as error:
            raise ConnectionError(f"the stream has ended: {error}") from None
        except asyncio.CancelledError:
            if not self._is_abandoned:
                raise
            raise ConnectionError(GIVEN_UP) from None
        finally:
            self._is_writing = False

    def abandon(self) -> None:
        """See MessageStream."""
        if self._is_abandoned:
            return
        self._is_abandoned = True
        detach(self._close())

    async def _close(self) -> None:
        if not self._is_writing and not self._call.done():
            with suppress(TimeoutError, aio.AioRpcError, aio.BaseError, asyncio.InvalidStateError):
                async with asyncio.timeout(CLOSE_GRACE_S):
                    await self._finish()
        self._call.cancel()
        await self._channel.close(None)

    async def _finish(self) -> None:
        """Close our direction and let the Edge end the call; it cannot while messages of its own are unread."""
        ended = asyncio.get_running_loop().create_future()
        self._call.add_done_callback(partial(_set_done, ended))
        await self._call.done_writing()
        while not self._is_reading and isinstance(await self._call.read(), bytes):
            pass
        await ended


def _set_done(future: asyncio.Future[None], _: object) -> None:
    if not future.done():
        future.set_result(None)


async def dial(
    address: str, trust: Trust | None, *, server_name: str | None, window_bytes: int, limit_s: float
) -> NodeStream:
    """See `wire/transport.py`. One attempt on a channel of its own."""
    options: list[tuple[str, int | str]] = [*channel_options(window_bytes)]
    if trust is None:
        channel = aio.insecure_channel(address, options=options)
    else:
        if server_name is not None:
            options.append(("grpc.ssl_target_name_override", server_name))
        channel = aio.secure_channel(address, channel_credentials(trust), options=options)
    call = channel.stream_stream(METHOD, None, None)(None)
    stream = NodeStream(channel, call)
    try:
        async with asyncio.timeout(limit_s):
            await call.wait_for_connection()  # network
    except aio.AioRpcError as error:
        stream.abandon()
        reason = plain_status(error.code(), error.details())
        raise ConnectionError(f"cannot connect to the Edge at {address}: {reason}") from None
    except TimeoutError:
        stream.abandon()
        raise ConnectionError(f"no answer from the Edge at {address} within {limit_s:g} s") from None
    except BaseException:
        stream.abandon()
        raise
    return stream


def plain_status(code: grpc.StatusCode, details: str | None) -> str:
    """Say in one line why a call ended, without the layers that gRPC puts around the system's message."""
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return NO_EDGE
    text = (details or "").rsplit("last error: ", 1)[-1]
    return STATUS_LAYERS.sub("", text) or code.name.lower()


class GrpcServer:
    """The Edge's gRPC listener: sessions and gRPC health.

    `abandoned` counts streams that were given up, `abandoned_pending` those among them that gRPC still holds because
    their peer does not read.
    """

    strangers_cut = 0  # grpcio neither says nor bounds who has no session

    def __init__(self, on_stream: OnStream, window_bytes: int) -> None:
        self._on_stream = on_stream
        self._server = aio.server(options=server_options(window_bytes), maximum_concurrent_rpcs=MAX_CALLS)
        self.health = Health(SERVICE)
        self.port = 0
        self.abandoned = 0
        self.abandoned_pending = 0
        session = grpc.stream_stream_rpc_method_handler(self._serve_session)
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, {"Session": session}), health_handler(self.health))
        )

    async def start(self, address: str, identity: ServerIdentity | None) -> None:
        """Bind and serve; raise OSError that names the address."""
        credentials = None if identity is None else server_credentials(identity)
        self.port = await bind_all(self._server, address, credentials)
        await self._server.start()

    async def stop(self, grace_s: float) -> bool:
        """Refuse new calls at once, cut those still open after `grace_s`; False when gRPC did not stop in time."""
        self.health.stop()
        stopping = detach(self._server.stop(grace_s))
        done, _ = await asyncio.wait((stopping,), timeout=grace_s + STOP_LIMIT_S)
        return bool(done)

    def on_abandoned(self, abort: asyncio.Task[Any]) -> None:
        """Count a stream that was given up, until its call has ended."""
        self.abandoned += 1
        self.abandoned_pending += 1
        abort.add_done_callback(self._on_abandoned_ended)

    def _on_abandoned_ended(self, _: asyncio.Task[Any]) -> None:
        self.abandoned_pending -= 1

    async def _serve_session(self, _: Any, context: aio.ServicerContext[bytes, bytes]) -> None:
        stream = EdgeStream(context, self)
        session = asyncio.ensure_future(self._on_stream(stream, plain_peer(context.peer())))
        while not session.done():
            try:
                await asyncio.wait((session,))
            except asyncio.CancelledError:
                continue  # the peer left: the session's read returns None and the session ends by itself
        error = None if session.cancelled() else session.exception()
        if error is not None and not isinstance(error, ConnectionError):
            asyncio.get_running_loop().call_exception_handler({"message": "a session failed", "exception": error})
            context.set_code(grpc.StatusCode.INTERNAL)


def plain_peer(peer: str) -> str:
    """Turn gRPC's `ipv6:%5B::1%5D:4711` into `[::1]:4711`."""
    return unquote(peer.partition(":")[2])


async def serve(address: str, on_stream: OnStream, *, identity: ServerIdentity | None, window_bytes: int) -> GrpcServer:
    """See `wire/transport.py`."""
    server = GrpcServer(on_stream, window_bytes)
    await server.start(address, identity)
    return server
