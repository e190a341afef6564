"""A task in the terms of the OpenAI API becomes a request of Ollama's native one."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from iop_fast.node.adapters.ollama_errors import TaskError
from iop_fast.node.adapters.ollama_request import IMAGE_PIECE_BYTES, Call, Defaults, call_for
from iop_fast.seams import RunTask, TaskMessage, TaskPart
from iop_fast.wire import runtime_pb2 as pb

NOTHING = Defaults({}, {})
CHAT, COMPLETION, EMBEDDING = pb.RunRequest.CHAT, pb.RunRequest.COMPLETION, pb.RunRequest.EMBEDDING
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
TIME = {"type": "function", "function": {"name": "time", "parameters": {"type": "object"}}}


def text(role: str, *texts: str, **fields: Any) -> TaskMessage:
    return TaskMessage(role, [TaskPart("text", part) for part in texts], **fields)


HI = text("user", "hi")


def task(
    kind: int = CHAT, messages: Sequence[TaskMessage] = (HI,), inputs: Sequence[str] = (), **given: Any
) -> RunTask:
    return RunTask("qwen3:8b", kind, True, messages if kind == CHAT else (), inputs, given)


def body(made: RunTask, defaults: Defaults = NOTHING) -> dict[str, Any]:
    return read(call_for(made, defaults))


def read(call: Call) -> dict[str, Any]:
    """The body of a call, whose length is as announced."""
    whole = b"".join(call.pieces())
    assert len(whole) == call.body_bytes
    fields: dict[str, Any] = json.loads(whole)
    return fields


def refusal(made: RunTask) -> str:
    with pytest.raises(TaskError) as caught:
        call_for(made, NOTHING)
    return str(caught.value)


class TestChats:
    def test_a_chat_is_a_stream_of_the_served_model(self) -> None:
        call = call_for(task(), NOTHING)
        assert call.path == b"/api/chat"
        assert read(call) == {
            "model": "qwen3:8b",
            "messages": [{"role": "user", "content": "hi"}],
            "stream": True,
        }

    @pytest.mark.parametrize(
        ("role", "becomes"),
        [
            ("system", "system"),
            ("developer", "system"),
            ("user", "user"),
            ("assistant", "assistant"),
            ("tool", "tool"),
            ("function", "tool"),
        ],
    )
    def test_a_role_becomes_one_that_ollama_knows(self, role: str, becomes: str) -> None:
        assert body(task(messages=[text(role, "x")]))["messages"] == [{"role": becomes, "content": "x"}]

    def test_a_role_that_nobody_knows_is_refused_with_its_place(self) -> None:
        assert refusal(task(messages=[HI, text("narrator", "x")])).startswith(
            "messages[1].role: expected one of system"
        )

    def test_parts_stay_one_message_and_images_are_bare_base64(self) -> None:
        """B25: a data URI of the client arrives as base64 without its prefix."""
        parts = [TaskPart("text", "what is"), TaskPart("image", data=b"\x89PNG\xff", media_type="image/png")]
        made = body(task(messages=[TaskMessage("user", [*parts, TaskPart("text", "this?")])]))
        assert made["messages"] == [
            {"role": "user", "content": "what is\nthis?", "images": [base64.b64encode(b"\x89PNG\xff").decode()]}
        ]

    @pytest.mark.parametrize("size", [0, 1, 2, 3, IMAGE_PIECE_BYTES - 1, IMAGE_PIECE_BYTES, 2 * IMAGE_PIECE_BYTES + 5])
    def test_images_are_encoded_in_pieces(self, size: int) -> None:
        pictures = [bytes(size), b"\0\xff" * 40]
        messages = [TaskMessage("user", [TaskPart("image", data=one), TaskPart("text", "a \0 b")]) for one in pictures]
        call = call_for(task(messages=messages), NOTHING)
        assert max(map(len, call.pieces())) <= IMAGE_PIECE_BYTES * 4 // 3
        assert [message["images"] for message in read(call)["messages"]] == [
            [base64.b64encode(one).decode()] for one in pictures
        ]
        assert read(call)["messages"][0]["content"] == "a \0 b"

    def test_audio_is_refused(self) -> None:
        spoken = TaskMessage("user", [TaskPart("audio", data=b"RIFF")])
        assert (
            refusal(task(messages=[spoken])) == "messages[0].content: expected text and images, Ollama takes no audio"
        )


def call(arguments: Any, call_id: Any = "call_1", name: Any = "weather") -> Mapping[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


class TestToolHistory:
    """B25: what the client's history has as strings, Ollama wants as objects."""

    @pytest.mark.parametrize(
        ("arguments", "becomes"),
        [
            ('{"city": "Seoul"}', {"city": "Seoul"}),
            ({"city": "Seoul"}, {"city": "Seoul"}),
            ("{}", {}),
            ("", {}),
            ("  ", {}),
            ("null", {}),
            (None, {}),
            ('"{\\"city\\": \\"Seoul\\"}"', {"city": "Seoul"}),
            ('{"n": 123456789012345678901234567890}', {"n": 123456789012345678901234567890}),
            ('{"x": [1, {"y": "\\u00e9"}]}', {"x": [1, {"y": "é"}]}),
        ],
    )
    def test_arguments_become_an_object(self, arguments: Any, becomes: Any) -> None:
        made = body(task(messages=[HI, text("assistant", tool_calls=[call(arguments)])]))
        assert made["messages"][1] == {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "call_1", "function": {"name": "weather", "arguments": becomes}}],
        }

    @pytest.mark.parametrize("arguments", ["{", "[1]", "7", '"x"', 7, [1], '"\\"{}\\""', "{'a': 1}", '{"a": NaN}'])
    def test_arguments_that_are_no_object_are_refused_with_their_place(self, arguments: Any) -> None:
        message = refusal(task(messages=[HI, text("assistant", tool_calls=[call("{}"), call(arguments)])]))
        assert message.startswith("messages[1].tool_calls[1].function.arguments: expected a JSON object")

    @pytest.mark.parametrize("bad", [{}, {"function": "f"}, {"function": {}}, {"function": {"name": 7}}])
    def test_a_call_without_a_function_is_refused(self, bad: Any) -> None:
        message = refusal(task(messages=[text("assistant", tool_calls=[bad])]))
        assert message == "messages[0].tool_calls[0]: expected a function with a name"

    @pytest.mark.parametrize("call_id", [None, "", 7])
    def test_a_call_without_an_id_has_none(self, call_id: Any) -> None:
        made = body(task(messages=[text("assistant", tool_calls=[call("{}", call_id)])]))
        assert made["messages"][0]["tool_calls"] == [{"function": {"name": "weather", "arguments": {}}}]

    def test_a_result_names_its_tool_by_the_id_of_the_call(self) -> None:
        history = [
            text("assistant", tool_calls=[call("{}", "a", "weather"), call("{}", "b", "time")]),
            text("tool", "noon", tool_call_id="b"),
            text("tool", "sunny", tool_call_id="a"),
            text("tool", "?", tool_call_id="nobody"),
            text("tool", "own", tool_call_id="a", name="given"),
        ]
        assert body(task(messages=history))["messages"][1:] == [
            {"role": "tool", "content": "noon", "tool_name": "time", "tool_call_id": "b"},
            {"role": "tool", "content": "sunny", "tool_name": "weather", "tool_call_id": "a"},
            {"role": "tool", "content": "?", "tool_call_id": "nobody"},
            {"role": "tool", "content": "own", "tool_name": "given", "tool_call_id": "a"},
        ]

    def test_of_two_calls_with_one_id_the_last_counts(self) -> None:
        history = [text("assistant", tool_calls=[call("{}", "a", name)]) for name in ("weather", "time")]
        assert (
            body(task(messages=[*history, text("tool", "x", tool_call_id="a")]))["messages"][2]["tool_name"] == "time"
        )


