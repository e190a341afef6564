"""However a run's events are cut into messages, its client gets the same bytes: through the real codec and exchange."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iop_fast._hot import frames
from iop_fast._hot.dispatch import dispatch_edge
from iop_fast.seams import End, RunEmbedding, RunFinish, RunReasoning, RunSaid, RunText, RunToolCall, Usage
from iop_fast.wire.runtime_pb2 import RunEnd
from tests.unit.edge.exchange_world import ExchangeWorld, provider_spec

RUN = 1
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)

chat_events = st.one_of(
    st.builds(RunText, TEXTS, st.just(0)),
    st.builds(RunReasoning, TEXTS, st.just(0)),
    st.builds(
        RunToolCall, st.integers(0, 3), st.sampled_from(["", "id"]), st.sampled_from(["", "f"]), TEXTS, st.just(0)
    ),
)
text_events = st.one_of(st.builds(RunText, TEXTS, st.integers(0, 1)), st.builds(RunReasoning, TEXTS, st.integers(0, 1)))
chats = st.tuples(st.lists(chat_events, max_size=12), st.sampled_from(["stop", "length", ""]))


def entry_of(event: RunSaid) -> bytes:
    """The frame of an event, as a Node encodes it."""
    if isinstance(event, RunText):
        return frames.encode_text(RUN, event.text, event.choice)
    if isinstance(event, RunReasoning):
        return frames.encode_reasoning(RUN, event.text, event.choice)
    if isinstance(event, RunToolCall):
        return frames.encode_tool_call(RUN, *event)
    if isinstance(event, RunFinish):
        return frames.encode_finish(RUN, event.reason, event.choice)
    return frames.encode_embedding(RUN, [1.5] * 4, event.choice)


class Side:
    """The rest of a session: nothing may come to it."""

    def on_control(self, frame: bytes) -> None:
        raise AssertionError("a session frame")

    def on_frame_failed(self, run_id: int, error: Exception) -> None:
        raise error


def answer(body: dict[str, Any], path: bytes, entries: list[bytes], cuts: set[int]) -> tuple[int, bytes]:
    """What a client gets when the frames come in messages that begin at `cuts`."""
    with ExchangeWorld([provider_spec("n1", "p1", type="ollama", adapter_type="ollama")]) as world:
        call = world.post(body, path=path)
        starts = [0, *sorted(cut for cut in cuts if 0 < cut < len(entries)), len(entries)]
        for start, end in pairwise(starts):
            message = b"".join(entries[start:end])
            assert dispatch_edge(message, world.link.runs, Side()) == end - start
        assert call.downstream.is_ended
        world.assert_idle()
        return call.downstream.status, call.downstream.body


def frames_of(events: list[RunSaid], end: End) -> list[bytes]:
    return [frames.encode_taken(RUN), *map(entry_of, events), frames.encode_end(RUN, end)]


@pytest.mark.parametrize("stream", [False, True])
@given(chat=chats, cuts=st.sets(st.integers(1, 14)), usage=st.sampled_from([None, Usage(3, 4, 0)]))
def test_chats(stream: bool, chat: tuple[list[RunSaid], str], cuts: set[int], usage: Usage | None) -> None:
    said, reason = chat
    events = [*said, RunFinish(reason, 0)] if reason else said
    body = {
        "model": "m",
        "stream": stream,
        "stream_options": {"include_usage": True},
        "messages": [{"role": "user", "content": "x"}],
    }
    entries = frames_of(events, End(RunEnd.OK, "", usage))
    path = b"/v1/chat/completions"
    at_once = answer(body, path, entries, set())
    assert at_once[0] == 200
    assert answer(body, path, entries, cuts) == at_once
    assert answer(body, path, entries, set(range(len(entries)))) == at_once


@pytest.mark.parametrize("stream", [False, True])
@given(said=st.lists(text_events, max_size=12), cuts=st.sets(st.integers(1, 14)))
def test_completions(stream: bool, said: list[RunSaid], cuts: set[int]) -> None:
    body = {"model": "m", "stream": stream, "prompt": ["a", "b"]}
    entries = frames_of(said, End(RunEnd.OK, "", None))
    assert answer(body, b"/v1/completions", entries, cuts) == answer(body, b"/v1/completions", entries, set())


@given(order=st.permutations(range(5)), cuts=st.sets(st.integers(1, 7)))
def test_embeddings(order: list[int], cuts: set[int]) -> None:
    body = {"model": "m", "input": ["x"] * 5}
    said: list[RunSaid] = [RunEmbedding(b"", index) for index in order]
    whole = answer(body, b"/v1/embeddings", frames_of(said, End(RunEnd.OK, "", None)), cuts)
    ordered: list[RunSaid] = [RunEmbedding(b"", index) for index in range(5)]
    assert whole == answer(body, b"/v1/embeddings", frames_of(ordered, End(RunEnd.OK, "", None)), set())
