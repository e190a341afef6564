"""How tasks are said to llama.cpp, and what its chunks mean."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from iop_fast.node.adapters.llama_cpp_talk import Answer, Refused, request_of
from iop_fast.seams import End, RunTask, RunText, RunToolCall, TaskMessage, TaskPart, Usage
from iop_fast.wire import runtime_pb2 as pb
from tests.unit.node.adapters.run_sink import CHAT, EMBEDDING, RecordingRunSink, chat, completion, embedding, message

STREAM = {"stream": True, "stream_options": {"include_usage": True}, "return_progress": True}


class DirectTeller:
    """Tells a sink in the same thread."""

    def __init__(self) -> None:
        self.sink = RecordingRunSink()
        self.is_cancelled = False
        self.text = self.sink.on_text
        self.reasoning = self.sink.on_reasoning
        self.tool_call = self.sink.on_tool_call
        self.embedding = self.sink.on_embedding
        self.finish = self.sink.on_finish


def answer_of(task: RunTask, *chunks: Any) -> tuple[RecordingRunSink, End]:
    teller = DirectTeller()
    answer = Answer(task.kind, teller)  # type: ignore[arg-type]
    for chunk in chunks:
        try:
            answer.take(json.dumps(chunk).encode())
        except Refused:
            break
    return teller.sink, answer.end()


def delta(index: int = 0, finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": index, "finish_reason": finish, "delta": fields}]}


def test_a_chat_is_said_with_its_parameters_and_always_streamed() -> None:
    calls = [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}]
    task = chat(
        message("system", "be brief"),
        TaskMessage("user", [TaskPart("text", "a "), TaskPart("text", "cat")], name="ann"),
        TaskMessage("assistant", [], tool_calls=calls),
        TaskMessage("tool", [TaskPart("text", "here")], tool_call_id="c1"),
        TaskMessage(
            "user",
            [
                TaskPart("text", "and?"),
                TaskPart("image", data=b"\x01\x02", media_type="image/jpeg"),
                TaskPart("audio", data=b"\x03", media_type="audio/wav"),
            ],
        ),
        temperature=0.5,
        stream=False,
    )
    assert json.loads(request_of(task)) == {
        "temperature": 0.5,
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "a cat", "name": "ann"},
            {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "tool", "content": "here", "tool_call_id": "c1"},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "and?"},
                    {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,AQI="}},
                    {"type": "input_audio", "input_audio": {"data": "Aw==", "format": "wav"}},
                ],
            },
        ],
        **STREAM,
    }


@pytest.mark.parametrize(("prompts", "expected"), [(("a",), "a"), (("a", "b"), ["a", "b"])])
def test_prompts_are_said_as_one_or_several(prompts: Sequence[str], expected: Any) -> None:
    assert json.loads(request_of(completion(*prompts, max_tokens=3))) == {"max_tokens": 3, "prompt": expected, **STREAM}


def test_texts_to_embed_are_asked_for_as_numbers() -> None:
    asked = json.loads(request_of(embedding("a", "b", encoding_format="base64")))
    assert asked == {"input": ["a", "b"], "encoding_format": "float"}


def test_a_chat_s_chunks_become_events() -> None:
    sink, end = answer_of(
        chat("x"),
        delta(role="assistant", content=None),
        delta(reasoning_content="hm"),
        delta(content="Hel"),
        {"choices": [{"index": 0, "delta": {"content": None}}], "prompt_progress": {"processed": 1}},
        delta(content="lo"),
        delta(index=1, content="other"),
        delta(tool_calls=[{"index": 0, "id": "c1", "function": {"name": "look", "arguments": ""}}]),
        delta(tool_calls=[{"index": 0, "function": {"arguments": "{}"}}, {"index": 1, "id": "c2"}]),
        delta(finish="tool_calls"),
        delta(index=1, finish="eos_of_some_later_version"),
        {
            "choices": [],
            "usage": {"prompt_tokens": 5, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 3}},
        },
    )
    assert sink.said == [
        ("reasoning", "hm", 0),
        RunText("Hel", 0),
        RunText("lo", 0),
        RunText("other", 1),
        RunToolCall(0, "c1", "look", "", 0),
        RunToolCall(0, "", "", "{}", 0),
        RunToolCall(1, "c2", "", "", 0),
    ]
    assert sink.finished == {0: "tool_calls", 1: "stop"}
    assert end == End(pb.RunEnd.OK, "", Usage(5, 7, 3))


def test_a_completion_s_chunks_become_events_and_its_usage_is_added_up() -> None:
    usage = {"prompt_tokens": 2, "completion_tokens": 1}
    sink, end = answer_of(
        completion("a", "b"),
        None,
        {"choices": [{"index": 0, "text": "x", "finish_reason": None}]},
        {"choices": [{"index": 1, "text": "y", "finish_reason": None}]},
        {"choices": [{"index": 0, "text": "", "finish_reason": "length"}], "usage": usage},
        {"choices": [{"index": 1, "text": "", "finish_reason": "stop"}], "usage": usage},
    )
    assert sink.said == [RunText("x", 0), RunText("y", 1)]
    assert sink.finished == {0: "length", 1: "stop"}
    assert end == End(pb.RunEnd.OK, "", Usage(4, 2, 0))


def test_embeddings_are_told_with_their_index() -> None:
    teller = DirectTeller()
    answer = Answer(EMBEDDING, teller)  # type: ignore[arg-type]
    data = [{"index": 1, "embedding": [0.5]}, {"index": 0, "embedding": [1, 2]}]
    answer.take_embeddings(json.dumps({"data": data, "usage": {"prompt_tokens": 2}}).encode())
    assert teller.sink.embeddings == {0: [1, 2], 1: [0.5]}
    assert answer.end() == End(pb.RunEnd.OK, "", Usage(2, 0, 0))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ({"code": 400, "message": "no such field"}, End(pb.RunEnd.REFUSED, "no such field", None, 400)),
        ({"code": 503, "message": "full"}, End(pb.RunEnd.REFUSED, "full", None, 503)),
        ({"code": 7}, End(pb.RunEnd.REFUSED, "the model failed", None, 500)),
    ],
)
def test_an_error_before_the_first_event_refuses_the_task(error: Any, expected: End) -> None:
    sink, end = answer_of(chat("x"), delta(role="assistant"), {"error": error})
    assert (sink.said, end) == ([], expected)


def test_an_error_behind_the_first_event_breaks_the_answer_off() -> None:
    sink, end = answer_of(chat("x"), delta(content="Hel"), {"error": {"code": 400, "message": "context is full"}})
    assert sink.text() == "Hel"
    assert end == End(pb.RunEnd.UPSTREAM_ERROR, "context is full", None)


def test_an_answer_without_a_finish_is_not_whole() -> None:
    _, end = answer_of(chat("x"), delta(content="Hel"))
    assert end.status == pb.RunEnd.UPSTREAM_ERROR


def test_a_cancelled_answer_is_cancelled_whatever_came() -> None:
    teller = DirectTeller()
    answer = Answer(CHAT, teller)  # type: ignore[arg-type]
    answer.take(json.dumps(delta(content="Hel", finish="stop")).encode())
    teller.is_cancelled = True
    assert answer.end().status == pb.RunEnd.CANCELLED
