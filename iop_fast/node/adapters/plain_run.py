"""One HTTP/1.1 request to a provider without TLS, and its answer: callbacks from end to end, no task of its own.

It keeps the rules of `http_run`, which does the same by a library for everything else, at a fifth of the CPU: what
reaches the server, when `on_taken` is said, what is sent once more, and how time is counted stand there. Here, fields
of the request go out byte for byte.

    dialing      no connection yet; `_dialing` is the task that makes one
    asked        the connection is there, the request goes out as it has room, the answer's head is awaited
    answered     the head was passed on
    over         `on_end` was called

An answer that is whole ends the run at once, and the connection goes back to the pool or is closed. Every other end is
a verdict (`_stop`): the connection is aborted, or the dialing cancelled, and when that is done the verdict is said. So
whoever hears the end of a cancelled run knows that the provider's connection is closed. What comes after a verdict is
dropped.

`on_end` is never called from within the constructor or `start`. What the sink raises ends the run with INTERNAL.
"""

from __future__ import annotations

import asyncio

from iop_fast import logs
from iop_fast._hot.records import new_record
from iop_fast.config.payload import TimeoutSettings
from iop_fast.node.adapters.http_rules import answer_fields, connect_reason, is_own_failure
from iop_fast.node.adapters.plain_answer import Answer, NotHttpError
from iop_fast.node.adapters.plain_pool import PlainConnection, PlainPool
from iop_fast.node.adapters.upload import Upload
from iop_fast.node.health import Health
from iop_fast.seams import End, Head, TunnelRequest, UpstreamSink
from iop_fast.wire import runtime_pb2 as pb

log = logs.get(__name__)

OK = End(pb.RunEnd.OK, "", None)
CANCELLED = End(pb.RunEnd.CANCELLED, "cancelled", None)
FAILED = End(pb.RunEnd.INTERNAL, "the Node failed", None)


# RFC 9110, section 9.2.2: what may be sent again although it may have been acted upon.
IDEMPOTENT = frozenset({b"GET", b"HEAD", b"OPTIONS", b"PUT", b"DELETE", b"TRACE"})