class TestTools:
    @pytest.mark.parametrize("choice", [None, "auto", "required", "any"])
    def test_tools_go_out_as_they_are(self, choice: Any) -> None:
        assert body(task(tools=[WEATHER, TIME], tool_choice=choice))["tools"] == [WEATHER, TIME]

    def test_none_offers_no_tools(self) -> None:
        assert "tools" not in body(task(tools=[WEATHER], tool_choice="none"))

    def test_a_named_tool_is_the_only_one_offered(self) -> None:
        named = {"type": "function", "function": {"name": "time"}}
        assert body(task(tools=[WEATHER, TIME], tool_choice=named))["tools"] == [TIME]

    def test_of_allowed_tools_the_others_are_not_offered(self) -> None:
        allowed = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "weather"}}]}
        made = body(task(tools=[WEATHER, TIME], tool_choice={"type": "allowed_tools", "allowed_tools": allowed}))
        assert made["tools"] == [WEATHER]

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"tools": "x"}, "tools: expected a list, got str"),
            ({"tools": ["x"]}, "tools[0]: expected a function with a name, Ollama takes no other tools"),
            ({"tools": [TIME, {}]}, "tools[1]: expected a function with a name, Ollama takes no other tools"),
            (
                {"tools": [{"type": "custom", "custom": {"name": "x"}}]},
                "tools[0]: expected a function with a name, Ollama takes no other tools",
            ),
            ({"tools": [TIME], "tool_choice": "maybe"}, "tool_choice: expected none, auto, required or a function"),
            (
                {"tools": [TIME], "tool_choice": {"type": "x"}},
                "tool_choice: expected none, auto, required or a function",
            ),
            (
                {"tools": [TIME], "tool_choice": {"type": "function", "function": {"name": "weather"}}},
                "tool_choice: names a function that is not among the tools",
            ),
        ],
    )
    def test_what_cannot_be_read_is_refused(self, given: dict[str, Any], message: str) -> None:
        assert refusal(task(**given)) == message

    @pytest.mark.parametrize("tools", [None, []])
    def test_no_tools_are_left_out(self, tools: Any) -> None:
        assert "tools" not in body(task(tools=tools))


