"""Answers of Ollama read in any pieces: the same events for every cut, and no failure but the reader's own words."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import count, pairwise
from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from iop_fast.node.adapters.ollama_answer import AnswerReader, EmbeddingReader, StreamReader
from iop_fast.node.adapters.ollama_errors import AnswerError, ProviderError
from iop_fast.node.adapters.ollama_request import arguments_of
from tests.fakes.fake_ollama import chat_line, encoded, last_line, tool_call
from tests.unit.node.adapters.ollama_events import EventSink

Outcome = tuple[list[tuple[Any, ...]], str, Any]


def stream_reader(sink: EventSink) -> AnswerReader:
    numbers = count(1)
    return StreamReader(sink, lambda: f"made-{next(numbers)}")


def embedding_reader(sink: EventSink) -> AnswerReader:
    return EmbeddingReader(sink, 3)


def outcome(make: Callable[[EventSink], AnswerReader], pieces: Sequence[bytes]) -> Outcome:
    """What reading comes to: events, the failure's words or "", usage."""
    sink = EventSink()
    reader = make(sink)
    try:
        for piece in pieces:
            reader.feed(piece)
        reader.finish()
    except (AnswerError, ProviderError) as error:
        assert not reader.is_whole or not reader.usage
        return sink.events, f"{type(error).__name__}: {error}", None
    assert reader.is_whole
    return sink.events, "", reader.usage


def cut(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    """Data in pieces, cut at offsets; some of them are empty."""
    bounds = [0, *sorted(at % (len(data) + 1) for at in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(bounds)]


words = st.text(max_size=12)
calls = st.builds(tool_call, st.sampled_from(["f", "g"]), st.dictionaries(words, st.integers(-9, 9), max_size=2), words)
json_lines = st.one_of(
    st.builds(chat_line, words),
    st.builds(lambda text: chat_line(thinking=text), words),
    st.builds(lambda made: chat_line(tool_calls=made), st.lists(calls, max_size=3)),
    st.builds(last_line, words, st.sampled_from(["stop", "length", "load", ""])),
    st.just({"error": "it broke"}),
    st.dictionaries(
        st.sampled_from(["message", "response", "done", "done_reason", "error", "eval_count", "prompt_eval_count"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | words,
            lambda inner: st.lists(inner, max_size=2) | st.dictionaries(words, inner, max_size=2),
        ),
    ),
).map(encoded)
streams = st.lists(
    st.one_of(json_lines, json_lines, json_lines, st.binary(max_size=8), st.just(b"\r\n")), max_size=6
).map(b"".join)
cuts = st.lists(st.integers(0, 2_000), max_size=8)


@given(streams, cuts)
def test_a_stream_means_the_same_however_it_is_cut(stream: bytes, at: list[int]) -> None:
    """B20."""
    assert outcome(stream_reader, cut(stream, at)) == outcome(stream_reader, [stream])


@given(st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=8), cuts)
def test_no_character_is_lost(texts: list[str], at: list[int]) -> None:
    """B20: characters of several bytes, and Go's escapes."""
    stream = b"".join(encoded(chat_line(text)) for text in texts) + encoded(last_line())
    events, error, _ = outcome(stream_reader, cut(stream, at))
    assert (events, error) == ([("text", "".join(texts)), ("finish", "stop")], "")


@given(st.binary(max_size=200), cuts)
def test_garbage_is_refused_in_the_readers_own_words(garbage: bytes, at: list[int]) -> None:
    for make in (stream_reader, embedding_reader):
        assert outcome(make, cut(garbage, at)) == outcome(make, [garbage])


numbers = st.floats(allow_nan=False, allow_infinity=False, width=32) | st.integers(-5, 5)
embeddings = st.builds(
    lambda vectors, spaced, rest: json.dumps(
        {"model": "m", "embeddings": vectors, **rest}, separators=(" , ", " : ") if spaced else (",", ":")
    ).encode(),
    st.lists(st.lists(numbers, max_size=4), max_size=4),
    st.booleans(),
    st.dictionaries(st.sampled_from(["prompt_eval_count", "error", "x"]), st.integers(0, 9) | words),
)


@given(embeddings, cuts, st.integers(0, 400))
def test_embeddings_mean_the_same_however_they_are_cut(answer: bytes, at: list[int], length: int) -> None:
    for data in (answer, answer[:length]):
        assert outcome(embedding_reader, cut(data, at)) == outcome(embedding_reader, [data])


@given(st.dictionaries(words, st.recursive(st.integers() | words, lambda inner: st.lists(inner, max_size=3))))
def test_arguments_survive_the_way_to_ollama(arguments: dict[str, Any]) -> None:
    """B25."""
    text = json.dumps(arguments)
    assert json.loads(orjson.dumps(arguments_of(text, "x"))) == arguments