class PlainRun:
    """An UpstreamRun. `block` is the request's head as it goes out, with what its opening has of the body behind it.
    Start it once.

    A body that the opening holds whole leaves in one write with the head and needs no Upload.
    """

    __slots__ = (
        "_answer",
        "_block",
        "_connection",
        "_dialing",
        "_first_bytes",
        "_has_body",
        "_has_retried",
        "_health",
        "_is_over",
        "_is_paused",
        "_is_taken",
        "_is_written",
        "_loop",
        "_method",
        "_pool",
        "_sink",
        "_timeouts",
        "_upload",
        "_verdict",
    )

    def __init__(
        self,
        pool: PlainPool,
        health: Health,
        timeouts: TimeoutSettings,
        block: bytes,
        request: TunnelRequest,
        sink: UpstreamSink,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._loop = loop
        self._pool = pool
        self._health = health
        self._timeouts = timeouts
        self._block = block
        self._method = request.method
        self._sink = sink
        self._has_body = request.body_length > 0
        self._first_bytes = len(request.body)
        self._upload: Upload | None = None
        if self._first_bytes != request.body_length or not request.body_complete:
            self._upload = Upload(request.body_length, loop, self._on_written, self._on_request_written)
            self._upload.feed(request.body, request.body_complete)
        self._is_written = False  # a body that has no Upload
        self._answer = Answer(request.method == b"HEAD")
        self._connection: PlainConnection | None = None
        self._dialing: asyncio.Task[None] | None = None
        self._verdict: End | None = None
        self._is_over = False
        self._is_paused = False
        self._is_taken = False
        self._has_retried = False

    def start(self) -> None:
        """Send the request on a connection of the pool, or dial."""
        connection = self._pool.take(self)
        if connection is None:
            self._dial()
        else:
            self.on_connected(connection)

    # What the relay calls.

    def feed(self, piece: bytes, complete: bool) -> None:
        """Take a piece of the body; raise ValueError when it is not of the announced length."""
        if self._upload is None:
            length = self._first_bytes
            raise ValueError(f"expected a body of {length} bytes, got {length + len(piece)}")
        self._upload.feed(piece, complete)
        if self._connection is not None and self._verdict is None:
            self._pump(self._connection)

    def pause(self) -> None:
        """Stop reading the answer."""
        if not self._is_paused:
            self._is_paused = True
            if self._connection is not None:
                self._connection.pause_reading()
                self._connection.watchdog.hold()

    def resume(self) -> None:
        """Go on reading."""
        if self._is_paused:
            self._is_paused = False
            if self._connection is not None and self._verdict is None:
                self._connection.resume_reading()
                self._connection.watchdog.go_on()

    def cancel(self) -> None:
        """Cut the connection; the end is CANCELLED."""
        self._stop(CANCELLED)

    # The connection.

    def _dial(self) -> None:
        self._dialing = self._loop.create_task(self._pool.dial(self, self._timeouts.connect_ms))
        self._dialing.add_done_callback(self._on_dialed)

    def _on_dialed(self, dialing: asyncio.Task[None]) -> None:
        self._dialing = None
        error = None if dialing.cancelled() else dialing.exception()
        if self._connection is not None or self._is_over:
            return  # a connection was made, whatever came of it
        if self._verdict is not None:
            self._finish(self._verdict)
        elif isinstance(error, TimeoutError):
            self._connect_failed(f"no connection within {self._timeouts.connect_ms} ms")
        elif isinstance(error, OSError):
            self._connect_failed(connect_reason(error), is_own_failure(error))
        else:
            log.failure("run_failed", error or RuntimeError("a dial ended without a connection"))
            self._finish(FAILED)

    def _connect_failed(self, reason: str, is_own: bool = False) -> None:
        if not is_own:
            self._health.unreachable(reason)
        # With a second attempt the first may have been seen.
        self._finish(upstream_error(reason) if self._is_taken else End(pb.RunEnd.CONNECT_FAILED, reason, None))

    def on_connected(self, connection: PlainConnection) -> None:
        """See Borrower."""
        if self._is_over:  # it was cancelled meanwhile
            connection.throw_away()
            return
        self._connection = connection
        if self._verdict is not None:
            connection.abort()
            return
        try:
            self._ask(connection)
        except Exception as error:
            if self._is_over:
                raise
            self._fail(error)

    def _ask(self, connection: PlainConnection) -> None:
        """Send the head, with what there is of the body in the same write."""
        connection.watchdog.watch(self._timeouts.first_byte_ms)
        if self._is_paused:
            connection.pause_reading()
            connection.watchdog.hold()
        if not connection.is_reused:
            self._health.reachable()
            self._note_taken()
        if self._upload is not None:
            self._upload.rewind()
            if self._first_bytes:
                self._upload.next_piece()  # it stands in the block
        connection.write(self._block)
        self._pump(connection)

    def on_writable(self) -> None:
        """See Borrower."""
        if self._connection is None or self._verdict is not None:
            return
        try:
            self._connection.watchdog.note()
            self._pump(self._connection)
        except Exception as error:
            if self._is_over:
                raise
            self._fail(error)

    def _pump(self, connection: PlainConnection) -> None:
        """Send of the body what the transport has room for."""
        upload = self._upload
        if upload is None:
            if connection.is_writable and not self._is_written:
                self._note_whole(connection)
            return
        while connection.is_writable:
            upload.note_written()
            piece = upload.next_piece()
            if piece is None:
                return
            connection.write(piece)

    def _note_whole(self, connection: PlainConnection) -> None:
        """A request that needs no Upload has left."""
        self._is_written = True
        if self._first_bytes:
            self._sink.on_consumed(self._first_bytes)
            self._note_taken()

    def _on_written(self, byte_count: int) -> None:
        if self._connection is not None:
            self._connection.watchdog.note()
        self._sink.on_consumed(byte_count)

    def _on_request_written(self) -> None:
        if self._has_body:
            self._note_taken()

    def _note_taken(self) -> None:
        if not self._is_taken:
            self._is_taken = True
            self._sink.on_taken()

    # The answer.

    def on_bytes(self, data: bytes) -> None:
        """See Borrower."""
        if self._verdict is not None:
            return
        try:
            self._take(data)
        except Exception as error:
            if self._is_over:
                raise
            self._fail(error)

    def on_eof(self) -> None:
        """See Borrower."""
        if self._verdict is None and self._answer.feed_end():
            try:
                self._end_answered()
            except Exception as error:
                if self._is_over:
                    raise
                self._fail(error)

    def on_lost(self) -> None:
        """See Borrower."""
        self._connection = None
        if self._verdict is not None:
            self._finish(self._verdict)
        elif self._answer.head is not None:
            self._finish(upstream_error("the answer was cut short"))
        elif self._can_send_again():
            self._has_retried = True
            self._dial()
        else:
            self._finish(upstream_error("the provider closed the connection before it answered"))

    def on_silent(self, limit_ms: int) -> None:
        """See Borrower."""
        self._stop(End(pb.RunEnd.UPSTREAM_TIMEOUT, f"the provider was silent for {limit_ms} ms", None))

    def _take(self, data: bytes) -> None:
        """Pass on what the server sent."""
        answer = self._answer
        had_head = answer.head is not None
        try:
            body = answer.feed(data)
        except NotHttpError as error:
            self._stop(upstream_error(f"the answer is not HTTP: {error}"))
            return
        if answer.head is None:
            return
        if not had_head:
            if not self._begin_answer(answer.head):
                return
        elif self._connection is not None:
            self._connection.watchdog.note()
        if body:
            self._sink.on_data(body)
        if self._verdict is not None:
            return  # the sink wants no more
        if answer.is_complete:
            self._end_answered()
        elif answer.is_broken:
            self._stop(upstream_error("the answer was cut short"))

    def _begin_answer(self, head: Head) -> bool:
        """Pass the head on; False when the answer ends here."""
        self._note_taken()
        if head.status == 101:
            self._stop(upstream_error("the provider switched protocols, which nobody asked for"))
            return False
        try:
            fields = answer_fields(head.headers)
        except ValueError as error:
            self._stop(upstream_error(f"the answer is not HTTP: {error}"))
            return False
        if self._connection is not None:
            self._connection.watchdog.watch(self._timeouts.idle_ms)
            if self._is_paused:
                self._connection.watchdog.hold()
        self._sink.on_head(new_record(Head, (head.status, head.reason, fields)))
        return self._verdict is None

    def _can_send_again(self) -> bool:
        """True when a pooled connection, which the server may just have closed, was lost before the request counted.

        On a new connection the request is taken from the first.
        """
        if self._is_taken or self._has_retried or self._answer.has_begun():
            return False
        if not self._has_body:
            return self._method in IDEMPOTENT
        return self._upload is None or self._upload.can_replay  # one without an Upload is taken when it has left

    # The end.

    def _end_answered(self) -> None:
        """The answer is whole: part with the connection and say so."""
        connection, self._connection = self._connection, None
        if connection is not None:
            is_written = self._is_written if self._upload is None else self._upload.is_written
            is_sent = is_written and connection.is_writable
            if self._answer.can_keep and is_sent:
                if self._is_paused:
                    connection.resume_reading()
                self._pool.give_back(connection)
            else:
                connection.throw_away()
        self._finish(OK)

    def _stop(self, verdict: End) -> None:
        """End the run with a verdict, said once the connection is closed or the dialing has stopped. Idempotent."""
        if self._verdict is not None or self._is_over:
            return
        self._verdict = verdict
        if self._connection is not None:
            self._connection.watchdog.close()
            self._connection.abort()
        elif self._dialing is not None:
            self._dialing.cancel()

    def _finish(self, end: End) -> None:
        assert not self._is_over, "a run ends once"
        self._is_over = True
        if self._upload is not None:
            self._upload.close()
        self._answer.close()
        self._sink.on_end(end)

    def _fail(self, error: Exception) -> None:
        """What the sink raises in a step ends this run alone; what `on_end` itself raises goes to the event loop."""
        log.failure("run_failed", error)
        self._stop(FAILED)


def upstream_error(detail: str) -> End:
    """Return the end of a run whose provider broke it off."""
    return End(pb.RunEnd.UPSTREAM_ERROR, detail, None)
