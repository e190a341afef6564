"""Models that run in the Node itself.

`echo` answers OpenAI chat and completion requests with the words of the last user message (or of the prompt): always
the same for the same request, at the pace that its entry in native_models sets. It needs no model server, so it serves
a first try, demonstrations and tests, and it comes through the same tunnel as any other provider.

A word is a token here. The entry's `delay_ms` passes before the first piece and `chunk_ms` between pieces of
`chunk_words` words. A request for what it does not do gets an error in OpenAI's form.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

import orjson

from iop_fast.config.payload import AdapterSettings, ProviderPayload
from iop_fast.config.schema.node import NativeModel
from iop_fast.node.adapters import Adapter, BrokenAdapter, Surroundings
from iop_fast.node.health import Health
from iop_fast.seams import End, Head, TunnelRequest, Upstream, UpstreamRun, UpstreamSink, Usage
from iop_fast.wire import runtime_pb2 as pb

# Pieces that are sent in one turn of the loop when no time stands between them.
PIECES_A_TURN = 64
WORD = re.compile(r"\S+\s*")
JSON = b"application/json"
EVENT_STREAM = b"text/event-stream; charset=utf-8"

OK = End(pb.RunEnd.OK, "", None)


class EchoRefusal(Exception):
    """The request is not one that echo answers: status and OpenAI error fields."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str = "invalid_request") -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code


def make_native(settings: AdapterSettings, surroundings: Surroundings) -> Adapter:
    """Make the adapter of a native_models entry; raise BrokenAdapter."""
    if settings.options:
        raise BrokenAdapter(f"options: expected none, got {', '.join(name for name, _ in settings.options)}")
    model = surroundings.native_models.get(settings.profile)
    if model is None:
        raise BrokenAdapter(f"native_models of the Node's file has no entry {settings.profile!r}")
    return EchoAdapter(model, surroundings)


class EchoAdapter:
    """The echo model of one native_models entry."""

    def __init__(self, model: NativeModel, surroundings: Surroundings) -> None:
        self.model = model
        self.loop = surroundings.loop
        self.unix_time = surroundings.unix_time
        self.numbers = count(1)
        self._health = Health(surroundings.loop)

    @property
    def health(self) -> Health:
        """Always up."""
        return self._health

    def upstream(self, provider: ProviderPayload) -> Upstream:
        """Return the model under the provider's served names."""
        return EchoUpstream(self, provider.models)

    async def close(self) -> None:
        """Hold nothing."""
        self._health.close()


class EchoUpstream:
    """Starts runs of an echo model."""

    def __init__(self, adapter: EchoAdapter, models: Sequence[str]) -> None:
        self.adapter = adapter
        self.models = models

    def start(self, request: TunnelRequest, sink: UpstreamSink) -> UpstreamRun:
        """Start a run; it answers when its body is complete."""
        return EchoRun(self, request, sink)


