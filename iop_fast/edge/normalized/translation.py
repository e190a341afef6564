"""Events of a normalized run as OpenAI's answers: chat.completion, text_completion, embeddings, whole and streamed.

A translation takes the events of one run in order and gives bytes; how the events were cut into messages does not show
in them. It is told of the end only when the answer is whole, so nothing here can make a broken answer look like one:
`data: [DONE]` is in `close` and nowhere else.

Field order and nulls are those of OpenAI's own answers (platform.openai.com, "The chat completion object" and the
following). Reasoning is `reasoning_content`, as model servers name it; legacy completions have no place for it and for
tool calls. A choice that the provider gave no reason for ending ends with "stop", or "tool_calls" when it made some.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from base64 import b64encode
from sys import byteorder
from typing import Any, NamedTuple

import orjson

from iop_fast._hot.frames import FrameError
from iop_fast.seams import RunEmbedding, RunFinish, RunReasoning, RunSaid, RunText, RunToolCall, Usage

FINISH_REASONS = ("stop", "length", "tool_calls", "content_filter")
DONE = b"data: [DONE]\n\n"
# A model makes a few tool calls; an index far beyond is no index.
TOOL_CALLS_MAX = 1024


class IncompleteAnswer(Exception):
    """The run ended well and yet not all of the answer came."""


class Envelope(NamedTuple):
    """What every document of one answer says about it. `created` is in seconds since 1970."""

    request_id: bytes
    model: str
    created: int
    is_chat: bool

    def fields(self, kind: str) -> dict[str, Any]:
        """Return the fields before the choices."""
        identity = f"{'chatcmpl' if self.is_chat else 'cmpl'}-{self.request_id.decode()}"
        return {"id": identity, "object": kind, "created": self.created, "model": self.model}

    def call_id(self, choice: int, call: int) -> str:
        """Make an id for a tool call whose provider gave none."""
        return f"call_{self.request_id[:20].decode()}{choice:02x}{call:02x}"


class Translation(ABC):
    """What the events of one run become. `is_stream`: pieces go out as they come."""

    is_stream = False

    @abstractmethod
    def add(self, said: list[RunSaid]) -> list[bytes]:
        """Take events; return what they add to a stream. Raises FrameError for events that make no answer."""

    @abstractmethod
    def close(self, usage: Usage | None) -> list[bytes]:
        """Return the rest of the whole answer; raise IncompleteAnswer when there is none."""


def usage_object(usage: Usage) -> dict[str, Any]:
    """Build the usage object of chats and completions."""
    prompt, completion, cached = usage
    counts: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
    if cached:
        counts["prompt_tokens_details"] = {"cached_tokens": cached}
    return counts


def misplaced(said: RunSaid) -> FrameError:
    """Return what is said of an event that the answer has no place for."""
    return FrameError(f"an answer of this kind has no {type(said).__name__}")


def bad_choice(choice: int) -> FrameError:
    """Return what is said of an event of a choice that nobody asked for, or that has ended."""
    return FrameError(f"choice {choice} was not asked for or has ended")


def checked_reason(reason: str) -> str:
    """Return a finish reason that clients know."""
    return reason if reason in FINISH_REASONS else "stop"


# ---------------------------------------------------------------------------------------------------------------------
# Whole answers


class Call:
    """A tool call as it is put together."""

    __slots__ = ("arguments", "call_id", "name")

    def __init__(self) -> None:
        self.call_id = ""
        self.name = ""
        self.arguments: list[str] = []


class Choice:
    """A choice as it is put together."""

    __slots__ = ("calls", "reason", "reasoning", "text")

    def __init__(self) -> None:
        self.text: list[str] = []
        self.reasoning: list[str] = []
        self.calls: dict[int, Call] = {}
        self.reason = ""

    def finish_reason(self) -> str:
        """Why it ended."""
        return self.reason or ("tool_calls" if self.calls else "stop")

    def call(self, index: int) -> Call:
        """Return a tool call, the first time a new one."""
        call = self.calls.get(index)
        if call is None:
            if not 0 <= index < TOOL_CALLS_MAX:
                raise FrameError(f"tool call {index}: expected less than {TOOL_CALLS_MAX}")
            call = self.calls[index] = Call()
        return call


class WholeAnswer(Translation):
    """A chat or completion that is sent in one document."""

    def __init__(self, envelope: Envelope, choices: int) -> None:
        self._envelope = envelope
        self._choices = [Choice() for _ in range(choices)]

    def add(self, said: list[RunSaid]) -> list[bytes]:
        """Collect events."""
        for event in said:
            if not 0 <= event.choice < len(self._choices) or self._choices[event.choice].reason:
                raise bad_choice(event.choice)
            choice = self._choices[event.choice]
            if type(event) is RunText:
                choice.text.append(event.text)
            elif type(event) is RunFinish:
                choice.reason = checked_reason(event.reason)
            elif type(event) is RunReasoning:
                choice.reasoning.append(event.text)
            elif type(event) is RunToolCall and self._envelope.is_chat:
                call = choice.call(event.call_index)
                call.call_id = call.call_id or event.call_id
                call.name = call.name or event.name
                call.arguments.append(event.arguments)
            else:
                raise misplaced(event)
        return []

    def close(self, usage: Usage | None) -> list[bytes]:
        """Return the document."""
        kind = "chat.completion" if self._envelope.is_chat else "text_completion"
        document = self._envelope.fields(kind)
        document["choices"] = [self.choice(index, choice) for index, choice in enumerate(self._choices)]
        if usage is not None:
            document["usage"] = usage_object(usage)
        document["system_fingerprint"] = None
        return [orjson.dumps(document)]

    @abstractmethod
    def choice(self, index: int, choice: Choice) -> dict[str, Any]:
        """Build the object of a choice."""


class ChatAnswer(WholeAnswer):
    """A chat.completion."""

    def __init__(self, envelope: Envelope) -> None:
        super().__init__(envelope, 1)

    def choice(self, index: int, choice: Choice) -> dict[str, Any]:
        """Build the object of a choice."""
        text = "".join(choice.text)
        message: dict[str, Any] = {"role": "assistant", "content": text or (None if choice.calls else "")}
        message["refusal"] = None
        if choice.reasoning:
            message["reasoning_content"] = "".join(choice.reasoning)
        if choice.calls:
            message["tool_calls"] = [
                {
                    "id": call.call_id or self._envelope.call_id(index, number),
                    "type": "function",
                    "function": {"name": call.name, "arguments": "".join(call.arguments)},
                }
                for number, call in sorted(choice.calls.items())
            ]
        return {"index": index, "message": message, "logprobs": None, "finish_reason": choice.finish_reason()}


class TextAnswer(WholeAnswer):
    """A text_completion."""

    def choice(self, index: int, choice: Choice) -> dict[str, Any]:
        """Build the object of a choice."""
        text = "".join(choice.text)
        return {"text": text, "index": index, "logprobs": None, "finish_reason": choice.finish_reason()}


# ---------------------------------------------------------------------------------------------------------------------
# Streams


def one_line(json_text: bytes) -> bytes:
    """Escape what JSON leaves in a text and some clients take for the end of a line, and so of an event.

    `str.splitlines` ends lines at U+0085, U+2028 and U+2029, and httpx's `iter_lines` is made of it.
    """
    return (
        json_text.replace(b"\xc2\x85", b"\\u0085")
        .replace(b"\xe2\x80\xa8", b"\\u2028")
        .replace(b"\xe2\x80\xa9", b"\\u2029")
    )


class Stream(Translation):
    """A chat or completion that is sent as events."""

    is_stream = True

    def __init__(self, envelope: Envelope, choices: int, wants_usage: bool) -> None:
        self._envelope = envelope
        self._wants_usage = wants_usage
        self._fields = envelope.fields("chat.completion.chunk" if envelope.is_chat else "text_completion")
        self._fields["system_fingerprint"] = None
        # A chunk is `_before`, the choices and `_after`.
        self._before = b"data: " + orjson.dumps(self._fields)[:-1] + b',"choices":['
        self._after = b'],"usage":null}\n\n' if wants_usage else b"]}\n\n"
        self._open = dict.fromkeys(range(choices), False)  # choice -> has begun; gone once it has finished

    def chunk(self, choice: bytes) -> bytes:
        """Render an event with one choice in it."""
        return self._before + (choice if choice.isascii() else one_line(choice)) + self._after

    def add(self, said: list[RunSaid]) -> list[bytes]:
        """Return a chunk for each event."""
        pieces = []
        for event in said:
            has_begun = self._open.get(event.choice)
            if has_begun is None:
                raise bad_choice(event.choice)
            if type(event) is RunFinish:
                piece = self.finish(event.choice, has_begun, checked_reason(event.reason))
                del self._open[event.choice]
            else:
                piece = self.delta(event, has_begun)
                self._open[event.choice] = True
            if piece:
                pieces.append(piece)
        return pieces

    def close(self, usage: Usage | None) -> list[bytes]:
        """Return the end of what has not ended, the usage where it is asked for and known, and the mark of the end."""
        pieces = [self.finish(choice, has_begun, "") for choice, has_begun in self._open.items()]
        self._open.clear()
        if self._wants_usage and usage is not None:
            fields = {**self._fields, "choices": [], "usage": usage_object(usage)}
            pieces.append(b"data: " + orjson.dumps(fields) + b"\n\n")
        pieces.append(DONE)
        return pieces

    @abstractmethod
    def delta(self, event: RunSaid, has_begun: bool) -> bytes:
        """Render an event; b"" for one that the answer has no place for and that is left out."""

    @abstractmethod
    def finish(self, choice: int, has_begun: bool, reason: str) -> bytes:
        """Render the end of a choice; without a reason, with one that fits what came."""


class ChatStream(Stream):
    """chat.completion.chunk events. A choice's first delta names the role."""

    def __init__(self, envelope: Envelope, choices: int, wants_usage: bool) -> None:
        super().__init__(envelope, choices, wants_usage)
        self._calls: dict[tuple[int, int], None] = {}  # (choice, call) that have begun

    def delta(self, event: RunSaid, has_begun: bool) -> bytes:
        """Render an event."""
        if type(event) is RunText:
            if has_begun:  # fast path: nearly every event is this one
                text = orjson.dumps(event.text)
                return self.chunk(
                    b'{"index":%d,"delta":{"content":%b},"logprobs":null,"finish_reason":null}' % (event.choice, text)
                )
            return self._rendered(event.choice, {"role": "assistant", "content": event.text}, None)
        role: dict[str, Any] = {} if has_begun else {"role": "assistant", "content": None}
        if type(event) is RunReasoning:
            return self._rendered(event.choice, {**role, "reasoning_content": event.text}, None)
        if type(event) is RunToolCall:
            return self._rendered(event.choice, {**role, "tool_calls": [self._call(event)]}, None)
        raise misplaced(event)

    def _call(self, event: RunToolCall) -> dict[str, Any]:
        key = (event.choice, event.call_index)
        if key in self._calls:
            return {"index": event.call_index, "function": {"arguments": event.arguments}}
        if not 0 <= event.call_index < TOOL_CALLS_MAX:
            raise FrameError(f"tool call {event.call_index}: expected less than {TOOL_CALLS_MAX}")
        self._calls[key] = None
        return {
            "index": event.call_index,
            "id": event.call_id or self._envelope.call_id(*key),
            "type": "function",
            "function": {"name": event.name, "arguments": event.arguments},
        }

    def finish(self, choice: int, has_begun: bool, reason: str) -> bytes:
        """Render the end of a choice."""
        if not reason:
            reason = "tool_calls" if any(key[0] == choice for key in self._calls) else "stop"
        return self._rendered(choice, {} if has_begun else {"role": "assistant", "content": ""}, reason)

    def _rendered(self, choice: int, delta: dict[str, Any], reason: str | None) -> bytes:
        fields = {"index": choice, "delta": delta, "logprobs": None, "finish_reason": reason}
        return self.chunk(orjson.dumps(fields))