SCHEMA = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}


class TestFormat:
    @pytest.mark.parametrize(
        ("form", "becomes"),
        [
            ({"type": "json_object"}, "json"),
            ({"type": "json_schema", "json_schema": {"name": "s", "strict": True, "schema": SCHEMA}}, SCHEMA),
        ],
    )
    def test_a_response_format_becomes_a_format(self, form: Any, becomes: Any) -> None:
        assert body(task(response_format=form))["format"] == becomes
        assert body(task(COMPLETION, inputs=["x"], response_format=form))["format"] == becomes

    @pytest.mark.parametrize("form", [None, {"type": "text"}])
    def test_text_needs_none(self, form: Any) -> None:
        assert "format" not in body(task(response_format=form))

    @pytest.mark.parametrize(
        "form", ["json", {}, {"type": "xml"}, {"type": "json_schema"}, {"type": "json_schema", "json_schema": {}}]
    )
    def test_another_is_refused(self, form: Any) -> None:
        assert refusal(task(response_format=form)).startswith("response_format")


class TestThink:
    @pytest.mark.parametrize(
        ("given", "becomes"),
        [
            ({"reasoning_effort": "none"}, False),
            ({"reasoning_effort": "minimal"}, "low"),
            ({"reasoning_effort": "low"}, "low"),
            ({"reasoning_effort": "medium"}, "medium"),
            ({"reasoning_effort": "high"}, "high"),
            ({"reasoning_effort": "xhigh"}, "max"),
            ({"reasoning": {"effort": "high"}}, "high"),
            ({"think": True}, True),
            ({"think": False}, False),
            ({"think": "max"}, "max"),
            ({"think": False, "reasoning_effort": "high"}, False),
            ({"chat_template_kwargs": {"enable_thinking": False}}, False),
            ({"chat_template_kwargs": {"enable_thinking": True}}, True),
            ({"chat_template_kwargs": {"enable_thinking": True}, "reasoning_effort": "low"}, "low"),
        ],
    )
    def test_how_hard_to_think(self, given: dict[str, Any], becomes: Any) -> None:
        assert body(task(**given))["think"] is becomes or body(task(**given))["think"] == becomes
        assert body(task(COMPLETION, inputs=["x"], **given))["think"] == becomes

    @pytest.mark.parametrize(
        "given",
        [{}, {"reasoning_effort": None}, {"reasoning_effort": ""}, {"reasoning": {}}, {"chat_template_kwargs": {}}],
    )
    def test_nothing_said_leaves_it_to_the_model(self, given: dict[str, Any]) -> None:
        assert "think" not in body(task(**given))

    @pytest.mark.parametrize("given", [{"reasoning_effort": "hard"}, {"think": "yes"}, {"reasoning_effort": 3}])
    def test_an_unknown_effort_is_refused(self, given: dict[str, Any]) -> None:
        assert refusal(task(**given)).startswith("reasoning_effort: expected one of none, minimal, low")

    def test_a_request_overrides_the_configuration(self) -> None:
        defaults = Defaults({}, {"think": False})
        assert body(task(), defaults)["think"] is False
        assert body(task(reasoning_effort="high"), defaults)["think"] == "high"
        assert "think" not in body(task(EMBEDDING, inputs=["x"]), defaults)


