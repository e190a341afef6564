"""The few doors through which sessions, runs and exchanges touch the world.

Session, dispatch and exchange code reads no clock, opens no socket, draws no random number and knows no transport. It
is handed these objects instead. Production fills them with grpc.aio, uvloop transports and the system clock; the
simulation in tests/sim fills them with in-memory pipes, a virtual clock and one seeded generator, and runs the same
code. What is not a door here is not reached from there: a lint test holds it.

The running event loop is a door too, but only its `call_soon`, `call_at`, `time` and `create_task`: no uvloop API,
no threads, no executor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from iop_fast.errors import Failure


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


class Head(NamedTuple):
    """Head of an answer, end-to-end headers only."""

    status: int
    reason: bytes
    headers: list[tuple[bytes, bytes]]


class Downstream(Protocol):
    """The client's side of one exchange: it carries this one answer and knows how to frame it.

    The exchange says what the answer is; chunking, lengths, HEAD, HTTP/1.0, keep-alive and the order of pipelined
    answers are the connection's business.
    """

    @property
    def is_open(self) -> bool:
        """False from the moment the client is known to be gone or the answer has ended."""
        ...

    @property
    def is_writable(self) -> bool:
        """True while the transport is below its high-water mark."""
        ...

    def send(self, head: Head | None, pieces: Sequence[bytes], end: bool) -> None:
        """Send the head (once, first), body pieces and the proper end, in one write to the transport.

        Hop-by-hop headers have no meaning in `head` and are dropped, but for a `connection: close` of our own, which
        asks for the connection to be closed after this answer. A `content-length` there fixes the length, and a body
        that does not fit it cuts the connection; without one the body is delimited by chunks (or by close for
        HTTP/1.0), or its length is known because head and end come together. A closed connection swallows everything.

        Raises ValueError for a head that cannot be written (CR, LF or NUL in a field, an impossible name, status or
        content-length, one that the pieces beside it contradict): nothing was sent then and another head may follow.
        """
        ...

    def abort(self) -> None:
        """Cut the connection without a proper end: the answer is not whole and must not look whole.

        What was sent before still leaves first, except where the end of the connection would be the end of the answer.
        """
        ...


class HeadMemo:
    """Where a service may keep what it has made of a head: the next request of the same connection brings it again if
    its head is the same but for the length of the body. The front never looks into it. It says nothing about the head:
    all are equal."""

    __slots__ = ("made",)

    def __init__(self) -> None:
        self.made: object = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HeadMemo)

    def __hash__(self) -> int:
        return 0


class RequestHead(NamedTuple):
    """Head of a client's request, checked by the HTTP front. Requests with the same head share its parts.

    `path` is the raw path without the query and `query` what follows the question mark (b"" without one). Header names
    are lower case; gone already are hop-by-hop headers, those that Connection names, Expect, names that are an alias of
    such or of a credential with "_" for "-", and Content-Length: `content_length` has it, 0 without a body and None for
    a chunked one.
    """

    method: bytes
    path: bytes
    query: bytes
    headers: list[tuple[bytes, bytes]]
    content_length: int | None
    memo: HeadMemo | None = None


class Receiver(Protocol):
    """What an HTTP connection calls on the request it has parsed (the exchange)."""

    def on_body(self, piece: bytes) -> None:
        """The next bytes of the body. Not called once the answer has ended."""
        ...

    def on_body_complete(self) -> None:
        """The body is whole; called for a request without a body too."""
        ...

    def on_refused(self, failure: Failure, message: str) -> None:
        """The client broke the protocol or a limit before its request was whole: answer it with this failure, now. A
        receiver that sends nothing leaves the answer to the connection, which then calls `on_client_gone`."""
        ...

    def on_client_gone(self) -> None:
        """The client left, or was answered by the connection: nothing sent matters any more."""
        ...

    def on_writable(self) -> None:
        """The transport fell below its low-water mark after it had been above the high one."""
        ...


class Service(Protocol):
    """What stands behind the HTTP front."""

    def open(self, head: RequestHead, downstream: Downstream) -> Receiver:
        """Take a request whose head is complete; it may be answered at once, before its body."""
        ...


class Usage(NamedTuple):
    """Tokens as the provider reported them."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


class End(NamedTuple):
    """Terminal frame of a run. `status` is a value of `RunEnd.Status` in proto/iop/runtime.proto.

    `refusal_status` is the HTTP status of a provider's own refusal of a normalized run (REFUSED), else 0.
    """

    status: int
    detail: str
    usage: Usage | None
    refusal_status: int = 0


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
    caller_authorized: bool = False


class RunOpening(NamedTuple):
    """Opening of a normalized run, as `RunRequest` in proto/iop/runtime.proto; `kind` is a value of its `Kind`.

    `body` is the first piece of a serialized `RunInput` of `body_length` bytes. `traceparent` is that of W3C's Trace
    Context, empty where the Edge makes no spans; a tunnel has it among its headers.
    """

    provider_id: str
    model: str
    kind: int
    stream: bool
    body: bytes
    body_complete: bool
    body_length: int
    traceparent: bytes = b""


