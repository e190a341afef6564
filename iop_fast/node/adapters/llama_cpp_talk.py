"""How a task is said to llama.cpp's server, and what its answers mean: pure translation, no thread and no model.

llama.cpp's API is OpenAI's with some additions, so parameters pass as they are. A stream is asked for always, with the
usage behind it, and with the progress of the prompt in between: each such chunk is a chance to stop.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from typing import Any

import orjson

from iop_fast.node.adapters.threads import Teller
from iop_fast.seams import End, RunTask, TaskMessage, TaskPart, Usage
from iop_fast.wire import runtime_pb2 as pb

# llama.cpp's own names for what OpenAI calls by others.
FINISHES = frozenset({"stop", "length", "tool_calls", "content_filter"})


class Refused(Exception):
    """The model answered with an error, which the answer's end tells."""


def request_of(task: RunTask) -> bytes:
    """Return the request's body."""
    fields: dict[str, Any] = dict(task.parameters)
    if task.kind == pb.RunRequest.EMBEDDING:
        return orjson.dumps(fields | {"input": list(task.inputs), "encoding_format": "float"})
    if task.kind == pb.RunRequest.COMPLETION:
        inputs = list(task.inputs)
        fields["prompt"] = inputs[0] if len(inputs) == 1 else inputs
    else:
        fields["messages"] = [message_of(message) for message in task.messages]
    fields |= {"stream": True, "stream_options": {"include_usage": True}, "return_progress": True}
    return orjson.dumps(fields)


def message_of(message: TaskMessage) -> dict[str, Any]:
    """Return a message as the API has it."""
    said: dict[str, Any] = {"role": message.role}
    if all(part.kind == "text" for part in message.parts):
        said["content"] = "".join(part.text for part in message.parts) if message.parts else None
    else:
        said["content"] = [part_of(part) for part in message.parts]
    if message.name:
        said["name"] = message.name
    if message.tool_call_id:
        said["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        said["tool_calls"] = list(message.tool_calls)
    return said


def part_of(part: TaskPart) -> dict[str, Any]:
    """Return a part of a message as the API has it."""
    if part.kind == "text":
        return {"type": "text", "text": part.text}
    data = b64encode(part.data).decode()
    if part.kind == "image":
        return {"type": "image_url", "image_url": {"url": f"data:{part.media_type or 'image/png'};base64,{data}"}}
    return {"type": "input_audio", "input_audio": {"data": data, "format": part.media_type.removeprefix("audio/")}}


class Answer:
    """What comes of one task of a kind. Fed with the model's chunks in the task's thread; tells the teller."""

    def __init__(self, kind: int, teller: Teller) -> None:
        self._is_chat = kind == pb.RunRequest.CHAT
        self._teller = teller
        self._has_said = False
        self._refusal: End | None = None
        self._usage: Usage | None = None
        self._finished = 0

    def take(self, chunk: bytes) -> None:
        """Take one chunk of a stream. Raises Refused for an error, Cancelled when nobody listens any more."""
        read = orjson.loads(chunk)
        if not isinstance(read, dict):
            return  # `null` stands for a progress that a completion has no chunk for
        self._look_for_error(read)
        for choice in read.get("choices") or ():
            self._take_choice(choice)
        self._add_usage(read.get("usage"))

    def take_embeddings(self, body: bytes) -> None:
        """Take a whole answer with embeddings. Raises Refused and Cancelled."""
        read = orjson.loads(body)
        self._look_for_error(read)
        for entry in read["data"]:
            self._has_said = True
            self._teller.embedding(entry["embedding"], entry["index"])
        self._add_usage(read.get("usage"))
        self._finished += 1

    def refuse(self, status: int, message: str) -> None:
        """The model does not do it."""
        if self._has_said:
            self._refusal = End(pb.RunEnd.UPSTREAM_ERROR, message, self._usage)
        else:
            self._refusal = End(pb.RunEnd.REFUSED, message, None, status if 400 <= status <= 599 else 500)

    def end(self) -> End:
        """Return the end, once nothing more comes."""
        if self._teller.is_cancelled:
            return End(pb.RunEnd.CANCELLED, "cancelled", self._usage)
        if self._refusal is not None:
            return self._refusal
        if not self._finished:
            return End(pb.RunEnd.UPSTREAM_ERROR, "the model stopped before it had finished", self._usage)
        return End(pb.RunEnd.OK, "", self._usage)

    def _look_for_error(self, read: Mapping[str, Any]) -> None:
        error = read.get("error")
        if error is not None:
            self.refuse(error.get("code") or 500, str(error.get("message") or "the model failed"))
            raise Refused

    def _take_choice(self, choice: Mapping[str, Any]) -> None:
        index = choice.get("index") or 0
        teller = self._teller
        if self._is_chat:
            delta = choice.get("delta") or {}
            self._say_text(teller.reasoning, delta.get("reasoning_content"), index)
            self._say_text(teller.text, delta.get("content"), index)
            for call in delta.get("tool_calls") or ():
                self._say_call(call, index)
        else:
            self._say_text(teller.text, choice.get("text"), index)
        reason = choice.get("finish_reason")
        if reason:
            self._finished += 1
            self._has_said = True
            teller.finish(reason if reason in FINISHES else "stop", index)

    def _say_text(self, say: Any, text: str | None, index: int) -> None:
        if text:
            self._has_said = True
            say(text, index)

    def _say_call(self, call: Mapping[str, Any], index: int) -> None:
        function = call.get("function") or {}
        self._has_said = True
        self._teller.tool_call(
            call.get("index") or 0,
            call.get("id") or "",
            function.get("name") or "",
            function.get("arguments") or "",
            index,
        )

    def _add_usage(self, usage: Mapping[str, Any] | None) -> None:
        """Add up: a completion of several prompts reports each on its own."""
        if not usage:
            return
        details = usage.get("prompt_tokens_details") or {}
        before = self._usage or Usage(0, 0, 0)
        self._usage = Usage(
            before.prompt_tokens + (usage.get("prompt_tokens") or 0),
            before.completion_tokens + (usage.get("completion_tokens") or 0),
            before.cached_tokens + (details.get("cached_tokens") or 0),
        )
