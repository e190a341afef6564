"""A RunSink that writes down what it is told, and tasks to give an adapter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from iop_fast.seams import End, RunSaid, RunTask, RunText, RunToolCall, TaskMessage, TaskPart
from iop_fast.wire import runtime_pb2 as pb

CHAT, COMPLETION, EMBEDDING = pb.RunRequest.CHAT, pb.RunRequest.COMPLETION, pb.RunRequest.EMBEDDING


class RecordingRunSink:
    """Notes events as the Edge would get them, embeddings as lists of numbers. Refuses what comes after the end."""

    def __init__(self) -> None:
        self.is_taken = False
        self.said: list[Any] = []
        self.embeddings: dict[int, list[float]] = {}
        self.finished: dict[int, str] = {}
        self.end: End | None = None

    def _check(self) -> None:
        assert self.end is None, "an event behind the end"

    def on_taken(self) -> None:
        self._check()
        assert not self.is_taken, "taken twice"
        self.is_taken = True

    def on_text(self, text: str, index: int = 0) -> None:
        self._check()
        self.said.append(RunText(text, index))

    def on_reasoning(self, text: str, index: int = 0) -> None:
        self._check()
        self.said.append(("reasoning", text, index))

    def on_tool_call(self, call_index: int, call_id: str, name: str, arguments: str, index: int = 0) -> None:
        self._check()
        self.said.append(RunToolCall(call_index, call_id, name, arguments, index))

    def on_embedding(self, values: Sequence[float], index: int = 0) -> None:
        self._check()
        self.embeddings[index] = list(values)

    def on_finish(self, reason: str, index: int = 0) -> None:
        self._check()
        self.finished[index] = reason

    def on_end(self, end: End) -> None:
        self._check()
        self.end = end

    def text(self, choice: int = 0) -> str:
        """The answer of a choice."""
        return "".join(said.text for said in self.said if isinstance(said, RunText) and said.choice == choice)

    def calls(self, choice: int = 0) -> list[tuple[str, str]]:
        """Names and whole arguments of a choice's calls."""
        calls: dict[int, list[str]] = {}
        for said in self.said:
            if isinstance(said, RunToolCall) and said.choice == choice:
                call = calls.setdefault(said.call_index, ["", ""])
                call[0] += said.name
                call[1] += said.arguments
        return [(name, arguments) for name, arguments in calls.values()]

    def kinds(self) -> list[type[RunSaid]]:
        return [type(said) for said in self.said]


def message(role: str, text: str) -> TaskMessage:
    return TaskMessage(role, [TaskPart("text", text)])


def chat(*messages: TaskMessage | str, **parameters: Any) -> RunTask:
    """A chat; texts are user messages."""
    read = [message("user", one) if isinstance(one, str) else one for one in messages]
    return RunTask("served", CHAT, True, read, [], parameters)


def completion(*prompts: str, **parameters: Any) -> RunTask:
    return RunTask("served", COMPLETION, True, [], list(prompts), parameters)


def embedding(*texts: str, **parameters: Any) -> RunTask:
    return RunTask("served", EMBEDDING, False, [], list(texts), parameters)
