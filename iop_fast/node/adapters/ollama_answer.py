"""From Ollama's answer to the events of a run: a stream of lines for chats and completions, one object for embeddings.

Both readers take bytes cut anywhere, tell the sink of events as they are whole, and end in one of these ways: the
answer is whole (`is_whole`), Ollama reports an error (ProviderError), or what came is no answer (AnswerError). An
answer without its last line, `"done": true`, is never whole. What comes after it is dropped.

Field names are those of docs.ollama.com/api/chat, /generate, /embed and `api/types.go` of ollama/ollama.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import orjson

from iop_fast.node.adapters.ndjson import LineReader, LineTooLongError
from iop_fast.node.adapters.ollama_errors import AnswerError, error_in
from iop_fast.seams import RunSink, Usage

MIB = 1024 * 1024
# A line may be a whole answer, and the last one of a completion holds its tokens (`context`).
LINE_BYTES_MAX = 4 * MIB
# One embedding as text and in numbers, and all of the object but its embeddings. An event has to fit a message.
VECTOR_BYTES_MAX = 4 * MIB
VECTOR_NUMBERS_MAX = 64 * 1024
REST_BYTES_MAX = MIB
# A model makes a few tool calls; the Edge takes no more of them either.
TOOL_CALLS_MAX = 1024
NAME_CHARACTERS_MAX = 4096

# `load` and `unload` answer an empty prompt, "" comes from servers that know no reason.
REASONS = {"stop": "stop", "length": "length", "load": "stop", "unload": "stop", "": "stop"}

VECTORS_BEGIN = re.compile(rb'"embeddings"\s*:\s*\[')
BETWEEN_VECTORS = b" \t\r\n,"


class AnswerReader(Protocol):
    """Reads one answer."""

    @property
    def is_whole(self) -> bool:
        """True once the answer is whole."""
        ...

    @property
    def has_begun(self) -> bool:
        """True once the sink was told of an event."""
        ...

    @property
    def usage(self) -> Usage | None:
        """Tokens as reported, None where nothing complete was."""
        ...

    def feed(self, data: bytes) -> None:
        """Take bytes; raise ProviderError or AnswerError."""
        ...

    def finish(self) -> None:
        """Nothing more comes; raise AnswerError where the answer is not whole, or ProviderError."""
        ...


class StreamReader:
    """Reads a chat or a completion. `new_call_id` makes ids for tool calls that have none."""

    __slots__ = ("_call_ids", "_lines", "_new_call_id", "_sink", "has_begun", "is_whole", "usage")

    def __init__(self, sink: RunSink, new_call_id: Callable[[], str]) -> None:
        self._sink = sink
        self._new_call_id = new_call_id
        self._lines = LineReader(LINE_BYTES_MAX)
        self._call_ids: dict[str, None] = {}
        self.has_begun = False
        self.is_whole = False
        self.usage: Usage | None = None

    def feed(self, data: bytes) -> None:
        """See AnswerReader."""
        if self.is_whole:
            return
        try:
            for line in self._lines.feed(data):
                self._take(line)
                if self.is_whole:
                    return
        except LineTooLongError as error:
            raise AnswerError(f"the answer cannot be read: {error}") from None

    def finish(self) -> None:
        """See AnswerReader."""
        if not self.is_whole and (line := self._lines.finish()):
            self._take(line)
        if not self.is_whole:
            raise AnswerError("the answer ended before its last line")

    def _take(self, line: bytes) -> None:
        try:
            fields = orjson.loads(line)
        except orjson.JSONDecodeError:
            raise AnswerError("a line of the answer is not JSON") from None
        if not isinstance(fields, dict):
            raise AnswerError("a line of the answer is not a JSON object")
        if (error := error_in(fields)) is not None:
            raise error
        message = fields.get("message")
        if isinstance(message, dict):
            self._say(message, "content")
        elif "response" in fields:
            self._say(fields, "response")
        elif "done" not in fields:
            raise AnswerError("a line of the answer is none of Ollama's")
        if fields.get("done") is True:
            self._end(fields)

    def _say(self, message: dict[str, Any], content: str) -> None:
        """Tell of what a line brings."""
        if thinking := text_in(message, "thinking"):
            self.has_begun = True
            self._sink.on_reasoning(thinking)
        if text := text_in(message, content):
            self.has_begun = True
            self._sink.on_text(text)
        calls = message.get("tool_calls") or []
        if not isinstance(calls, list):
            raise AnswerError("tool_calls of the answer are not a list")
        for call in calls:
            self._say_call(call)

    def _say_call(self, call: object) -> None:
        """Tell of a tool call. Ollama makes each of them whole, and counts them anew in every line."""
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(call, dict) or not isinstance(function, dict):
            raise AnswerError("a tool call of the answer has no function")
        name = text_in(function, "name")
        if not name:
            raise AnswerError("a tool call of the answer has no name")
        if len(self._call_ids) == TOOL_CALLS_MAX:
            raise AnswerError(f"the answer has more than {TOOL_CALLS_MAX} tool calls")
        call_id = text_in(call, "id")
        if max(len(name), len(call_id)) > NAME_CHARACTERS_MAX:
            raise AnswerError(f"a tool call's name or id has more than {NAME_CHARACTERS_MAX} characters")
        if not call_id or call_id in self._call_ids:
            call_id = self._new_call_id()
        self._call_ids[call_id] = None
        self.has_begun = True
        self._sink.on_tool_call(len(self._call_ids) - 1, call_id, name, arguments_text(function.get("arguments")))

    def _end(self, fields: dict[str, Any]) -> None:
        self.is_whole = True
        self.usage = usage_of(fields)
        reason = REASONS.get(text_in(fields, "done_reason"), "stop")
        self.has_begun = True
        self._sink.on_finish("tool_calls" if self._call_ids else reason)


class EmbeddingReader:
    """Reads the embeddings of `count` inputs, one after the other: a batch is too large to be read as a whole."""

    __slots__ = ("_buffer", "_count", "_phase", "_rest", "_said", "_sink", "has_begun", "is_whole", "usage")

    def __init__(self, sink: RunSink, count: int) -> None:
        self._sink = sink
        self._count = count
        self._said = 0
        self._buffer = bytearray()
        self._rest = bytearray()  # of the object, without the embeddings
        self._phase: Callable[[], bool] = self._read_beginning
        self.has_begun = False
        self.is_whole = False
        self.usage: Usage | None = None

    def feed(self, data: bytes) -> None:
        """See AnswerReader."""
        self._buffer += data
        while self._phase():
            pass

    def finish(self) -> None:
        """See AnswerReader."""
        self._rest += self._buffer
        try:
            fields = orjson.loads(self._rest)
        except orjson.JSONDecodeError:
            raise AnswerError("the answer is not JSON, or not whole") from None
        if not isinstance(fields, dict):
            raise AnswerError("the answer is not a JSON object")
        if (error := error_in(fields)) is not None:
            raise error
        if "embeddings" not in fields or self._said != self._count:
            raise AnswerError(f"the answer has {self._said} embeddings, expected {self._count}")
        self.is_whole = True
        tokens = count_in(fields, "prompt_eval_count")
        self.usage = None if tokens is None else Usage(tokens, 0, 0)

    # Phases. Each takes from the buffer what it can and says whether the next one can go on.

    def _read_beginning(self) -> bool:
        found = VECTORS_BEGIN.search(self._buffer)
        if found is None:
            if len(self._buffer) > REST_BYTES_MAX:
                raise AnswerError("the answer has no embeddings")
            return False
        self._rest += self._buffer[: found.end()]
        del self._buffer[: found.end()]
        self._phase = self._read_vectors
        return True

    def _read_vectors(self) -> bool:
        """Take the embeddings that are whole; they are lists of numbers, so the first bracket ends each."""
        at = 0
        for start, end in vectors_in(self._buffer):
            if end - start > VECTOR_BYTES_MAX:
                raise AnswerError(f"an embedding is over {VECTOR_BYTES_MAX} bytes")
            self._say(self._buffer[start:end])
            at = end
        del self._buffer[:at]
        waiting = self._buffer.lstrip(BETWEEN_VECTORS)
        if waiting[:1] == b"[":
            if len(waiting) > VECTOR_BYTES_MAX:
                raise AnswerError(f"an embedding is over {VECTOR_BYTES_MAX} bytes")
            return False
        self._buffer = waiting
        if not waiting:
            return False
        self._phase = self._read_rest
        return True

    def _read_rest(self) -> bool:
        if len(self._buffer) > REST_BYTES_MAX:
            raise AnswerError("the answer does not end behind its embeddings")
        return False

    def _say(self, text: bytearray) -> None:
        try:
            values = orjson.loads(text)
        except orjson.JSONDecodeError:
            raise AnswerError("an embedding of the answer is not a list of numbers") from None
        if not values or not all(type(value) in (float, int) for value in values):
            raise AnswerError("an embedding of the answer is not a list of numbers")
        if len(values) > VECTOR_NUMBERS_MAX:
            raise AnswerError(f"an embedding has more than {VECTOR_NUMBERS_MAX} numbers")
        self.has_begun = True
        self._said += 1
        if self._said <= self._count:
            self._sink.on_embedding(values, self._said - 1)


def vectors_in(buffer: bytearray) -> Iterator[tuple[int, int]]:
    """Yield the bounds of the lists that stand whole at the front of a buffer, with nothing but commas between them."""
    at = 0
    while True:
        start = buffer.find(b"[", at)
        if start < 0 or buffer[at:start].strip(BETWEEN_VECTORS):
            return
        end = buffer.find(b"]", start) + 1
        if end == 0:
            return
        yield start, end
        at = end


def text_in(fields: Mapping[str, Any], name: str) -> str:
    """Return a field that is text, "" where it is absent or null; raise AnswerError for another type."""
    value = fields.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise AnswerError(f"{name} of the answer is not text")
    return value


def count_in(fields: Mapping[str, Any], name: str) -> int | None:
    """Return a field that counts, None where it is absent or does not."""
    value = fields.get(name)
    return value if type(value) is int and value >= 0 else None


def arguments_text(arguments: object) -> str:
    """Return a call's arguments as JSON text, as the OpenAI API has them."""
    if isinstance(arguments, str):
        return arguments or "{}"
    try:
        return orjson.dumps({} if arguments is None else arguments).decode()
    except TypeError:  # what can be read can be nested deeper than what can be written
        raise AnswerError("the arguments of a tool call are nested too deep") from None


def usage_of(fields: Mapping[str, Any]) -> Usage | None:
    """Return the tokens that a last line reports.

    A count of 0 is left out by Ollama, so an absent `eval_count` is 0 beside a `prompt_eval_count`. The latter is never
    0: servers that leave it out (old ones, for a prompt that stood in their cache whole) do not know it, and an unknown
    usage is not made up.
    """
    prompt = count_in(fields, "prompt_eval_count")
    if not prompt:
        return None
    completion = count_in(fields, "eval_count") or 0
    cached = count_in(fields, "prompt_eval_cached_count") or 0
    return Usage(prompt, completion, min(cached, prompt))
