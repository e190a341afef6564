"""One client connection: turns bytes into requests and keeps the order, the limits and the deadlines.

States, and what the bytes that come in each of them are:

    HEAD       no request, or a part of its head       kept until the head is whole
    BODY       a request is open, its body is not whole given to its receiver
    SERVING    its body is whole, its answer is not    kept unparsed, bounded (the backlog)
    DRAINING   its answer is whole, its body is not    read and dropped, bounded
    CLOSING    our last byte is written                read and dropped until the client closes or a deadline
    CLOSED     connection_lost was called              none come

    HEAD -> BODY -> SERVING -> HEAD                    the usual round; BODY is skipped when all came in one read
    BODY -> DRAINING -> HEAD                           answered before the body was read
    any -> CLOSING -> CLOSED; any -> CLOSED

Rules:
- There is no task, no timer and no parser per connection, and no cycle of references once a request is over:
  `_answer` and `_receiver` are dropped with it, the transport in connection_lost.
- Requests are started one at a time, so answers are in order by themselves. At most `pipelined_bytes` and
  `pipelined_requests` are kept behind an unfinished request, raw; with more the connection closes after its answer.
- Reading is never paused: uvloop reports neither FIN nor RST while it is, and a waiting request of a client that left
  would be granted a slot. Whoever sends FIN before the answer has ended is taken to have left (nginx does the same).
- What a read brings in HEAD may wait for a later turn of the loop (`shared.Turns`): once, and only if it is small.
- The receiver is told of each request's end by exactly one of: its own `send(end=True)` or `abort`, `on_client_gone`.
- Input that breaks the protocol is answered here, once, and the connection closes after it. An error that is found
  behind a whole request does not touch that request: the bytes are parsed only after its answer.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol, cast

from iop_fast import logs
from iop_fast._hot.chunks import ChunkDecoder, ChunkError, PayloadTooLargeError
from iop_fast._hot.records import item
from iop_fast._hot.text import part
from iop_fast.edge.front.answer import CONTINUE, Answer
from iop_fast.edge.front.head import ALLOWED, KnownHead, Refusal, asked_path, count_requests, find_head
from iop_fast.edge.front.peer import BODY, CLOSED, CLOSING, DRAINING, HEAD, SERVING, Peer
from iop_fast.errors import Failure
from iop_fast.seams import Receiver, RequestHead

if TYPE_CHECKING:
    from iop_fast.edge.front.listener import Front

# What may wait for a later turn of the loop; nearly every request of a chat is smaller.
TURN_BYTES_MAX = 16_384
# What is read and dropped of a body that was answered early, to keep the connection; with more to come it closes.
DRAIN_BYTES_MAX = 65_536

log = logs.get(__name__)


class BodyDecoder(Protocol):
    """Finds the end of a body: `LengthDecoder` here, `ChunkDecoder` in the contract of iop_fast._hot.chunks."""

    @property
    def consumed(self) -> int: ...
    @property
    def is_complete(self) -> bool: ...
    @property
    def left(self) -> int: ...
    def feed(self, data: bytes) -> bytes: ...


class LengthDecoder:
    """A body of known length."""

    __slots__ = ("consumed", "left")

    def __init__(self, length: int) -> None:
        self.left = length
        self.consumed = 0

    @property
    def is_complete(self) -> bool:
        """True once the last byte was fed."""
        return self.left == 0

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes and return those of this body; `consumed` tells how many."""
        piece = data if len(data) <= self.left else data[: self.left]
        self.consumed = len(piece)
        self.left -= self.consumed
        return piece


