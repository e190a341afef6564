"""Events as OpenAI's answers: whole, streamed, embeddings."""

from __future__ import annotations

import base64
import json
import math
from array import array
from collections.abc import Callable
from typing import Any

import pytest

from iop_fast._hot.frames import FrameError
from iop_fast.edge.normalized.translation import (
    TOOL_CALLS_MAX,
    ChatAnswer,
    ChatStream,
    EmbeddingAnswer,
    Envelope,
    IncompleteAnswer,
    TextAnswer,
    TextStream,
    Translation,
)
from iop_fast.seams import RunEmbedding, RunFinish, RunReasoning, RunSaid, RunText, RunToolCall, Usage

CHAT = Envelope(b"0123456789abcdef0123456789abcdef", "m", 1_700_000_000, True)
TEXT = CHAT._replace(is_chat=False)
USAGE = Usage(7, 3, 0)


def answer(translation: Translation, said: list[RunSaid], usage: Usage | None = USAGE) -> bytes:
    return b"".join([*translation.add(said), *translation.close(usage)])


def whole(translation: Translation, *said: RunSaid, usage: Usage | None = USAGE) -> Any:
    return json.loads(answer(translation, list(said), usage))


def chunks(translation: Translation, *said: RunSaid, usage: Usage | None = USAGE) -> list[Any]:
    """The documents of a stream, which must end with the mark of its end."""
    events = answer(translation, list(said), usage).split(b"\n\n")
    assert events[-2:] == [b"data: [DONE]", b""]
    assert all(event.startswith(b"data: ") for event in events[:-1])
    return [json.loads(event[6:]) for event in events[:-2]]


def floats(*values: float) -> bytes:
    return array("f", values).tobytes()


def test_a_whole_chat() -> None:
    found = whole(ChatAnswer(CHAT), RunText("Hel", 0), RunText("lo", 0), RunFinish("stop", 0))
    assert found == {
        "id": "chatcmpl-0123456789abcdef0123456789abcdef",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
        "system_fingerprint": None,
    }


def test_a_whole_chat_with_tools_and_reasoning() -> None:
    found = whole(
        ChatAnswer(CHAT),
        RunReasoning("hm", 0),
        RunReasoning("m", 0),
        RunToolCall(1, "", "g", "{}", 0),
        RunToolCall(0, "call_a", "f", '{"a"', 0),
        RunToolCall(0, "", "", ":1}", 0),
        usage=Usage(7, 3, 5),
    )
    message = found["choices"][0]["message"]
    assert message == {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "reasoning_content": "hmm",
        "tool_calls": [
            {"id": "call_a", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}},
            {"id": "call_0123456789abcdef01230001", "type": "function", "function": {"name": "g", "arguments": "{}"}},
        ],
    }
    assert found["choices"][0]["finish_reason"] == "tool_calls"
    assert found["usage"]["prompt_tokens_details"] == {"cached_tokens": 5}


def test_an_answer_of_nothing() -> None:
    found = whole(ChatAnswer(CHAT), usage=None)
    assert found["choices"][0]["message"]["content"] == ""
    assert found["choices"][0]["finish_reason"] == "stop"
    assert "usage" not in found


def test_whole_completions_of_several_prompts() -> None:
    found = whole(TextAnswer(TEXT, 2), RunText("b", 1), RunText("a", 0), RunReasoning("-", 0), RunFinish("length", 1))
    assert (found["id"], found["object"]) == ("cmpl-0123456789abcdef0123456789abcdef", "text_completion")
    assert found["choices"] == [
        {"text": "a", "index": 0, "logprobs": None, "finish_reason": "stop"},
        {"text": "b", "index": 1, "logprobs": None, "finish_reason": "length"},
    ]


def test_a_streamed_chat() -> None:
    found = chunks(ChatStream(CHAT, 1, False), RunText("Hel", 0), RunText('"lo\n', 0), RunFinish("length", 0))
    assert {(chunk["id"], chunk["object"], chunk["created"], chunk["model"]) for chunk in found} == {
        ("chatcmpl-0123456789abcdef0123456789abcdef", "chat.completion.chunk", 1_700_000_000, "m")
    }
    assert [chunk["choices"] for chunk in found] == [
        [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}]
        for delta, reason in (
            ({"role": "assistant", "content": "Hel"}, None),
            ({"content": '"lo\n'}, None),
            ({}, "length"),
        )
    ]
    assert not any("usage" in chunk for chunk in found)
    assert all(chunk["system_fingerprint"] is None for chunk in found)


@pytest.mark.parametrize("stream", [lambda: ChatStream(CHAT, 1, False), lambda: TextStream(TEXT, 1, False)])
def test_an_event_is_one_line_to_whoever_splits_lines(stream: Callable[[], Translation]) -> None:
    said = "a\x85b\u2028c\u2029d\u2014\r\n\ndata: [DONE]\x1e\x0b\x0c"
    sent = answer(stream(), [RunText(said, 0), RunText(said, 0), RunFinish("stop", 0)]).decode()
    events = [line for line in sent.splitlines() if line]
    assert len(events) == 4
    assert all(line.startswith("data: ") for line in events)
    assert sent.split("\n\n") == [*events, ""]
    for event in events[:2]:
        [choice] = json.loads(event.removeprefix("data: "))["choices"]
        assert choice.get("text", choice.get("delta", {}).get("content")) == said


