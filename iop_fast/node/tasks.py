"""A normalized run's input as adapters get it: the serialized RunInput, read and checked.

What an Edge makes and this cannot read is a bug of the Edge, or of a later version: never the client's fault.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from google.protobuf.message import DecodeError

from iop_fast.seams import RunOpening, RunTask, TaskMessage, TaskPart
from iop_fast.wire import runtime_pb2 as pb


class TaskError(ValueError):
    """The input is not what the protocol says."""


def read_task(opening: RunOpening, data: bytes) -> RunTask:
    """Return the task of a run whose whole input is here; raise TaskError."""
    if opening.kind not in pb.RunRequest.Kind.values():
        raise TaskError(f"expected a kind of run that this version knows, got {opening.kind}")
    try:
        read = pb.RunInput.FromString(data)
    except DecodeError:
        raise TaskError("expected a RunInput, got other bytes") from None
    messages = [message_of(message) for message in read.messages]
    parameters = object_of(read.parameters_json, "parameters_json") if read.parameters_json else {}
    traceparent = opening.traceparent.decode("latin-1")
    return RunTask(opening.model, opening.kind, opening.stream, messages, list(read.inputs), parameters, traceparent)


def message_of(message: pb.RunMessage) -> TaskMessage:
    """Return a message as adapters get it."""
    calls: Sequence[Mapping[str, Any]] = ()
    if message.tool_calls_json:
        calls = parsed(message.tool_calls_json, "tool_calls_json")
        if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
            raise TaskError("tool_calls_json: expected a list of objects")
    parts = [part_of(part) for part in message.parts]
    return TaskMessage(message.role, parts, message.name, message.tool_call_id, calls)


def part_of(part: pb.RunPart) -> TaskPart:
    """Return a part of a message; raise TaskError for one of a later version."""
    kind = part.WhichOneof("part")
    match kind:
        case "text":
            return TaskPart("text", text=part.text, media_type=part.media_type)
        case "image" | "audio":
            return TaskPart(kind, data=part.image or part.audio, media_type=part.media_type)
        case _:
            raise TaskError("expected a part of a message that is text, image or audio")


def object_of(text: bytes, name: str) -> Mapping[str, Any]:
    """Parse a JSON object."""
    found = parsed(text, name)
    if not isinstance(found, dict):
        raise TaskError(f"{name}: expected a JSON object, got {type(found).__name__}")
    return found


def parsed(text: bytes, name: str) -> Any:
    """Parse JSON."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise TaskError(f"{name}: expected JSON: {error}") from None
