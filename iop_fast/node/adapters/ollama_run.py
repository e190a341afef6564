"""One run on Ollama: the sink of an HTTP request to it, and what the relay holds of it.

The HTTP client below decides what it decides for every backend: connections and their reuse, what is sent once more,
timeouts, health, pausing. Here its head, data and end become events.

    asked       the request is on its way; a body with images is fed in pieces as earlier ones leave
    refusing    the head has an error status; its body is collected and becomes the end
    answering   events are told as they are read
    whole       the answer's last line came; what is left is the end of the HTTP answer, so that its connection can be
                used again. It is waited for LINGER_S at most
    stopping    the answer is none: the request was cancelled for that, and its end is awaited
    over        `on_end` was called

`on_end` comes from the HTTP client's end, exactly once, and never from within the call that starts the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from iop_fast import logs
from iop_fast.node.adapters.ollama_answer import AnswerReader
from iop_fast.node.adapters.ollama_errors import (
    BODY_BYTES_MAX,
    AnswerError,
    ProviderError,
    broken,
    refusal_of,
    refused,
)
from iop_fast.seams import End, Head, RunSink, TunnelRequest, UpstreamRun
from iop_fast.wire import runtime_pb2 as pb

log = logs.get(__name__)

LINGER_S = 1.0
# Of a body, this much may wait for the connection before more of it is made.
AHEAD_BYTES = 256 * 1024

FAILED = End(pb.RunEnd.INTERNAL, "the Node failed", None)


class OllamaRun:
    """An UpstreamSink for the HTTP client, a RunHandle for the relay. `hold` gives it its request, once, at once."""

    __slots__ = (
        "_ahead_bytes",
        "_body",
        "_body_left",
        "_feeding",
        "_is_cancelled",
        "_linger",
        "_loop",
        "_model",
        "_pieces",
        "_provider_id",
        "_reader",
        "_refusing",
        "_request",
        "_sink",
        "_verdict",
    )

    def __init__(
        self, sink: RunSink, reader: AnswerReader, model: str, provider_id: str, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._sink = sink
        self._reader = reader
        self._model = model
        self._provider_id = provider_id
        self._loop = loop
        self._request: UpstreamRun | None = None
        self._pieces: Iterator[bytes] | None = None
        self._body_left = 0
        self._ahead_bytes = 0
        self._feeding: asyncio.Handle | None = None
        self._refusing: Head | None = None
        self._body = bytearray()
        self._verdict: End | None = None
        self._is_cancelled = False
        self._linger: asyncio.TimerHandle | None = None

    def hold(self, request: UpstreamRun, opening: TunnelRequest, pieces: Iterator[bytes]) -> None:
        """Take the request that this run is, as it was opened, with the rest of its body."""
        self._request = request
        self._ahead_bytes += len(opening.body)
        self._body_left = opening.body_length - len(opening.body)
        self._pieces = pieces if self._body_left else None
        self._feed_soon()

    # What the relay calls.

    def pause(self) -> None:
        """Stop reading the answer; what stands in a piece that came already is still told."""
        if self._request is not None:
            self._request.pause()

    def resume(self) -> None:
        """Go on reading."""
        if self._request is not None:
            self._request.resume()

    def cancel(self) -> None:
        """Close the connection, which stops the model; the end is CANCELLED. Too late is harmless."""
        if self._request is not None:
            self._is_cancelled = True
            self._request.cancel()

    # What the HTTP client calls.

    def on_taken(self) -> None:
        """See UpstreamSink."""
        self._sink.on_taken()

    def on_consumed(self, byte_count: int) -> None:
        """See UpstreamSink. The input's window is the relay's business: it was whole before this run began."""
        self._ahead_bytes -= byte_count
        self._feed_soon()

    def _feed_soon(self) -> None:
        """Feed in a turn of its own: the client is in the middle of writing when it tells of that."""
        if self._pieces is not None and self._feeding is None and self._ahead_bytes < AHEAD_BYTES:
            self._feeding = self._loop.call_soon(self._feed)

    def _feed(self) -> None:
        self._feeding = None
        if self._request is None or self._pieces is None:
            return
        while self._ahead_bytes < AHEAD_BYTES and self._body_left:
            piece = next(self._pieces)
            self._ahead_bytes += len(piece)
            self._body_left -= len(piece)
            self._request.feed(piece, self._body_left == 0)
        if not self._body_left:
            self._pieces = None

    def on_head(self, head: Head) -> None:
        """See UpstreamSink."""
        if not 200 <= head.status <= 299:
            self._refusing = head

    def on_data(self, data: bytes) -> None:
        """See UpstreamSink."""
        if self._verdict is not None or self._is_cancelled:
            return
        if self._refusing is not None:
            self._collect(self._refusing, data)
            return
        self._verdict = self._reading(self._reader.feed, data)
        if self._verdict is not None:
            self._of_request().cancel()
        elif self._reader.is_whole and self._linger is None:
            self._linger = self._loop.call_later(LINGER_S, self._of_request().cancel)

    def on_end(self, end: End) -> None:
        """See UpstreamSink."""
        if self._linger is not None:
            self._linger.cancel()
        self._request = None  # it holds this run as its sink
        self._pieces = None
        self._sink.on_end(self._judge(end))

    # Judging.

    def _collect(self, head: Head, data: bytes) -> None:
        self._body += data
        if len(self._body) > BODY_BYTES_MAX:
            self._verdict = refusal_of(head, bytes(self._body), self._model, self._provider_id)
            self._of_request().cancel()

    def _judge(self, end: End) -> End:
        """Return how the run ended, for the end of its request."""
        if self._is_cancelled or end.status == pb.RunEnd.INTERNAL:
            return end
        if self._verdict is not None:
            return self._verdict
        if self._refusing is not None:
            return refusal_of(self._refusing, bytes(self._body), self._model, self._provider_id)
        if end.status == pb.RunEnd.OK:
            verdict = self._reading(self._reader.finish)
            if verdict is not None:
                return verdict
        if self._reader.is_whole:
            return End(pb.RunEnd.OK, "", self._reader.usage)
        return end

    def _reading(self, step: Callable[..., None], *arguments: bytes) -> End | None:
        """Do a step of the reader and return the end that it means, None to go on."""
        try:
            step(*arguments)
        except ProviderError as error:
            return broken(str(error)) if self._reader.has_begun else refused(str(error), error.status)
        except AnswerError as error:
            return broken(str(error))
        except Exception as error:  # noqa: BLE001 - a bug of the sink's must not keep the run from its one end
            log.failure("run_failed", error)
            return FAILED
        return None

    def _of_request(self) -> UpstreamRun:
        assert self._request is not None, "a run without its request"
        return self._request


class RefusedRun:
    """A RunHandle of a task that was refused before anything was sent; its end comes in the next turn of the loop."""

    __slots__ = ()

    def __init__(self, sink: RunSink, end: End, loop: asyncio.AbstractEventLoop) -> None:
        loop.call_soon(sink.on_end, end)

    def pause(self) -> None:
        """Nothing comes anyway."""

    def resume(self) -> None:
        """Nothing comes anyway."""

    def cancel(self) -> None:
        """The end is on its way."""
