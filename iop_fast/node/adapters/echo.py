"""`echo`: a native model that says back what it was told. It needs no model server, so it serves a first try,
demonstrations and tests, and it comes by the same road as any other native model.

The answer to the same request is always the same. A word is a token.

    chat         the words of the last user message; with several choices (n) each says the same
    completion   the words of the prompt
    tools        where tool_choice names a function, or is `required` (then the first tool): a call of it, whose
                 arguments are the last user message where that is a JSON object, else {"input": the message}
    embedding    EMBEDDING_SIZE numbers (or `dimensions`) of the text's SHA-256, as a vector of length 1
    limits       max_completion_tokens, max_tokens; the finish reason tells
    usage        the words of the prompt and of the answers

Other parameters are taken and change nothing. `delay_ms` passes before the first piece and `chunk_ms` between pieces of
`chunk_words` words.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import orjson

from iop_fast.config.payload import ProviderPayload
from iop_fast.config.schema.native import EchoOptions
from iop_fast.node.adapters import NormalizedAdapter, Surroundings
from iop_fast.node.health import Health
from iop_fast.seams import End, RunAdapter, RunHandle, RunSink, RunTask, TaskMessage, Usage
from iop_fast.wire import runtime_pb2 as pb

# Pieces that are said in one turn of the loop when no time stands between them.
PIECES_A_TURN = 64
WORD = re.compile(r"\S+\s*")
EMBEDDING_SIZE = 64
EMBEDDING_SIZE_MAX = 16_384
CHOICES_MAX = 128

# Says one piece of the answer.
Piece = Callable[[RunSink], None]


class EchoRefusal(Exception):
    """The task is not one that echo does; the text is for the client."""


def make_echo(options: Mapping[str, object], surroundings: Surroundings) -> NormalizedAdapter:
    """Make an echo model (see iop_fast.node.adapters.native.MakeNative)."""
    return EchoAdapter(EchoOptions.model_validate(options), surroundings.loop)


class EchoAdapter:
    """One echo model."""

    def __init__(self, options: EchoOptions, loop: asyncio.AbstractEventLoop) -> None:
        self.options = options
        self.loop = loop
        self._health = Health(loop)

    @property
    def health(self) -> Health:
        """Always up."""
        return self._health

    def run_adapter(self, provider: ProviderPayload) -> RunAdapter:
        """The model answers to any name."""
        return self

    def start(self, task: RunTask, sink: RunSink) -> RunHandle:
        """See RunAdapter."""
        return EchoRun(self.options, self.loop, task, sink)

    async def close(self) -> None:
        """Hold nothing."""
        self._health.close()


class EchoRun:
    """One run: says the answer's pieces at the model's pace."""

    __slots__ = ("_chunk_ms", "_has_ended", "_is_due", "_is_paused", "_loop", "_pieces", "_sink", "_timer", "_usage")

    def __init__(self, options: EchoOptions, loop: asyncio.AbstractEventLoop, task: RunTask, sink: RunSink) -> None:
        self._chunk_ms = options.chunk_ms
        self._loop = loop
        self._sink = sink
        self._pieces: Iterator[Piece] = iter(())
        self._usage: Usage | None = None
        self._is_paused = False
        self._is_due = False
        self._has_ended = False
        self._timer: asyncio.Handle | None = loop.call_soon(self._begin, options, task)

    def _begin(self, options: EchoOptions, task: RunTask) -> None:
        self._sink.on_taken()
        try:
            self._pieces, self._usage = answer_to(task, options.chunk_words)
        except EchoRefusal as refusal:
            self._end(End(pb.RunEnd.REFUSED, str(refusal), None, 400))
            return
        self._wait(options.delay_ms)

    def pause(self) -> None:
        """Hold the next piece back."""
        self._is_paused = True

    def resume(self) -> None:
        """Go on; a piece that came due meanwhile is said now."""
        self._is_paused = False
        if self._is_due and self._timer is None:
            self._timer = self._loop.call_soon(self._say)

    def cancel(self) -> None:
        """Stop, and say so in the next turn of the loop."""
        if not self._has_ended:
            self._has_ended = True
            self._cancel_timer()
            self._loop.call_soon(self._sink.on_end, End(pb.RunEnd.CANCELLED, "cancelled", None))

    def _wait(self, delay_ms: int) -> None:
        loop = self._loop
        self._timer = loop.call_later(delay_ms / 1000, self._say) if delay_ms else loop.call_soon(self._say)

    def _say(self) -> None:
        """Say what is due: one piece, or many when no time stands between them."""
        self._timer = None
        for _ in range(1 if self._chunk_ms else PIECES_A_TURN):
            if self._is_paused:
                self._is_due = True
                return
            piece = next(self._pieces, None)
            if piece is None:
                self._end(End(pb.RunEnd.OK, "", self._usage))
                return
            piece(self._sink)
            if self._has_ended:
                return
        self._is_due = False
        self._wait(self._chunk_ms)

    def _end(self, end: End) -> None:
        self._has_ended = True
        self._cancel_timer()
        self._sink.on_end(end)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def answer_to(task: RunTask, chunk_words: int) -> tuple[Iterator[Piece], Usage]:
    """Return the pieces of the answer and the tokens it takes; raise EchoRefusal."""
    if task.kind == pb.RunRequest.EMBEDDING:
        size = checked(task.parameters, "dimensions", EMBEDDING_SIZE, EMBEDDING_SIZE_MAX)
        pieces = [partial(say_embedding, embedding_of(text, size), index) for index, text in enumerate(task.inputs)]
        return iter(pieces), Usage(sum(len(words_of(text)) for text in task.inputs), 0, 0)
    if task.kind == pb.RunRequest.COMPLETION:
        said = list(task.inputs)
        told = said
    else:
        told = [text_of(message) for message in task.messages]
        said = [last_of_user(task.messages)]
    choices = checked(task.parameters, "n", 1, CHOICES_MAX)
    function = called_function(task.parameters)
    spoken = [text for text in said for _ in range(choices)]
    if function:
        spoken = [arguments_for(text) for text in spoken]
    limit = word_limit(task.parameters)
    answers = [Answer(words_of(text), limit, index, function) for index, text in enumerate(spoken)]
    prompt_words = sum(len(words_of(text)) for text in told)
    usage = Usage(prompt_words, sum(len(answer.words) for answer in answers), 0)
    return (piece for answer in answers for piece in answer.pieces(chunk_words)), usage


class Answer:
    """One choice: its words, said as text or as the arguments of a function."""

    def __init__(self, words: Sequence[str], limit: int | None, index: int, function: str) -> None:
        self.words = words if limit is None else words[:limit]
        self._is_cut = len(self.words) < len(words)
        self._index = index
        self._function = function

    def pieces(self, chunk_words: int) -> Iterator[Piece]:
        """Yield what is to be said."""
        index = self._index
        call_id, name = (f"call_echo_{index}", self._function) if self._function else ("", "")
        for start in range(0, len(self.words), chunk_words):
            text = "".join(self.words[start : start + chunk_words])
            if self._function:
                yield partial(say_arguments, call_id, name, text, index)
                call_id = name = ""
            else:
                yield partial(say_text, text, index)
        yield partial(say_finish, "length" if self._is_cut else "tool_calls" if self._function else "stop", index)


def say_text(text: str, index: int, sink: RunSink) -> None:
    sink.on_text(text, index)


def say_arguments(call_id: str, name: str, arguments: str, index: int, sink: RunSink) -> None:
    sink.on_tool_call(0, call_id, name, arguments, index)


def say_finish(reason: str, index: int, sink: RunSink) -> None:
    sink.on_finish(reason, index)


def say_embedding(values: Sequence[float], index: int, sink: RunSink) -> None:
    sink.on_embedding(values, index)


def words_of(text: str) -> list[str]:
    """Split a text into words, each with the space behind it."""
    return WORD.findall(text)


def text_of(message: TaskMessage) -> str:
    """Return a message's text; parts that are no text are left out."""
    return "\n".join(part.text for part in message.parts if part.kind == "text")