class TextStream(Stream):
    """text_completion events."""

    def delta(self, event: RunSaid, has_begun: bool) -> bytes:
        """Render an event."""
        if type(event) is RunText:
            return self._rendered(event.choice, event.text, None)
        if type(event) is RunReasoning:
            return b""
        raise misplaced(event)

    def finish(self, choice: int, has_begun: bool, reason: str) -> bytes:
        """Render the end of a choice."""
        return self._rendered(choice, "", reason or "stop")

    def _rendered(self, choice: int, text: str, reason: str | None) -> bytes:
        return self.chunk(orjson.dumps({"index": choice, "text": text, "logprobs": None, "finish_reason": reason}))


# ---------------------------------------------------------------------------------------------------------------------
# Embeddings


class EmbeddingAnswer(Translation):
    """A list of embeddings. Each is rendered when it comes, so that the end has only to join them."""

    def __init__(self, model: str, inputs: int, *, is_base64: bool) -> None:
        self._model = model
        self._inputs = inputs
        self._is_base64 = is_base64
        self._rendered: dict[int, bytes] = {}

    def add(self, said: list[RunSaid]) -> list[bytes]:
        """Collect embeddings."""
        for event in said:
            if type(event) is RunFinish:
                continue
            if type(event) is not RunEmbedding:
                raise misplaced(event)
            if not 0 <= event.choice < self._inputs or event.choice in self._rendered:
                raise bad_choice(event.choice)
            self._rendered[event.choice] = b'{"object":"embedding","index":%d,"embedding":%b}' % (
                event.choice,
                b'"%b"' % b64encode(event.values) if self._is_base64 else numbers(event.values),
            )
        return []

    def close(self, usage: Usage | None) -> list[bytes]:
        """Return the document; raise IncompleteAnswer when an input has no embedding."""
        if len(self._rendered) < self._inputs:
            raise IncompleteAnswer(f"the provider embedded {len(self._rendered)} of {self._inputs} inputs")
        listed = b",".join(self._rendered[index] for index in range(self._inputs))
        rest: dict[str, Any] = {"model": self._model}
        if usage is not None:
            rest["usage"] = {"prompt_tokens": usage[0], "total_tokens": usage[0]}
        return [b'{"object":"list","data":[', listed, b"]," + orjson.dumps(rest)[1:]]


def numbers(values: bytes) -> bytes:
    """Render little-endian float32 numbers as a JSON array, exactly. What JSON has no number for (infinite, not a
    number) is null."""
    floats = array("f", values)
    if byteorder == "big":
        floats.byteswap()
    return orjson.dumps(floats.tolist())
