"""A task becomes one text and a program's arguments."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest

from iop_fast.config.schema import CliProfile
from iop_fast.node.adapters.cli_prompt import TaskRefusal, Words, check_size, read_task
from iop_fast.seams import RunTask, TaskMessage, TaskPart
from iop_fast.wire import runtime_pb2 as pb
from tests.integration.cli_bench import chat, task


def words(*command: str, **keys: Any) -> Words:
    return Words(CliProfile(id="p", command=("x", *command), **keys))


def prompt(asked: RunTask) -> str:
    return read_task(asked, is_system_apart=False)["prompt"]


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([("user", "hi")], "hi"),
        ([("user", "")], ""),
        ([("system", "be brief"), ("user", "hi")], "be brief\n\nhi"),
        ([("system", "a"), ("developer", "b"), ("user", "hi")], "a\n\nb\n\nhi"),
        ([("user", "a"), ("assistant", "b"), ("user", "c")], "User: a\n\nAssistant: b\n\nUser: c\n\nAssistant:"),
        ([("system", "s"), ("user", "a"), ("user", "b")], "s\n\nUser: a\n\nUser: b\n\nAssistant:"),
        ([("user", "a"), ("assistant", "It is")], "User: a\n\nAssistant: It is"),
        ([("assistant", "hello")], "Assistant: hello"),
        ([("user", "a"), ("tool", "42")], "User: a\n\nTool: 42\n\nAssistant:"),
        ([("system", "s")], "s\n\n"),
        ([], ""),
    ],
)
def test_a_conversation_as_one_text(messages: list[tuple[str, str]], expected: str) -> None:
    assert prompt(task(*messages)) == expected


def test_names_and_calls_stand_in_a_transcript() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}}
    messages = [
        TaskMessage("user", [TaskPart("text", "1+1?"), TaskPart("text", "quick")], name="ann"),
        TaskMessage("assistant", [], tool_calls=[call, {"type": "custom"}]),
        TaskMessage("tool", [TaskPart("text", "2")], tool_call_id="c1"),
    ]
    asked = RunTask("m", pb.RunRequest.CHAT, False, messages, [], {})
    assert prompt(asked) == (
        'User (ann): 1+1?\nquick\n\nAssistant: \nAssistant calls add({"a":1})\n\nTool: 2\n\nAssistant:'
    )


def test_a_completion_is_its_prompt() -> None:
    asked = RunTask("m", pb.RunRequest.COMPLETION, False, [], ["once upon"], {})
    assert read_task(asked, is_system_apart=True) == {
        "prompt": "once upon",
        "system": "",
        "last_user": "once upon",
        "model": "m",
    }


def test_the_system_text_stands_once() -> None:
    asked = task(("system", "s"), ("user", "u"))
    assert words("{system}").render(asked) == (["x", "s"], b"u")
    assert words().render(asked) == (["x"], b"s\n\nu")
    assert words(template="[{system}] {prompt}").render(asked) == (["x"], b"[s] u")
    assert words("{system}", template="{prompt}!").render(asked) == (["x", "s"], b"u!")


def test_texts_are_never_looked_at_again() -> None:
    asked = task(("system", "{prompt}"), ("user", "{system}{model}"), model="{last_user}")
    assert words("{model}{system}", "{{model}}", template="{last_user}|{prompt}").render(asked) == (
        ["x", "{last_user}{prompt}", "{{last_user}}"],
        b"{system}{model}|{system}{model}",
    )


def test_an_argument_takes_the_conversation_and_standard_input_is_empty() -> None:
    assert words("{prompt}", input="argument").render(chat("hi")) == (["x", "hi"], b"")


@pytest.mark.parametrize(
    ("command", "text", "expected"),
    [
        (["{prompt}"], "-x", " -x"),
        (["{prompt}"], "--", " --"),
        (["{prompt}"], "x-", "x-"),
        (["--", "{prompt}"], "-x", "-x"),
        (["{prompt}", "--"], "-x", " -x"),
        (["-{prompt}"], "-x", "--x"),
        (["{system}{prompt}"], "-x", " -x"),
        (["{prompt}", "{last_user}"], "-x", " -x"),
    ],
)
def test_a_text_is_no_option(command: list[str], text: str, expected: str) -> None:
    arguments, _ = words(*command, input="argument").render(chat(text))
    assert expected in arguments
    assert "-x" not in arguments or "--" in arguments[: arguments.index("-x")]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (RunTask("m", pb.RunRequest.EMBEDDING, False, [], ["a"], {}), "no embeddings"),
        (RunTask("m", pb.RunRequest.COMPLETION, False, [], ["a", "b"], {}), "one prompt, got 2"),
        (chat(n=2), "n to be 1"),
        (chat(tools=[{"type": "function"}]), "no tools"),
        (chat(response_format={"type": "json_object"}), "no response_format 'json_object'"),
        (
            RunTask("m", pb.RunRequest.CHAT, False, [TaskMessage("user", [TaskPart("image", data=b"x")])], [], {}),
            "text only, got image",
        ),
    ],
)
def test_what_a_tool_does_not_do_is_refused(asked: RunTask, expected: str) -> None:
    with pytest.raises(TaskRefusal, match=expected) as refused:
        words().render(asked)
    assert refused.value.status == 400


def test_parameters_that_change_nothing_for_it_are_passed_over() -> None:
    asked = chat(n=1, tools=[], temperature=0.5, max_tokens=5, response_format={"type": "text"}, stop=["x"])
    assert words().render(asked) == (["x"], b"hello")


@pytest.mark.skipif(sys.platform != "linux", reason="the limit of one argument is Linux's")
def test_sizes_of_arguments() -> None:
    longest = 32 * os.sysconf("SC_PAGE_SIZE") - 1
    check_size(["x", "y" * longest], {})
    with pytest.raises(TaskRefusal, match=f"{longest + 1} bytes, at most {longest}") as refused:
        check_size(["x", "y" * (longest + 1)], {})
    assert refused.value.status == 413
    count = 2 * os.sysconf("SC_ARG_MAX") // longest
    with pytest.raises(TaskRefusal, match="too long for the arguments of a program"):
        check_size(["x", *["y" * longest] * count], {"A": "b"})
