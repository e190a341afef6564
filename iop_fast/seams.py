"""The few doors through which sessions, runs and exchanges touch the world.

Session, dispatch and exchange code reads no clock, opens no socket, draws no random number and knows no transport. It
is handed these objects instead. Production fills them with grpc.aio, uvloop transports and the system clock; the
simulation in tests/sim fills them with in-memory pipes, a virtual clock and one seeded generator, and runs the same
code. What is not a door here is not reached from there: a lint test holds it.

The running event loop is a door too, but only its `call_soon`, `call_at`, `time` and `create_task`: no uvloop API,
no threads, no executor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Clock(Protocol):
    """Monotonic time. The production form is `iop_fast._core.clock.MonotonicClock`."""

    def now_ns(self) -> int:
        """Return nanoseconds since an arbitrary origin; never falls."""
        ...


class MessageStream(Protocol):
    """One bidirectional stream of messages between an Edge and a Node.

    Exactly one task reads and one writes; neither is cancelled or timed out while an operation is in flight. Who wants
    the stream gone calls `abandon` and forgets it.
    """

    async def read(self) -> bytes | None:
        """Return the next message, or None for ever once the stream has ended for whatever reason."""
        ...

    async def write(self, message: bytes) -> None:
        """Hand one message to the transport; raise `ConnectionError` once the stream has ended."""
        ...

    def abandon(self) -> None:
        """Give the stream up, at once and without waiting. Idempotent; a pending read returns None sooner or later."""
        ...


class Downstream(Protocol):
    """The client's side of one exchange: a transport that only ever carries this answer until `finish`."""

    @property
    def is_open(self) -> bool:
        """False from the moment the client is known to be gone or the answer is finished."""
        ...

    @property
    def is_writable(self) -> bool:
        """True while the transport is below its high-water mark."""
        ...

    def write(self, pieces: Sequence[bytes]) -> None:
        """Write the pieces in one call to the transport. A closed transport swallows them."""
        ...

    def finish(self, keep_alive: bool) -> None:
        """End the answer; the connection goes on to the next request, or closes when it may not be kept."""
        ...

    def abort(self) -> None:
        """Cut the connection without a proper end: the answer is not whole and must not look whole."""
        ...


class Head(NamedTuple):
    """Head of a provider's answer, end-to-end headers only."""

    status: int
    reason: bytes
    headers: list[tuple[bytes, bytes]]


class Usage(NamedTuple):
    """Tokens as the provider reported them."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


class End(NamedTuple):
    """Terminal frame of a run. `status` is a value of `RunEnd.Status` in proto/iop/runtime.proto."""

    status: int
    detail: str
    usage: Usage | None


class TunnelRequest(NamedTuple):
    """Opening of a tunnel, as `ProviderTunnelRequest` in proto/iop/runtime.proto."""

    provider_id: str
    method: bytes
    path: bytes
    headers: Sequence[tuple[bytes, bytes]]
    body: bytes
    body_complete: bool
    body_length: int
    model: str
    stream: bool


class EdgeRun(Protocol):
    """What an Edge link calls on the run behind a run id (the exchange). Callbacks never raise for a client's sake."""

    def on_sent(self, message_number: int) -> None:
        """The opening frame is in message `message_number` (1 is the session's first): the provider may see it."""
        ...

    def on_answer(self, taken: bool, head: Head | None, data: list[bytes], end: End | None) -> None:
        """Take everything that one message brought for this run, at most one call a message."""
        ...

    def on_window(self, byte_count: int) -> None:
        """The Node takes `byte_count` more bytes of the request body."""
        ...

    def on_link_lost(self) -> None:
        """The session ended; the lease is ended already and nothing more will come."""
        ...


class UpstreamRun(Protocol):
    """A started run of an adapter, as the relay holds it."""

    def feed(self, piece: bytes, complete: bool) -> None:
        """Take a piece of the request body; `complete` marks the last."""
        ...

    def pause(self) -> None:
        """Stop reading the provider's answer: the window is used up. Idempotent."""
        ...

    def resume(self) -> None:
        """Go on reading. Idempotent."""
        ...

    def cancel(self) -> None:
        """Close the provider's connection (or kill the child) and then call `on_end` once. Idempotent."""
        ...


class UpstreamSink(Protocol):
    """What an adapter calls on the relay. After `on_end` it calls nothing more."""

    def on_taken(self) -> None:
        """The provider accepted the connection and may have seen the request."""
        ...

    def on_consumed(self, byte_count: int) -> None:
        """`byte_count` bytes of the request body have left for the provider: the window may be renewed."""
        ...

    def on_head(self, head: Head) -> None:
        """The answer's head, hop-by-hop headers removed."""
        ...

    def on_data(self, data: bytes) -> None:
        """A piece of the answer's body, any size, bytes as the provider sent them."""
        ...

    def on_end(self, end: End) -> None:
        """The run is over and everything it held is free again. Exactly once."""
        ...


class Upstream(Protocol):
    """An adapter: starts runs on one provider. No task per run is implied."""

    def start(self, request: TunnelRequest, sink: UpstreamSink) -> UpstreamRun:
        """Start a run and return its handle at once; failures come through `sink.on_end`."""
        ...