class EchoRun:
    """One run: collects the body, then emits the answer's pieces at the model's pace."""

    __slots__ = (
        "_body",
        "_has_ended",
        "_is_complete",
        "_is_due",
        "_is_paused",
        "_pieces",
        "_request",
        "_sink",
        "_timer",
        "_upstream",
    )

    def __init__(self, upstream: EchoUpstream, request: TunnelRequest, sink: UpstreamSink) -> None:
        self._upstream = upstream
        self._request = request
        self._sink = sink
        self._body = bytearray(request.body)  # at once: a further piece may come in the same turn
        self._pieces: Iterator[bytes] | None = None
        self._is_complete = request.body_complete
        self._is_paused = False
        self._is_due = False
        self._has_ended = False
        self._timer: asyncio.Handle | None = upstream.adapter.loop.call_soon(self._begin)

    def _begin(self) -> None:
        self._timer = None
        self._sink.on_taken()
        if self._request.body:
            self._sink.on_consumed(len(self._request.body))
        if self._is_complete:
            self._answer()

    def feed(self, piece: bytes, complete: bool) -> None:
        """Take a piece of the body."""
        if self._has_ended or self._is_complete:
            return
        self._body += piece
        self._is_complete = complete
        if piece:
            self._sink.on_consumed(len(piece))
        if complete and self._timer is None:  # else the run has not begun and answers when it does
            self._answer()

    def pause(self) -> None:
        """Hold the next piece back."""
        self._is_paused = True

    def resume(self) -> None:
        """Go on; a piece that came due meanwhile is sent now."""
        self._is_paused = False
        if self._is_due and self._timer is None:
            self._timer = self._upstream.adapter.loop.call_soon(self._emit)

    def cancel(self) -> None:
        """Stop, and say so in the next turn of the loop."""
        if not self._has_ended:
            self._has_ended = True
            self._cancel_timer()
            end = End(pb.RunEnd.CANCELLED, "cancelled", None)
            self._upstream.adapter.loop.call_soon(self._sink.on_end, end)

    def _answer(self) -> None:
        adapter = self._upstream.adapter
        try:
            head, self._pieces = answer_for(self._request, bytes(self._body), self._upstream)
        except EchoRefusal as refusal:
            self._refuse(refusal)
            return
        self._body.clear()
        self._sink.on_head(head)
        self._wait(adapter.model.delay_ms)

    def _refuse(self, refusal: EchoRefusal) -> None:
        error = {
            "message": str(refusal),
            "type": "invalid_request_error",
            "param": refusal.param,
            "code": refusal.code,
        }
        body = orjson.dumps({"error": error})
        self._sink.on_head(whole_head(refusal.status, body))
        self._sink.on_data(body)
        self._end(OK)

    def _wait(self, delay_ms: int) -> None:
        loop = self._upstream.adapter.loop
        self._timer = loop.call_later(delay_ms / 1000, self._emit) if delay_ms else loop.call_soon(self._emit)

    def _emit(self) -> None:
        """Send what is due: one piece, or many when no time stands between them."""
        assert self._pieces is not None, "a piece is due before the answer began"
        self._timer = None
        chunk_ms = self._upstream.adapter.model.chunk_ms
        for _ in range(1 if chunk_ms else PIECES_A_TURN):
            if self._is_paused:
                self._is_due = True
                return
            piece = next(self._pieces, None)
            if piece is None:
                self._end(OK)
                return
            if piece:
                self._sink.on_data(piece)
            if self._has_ended:
                return
        self._is_due = False
        self._wait(chunk_ms)

    def _end(self, end: End) -> None:
        self._has_ended = True
        self._cancel_timer()
        self._sink.on_end(end)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def whole_head(status: int, body: bytes) -> Head:
    """Return the head of an answer that is one JSON document."""
    reason = {200: b"OK", 400: b"Bad Request", 404: b"Not Found", 405: b"Method Not Allowed"}[status]
    return Head(status, reason, [(b"content-type", JSON), (b"content-length", b"%d" % len(body))])


def answer_for(request: TunnelRequest, body: bytes, upstream: EchoUpstream) -> tuple[Head, Iterator[bytes]]:
    """Return the head and the pieces of the answer; raise EchoRefusal."""
    path = request.path.split(b"?", 1)[0]
    adapter = upstream.adapter
    if path == b"/v1/models":
        if request.method != b"GET":
            raise EchoRefusal(405, "expected GET", code="method_not_allowed")
        models = [{"id": name, "object": "model", "created": 0, "owned_by": "iop"} for name in upstream.models]
        listed = orjson.dumps({"object": "list", "data": models})
        return whole_head(200, listed), iter([listed])
    if path not in (b"/v1/chat/completions", b"/v1/completions"):
        raise EchoRefusal(404, "echo answers /v1/chat/completions, /v1/completions and /v1/models", code="not_found")
    if request.method != b"POST":
        raise EchoRefusal(405, "expected POST", code="method_not_allowed")
    asked = Asked(body, is_chat=path == b"/v1/chat/completions")
    identity = f"{'chatcmpl' if asked.is_chat else 'cmpl'}-echo-{next(adapter.numbers)}"
    shape = Shape(asked, identity, adapter.unix_time())
    chunks = list(grouped(asked.words, adapter.model.chunk_words))
    if asked.is_stream:
        head = Head(200, b"OK", [(b"content-type", EVENT_STREAM), (b"cache-control", b"no-cache")])
        return head, shape.events(chunks)
    whole = shape.whole()
    # A whole answer takes as long as its stream would: one empty piece of time for each but the last.
    return whole_head(200, whole), iter([*[b""] * (len(chunks) - 1), whole])


def grouped(words: Sequence[str], size: int) -> Iterator[str]:
    """Join words to texts of `size` words."""
    for start in range(0, len(words), size):
        yield "".join(words[start : start + size])


