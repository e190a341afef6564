"""The echo model answers like an OpenAI server, always the same, at its pace."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from iop_fast.config.schema.node import NativeModel, NodeLimits
from iop_fast.node.adapters import BrokenAdapter, Surroundings
from iop_fast.node.adapters.native import PIECES_A_TURN, make_native
from iop_fast.node.health import State
from iop_fast.node.usage import usage_reader
from iop_fast.seams import End, TunnelRequest, UpstreamRun, Usage
from iop_fast.wire import runtime_pb2 as pb
from tests.integration.node_bench import RecordingSink
from tests.unit.edge.worlds import VirtualLoop
from tests.unit.node.worlds import provider, request, settings


class Echo:
    """An echo model on virtual time."""

    def __init__(self, loop: VirtualLoop, **model: Any) -> None:
        self.loop = loop
        entry = NativeModel(id="echo", engine="echo", **model)
        surroundings = Surroundings(loop, {}, {"echo": entry}, NodeLimits(), lambda: 1_700_000_000)
        self.adapter = make_native(settings("", profile="echo"), surroundings)
        self.upstream = self.adapter.upstream(provider(models=("served", "other")))

    def start(self, opened: TunnelRequest) -> tuple[UpstreamRun, RecordingSink]:
        sink = RecordingSink()
        run = self.upstream.start(opened, sink)
        assert sink.calls == []
        self.loop.settle()
        return run, sink

    def ask(self, body: Any, path: bytes = b"/v1/chat/completions", method: bytes = b"POST") -> RecordingSink:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        _, sink = self.start(request(raw, path=path, method=method))
        self.loop.run_for(60)
        assert sink.end is not None
        return sink


@pytest.fixture
def echo() -> Iterator[Echo]:
    with VirtualLoop() as loop:
        yield Echo(loop)


def chat(text: Any = "hello there  world", **fields: Any) -> dict[str, Any]:
    return {"model": "served", "messages": [{"role": "user", "content": text}]} | fields


def events(sink: RecordingSink) -> list[Any]:
    """The events of a stream; the last is the mark of its end."""
    lines = sink.body.decode().split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


def test_a_whole_chat_answer(echo: Echo) -> None:
    sink = echo.ask(chat())
    assert sink.calls == ["taken", "head", "data", "end"]
    assert sink.end == End(pb.RunEnd.OK, "", None)
    assert sink.header(b"content-type") == [b"application/json"]
    assert sink.header(b"content-length") == [b"%d" % len(sink.body)]
    assert json.loads(sink.body) == {
        "id": "chatcmpl-echo-1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "served",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "hello there  world"},
                "finish_reason": "stop",
                "logprobs": None,
            }
        ],
        "usage": {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6},
    }


def test_a_streamed_chat_answer(echo: Echo) -> None:
    sink = echo.ask(chat(stream=True))
    assert sink.header(b"content-type") == [b"text/event-stream; charset=utf-8"]
    assert sink.header(b"content-length") == []
    chunks = events(sink)
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert all(len(chunk["choices"]) == 1 and "usage" not in chunk for chunk in chunks)
    choices = [chunk["choices"][0] for chunk in chunks]
    assert choices[0]["delta"] == {"role": "assistant", "content": "hello "}
    assert "".join(choice["delta"].get("content", "") for choice in choices) == "hello there  world"
    assert [choice["finish_reason"] for choice in choices] == [None, None, None, "stop"]


@pytest.mark.parametrize(
    ("options", "has_usage"),
    [(None, False), ({}, False), ({"include_usage": False}, False), ({"include_usage": True}, True)],
)
def test_the_usage_chunk_comes_when_it_was_asked_for(echo: Echo, options: Any, has_usage: bool) -> None:
    """B22: an empty list of choices is only for those who asked."""
    sink = echo.ask(chat(stream=True, stream_options=options))
    empty = [chunk for chunk in events(sink) if not chunk["choices"]]
    assert len(empty) == has_usage
    if has_usage:
        assert empty[0]["usage"] == {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}
        assert events(sink)[-1] == empty[0]
        assert sink.head is not None
        reader = usage_reader(sink.head)
        assert reader is not None
        reader.feed(sink.body)
        assert reader.result() == Usage(3, 3, 0)


@pytest.mark.parametrize("stream", [False, True])
def test_completions(echo: Echo, stream: bool) -> None:
    sink = echo.ask({"model": "served", "prompt": ["say this"], "stream": stream}, b"/v1/completions")
    if stream:
        chunks = events(sink)
        assert {chunk["object"] for chunk in chunks} == {"text_completion"}
        assert [chunk["choices"][0]["text"] for chunk in chunks] == ["say ", "this", ""]
        assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    else:
        answer = json.loads(sink.body)
        assert answer["id"].startswith("cmpl-")
        assert answer["choices"][0]["text"] == "say this"


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_a_limit_of_tokens_is_a_limit_of_words(echo: Echo, name: str) -> None:
    answer = json.loads(echo.ask(chat("a b c d", **{name: 2})).body)
    assert answer["choices"][0]["message"]["content"] == "a b "
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 2


def test_the_last_user_message_is_said_back_and_parts_are_joined(echo: Echo) -> None:
    messages = [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": None, "tool_calls": []},
        {
            "role": "user",
            "content": [{"type": "text", "text": "안녕"}, {"type": "image_url"}, {"type": "text", "text": "😀"}],
        },
        {"role": "tool", "content": "x"},
    ]
    answer = json.loads(echo.ask({"model": "m", "messages": messages}).body)
    assert answer["choices"][0]["message"]["content"] == "안녕 😀"
    assert answer["usage"]["prompt_tokens"] == 6


def test_the_same_request_gets_the_same_answer(echo: Echo) -> None:
    first, second = (json.loads(echo.ask(chat()).body) for _ in range(2))
    assert first.pop("id") != second.pop("id")
    assert first == second


def test_models_are_listed(echo: Echo) -> None:
    sink = echo.ask(b"", b"/v1/models?x=1", b"GET")
    assert [model["id"] for model in json.loads(sink.body)["data"]] == ["served", "other"]


REFUSED = [
    (b"{", 400, None),
    (b"[1]", 400, None),
    (b"\xff", 400, None),
    ({"model": "m"}, 400, "messages"),
    ({"model": "m", "messages": []}, 400, "messages"),
    ({"model": "m", "messages": "hi"}, 400, "messages"),
    ({"model": "m", "messages": ["hi"]}, 400, "messages[0]"),
    ({"model": "m", "messages": [{"role": "user", "content": 5}]}, 400, "messages[0].content"),
    ({"model": 5, "messages": [{"role": "user", "content": "x"}]}, 400, "model"),
    (chat(stream="yes"), 400, "stream"),
    (chat(n=2), 400, "n"),
    (chat(max_tokens=0), 400, "max_tokens"),
    (chat(max_tokens=True), 400, "max_tokens"),
]


@pytest.mark.parametrize(("body", "status", "param"), REFUSED, ids=range(len(REFUSED)))
def test_bad_bodies_get_openais_error(echo: Echo, body: Any, status: int, param: str | None) -> None:
    sink = echo.ask(body)
    assert sink.head is not None
    assert sink.head.status == status
    error = json.loads(sink.body)["error"]
    assert sorted(error) == ["code", "message", "param", "type"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert sink.end == End(pb.RunEnd.OK, "", None)


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [
        (b"/v1/embeddings", b"POST", 404),
        (b"/v1/chat/completions", b"GET", 405),
        (b"/v1/models", b"POST", 405),
        (b"/", b"GET", 404),
    ],
)
def test_what_it_does_not_do_is_refused(echo: Echo, path: bytes, method: bytes, status: int) -> None:
    sink = echo.ask(chat(), path, method)
    assert sink.head is not None
    assert sink.head.status == status


def test_a_body_in_pieces_is_collected_and_its_window_renewed(echo: Echo) -> None:
    body = json.dumps(chat("hi " * 1000)).encode()
    run, sink = echo.start(request(body[:100], body_complete=False, body_length=len(body)))
    assert (sink.calls, sink.consumed) == (["taken"], 100)
    run.feed(body[100:2000], False)
    run.feed(body[2000:], True)
    run.feed(b"", True)
    echo.loop.settle()
    assert sink.consumed == len(body)
    assert json.loads(sink.body)["usage"]["completion_tokens"] == 1000


@pytest.mark.parametrize("pieces", [2, 3])
def test_pieces_that_come_in_the_turn_of_the_opening_follow_it(echo: Echo, pieces: int) -> None:
    body = json.dumps(chat("hello there")).encode()
    cuts = [len(body) * number // pieces for number in range(pieces + 1)]
    parts = [body[start:end] for start, end in pairwise(cuts)]
    sink = RecordingSink()
    run = echo.upstream.start(request(parts[0], body_complete=False, body_length=len(body)), sink)
    for number, part in enumerate(parts[1:], 2):
        run.feed(part, number == pieces)
    echo.loop.run_for(60)
    assert json.loads(sink.body)["choices"][0]["message"]["content"] == "hello there"
    assert sink.calls.count("end") == 1


def test_pieces_come_at_the_models_pace() -> None:
    with VirtualLoop() as loop:
        echo = Echo(loop, delay_ms=500, chunk_ms=100, chunk_words=2)
        _, sink = echo.start(request(json.dumps(chat("a b c d e", stream=True)).encode()))
        seen = []
        for _ in range(100):
            loop.run_for(0.01)
            seen.append(len(sink.pieces))
        assert seen[48] == 0
        changes = [round((at + 1) * 0.01, 2) for at in range(1, 100) if seen[at] != seen[at - 1]]
        assert changes == pytest.approx([0.5, 0.6, 0.7, 0.8, 0.9], abs=0.011)
        texts = [chunk["choices"][0]["delta"].get("content") for chunk in events(sink)]
        assert texts == ["a b ", "c d ", "e", None]


def test_a_whole_answer_takes_as_long_as_its_stream() -> None:
    with VirtualLoop() as loop:
        echo = Echo(loop, delay_ms=500, chunk_ms=100)
        _, sink = echo.start(request(json.dumps(chat("a b c")).encode()))
        loop.run_for(0.65)
        assert sink.pieces == []
        loop.run_for(0.1)
        assert len(sink.pieces) == 1


def test_a_long_answer_without_a_pace_leaves_the_loop_to_others(echo: Echo) -> None:
    _, sink = echo.start(request(json.dumps(chat("w " * 5000, stream=True)).encode()))
    assert len(sink.pieces) == 5002
    assert PIECES_A_TURN < 100


@pytest.mark.parametrize("chunk_ms", [0, 10])
def test_pause_and_resume_lose_nothing(chunk_ms: int) -> None:
    with VirtualLoop() as loop:
        echo = Echo(loop, chunk_ms=chunk_ms, delay_ms=10)
        run, sink = echo.start(request(json.dumps(chat("w " * 300, stream=True)).encode()))
        loop.run_for(0.015)
        run.pause()
        run.pause()
        loop.run_for(0.02)
        held = len(sink.pieces)
        loop.run_for(10)
        assert len(sink.pieces) == held
        run.resume()
        run.resume()
        loop.run_for(10)
        assert len(sink.pieces) == 302
        assert sink.end == End(pb.RunEnd.OK, "", None)


@pytest.mark.parametrize("after_s", [0.0, 0.05, 0.25])
def test_a_cancelled_run_confirms_and_says_nothing_more(after_s: float) -> None:
    with VirtualLoop() as loop:
        echo = Echo(loop, delay_ms=100, chunk_ms=100)
        run, sink = echo.start(request(json.dumps(chat("w " * 300, stream=True)).encode()))
        loop.run_for(after_s)
        run.pause()
        run.cancel()
        run.cancel()
        run.feed(b"x", True)
        run.resume()
        loop.run_for(60)
        assert sink.end is not None
        assert sink.end.status == pb.RunEnd.CANCELLED


def test_a_run_cancelled_in_the_turn_it_started_says_nothing_but_its_end(echo: Echo) -> None:
    sink = RecordingSink()
    echo.upstream.start(request(), sink).cancel()
    echo.loop.settle()
    assert sink.calls == ["end"]


def test_a_profile_that_the_node_lacks_is_broken() -> None:
    with VirtualLoop() as loop:
        surroundings = Surroundings(loop, {}, {}, NodeLimits(), lambda: 0)
        with pytest.raises(BrokenAdapter, match="has no entry 'nope'"):
            make_native(settings("", profile="nope"), surroundings)


def test_it_is_always_up(echo: Echo) -> None:
    assert echo.adapter.health.state is State.UP
    assert echo.adapter.health.look() is None
    echo.loop.run_until_complete(echo.adapter.close())
