"""What a command line tool is told: the texts of a task, and where they go in its arguments and on its standard input.

A tool takes one text. `read_task` makes four of a task, and a profile says where they stand, by placeholders:

    {prompt}      the conversation. A single message of the user is its text alone; several messages are a transcript:
                  "User: ...", "Assistant: ..." and so on, an empty line between them and "Assistant:" at the end. The
                  system text comes first, unless the profile has a place of its own for it
    {system}      the texts of system and developer messages, an empty line between them
    {last_user}   the text of the user's last message
    {model}       the served model's name

Placeholders are replaced in one pass: what a text contains is never looked at again, and other braces stay as they
are. Arguments are built, never quoted or parsed; no shell is near. A text that comes to stand at the start of an
argument must not be taken for an option: unless an argument "--" stands before it, a "-" at its beginning gets a space
in front of it, and a model's name that begins so is refused.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence

from iop_fast.config.schema.cli_profile import CLI_PLACEHOLDERS, CliProfile
from iop_fast.seams import RunTask, TaskMessage
from iop_fast.wire import runtime_pb2 as pb

PLACEHOLDER = re.compile("{(" + "|".join(CLI_PLACEHOLDERS) + ")}")
ROLE_NAMES = {"user": "User", "assistant": "Assistant"}
SYSTEM_ROLES = ("system", "developer")

# execve(2): on Linux one argument or variable is at most 32 pages, its closing NUL included, and all together are never
# more than 6 MiB, however large the stack may be.
ARGUMENT_BYTES_MAX = 32 * os.sysconf("SC_PAGE_SIZE") - 1 if sys.platform == "linux" else sys.maxsize
ARGUMENTS_BYTES_MAX = 6 * 1024 * 1024
# For each text the kernel also counts a pointer; what it sets aside for itself is generously covered.
POINTER_BYTES = 8
SPARE_BYTES = 8_192


class TaskRefusal(Exception):
    """The task is not one that a command line tool does: the HTTP status that says it best, and why."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Words:
    """How a profile's program is told a task."""

    def __init__(self, profile: CliProfile) -> None:
        command = list(profile.command)
        self._profile = profile
        self._has_system_place = any("{system}" in text for text in (*command, profile.template or ""))
        # Behind this argument no options are read.
        self._closed_from = command.index("--") if "--" in command else len(command)

    def render(self, task: RunTask) -> tuple[list[str], bytes]:
        """Return the arguments, the program's name among them, and what goes to standard input; raise TaskRefusal."""
        texts = read_task(task, is_system_apart=self._has_system_place)
        if self._profile.template is not None:
            texts |= {"prompt": fill(self._profile.template, texts)}
        arguments = [
            argument(part, texts, index > self._closed_from) for index, part in enumerate(self._profile.command)
        ]
        return arguments, b"" if self._profile.input == "argument" else texts["prompt"].encode()


def read_task(task: RunTask, *, is_system_apart: bool) -> dict[str, str]:
    """Return the value of each placeholder; raise TaskRefusal for a task that needs more than text."""
    parameters = task.parameters
    if task.kind == pb.RunRequest.EMBEDDING:
        raise TaskRefusal(400, "a command line tool makes no embeddings")
    if parameters.get("n") not in (None, 1):
        raise TaskRefusal(400, "a command line tool gives one answer: expected n to be 1")
    if parameters.get("tools"):
        raise TaskRefusal(400, "a command line tool is given no tools: expected none")
    form = parameters.get("response_format")
    if isinstance(form, Mapping) and form.get("type") not in (None, "text"):
        raise TaskRefusal(400, f"a command line tool answers text: expected no response_format {form.get('type')!r}")
    if task.kind == pb.RunRequest.COMPLETION:
        if len(task.inputs) != 1:
            raise TaskRefusal(400, f"a command line tool takes one prompt, got {len(task.inputs)}")
        prompt = task.inputs[0]
        return {"prompt": prompt, "system": "", "last_user": prompt, "model": task.model}
    system = "\n\n".join(text_of(message) for message in task.messages if message.role in SYSTEM_ROLES)
    turns = [message for message in task.messages if message.role not in SYSTEM_ROLES]
    said = [text_of(message) for message in turns if message.role == "user"]
    prompt = conversation(turns)
    if system and not is_system_apart:
        prompt = f"{system}\n\n{prompt}"
    return {"prompt": prompt, "system": system, "last_user": said[-1] if said else "", "model": task.model}


def conversation(turns: Sequence[TaskMessage]) -> str:
    """Write messages as one text: the only one's own, or a transcript."""
    if len(turns) == 1 and turns[0].role == "user":
        return text_of(turns[0])
    lines = [turn_text(message) for message in turns]
    if turns and turns[-1].role != "assistant":
        lines.append("Assistant:")
    return "\n\n".join(lines)


def turn_text(message: TaskMessage) -> str:
    """Write one message of a transcript."""
    speaker = ROLE_NAMES.get(message.role, message.role.capitalize())
    said = [f"{speaker} ({message.name}): {text_of(message)}" if message.name else f"{speaker}: {text_of(message)}"]
    for call in message.tool_calls:
        function = call.get("function")
        if isinstance(function, Mapping):
            said.append(f"{speaker} calls {function.get('name')}({function.get('arguments')})")
    return "\n".join(said)


def text_of(message: TaskMessage) -> str:
    """Return a message's text; raise TaskRefusal for one with other parts."""
    for part in message.parts:
        if part.kind != "text":
            raise TaskRefusal(400, f"a command line tool takes text only, got {part.kind}")
    return "\n".join(part.text for part in message.parts)


def fill(template: str, texts: Mapping[str, str]) -> str:
    """Replace the placeholders of a template."""
    return PLACEHOLDER.sub(lambda found: texts[found[1]], template)


def argument(part: str, texts: Mapping[str, str], is_closed: bool) -> str:
    """Build one argument; `is_closed` says that no options are read any more."""
    first = PLACEHOLDER.match(part)
    text = fill(part, texts)
    if "\0" in text:
        raise TaskRefusal(400, "the text holds a NUL character, which no argument of a program can")
    if first is None or is_closed or not text.startswith("-"):
        return text
    if first[1] == "model":
        raise TaskRefusal(400, "the served model's name begins with '-', which the program would take for an option")
    return f" {text}"


def check_size(arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    """Raise TaskRefusal when the kernel would not start a program with these: it would say E2BIG."""
    sizes = [len(os.fsencode(text)) for text in arguments]
    if max(sizes) > ARGUMENT_BYTES_MAX:
        raise TaskRefusal(
            413, f"the text is too long for an argument of a program: {max(sizes)} bytes, at most {ARGUMENT_BYTES_MAX}"
        )
    sizes += [len(os.fsencode(name)) + 1 + len(os.fsencode(value)) for name, value in environment.items()]
    total = sum(sizes) + len(sizes) * (1 + POINTER_BYTES)
    limit = min(os.sysconf("SC_ARG_MAX"), ARGUMENTS_BYTES_MAX) - SPARE_BYTES
    if total > limit:
        raise TaskRefusal(413, f"the text is too long for the arguments of a program: {total} bytes, at most {limit}")