class Asked:
    """A checked request: what to say back, and how. Raises EchoRefusal for a body that OpenAI would refuse."""

    def __init__(self, body: bytes, is_chat: bool) -> None:
        try:
            fields = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise EchoRefusal(400, f"the body is not JSON: {error}") from None
        if not isinstance(fields, dict):
            raise EchoRefusal(400, "expected a JSON object")
        self.is_chat = is_chat
        self.model = typed(fields, "model", str, None)
        self.is_stream = bool(typed(fields, "stream", bool, False))
        options = typed(fields, "stream_options", dict, None) or {}
        self.wants_usage = options.get("include_usage") is True
        if typed(fields, "n", int, 1) != 1:
            raise EchoRefusal(400, "expected n to be 1", "n")
        prompts = texts_of_messages(fields) if is_chat else texts_of_prompt(fields)
        said = prompts[-1][1] if not is_chat else next((text for role, text in reversed(prompts) if role == "user"), "")
        words = words_of(said)
        limit = typed(fields, "max_completion_tokens", int, None)
        if limit is None:
            limit = typed(fields, "max_tokens", int, None)
        if limit is not None and limit < 1:
            raise EchoRefusal(400, "expected at least 1", "max_tokens")
        self.words = words if limit is None else words[:limit]
        self.finish_reason = "stop" if len(self.words) == len(words) else "length"
        self.usage = Usage(sum(len(words_of(text)) for _, text in prompts), len(self.words), 0)


def typed(fields: dict[str, Any], name: str, kind: type, default: Any) -> Any:
    """Return a field of a type; null and absent are the default. A bool is no int here."""
    value = fields.get(name)
    if value is None:
        return default
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise EchoRefusal(400, f"expected {kind.__name__}, got {type(value).__name__}", name)
    return value


def texts_of_messages(fields: dict[str, Any]) -> list[tuple[str, str]]:
    """Return (role, text) of every message; parts that are no text are left out."""
    messages = typed(fields, "messages", list, None)
    if not messages:
        raise EchoRefusal(400, "expected a list of at least one message", "messages")
    return [text_of_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def text_of_message(message: object, place: str) -> tuple[str, str]:
    """Return (role, text) of a message."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise EchoRefusal(400, "expected an object with a role", place)
    content = message.get("content")
    if content is None or isinstance(content, str):
        return message["role"], content or ""
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise EchoRefusal(400, "expected a string or a list of parts", f"{place}.content")
    return message["role"], " ".join(part["text"] for part in content if isinstance(part.get("text"), str))


def texts_of_prompt(fields: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the prompt of a completion, as if the user had said it."""
    prompt = fields.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if not isinstance(prompt, str):
        raise EchoRefusal(400, "expected one text", "prompt")
    return [("user", prompt)]


def words_of(text: str) -> list[str]:
    """Split text into words, each with the white space after it."""
    return WORD.findall(text)


class Shape:
    """How the answer to a request is written."""

    def __init__(self, asked: Asked, identity: str, created: int) -> None:
        kind = "chat.completion" if asked.is_chat else "text_completion"
        self._asked = asked
        self._base: dict[str, Any] = {"id": identity, "object": kind, "created": created, "model": asked.model}
        self._choice: Callable[[str], dict[str, Any]] = self._chat_delta if asked.is_chat else self._text_delta
        if asked.is_chat and asked.is_stream:
            self._base["object"] = "chat.completion.chunk"

    def whole(self) -> bytes:
        """Return the answer as one document."""
        text = "".join(self._asked.words)
        said = {"message": {"role": "assistant", "content": text}} if self._asked.is_chat else {"text": text}
        choice = {"index": 0, "finish_reason": self._asked.finish_reason, "logprobs": None} | said
        return orjson.dumps(self._base | {"choices": [choice], "usage": self._usage()})

    def events(self, texts: Sequence[str]) -> Iterator[bytes]:
        """Yield the answer as events: the texts, the end, usage when it was asked for, the mark of the end."""
        first = {"role": "assistant", "content": ""}
        for text in texts:
            delta = self._choice(text)
            if self._asked.is_chat:
                delta["delta"] = first | delta["delta"]
                first = {}
            yield self._event([delta])
        last = self._choice("") | {"finish_reason": self._asked.finish_reason}
        if self._asked.is_chat:
            last["delta"] = {}
        yield self._event([last])
        if self._asked.wants_usage:
            yield self._event([], usage=self._usage())
        yield b"data: [DONE]\n\n"

    def _event(self, choices: list[dict[str, Any]], usage: dict[str, int] | None = None) -> bytes:
        fields = self._base | {"choices": choices}
        if self._asked.wants_usage:
            fields["usage"] = usage
        return b"data: " + orjson.dumps(fields) + b"\n\n"

    def _chat_delta(self, text: str) -> dict[str, Any]:
        return {"index": 0, "delta": {"content": text}, "finish_reason": None, "logprobs": None}

    def _text_delta(self, text: str) -> dict[str, Any]:
        return {"index": 0, "text": text, "finish_reason": None, "logprobs": None}

    def _usage(self) -> dict[str, int]:
        prompt, completion, _ = self._asked.usage
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