def last_of_user(messages: Sequence[TaskMessage]) -> str:
    """Return the text of the last user message, "" without one."""
    return next((text_of(message) for message in reversed(messages) if message.role == "user"), "")


def arguments_for(text: str) -> str:
    """Return the arguments of a call: the text itself where it is a JSON object."""
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        found = None
    return text if isinstance(found, dict) else orjson.dumps({"input": text}).decode()


def called_function(parameters: Mapping[str, Any]) -> str:
    """Return the name of the function that tool_choice wants called, "" for none."""
    choice = parameters.get("tool_choice")
    if choice == "required":
        tools = parameters.get("tools")
        choice = tools[0] if isinstance(tools, list) and tools else None
    function = choice.get("function") if isinstance(choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else ""


def word_limit(parameters: Mapping[str, Any]) -> int | None:
    """Return how many words an answer may have, None for any number."""
    for name in ("max_completion_tokens", "max_tokens"):
        if parameters.get(name) is not None:
            return checked(parameters, name, 1, None)
    return None


def checked(parameters: Mapping[str, Any], name: str, default: int, most: int | None) -> int:
    """Return a whole number of at least 1; absent and null are the default. Raises EchoRefusal."""
    value = parameters.get(name)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < 1 or (most is not None and value > most):
        bounds = "of at least 1" if most is None else f"of 1 to {most}"
        raise EchoRefusal(f"{name}: expected a whole number {bounds}")
    return value


def embedding_of(text: str, size: int) -> list[float]:
    """Return a vector of length 1 that depends on the text alone."""
    blocks = (size * 2 + 31) // 32
    data = b"".join(
        hashlib.sha256(b"%d:" % block + text.encode("utf-8", "replace")).digest() for block in range(blocks)
    )
    values = [int.from_bytes(data[2 * at : 2 * at + 2], "big") - 32_767.5 for at in range(size)]
    length = math.sqrt(sum(value * value for value in values))
    return [value / length for value in values]
