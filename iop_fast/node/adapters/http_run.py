"""One HTTP request to a provider and its answer, passed on and back as they are.

A run is one task that sends the request and reads the answer; everything else is a callback. What reaches the server is
the caller's method, target, end-to-end fields and body bytes, with Host and Content-Length of the new connection, and
the provider's own key unless the request carries credentials.

Time. `connect_ms` bounds the connect. From then on a watchdog wants progress: first bytes of the body leaving and,
within `first_byte_ms` of the last, the answer's head; then pieces of the answer within `idle_ms` of each other. It
stands still while the run is paused, for that silence is not the server's.

`on_taken` says that the server may have seen the request. On a new connection that is at once. On one from the pool,
which the server may just have closed, it is when the request is written or answered. If such a connection dies before
that, the request cannot have been acted upon and is sent once more.

A failed connect ends the run with CONNECT_FAILED and makes the backend unreachable, unless it is this machine that has
run out of something. An answer, whatever it is, never changes the backend's health.

Ending. The task's end is the run's end: `_on_done` is the one place that calls `on_end`. Who wants the run gone
(`cancel`, the watchdog) leaves a verdict, cuts the connection and cancels the task. An answered run leaves no cycle.
"""

from __future__ import annotations

import asyncio
import contextvars
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import aiohttp
import yarl
from multidict import CIMultiDict

from iop_fast import logs
from iop_fast.config.payload import TimeoutSettings
from iop_fast.node.adapters.http_rules import answer_fields, connect_reason, is_own_failure, request_fields
from iop_fast.node.adapters.upload import Upload
from iop_fast.node.adapters.watchdog import Watchdog
from iop_fast.node.health import Health
from iop_fast.seams import End, Head, TunnelRequest, UpstreamSink
from iop_fast.wire import runtime_pb2 as pb

if TYPE_CHECKING:
    from aiohttp.client_proto import ResponseHandler
    from aiohttp.connector import Connection
    from aiohttp.tracing import Trace

log = logs.get(__name__)

OK = End(pb.RunEnd.OK, "", None)

# The run whose task asks for a connection.
CURRENT: contextvars.ContextVar[HttpRun] = contextvars.ContextVar("CURRENT")


class Connector(aiohttp.TCPConnector):
    """A pool that tells a run which connection it got."""

    def __init__(self, keepalive_s: float) -> None:
        super().__init__(limit=0, keepalive_timeout=keepalive_s)
        self._seen: weakref.WeakSet[ResponseHandler] = weakref.WeakSet()

    async def connect(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Trace],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - aiohttp's signature
    ) -> Connection:
        """Return a connection, from the pool or new.

        One on which the server spoke unasked is not used again: what it said would be taken for the next answer.
        """
        while True:
            connection = await super().connect(req, traces, timeout)
            protocol = connection.protocol
            assert protocol is not None, "a connection without its protocol"
            is_reused = protocol in self._seen
            if not is_reused or not protocol.should_close:
                break
            connection.close()
        if not is_reused:
            self._seen.add(protocol)
            if protocol.closed is not None:
                protocol.closed.add_done_callback(take_note)
        CURRENT.get().on_connected(connection, is_reused)
        return connection


