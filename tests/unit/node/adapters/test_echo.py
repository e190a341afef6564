"""The echo model says what it was told, always the same, at its pace."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from iop_fast.config.schema.node import NodeLimits
from iop_fast.node.adapters import Surroundings
from iop_fast.node.adapters.echo import EMBEDDING_SIZE, PIECES_A_TURN, make_echo
from iop_fast.node.health import State
from iop_fast.seams import End, RunHandle, RunTask, Usage
from iop_fast.wire import runtime_pb2 as pb
from tests.unit.edge.worlds import VirtualLoop
from tests.unit.node.adapters.run_sink import RecordingRunSink, chat, completion, embedding, message
from tests.unit.node.worlds import provider

TOOLS = [{"type": "function", "function": {"name": name}} for name in ("look", "find")]


class Echo:
    """An echo model on virtual time."""

    def __init__(self, loop: VirtualLoop, **options: Any) -> None:
        self.loop = loop
        self.adapter = make_echo(options, Surroundings(loop, {}, {}, NodeLimits()))
        self.model = self.adapter.run_adapter(provider())

    def start(self, task: RunTask) -> tuple[RunHandle, RecordingRunSink]:
        sink = RecordingRunSink()
        run = self.model.start(task, sink)
        assert not sink.is_taken
        self.loop.settle()
        return run, sink

    def ask(self, task: RunTask) -> RecordingRunSink:
        _, sink = self.start(task)
        self.loop.run_for(60)
        assert sink.end is not None
        return sink


@pytest.fixture
def echo() -> Iterator[Echo]:
    with VirtualLoop() as loop:
        yield Echo(loop)


def test_a_chat_is_answered_with_the_last_user_message(echo: Echo) -> None:
    task = chat(message("system", "be brief"), "first", message("assistant", "yes"), "hello  there\nworld ", "end it")
    task = task._replace(messages=[*task.messages[:-1], message("assistant", "then")])
    sink = echo.ask(task)
    assert sink.is_taken
    assert [said.text for said in sink.said] == ["hello  ", "there\n", "world "]
    assert sink.finished == {0: "stop"}
    assert sink.end == End(pb.RunEnd.OK, "", Usage(8, 3, 0))


def test_the_same_task_gets_the_same_answer(echo: Echo) -> None:
    for task in (chat("a b"), completion("a", "b"), embedding("a"), chat("x", tool_choice=TOOLS[1])):
        one, two = echo.ask(task), echo.ask(task)
        assert (one.said, one.embeddings, one.finished, one.end) == (two.said, two.embeddings, two.finished, two.end)


def test_a_chat_without_a_user_is_answered_with_nothing(echo: Echo) -> None:
    sink = echo.ask(chat(message("system", "be brief")))
    assert (sink.said, sink.finished) == ([], {0: "stop"})
    assert sink.end == End(pb.RunEnd.OK, "", Usage(2, 0, 0))


def test_every_prompt_of_a_completion_is_answered_n_times(echo: Echo) -> None:
    sink = echo.ask(completion("a b", "c", n=2))
    assert [sink.text(choice) for choice in range(4)] == ["a b", "a b", "c", "c"]
    assert sink.finished == dict.fromkeys(range(4), "stop")
    assert sink.end == End(pb.RunEnd.OK, "", Usage(3, 6, 0))


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_the_limit_of_tokens_cuts_and_says_so(echo: Echo, name: str) -> None:
    sink = echo.ask(chat("one two three", **{name: 2}))
    assert (sink.text(), sink.finished) == ("one two ", {0: "length"})
    assert echo.ask(chat("one two three", **{name: 3})).finished == {0: "stop"}
    assert echo.ask(chat("one two three", **{name: None})).finished == {0: "stop"}


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"max_tokens": 0}, "max_tokens: expected a whole number of at least 1"),
        ({"max_tokens": True}, "max_tokens: expected a whole number of at least 1"),
        ({"n": 129}, "n: expected a whole number of 1 to 128"),
    ],
)
def test_what_it_cannot_is_refused(echo: Echo, parameters: dict[str, Any], message: str) -> None:
    sink = echo.ask(chat("x", **parameters))
    assert sink.end == End(pb.RunEnd.REFUSED, message, None, 400)
    assert sink.said == []


# Tools.


@pytest.mark.parametrize(("choice", "name"), [(TOOLS[1], "find"), ("required", "look")])
def test_a_named_function_is_called_with_the_message(echo: Echo, choice: Any, name: str) -> None:
    sink = echo.ask(chat("where is it", tools=TOOLS, tool_choice=choice))
    ((called, arguments),) = sink.calls()
    assert called == name
    assert json.loads(arguments) == {"input": "where is it"}
    assert sink.finished == {0: "tool_calls"}
    assert [said.call_id for said in sink.said] == ["call_echo_0", "", ""]


def test_a_message_that_is_a_json_object_is_the_arguments(echo: Echo) -> None:
    sink = echo.ask(chat('{"city": "Seoul", "days": [1, 2]}', tools=TOOLS, tool_choice=TOOLS[0]))
    assert sink.calls() == [("look", '{"city": "Seoul", "days": [1, 2]}')]


@pytest.mark.parametrize("choice", ["auto", "none", None, {"type": "function"}, {"function": {"name": 3}}])
def test_no_function_is_called_unasked(echo: Echo, choice: Any) -> None:
    sink = echo.ask(chat("hi", tools=TOOLS, tool_choice=choice))
    assert (sink.text(), sink.finished) == ("hi", {0: "stop"})


# Embeddings.


def test_an_embedding_depends_on_its_text_alone_and_has_length_1(echo: Echo) -> None:
    sink = echo.ask(embedding("a", "b", "a"))
    assert sink.embeddings[0] == sink.embeddings[2] != sink.embeddings[1]
    assert all(len(values) == EMBEDDING_SIZE for values in sink.embeddings.values())
    assert all(math.isclose(math.hypot(*values), 1) for values in sink.embeddings.values())
    assert (sink.said, sink.finished) == ([], {})
    assert sink.end == End(pb.RunEnd.OK, "", Usage(3, 0, 0))


def test_an_embedding_has_the_size_that_is_asked_for(echo: Echo) -> None:
    assert len(echo.ask(embedding("a", dimensions=300)).embeddings[0]) == 300
    refused = echo.ask(embedding("a", dimensions=100_000))
    assert refused.end is not None
    assert refused.end.refusal_status == 400


# Pace.


def test_pieces_come_at_the_model_s_pace() -> None:
    with VirtualLoop() as loop:
        echo = Echo(loop, delay_ms=500, chunk_ms=100, chunk_words=2)
        _, sink = echo.start(chat("a b c d e"))
        seen = []
        while sink.end is None:
            seen.append((loop.time(), len(sink.said)))
            loop.run_for(0.05)
        firsts = [next(at for at, count in seen if count >= wanted) for wanted in (1, 2, 3)]
        assert firsts[0] - seen[0][0] >= 0.5
        assert all(later - sooner >= 0.099 for sooner, later in pairwise(firsts))
        assert sink.text() == "a b c d e"


@pytest.mark.parametrize("chunk_ms", [0, 10])
def test_pause_and_resume_lose_nothing(chunk_ms: int) -> None:
    with VirtualLoop() as loop:
        echo = Echo(loop, chunk_ms=chunk_ms)
        run, sink = echo.start(chat("a b c d e"))
        run.pause()
        run.pause()
        loop.run_for(1)
        before = len(sink.said)
        loop.run_for(1)
        assert len(sink.said) == before
        assert sink.end is None or chunk_ms == 0
        run.resume()
        run.resume()
        loop.run_for(1)
        assert sink.text() == "a b c d e"
        assert sink.end == End(pb.RunEnd.OK, "", Usage(5, 5, 0))


def test_a_long_answer_without_pace_leaves_turns_to_others(echo: Echo) -> None:
    sink = RecordingRunSink()
    echo.model.start(chat("w " * 10 * PIECES_A_TURN), sink)
    counts: list[int] = []

    def look() -> None:
        counts.append(len(sink.said))
        if sink.end is None:
            echo.loop.call_soon(look)

    look()
    echo.loop.run_for(1)
    assert max(later - sooner for sooner, later in pairwise(counts)) <= PIECES_A_TURN
    assert counts[-1] == 10 * PIECES_A_TURN


# Ends.


def test_a_cancelled_run_says_so_once_and_nothing_else() -> None:
    with VirtualLoop() as loop:
        echo = Echo(loop, chunk_ms=10)
        run, sink = echo.start(chat("a b c d e"))
        loop.run_for(0.015)
        run.cancel()
        run.cancel()
        assert sink.end is None
        loop.run_for(1)
        assert sink.end == End(pb.RunEnd.CANCELLED, "cancelled", None)
        assert len(sink.said) < 5


def test_a_cancel_behind_the_end_changes_nothing(echo: Echo) -> None:
    run, sink = echo.start(chat("a"))
    echo.loop.run_for(1)
    run.cancel()
    echo.loop.run_for(1)
    assert sink.end == End(pb.RunEnd.OK, "", Usage(1, 1, 0))


def test_it_is_always_up(echo: Echo) -> None:
    assert echo.adapter.health.state is State.UP
    echo.loop.run_until_complete(echo.loop.create_task(echo.adapter.close()))