class RunText(NamedTuple):
    """An event of a normalized run, as `RunEvent` in proto/iop/runtime.proto: the next characters of the answer.

    `choice` is here and in the other events the choice, or the input of an embedding, that it belongs to.
    """

    text: str
    choice: int


class RunReasoning(NamedTuple):
    """The next characters of the model's reasoning."""

    text: str
    choice: int


class RunToolCall(NamedTuple):
    """A tool call or a part of one, the `call_index`-th of its choice; what a part does not bring is empty."""

    call_index: int
    call_id: str
    name: str
    arguments: str
    choice: int


class RunEmbedding(NamedTuple):
    """The embedding of one input: float32, little-endian, which is what the API's base64 form encodes."""

    values: bytes
    choice: int


class RunFinish(NamedTuple):
    """Why a choice ended."""

    reason: str
    choice: int


RunSaid = RunText | RunReasoning | RunToolCall | RunEmbedding | RunFinish


class EdgeRun(Protocol):
    """What an Edge link calls on the run behind a run id (the exchange). Callbacks never raise for a client's sake."""

    def on_sent(self, message_number: int) -> None:
        """The opening frame is in message `message_number` (1 is the session's first): the provider may see it."""
        ...

    def on_answer(self, taken: bool, head: Head | None, data: list[bytes], end: End | None) -> None:
        """Take everything that one message brought for this run, at most one call a message.

        A normalized run gets here what comes without an event: `taken` and `end`. `head` and `data` are a tunnel's.
        """
        ...

    def on_events(self, taken: bool, said: list[RunSaid], byte_count: int, end: End | None) -> None:
        """Take everything that one message brought for this normalized run; instead of `on_answer`, if it has events.

        The events stand in their order and count `byte_count` bytes of the run's window. Those of a later version are
        left out, and counted. A tunnel gets this from a Node that is broken.
        """
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


class TaskPart(NamedTuple):
    """A part of a message: `kind` is text, image or audio; `text` has the characters, `data` the decoded bytes of the
    others, `media_type` their type where it is known."""

    kind: str
    text: str = ""
    data: bytes = b""
    media_type: str = ""


class TaskMessage(NamedTuple):
    """One message. `tool_calls` is the OpenAI array of an assistant's message, parsed; empty where there is none."""

    role: str
    parts: Sequence[TaskPart]
    name: str = ""
    tool_call_id: str = ""
    tool_calls: Sequence[Mapping[str, Any]] = ()


class RunTask(NamedTuple):
    """A normalized run as an adapter gets it: whole, and read.

    `kind` is a value of `RunRequest.Kind`. A chat has `messages`, a completion has its prompts and an embedding its
    texts in `inputs`. `parameters` are the generation parameters, tools, tool choice and response format, names and
    values as the OpenAI API spells them. `traceparent` is that of W3C's Trace Context, for the provider; empty while
    nobody makes spans.
    """

    model: str
    kind: int
    stream: bool
    messages: Sequence[TaskMessage]
    inputs: Sequence[str]
    parameters: Mapping[str, Any]
    traceparent: str = ""


class RunHandle(Protocol):
    """A started normalized run, as the relay holds it."""

    def pause(self) -> None:
        """Stop making events: the window is used up. What was read already may still come. Idempotent."""
        ...

    def resume(self) -> None:
        """Go on. Idempotent."""
        ...

    def cancel(self) -> None:
        """Close the provider's connection (kill the child, stop the model), then call `on_end` once. Idempotent."""
        ...


class RunSink(Protocol):
    """What an adapter calls on the relay for a normalized run. After `on_end` it calls nothing more.

    `index` is the choice, or the input of an embedding, that an event belongs to. Empty texts are dropped.
    """

    def on_taken(self) -> None:
        """The provider accepted the request and may have seen it: it must not be sent elsewhere."""
        ...

    def on_text(self, text: str, index: int = 0) -> None:
        """The next characters of the answer."""
        ...

    def on_reasoning(self, text: str, index: int = 0) -> None:
        """The next characters of the model's reasoning, apart from its answer."""
        ...

    def on_tool_call(self, call_index: int, call_id: str, name: str, arguments: str, index: int = 0) -> None:
        """A tool call, or a part of one: `call_id` and `name` come once, first; `arguments` is a piece of JSON text."""
        ...

    def on_embedding(self, values: Sequence[float], index: int = 0) -> None:
        """The embedding of one input."""
        ...

    def on_finish(self, reason: str, index: int = 0) -> None:
        """Why a choice ended: stop, length, tool_calls or content_filter."""
        ...

    def on_end(self, end: End) -> None:
        """The run is over and everything it held is free again. Exactly once.

        A refusal by the provider before its first event is `End(REFUSED, message, None, http_status)`.
        """
        ...


class RunAdapter(Protocol):
    """An adapter for normalized runs of one provider."""

    def start(self, task: RunTask, sink: RunSink) -> RunHandle:
        """Start a run and return its handle at once; failures come through `sink.on_end`."""
        ...