class TestOptions:
    @pytest.mark.parametrize(
        ("given", "becomes"),
        [
            ({"temperature": 0}, {"temperature": 0}),
            ({"temperature": 0.7, "top_p": 0.9}, {"temperature": 0.7, "top_p": 0.9}),
            ({"top_k": 40, "min_p": 0.05, "typical_p": 0.7}, {"top_k": 40, "min_p": 0.05, "typical_p": 0.7}),
            ({"seed": 42}, {"seed": 42}),
            ({"seed": -1}, {"seed": -1}),
            ({"max_tokens": 100}, {"num_predict": 100}),
            ({"max_tokens": 100.0}, {"num_predict": 100}),
            ({"max_completion_tokens": 50}, {"num_predict": 50}),
            ({"max_tokens": 100, "max_completion_tokens": 50}, {"num_predict": 50}),
            ({"max_tokens": 100, "max_completion_tokens": None}, {"num_predict": 100}),
            ({"presence_penalty": 1.5, "frequency_penalty": 1}, {"presence_penalty": 1.5, "frequency_penalty": 1}),
            ({"repetition_penalty": 1.1}, {"repeat_penalty": 1.1}),
            ({"repeat_penalty": 1.2, "repeat_last_n": 64}, {"repeat_penalty": 1.2, "repeat_last_n": 64}),
            ({"stop": "END"}, {"stop": ["END"]}),
            ({"stop": ["a", "b", ""]}, {"stop": ["a", "b"]}),
            ({"temperature": None, "stop": None}, None),
            ({"stop": []}, None),
            ({"stop": ""}, None),
            ({"user": "u", "logit_bias": {"1": 2}, "metadata": {}, "store": True, "stream_options": {}}, None),
            # The runner's options are the operator's: each change of them loads the model again.
            ({"num_ctx": 1_000_000, "num_gpu": 0, "keep_alive": "9h", "options": {"num_ctx": 1}}, None),
        ],
    )
    def test_parameters_become_options(self, given: dict[str, Any], becomes: Any) -> None:
        for made in (body(task(**given)), body(task(COMPLETION, inputs=["x"], **given))):
            assert made.get("options") == becomes
            assert set(made) <= {"model", "messages", "prompt", "stream", "options"}

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"temperature": "hot"}, "temperature: expected a number, got str"),
            ({"temperature": True}, "temperature: expected a number, got bool"),
            ({"seed": 1.5}, "seed: expected a whole number, got 1.5"),
            ({"seed": float("inf")}, "seed: expected a whole number, got inf"),
            ({"seed": float("nan")}, "seed: expected a whole number, got nan"),
            ({"seed": 2**63}, f"seed: expected less, got {2**63}"),
            ({"max_tokens": 0}, "max_tokens: expected at least 1, got 0"),
            ({"max_completion_tokens": -1}, "max_completion_tokens: expected at least 1, got -1"),
            ({"stop": 7}, "stop: expected a text or a list of texts"),
            ({"stop": ["a", 7]}, "stop: expected a text or a list of texts"),
        ],
    )
    def test_a_value_of_another_type_is_refused_by_name(self, given: dict[str, Any], message: str) -> None:
        assert refusal(task(**given)) == message

    def test_what_the_configuration_says_stands_where_a_request_says_nothing(self) -> None:
        """B25: num_ctx and keep_alive reach the server in their places."""
        defaults = Defaults({"num_ctx": 32768}, {"keep_alive": "1h", "truncate": False})
        for made in (task(temperature=1), task(COMPLETION, inputs=["x"], temperature=1)):
            fields = body(made, defaults)
            assert fields["options"] == {"num_ctx": 32768, "temperature": 1}
            assert (fields["keep_alive"], fields["truncate"]) == ("1h", False)
        embedding = body(task(EMBEDDING, inputs=["x"], truncate=True), defaults)
        assert (embedding["options"], embedding["keep_alive"], embedding["truncate"]) == (
            {"num_ctx": 32768},
            "1h",
            True,
        )