def test_usage_in_a_stream_only_where_asked_and_known() -> None:
    found = chunks(ChatStream(CHAT, 1, True), RunText("a", 0), RunFinish("stop", 0))
    assert [chunk["usage"] for chunk in found] == [
        None,
        None,
        {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
    ]
    assert found[-1]["choices"] == []
    assert len(chunks(ChatStream(CHAT, 1, True), RunText("a", 0), usage=None)) == 2


def test_streamed_tools_and_reasoning() -> None:
    found = chunks(
        ChatStream(CHAT, 1, False),
        RunReasoning("hm", 0),
        RunToolCall(0, "call_a", "f", "", 0),
        RunToolCall(0, "", "", "{}", 0),
        RunToolCall(1, "", "g", "{}", 0),
    )
    deltas = [chunk["choices"][0]["delta"] for chunk in found]
    assert deltas == [
        {"role": "assistant", "content": None, "reasoning_content": "hm"},
        {"tool_calls": [{"index": 0, "id": "call_a", "type": "function", "function": {"name": "f", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]},
        {
            "tool_calls": [
                {
                    "index": 1,
                    "id": "call_0123456789abcdef01230001",
                    "type": "function",
                    "function": {"name": "g", "arguments": "{}"},
                }
            ]
        },
        {},
    ]
    assert found[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_a_stream_of_nothing_names_the_role_with_its_end() -> None:
    [only] = chunks(ChatStream(CHAT, 1, False))
    assert only["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert only["choices"][0]["finish_reason"] == "stop"


def test_streamed_completions() -> None:
    found = chunks(
        TextStream(TEXT, 2, False), RunText("b", 1), RunReasoning("-", 0), RunFinish("stop", 1), RunText("a", 0)
    )
    assert {chunk["object"] for chunk in found} == {"text_completion"}
    assert [chunk["choices"][0] for chunk in found] == [
        {"index": 1, "text": "b", "logprobs": None, "finish_reason": None},
        {"index": 1, "text": "", "logprobs": None, "finish_reason": "stop"},
        {"index": 0, "text": "a", "logprobs": None, "finish_reason": None},
        {"index": 0, "text": "", "logprobs": None, "finish_reason": "stop"},
    ]


def test_a_reason_that_no_client_knows_is_a_stop() -> None:
    assert whole(ChatAnswer(CHAT), RunFinish("weary", 0))["choices"][0]["finish_reason"] == "stop"
    assert chunks(ChatStream(CHAT, 1, False), RunFinish("weary", 0))[0]["choices"][0]["finish_reason"] == "stop"


def test_embeddings_as_numbers() -> None:
    said = [RunEmbedding(floats(1.5), 1), RunFinish("stop", 0), RunEmbedding(floats(0.25, -2.0, math.inf), 0)]
    assert answer(EmbeddingAnswer("m", 2, is_base64=False), list(said)) == (
        b'{"object":"list","data":[{"object":"embedding","index":0,"embedding":[0.25,-2.0,null]},'
        b'{"object":"embedding","index":1,"embedding":[1.5]}],"model":"m",'
        b'"usage":{"prompt_tokens":7,"total_tokens":7}}'
    )


def test_numbers_are_the_float32_that_came() -> None:
    values = [value / 7 for value in range(-50, 50)] + [1e-30, 3.4e38, 1.17e-38]
    found = whole(EmbeddingAnswer("m", 1, is_base64=False), RunEmbedding(floats(*values), 0))
    assert floats(*found["data"][0]["embedding"]) == floats(*values)


def test_embeddings_in_base64() -> None:
    found = whole(EmbeddingAnswer("m", 1, is_base64=True), RunEmbedding(floats(0.1, 2), 0), usage=None)
    assert base64.b64decode(found["data"][0]["embedding"]) == floats(0.1, 2)
    assert "usage" not in found


def test_an_input_without_an_embedding_is_no_answer() -> None:
    translation = EmbeddingAnswer("m", 2, is_base64=False)
    translation.add([RunEmbedding(floats(1), 0)])
    with pytest.raises(IncompleteAnswer, match="1 of 2"):
        translation.close(USAGE)


@pytest.mark.parametrize(
    ("translation", "said"),
    [
        (ChatAnswer(CHAT), [RunText("a", 1)]),
        (ChatAnswer(CHAT), [RunFinish("stop", 0), RunText("a", 0)]),
        (ChatAnswer(CHAT), [RunEmbedding(b"", 0)]),
        (ChatAnswer(CHAT), [RunToolCall(TOOL_CALLS_MAX, "", "", "", 0)]),
        (TextAnswer(TEXT, 2), [RunText("a", 2)]),
        (TextAnswer(TEXT, 2), [RunToolCall(0, "", "", "", 0)]),
        (ChatStream(CHAT, 1, False), [RunText("a", 1)]),
        (ChatStream(CHAT, 1, False), [RunFinish("stop", 0), RunFinish("stop", 0)]),
        (ChatStream(CHAT, 1, False), [RunEmbedding(b"", 0)]),
        (ChatStream(CHAT, 1, False), [RunToolCall(TOOL_CALLS_MAX, "", "", "", 0)]),
        (TextStream(TEXT, 1, False), [RunToolCall(0, "", "", "", 0)]),
        (EmbeddingAnswer("m", 1, is_base64=True), [RunText("a", 0)]),
        (EmbeddingAnswer("m", 1, is_base64=True), [RunEmbedding(b"", 1)]),
        (EmbeddingAnswer("m", 1, is_base64=True), [RunEmbedding(b"", 0), RunEmbedding(b"", 0)]),
    ],
)
def test_events_that_make_no_answer(translation: Translation, said: list[RunSaid]) -> None:
    with pytest.raises(FrameError):
        translation.add(said)