class Connection(Peer):
    """One accepted connection; made by the front, driven by its transport."""

    __slots__ = (
        "_answer",
        "_awaits_continue",
        "_body_bytes",
        "_body_mark",
        "_buffer",
        "_decoder",
        "_has_dropped",
        "_is_starting",
        "_keeps_alive",
        "_known",
        "_receiver",
        "_scanned",
        "_waits_turn",
    )

    def __init__(self, front: Front) -> None:
        super().__init__(front)
        self._buffer: bytes | bytearray = b""  # HEAD: a part of a head; SERVING: the backlog; else empty
        self._scanned = 0  # HEAD: bytes of the buffer that hold no end of a head
        self._known: KnownHead | None = None  # the head of the last request, if it may come again
        self._answer: Answer | None = None  # the open one
        self._receiver: Receiver | None = None  # of the open answer
        self._decoder: BodyDecoder | None = None  # BODY, DRAINING: finds the end of the body
        self._body_bytes = 0  # BODY: bytes that came; DRAINING: bytes dropped
        self._body_mark = 0  # BODY: _body_bytes when the rate was looked at last
        self._awaits_continue = False  # BODY: the client waits for a 100 and may never send the body
        self._keeps_alive = True  # False: the connection closes after the answer that is under way
        self._has_dropped = False  # input was dropped unread, so an immediate close would reset the connection
        self._is_starting = False
        self._waits_turn = False  # HEAD: bytes came when the turn's time was up

    # What the answer asks and calls.

    def can_keep(self) -> bool:
        """True when the connection can outlive an answer that begins now."""
        if not self._keeps_alive or self._front.is_draining:
            return False
        return self._decoder is None or (self._decoder.left <= DRAIN_BYTES_MAX and not self._awaits_continue)

    def on_answer_end(self, keeps: bool) -> None:
        """The open answer is whole and written; `keeps` is what its head said about the connection."""
        self._answer = self._receiver = None
        state = self._state
        is_kept = keeps and self._keeps_alive and not self._front.is_draining
        if state == SERVING and is_kept:
            self._state = HEAD
            if self._is_starting:
                return  # The loop of _start_requests goes on.
            if self._buffer:
                # In a turn of its own: a service's code is running, maybe another request's.
                self._front.loop.call_soon(self._on_turn)
            else:
                self._watch(self._front.idles)
        elif state == BODY and is_kept and self._decoder is not None and self._decoder.left <= DRAIN_BYTES_MAX:
            self._state = DRAINING
            self._body_bytes = 0
            self._watch(self._front.heads)
        elif state == SERVING and not self._has_dropped:
            self.close()
        else:
            self.linger()

    def on_answer_cut(self, is_ended_by_close: bool) -> None:
        """The open answer ended without being whole."""
        self._answer = self._receiver = None
        self._front.counters.answers_cut += 1
        self._cut(is_ended_by_close)

    def _cut(self, is_ended_by_close: bool) -> None:
        if is_ended_by_close:
            self.reset()  # An orderly end would make the answer look whole.
        elif self._state == SERVING and not self._has_dropped:
            self.close()
        else:
            self.linger()

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._front.on_connection(self):
            self._watch(self._front.heads)

    def connection_lost(self, exc: Exception | None) -> None:
        self._enter_closed()
        self._front.on_connection_lost(self)

    def eof_received(self) -> bool:
        # A client that half-closes has left, as for nginx: nothing tells it from one that is gone.
        if self._state != CLOSING:
            self.close()
        return False

    def pause_writing(self) -> None:
        self._is_writable = False
        if self._answer is not None:
            self._answer.is_writable = False
        self._watch_stall()

    def resume_writing(self) -> None:
        self._is_writable = True
        if self._state != CLOSING:
            self._unwatch_stall()
        if self._answer is not None:
            self._answer.is_writable = True
            if self._receiver is not None:
                self._tell_writable(self._receiver)
        elif self._state == HEAD and self._buffer:
            self._front.loop.call_soon(self._on_turn)

    def _tell_writable(self, receiver: Receiver) -> None:
        try:
            receiver.on_writable()
        except Exception as error:  # noqa: BLE001 - a fault ends the connection that met it and no other
            self._fail(error)

    def data_received(self, data: bytes) -> None:
        try:
            state = self._state
            if state == HEAD and self._is_writable:
                self._append(data)
                if self._has_turn(len(data)):
                    self._start_requests()
            elif state == HEAD:
                self._keep(data)
                if not self._keeps_alive:
                    self.linger()  # A client that does not read its answers has sent too much.
            elif state == BODY:
                self._take_body(data)
            elif state == SERVING:
                self._keep(data)
            elif state == DRAINING:
                self._drain(data)
        except Exception as error:  # noqa: BLE001 - a fault ends the connection that met it and no other
            self._fail(error)

    def _has_turn(self, size: int) -> bool:
        """Tell whether bytes may be looked at in this turn; else `on_turn` comes in a later one.

        Only the first small read waits: what a client has sent is bounded and counted once its request is open.
        """
        front = self._front
        if self._waits_turn or size > TURN_BYTES_MAX or not front.turns.is_spent():
            self._waits_turn = False
            return True
        self._waits_turn = True
        if self._phase_list is not front.heads:
            self._watch(front.heads)
        front.turns.wait(self)
        return False

    def on_turn(self) -> None:
        """Look at what came when the turn was spent."""
        if self._waits_turn:
            self._waits_turn = False
            self._on_turn()

    def _on_turn(self) -> None:
        """Go on with the backlog."""
        try:
            self._start_requests()
        except Exception as error:  # noqa: BLE001 - a fault ends the connection that met it and no other
            self._fail(error)

    # Requests.

    def _start_requests(self) -> None:
        """Start what the buffer holds until it runs out, a request is unfinished or the client does not read."""
        if self._is_starting:
            return
        self._is_starting = True
        try:
            while self._state == HEAD and self._buffer and self._is_writable and self._start_request():
                pass
        finally:
            self._is_starting = False
        if self._state == HEAD and not self._buffer:
            self._watch(self._front.idles)

    def _start_request(self) -> bool:
        """Parse a request and open it; return False when its head is not whole or was refused."""
        buffer, front, known = self._buffer, self._front, self._known
        try:
            size = 0
            if known is not None and type(buffer) is bytes:
                size = known.match(buffer)
                if size:
                    head = front.parser.recall(known, buffer)
            if not size:
                size = find_head(buffer, self._scanned, front.limits)
                if not size:
                    self._await_head(len(buffer))
                    return False
                block = bytes(buffer[:size])
                head = front.parser.parse(block)
                self._known = front.parser.remember(block, head)
        except Refusal as refusal:
            self._refuse(refusal.failure, refusal.message)
            return False
        length: int | None = item(head, 4)
        if length is not None and length > front.body_bytes_max:
            self._refuse(*self._too_large(), path=head.path)
            return False
        self._scanned = 0
        self._open(head, part(buffer, size, len(buffer)) if type(buffer) is bytes else bytes(buffer[size:]))
        return True

    def _await_head(self, scanned: int) -> None:
        self._scanned = scanned
        if self._phase_list is not self._front.heads:
            self._watch(self._front.heads)

    def _open(self, head: RequestHead, rest: bytes) -> None:
        """Hand a request to the service; `rest` are the bytes behind its head."""
        front = self._front
        parser = front.parser
        front.counters.requests += 1
        self._unwatch()
        self._buffer = b""
        self._keeps_alive = parser.keep_alive and front.keeps_alive
        self._answer = answer = Answer(self, item(head, 0) == b"HEAD", parser.is_http10, self._is_writable)
        length: int | None = item(head, 4)
        if length is None or length > len(rest):
            self._open_unread(head, answer, rest)
            return
        self._state = SERVING
        if length < len(rest):
            self._keep(part(rest, length, len(rest)))
        receiver = front.service.open(head, answer)
        if answer.is_open:
            self._receiver = receiver
            if length:
                receiver.on_body(part(rest, 0, length))
            if answer.is_open:
                receiver.on_body_complete()

    def _open_unread(self, head: RequestHead, answer: Answer, rest: bytes) -> None:
        """Open a request whose body is not whole yet, or whose end is not known."""
        front = self._front
        self._state = BODY
        length = head.content_length
        self._decoder = ChunkDecoder(front.body_bytes_max) if length is None else LengthDecoder(length)
        self._body_bytes = self._body_mark = 0
        self._awaits_continue = front.parser.expects_continue and not rest
        self._watch(front.bodies)
        receiver = front.service.open(head, answer)
        if answer.is_open:
            self._receiver = receiver
            if self._awaits_continue and not answer.has_begun:
                self._awaits_continue = False
                self.write(CONTINUE)
        if rest and self._state != CLOSING:
            self.data_received(rest)

    # Bodies.

    def _take_body(self, data: bytes) -> None:
        """BODY: give the next bytes to the receiver; the last ones complete the request."""
        decoder, receiver = self._decoder, self._receiver
        assert decoder is not None, "BODY has a decoder"
        assert receiver is not None, "BODY has an open answer"
        self._awaits_continue = False
        self._body_bytes += len(data)
        try:
            piece = decoder.feed(data)
        except PayloadTooLargeError:
            self._refuse(*self._too_large())
        except ChunkError as error:
            self._refuse(Failure.MALFORMED_HTTP, f"malformed chunked body: {error}")
        else:
            if decoder.is_complete:
                self._complete_body(receiver, piece, data[decoder.consumed :])
            elif piece:
                receiver.on_body(piece)

    def _complete_body(self, receiver: Receiver, piece: bytes, rest: bytes) -> None:
        self._unwatch()
        self._state = SERVING
        self._decoder = None
        if rest:
            self._keep(rest)
        if piece:
            receiver.on_body(piece)
        if self._receiver is receiver:
            receiver.on_body_complete()

    def _keep(self, data: bytes) -> None:
        """SERVING: keep bytes of later requests, unparsed; with too many the connection ends after this answer."""
        if not self._keeps_alive:
            self._has_dropped = True
            return
        self._append(data)
        limits, backlog = self._front.limits, self._buffer
        most = limits.pipelined_requests
        is_counted = b"\n" in data and backlog.count(b"\r\n\r\n") >= most
        if len(backlog) > limits.pipelined_bytes or (is_counted and count_requests(backlog, most) > most):
            self._keeps_alive = False
            self._has_dropped = True
            self._buffer = b""

    def _append(self, data: bytes) -> None:
        if not self._buffer:
            self._buffer = data
            return
        if type(self._buffer) is bytes:
            self._buffer = bytearray(self._buffer)
        self._buffer += data

    def _drain(self, data: bytes) -> None:
        """DRAINING: drop what is left of a body that was answered early, within bounds."""
        decoder = self._decoder
        assert decoder is not None, "DRAINING has a decoder"
        self._body_bytes += len(data)
        try:
            decoder.feed(data)
        except ChunkError:
            self.linger()
            return
        if decoder.is_complete:
            self._decoder = None
            self._state = HEAD
            self._buffer = data[decoder.consumed :]
            self._start_requests()
        elif self._body_bytes > DRAIN_BYTES_MAX:
            self.linger()

    # Refusals and ends.

    def _too_large(self) -> tuple[Failure, str]:
        return Failure.REQUEST_TOO_LARGE, f"the body is larger than {self._front.body_bytes_max} bytes"

    def _refuse(self, failure: Failure, message: str, *, path: bytes = b"", is_fault: bool = False) -> None:
        """Answer what broke the protocol or a limit, if an answer is possible still, and close.

        The receiver of an open request answers it, in its own form, but for a fault, which may be its own.
        """
        front = self._front
        front.counters.count_refusal(failure)
        self._keeps_alive = False
        self._has_dropped = True
        answer, receiver = self._answer, self._receiver
        if receiver is not None and answer is not None and not is_fault and not answer.has_begun:
            receiver.on_refused(failure, message)
            if not answer.is_open:
                return
        is_head = answer.is_without_body if answer is not None else self._buffer.lstrip(b"\r\n").startswith(b"HEAD ")
        if answer is None and not path:
            path = asked_path(self._buffer)
        self._drop_request()
        if answer is not None and answer.has_begun:
            self._cut(answer.is_ended_by_close)
            return
        head, body = front.render(failure, message, path)
        if failure is Failure.METHOD_NOT_ALLOWED:
            head = head._replace(headers=[*head.headers, (b"Allow", ALLOWED)])
        self._answer = refusal = Answer(self, is_head, False, self._is_writable)
        refusal.send(head, (body,), True)

    def _fail(self, fault: Exception) -> None:
        """An exception of ours or of the service: this connection ends with it, and no other."""
        log.failure("connection_failed", fault)
        self._front.counters.internal_errors += 1
        if self._state == CLOSING or self._state == CLOSED:
            return
        try:
            if self._answer is None:
                self.linger()  # Whatever failed was answered already; a second answer would be the next request's.
            else:
                self._refuse(Failure.INTERNAL, "internal error", is_fault=True)
        except Exception as error:  # noqa: BLE001 - the last resort needs nothing of what failed
            log.failure("connection_refusal_failed", error)
            self.reset()

    def _drop_request(self) -> None:
        """Tell the receiver of an unfinished request that its client is out of reach."""
        answer, receiver = self._answer, self._receiver
        self._answer = self._receiver = None
        if answer is not None:
            answer.detach()
            self._front.counters.requests_dropped += 1
        if receiver is not None:
            try:
                receiver.on_client_gone()
            except Exception as error:  # noqa: BLE001 - the connection ends anyway; its end must not be what fails
                log.failure("client_gone_failed", error)
                self._front.counters.internal_errors += 1

    def _drop_all(self) -> None:
        self._buffer = b""
        self._known = None
        self._decoder = None
        self._drop_request()

    def close_if_idle(self) -> None:
        """Close unless a request, or a part of one, is there."""
        if self._state == HEAD and not self._buffer:
            self.close()

    def close_now(self) -> None:
        """Cut whatever is under way."""
        if self._state != CLOSED:
            self.reset()

    def refuse_overload(self) -> None:
        """Answer a connection above the limit, before its request."""
        self._refuse(Failure.OVERLOADED, "too many connections")

    # Deadlines: each method is the `on_expired` of one of the front's lists.

    def on_head_late(self) -> None:
        """A head did not become whole in time, or the rest of a body that was answered early did not come."""
        self._phase_list = None
        if self._state == HEAD and self._buffer.strip(b"\r\n"):
            self._refuse(Failure.REQUEST_TIMEOUT, "the request's head did not arrive in time")
        elif self._state == HEAD:
            self.close()
        else:
            self.linger()

    def on_body_late(self) -> None:
        """A window of the body's minimum rate has passed."""
        self._phase_list = None
        if self._body_bytes - self._body_mark < self._front.body_window_bytes_min:
            self._refuse(Failure.REQUEST_TIMEOUT, "the request's body arrives too slowly")
        else:
            self._body_mark = self._body_bytes
            self._watch(self._front.bodies)

    def on_idle_late(self) -> None:
        """No request came on a kept connection."""
        self._phase_list = None
        self.close()