class TestOtherForms:
    @pytest.mark.parametrize("given", [{"n": 1}, {"logprobs": False}, {"best_of": 1}, {"echo": False}, {"logprobs": 0}])
    def test_what_asks_for_nothing_else_is_fine(self, given: dict[str, Any]) -> None:
        assert body(task(**given))["messages"]

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"n": 2}, "n: expected 1, Ollama gives one choice a request, got 2"),
            ({"n": 0}, "n: expected at least 1, got 0"),
            ({"best_of": 3}, "best_of: expected 1, Ollama gives one choice a request, got 3"),
            ({"logprobs": True}, "logprobs: not available for models on Ollama"),
            ({"logprobs": 5}, "logprobs: not available for models on Ollama"),
            ({"echo": True}, "echo: not available for models on Ollama"),
        ],
    )
    def test_what_asks_for_another_form_is_refused(self, given: dict[str, Any], message: str) -> None:
        assert refusal(task(**given)) == message
        assert refusal(task(COMPLETION, inputs=["x"], **given)) == message


class TestCompletions:
    def test_a_prompt_goes_through_the_models_template(self) -> None:
        call = call_for(task(COMPLETION, inputs=["Once"]), NOTHING)
        assert call.path == b"/api/generate"
        assert read(call) == {"model": "qwen3:8b", "prompt": "Once", "stream": True}

    def test_suffix_and_raw_are_passed_on(self) -> None:
        made = body(task(COMPLETION, inputs=["def f("], suffix="return x", raw=True))
        assert (made["prompt"], made["suffix"], made["raw"]) == ("def f(", "return x", True)

    @pytest.mark.parametrize("prompts", [[], ["a", "b"]])
    def test_several_prompts_are_refused(self, prompts: list[str]) -> None:
        assert refusal(task(COMPLETION, inputs=prompts)).startswith("prompt: expected one text")

    def test_a_suffix_is_text(self) -> None:
        assert refusal(task(COMPLETION, inputs=["x"], suffix=7)) == "suffix: expected a text"


class TestEmbeddings:
    def test_all_inputs_go_in_one_request(self) -> None:
        call = call_for(task(EMBEDDING, inputs=["a", "b"], dimensions=256, encoding_format="base64"), NOTHING)
        assert call.path == b"/api/embed"
        assert read(call) == {"model": "qwen3:8b", "input": ["a", "b"], "dimensions": 256}

    @pytest.mark.parametrize("dimensions", [0, 1.5, "8"])
    def test_dimensions_are_a_count(self, dimensions: Any) -> None:
        assert refusal(task(EMBEDDING, inputs=["a"], dimensions=dimensions)).startswith("dimensions: expected")


def test_what_json_cannot_hold_is_refused() -> None:
    deep: dict[str, Any] = {}
    for _ in range(2_000):
        deep = {"type": "object", "properties": deep}
    schema = {"type": "json_schema", "json_schema": {"schema": deep}}
    assert refusal(task(response_format=schema)).startswith("the request cannot be written for Ollama")