class HttpRun:
    """An UpstreamRun. `key` is the provider's own, "" for none. Raises ValueError for what cannot be sent as HTTP."""

    __slots__ = (
        "_client",
        "_connection",
        "_fields",
        "_has_body",
        "_has_retried",
        "_health",
        "_is_reused",
        "_is_taken",
        "_loop",
        "_method",
        "_resumed",
        "_sink",
        "_task",
        "_timeouts",
        "_upload",
        "_url",
        "_verdict",
        "_watchdog",
    )

    def __init__(
        self,
        client: aiohttp.ClientSession,
        health: Health,
        timeouts: TimeoutSettings,
        url: yarl.URL,
        key: str,
        request: TunnelRequest,
        sink: UpstreamSink,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._client = client
        self._health = health
        self._timeouts = timeouts
        self._url = url
        self._method = request.method.decode("ascii")
        self._fields = CIMultiDict(request_fields(request.headers, key))
        self._sink = sink
        self._has_body = request.body_length > 0
        if self._has_body:
            self._fields["Content-Length"] = str(request.body_length)
        self._upload = Upload(request.body_length, self._loop, self._on_written, self._on_request_written)
        self._upload.feed(request.body, request.body_complete)
        self._watchdog = Watchdog(self._loop, self._on_silent)
        self._connection: Connection | None = None
        self._is_reused = False
        self._is_taken = False
        self._has_retried = False
        self._resumed: asyncio.Future[None] | None = None
        self._verdict: End | None = None
        self._task = self._loop.create_task(self._exchange())
        self._task.add_done_callback(self._on_done)

    # What the relay calls.

    def feed(self, piece: bytes, complete: bool) -> None:
        """Take a piece of the body; raise ValueError when it is not of the announced length."""
        self._upload.feed(piece, complete)

    def pause(self) -> None:
        """Stop reading the answer."""
        if self._resumed is None:
            self._resumed = self._loop.create_future()
            self._watchdog.hold()

    def resume(self) -> None:
        """Go on reading."""
        if self._resumed is not None and not self._task.done():
            if not self._resumed.done():
                self._resumed.set_result(None)
            self._resumed = None
            self._watchdog.go_on()

    def cancel(self) -> None:
        """Cut the connection; the end is CANCELLED."""
        self._stop(End(pb.RunEnd.CANCELLED, "cancelled", None))

    # The request.

    async def _exchange(self) -> End:
        token = CURRENT.set(self)
        try:
            response = await self._send()
        finally:
            CURRENT.reset(token)
        if isinstance(response, End):
            return response
        try:
            return await self._take_answer(response)
        finally:
            response.close()

    async def _send(self) -> aiohttp.ClientResponse | End:
        """Send the request and wait for the answer's head; an End says why there is none."""
        connect_ms = self._timeouts.connect_ms
        timeout = aiohttp.ClientTimeout(total=None, connect=connect_ms / 1000, ceil_threshold=float("inf"))
        while True:
            try:
                return await self._client.request(
                    self._method,
                    self._url,
                    headers=self._fields,
                    data=aiohttp.AsyncIterablePayload(leaving(self._upload)) if self._has_body else None,
                    allow_redirects=False,
                    timeout=timeout,
                )
            except aiohttp.ConnectionTimeoutError:
                return self._connect_failed(f"no connection within {connect_ms} ms")
            except aiohttp.ClientConnectorError as error:
                return self._connect_failed(connect_reason(error), is_own_failure(error))
            except aiohttp.ClientResponseError as error:
                return upstream_error(f"the answer is not HTTP: {first_line(error.message)}")
            except aiohttp.ClientConnectionError:
                if not self._can_send_again():
                    return upstream_error("the provider closed the connection before it answered")
                self._has_retried = True

    def _can_send_again(self) -> bool:
        """True when the provider closed a pooled connection before the request was written to its end."""
        return (
            self._has_body
            and self._is_reused
            and not self._has_retried
            and not self._is_taken
            and self._upload.can_replay
            and self._verdict is None
        )

    def _connect_failed(self, reason: str, is_own: bool = False) -> End:
        if not is_own:
            self._health.unreachable(reason)
        if self._is_taken:  # a second attempt failed and the first may have been seen
            return upstream_error(reason)
        return End(pb.RunEnd.CONNECT_FAILED, reason, None)

    def on_connected(self, connection: Connection, is_reused: bool) -> None:
        """The pool gave a connection (called by the Connector)."""
        self._connection = connection
        self._is_reused = is_reused
        self._watchdog.watch(self._timeouts.first_byte_ms)
        if not is_reused:
            self._health.reachable()
            self._note_taken()

    def _on_written(self, byte_count: int) -> None:
        self._watchdog.note()
        self._sink.on_consumed(byte_count)

    def _on_request_written(self) -> None:
        self._watchdog.note()
        self._note_taken()

    def _note_taken(self) -> None:
        if not self._is_taken:
            self._is_taken = True
            self._sink.on_taken()

    # The answer.

    async def _take_answer(self, response: aiohttp.ClientResponse) -> End:
        self._note_taken()
        if response.status == 101:
            return upstream_error("the provider switched protocols, which nobody asked for")
        try:
            head = Head(response.status, reason_of(response), answer_fields(response.raw_headers))
        except ValueError as error:
            return upstream_error(f"the answer is not HTTP: {error}")
        connection = response.connection
        protocol = None if connection is None else connection.protocol
        self._watchdog.watch(self._timeouts.idle_ms)
        self._sink.on_head(head)
        try:
            with broken_with(protocol, response.content):
                await self._read(response.content)
        except aiohttp.ClientError:
            if rest := left_in(response.content):
                self._sink.on_data(rest)
            return upstream_error("the answer was cut short")
        if protocol is not None and isinstance(protocol.exception(), aiohttp.ClientOSError):
            # A body that ends by close is whole only if the close was a proper one.
            return upstream_error("the answer was cut short")
        return OK

    async def _read(self, content: aiohttp.StreamReader) -> None:
        """Pass the answer's body on until it ends."""
        while True:
            if self._resumed is not None:
                await self._resumed
            data = await content.readany()
            if not data:
                return
            self._watchdog.note()
            self._sink.on_data(data)

    # The end.

    def _on_silent(self, limit_ms: int) -> None:
        self._stop(End(pb.RunEnd.UPSTREAM_TIMEOUT, f"the provider was silent for {limit_ms} ms", None))

    def _stop(self, verdict: End) -> None:
        """End the run with a verdict: cut the connection, unsent bytes and all, and cancel the task. Idempotent."""
        if self._verdict is not None or self._task.done():
            return
        self._verdict = verdict
        transport = None if self._connection is None else self._connection.transport
        if transport is not None:
            transport.abort()
        self._task.cancel()

    def _on_done(self, task: asyncio.Task[End]) -> None:
        self._watchdog.close()
        self._upload.close()
        end = self._verdict
        if end is None:
            error = asyncio.CancelledError("cancelled by nobody") if task.cancelled() else task.exception()
            if error is not None:
                log.failure("run_failed", error, method=self._method)
            end = task.result() if error is None else End(pb.RunEnd.INTERNAL, "the Node failed", None)
        elif not task.cancelled():
            task.exception()  # the connection was cut under it: whatever came of that is said by the verdict
        self._sink.on_end(end)


async def leaving(upload: Upload) -> AsyncIterator[bytes]:
    """Yield a body's pieces from its beginning, each when the transport has room."""
    upload.rewind()
    while True:
        while (piece := upload.next_piece()) is not None:
            yield piece  # network: goes on when the transport has room again
            upload.note_written()
        upload.note_written()
        if upload.is_complete():
            break
        await upload.more()


def upstream_error(detail: str) -> End:
    """Return the end of a run whose provider broke it off."""
    return End(pb.RunEnd.UPSTREAM_ERROR, detail, None)


def first_line(message: str) -> str:
    """Return what a parser complains of, without the bytes it points at below."""
    return message.partition("\n")[0].rstrip(": ")


def reason_of(response: aiohttp.ClientResponse) -> bytes:
    """Return the reason phrase as it came."""
    return (response.reason or "").encode("utf-8", "surrogateescape")


def take_note(closed: asyncio.Future[None]) -> None:
    """Look at how a connection was lost; an error that nobody looks at is logged as one that was missed."""
    if not closed.cancelled():
        closed.exception()


@contextmanager
def broken_with(protocol: ResponseHandler | None, content: aiohttp.StreamReader) -> Iterator[None]:
    """Break a body off when its connection is closed under it: aiohttp leaves that out where the framing is wrong."""

    def on_closed(_: asyncio.Future[None] | None) -> None:
        if not content.is_eof() and content.exception() is None:
            content.set_exception(aiohttp.ClientPayloadError("the connection was closed"))

    if protocol is None:  # the body is complete already
        yield
        return
    closed = protocol.closed
    if closed is None:
        on_closed(None)
        yield
        return
    closed.add_done_callback(on_closed)
    try:
        yield
    finally:
        closed.remove_done_callback(on_closed)


def left_in(content: aiohttp.StreamReader) -> bytes:
    """Return what had arrived before a body broke off: aiohttp raises ahead of what it still holds."""
    return content._read_nowait(-1)
