"""Lines and objects of Ollama become events, wherever the bytes are cut."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import pytest

from iop_fast.node.adapters import ollama_answer
from iop_fast.node.adapters.ndjson import LineReader, LineTooLongError
from iop_fast.node.adapters.ollama_answer import EmbeddingReader, StreamReader
from iop_fast.node.adapters.ollama_errors import AnswerError, ProviderError
from iop_fast.seams import Usage
from iop_fast.wire.options import MAX_MESSAGE_BYTES
from tests.fakes.fake_ollama import chat_line, encoded, last_line, tool_call
from tests.unit.node.adapters.ollama_events import EventSink


def new_ids() -> Callable[[], str]:
    numbers = count(1)
    return lambda: f"made-{next(numbers)}"


def read(*pieces: bytes | dict[str, Any]) -> tuple[list[tuple[Any, ...]], StreamReader]:
    """Read a stream to its end."""
    sink = EventSink()
    reader = StreamReader(sink, new_ids())
    for piece in pieces:
        reader.feed(piece if isinstance(piece, bytes) else encoded(piece))
    reader.finish()
    return sink.events, reader


def fails(*pieces: bytes | dict[str, Any]) -> tuple[list[tuple[Any, ...]], str]:
    """Read a stream that is none; returns the events before the failure and its words."""
    sink = EventSink()
    reader = StreamReader(sink, new_ids())
    try:
        for piece in pieces:
            reader.feed(piece if isinstance(piece, bytes) else encoded(piece))
        reader.finish()
    except (AnswerError, ProviderError) as error:
        return sink.events, str(error)
    raise AssertionError(f"read as {sink.events}")


class TestLines:
    def lines(self, *pieces: bytes, limit: int = 100) -> list[bytes]:
        reader = LineReader(limit)
        return [line for piece in pieces for line in reader.feed(piece)] + [reader.finish()]

    @pytest.mark.parametrize(
        ("pieces", "lines"),
        [
            ((b"a\nb\n",), [b"a", b"b", b""]),
            ((b"a\r\nb\r\n",), [b"a", b"b", b""]),
            ((b"a\r", b"\nb"), [b"a", b"b"]),
            ((b"\n\n \r\na", b"b", b"c\n\n"), [b"abc", b""]),
            ((b"", b"a", b"", b"\n"), [b"a", b""]),
            ((), [b""]),
        ],
    )
    def test_lines_are_whole_and_not_empty(self, pieces: Sequence[bytes], lines: list[bytes]) -> None:
        assert self.lines(*pieces) == lines

    @pytest.mark.parametrize("pieces", [(b"x" * 101,), (b"x" * 50, b"x" * 51), (b"ok\n" + b"x" * 101 + b"\n",)])
    def test_a_line_has_a_bound(self, pieces: Sequence[bytes]) -> None:
        """B29: a line that never ends costs no more than its bound."""
        with pytest.raises(LineTooLongError, match="a line is over 100 bytes"):
            self.lines(*pieces)
        assert self.lines(b"x" * 100 + b"\n", b"x" * 100) == [b"x" * 100, b"x" * 100]


class TestStreams:
    def test_text_comes_as_it_is_made_and_the_last_line_ends_it(self) -> None:
        events, reader = read(chat_line("The sky"), chat_line(" is <blue> & 파란 🌊"), last_line())
        assert events == [("text", "The sky is <blue> & 파란 🌊"), ("finish", "stop")]
        assert (reader.is_whole, reader.usage) == (True, Usage(26, 259, 0))

    def test_thinking_is_apart_from_the_answer(self) -> None:
        events, _ = read(chat_line(thinking="Let me "), chat_line(thinking="see."), chat_line("7"), last_line())
        assert events == [("reasoning", "Let me see."), ("text", "7"), ("finish", "stop")]

    def test_a_completion_has_its_text_beside_done(self) -> None:
        base = {"model": "m", "created_at": "x"}
        last = {**base, "response": "", "done": True, "done_reason": "stop", "context": [1, 2, 3]}
        events, reader = read(
            {**base, "response": "The", "thinking": "hm", "done": False},
            {**base, "response": " end", "done": False},
            last,
        )
        assert events == [("reasoning", "hm"), ("text", "The end"), ("finish", "stop")]
        assert reader.usage is None

    @pytest.mark.parametrize(
        ("reason", "finish"),
        [
            ("stop", "stop"),
            ("length", "length"),
            ("load", "stop"),
            ("unload", "stop"),
            ("", "stop"),
            (None, "stop"),
            ("something new", "stop"),
        ],
    )
    def test_why_it_ended(self, reason: Any, finish: str) -> None:
        line = last_line() | {"done_reason": reason}
        assert read(line)[0] == [("finish", finish)]

    def test_an_answer_in_one_line_without_a_line_end_is_an_answer(self) -> None:
        assert read(encoded(last_line("all of it")).rstrip())[0] == [("text", "all of it"), ("finish", "stop")]

    def test_what_follows_the_last_line_is_dropped(self) -> None:
        events, _ = read(encoded(last_line("a")) + b"garbage\n" + encoded(chat_line("b")), b"more garbage")
        assert events == [("text", "a"), ("finish", "stop")]


class TestToolCalls:
    """B25: the client receives strings, with id and index."""

    def test_calls_are_counted_over_lines(self) -> None:
        events, _ = read(
            chat_line(tool_calls=[tool_call("weather", {"city": "Seoul"}, "call_a"), tool_call("time", {}, "call_b")]),
            chat_line(tool_calls=[tool_call("weather", {"city": "서울", "n": 1.5}, "call_c")]),
            last_line(),
        )
        assert events == [
            ("call", 0, "call_a", "weather", '{"city":"Seoul"}'),
            ("call", 1, "call_b", "time", "{}"),
            ("call", 2, "call_c", "weather", '{"city":"서울","n":1.5}'),
            ("finish", "tool_calls"),
        ]

    def test_the_servers_own_index_starts_anew_in_every_line_and_counts_for_nothing(self) -> None:
        line = chat_line(tool_calls=[{"function": {"index": 0, "name": "f", "arguments": {}}}])
        assert [event[1] for event in read(line, line, last_line())[0][:-1]] == [0, 1]

    def test_a_call_without_an_id_gets_one_and_an_id_stands_once(self) -> None:
        events, _ = read(
            chat_line(tool_calls=[tool_call("f", {}), tool_call("f", {}, "same"), tool_call("f", {}, "same")]),
            last_line(),
        )
        assert [event[2] for event in events[:-1]] == ["made-1", "same", "made-2"]

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            ({"a": 1}, '{"a":1}'),
            (None, "{}"),
            ("", "{}"),
            ('{"a": 1}', '{"a": 1}'),
            ({"a": {"b": []}}, '{"a":{"b":[]}}'),
        ],
    )
    def test_arguments_become_text(self, arguments: Any, text: str) -> None:
        assert read(chat_line(tool_calls=[tool_call("f", arguments)]), last_line())[0][0][4] == text

    def test_calls_may_come_with_the_last_line(self) -> None:
        line = last_line() | {"message": {"role": "assistant", "content": "", "tool_calls": [tool_call("f", {})]}}
        assert read(line)[0] == [("call", 0, "made-1", "f", "{}"), ("finish", "tool_calls")]


class TestUsage:
    @pytest.mark.parametrize(
        ("counts", "usage"),
        [
            ({"prompt_eval_count": 26, "eval_count": 259}, Usage(26, 259, 0)),
            ({"prompt_eval_count": 26}, Usage(26, 0, 0)),
            ({"prompt_eval_count": 40, "eval_count": 5, "prompt_eval_cached_count": 32}, Usage(40, 5, 32)),
            ({"prompt_eval_count": 40, "eval_count": 5, "prompt_eval_cached_count": 50}, Usage(40, 5, 40)),
            # A prompt that stood in the cache whole: old servers leave its count out. Unknown is not 0.
            ({"eval_count": 259}, None),
            ({"prompt_eval_count": 0, "eval_count": 259}, None),
            ({"prompt_eval_count": -1, "eval_count": 259}, None),
            ({"prompt_eval_count": "26", "eval_count": 259}, None),
            ({"prompt_eval_count": True, "eval_count": 1}, None),
            ({}, None),
        ],
    )
    def test_only_what_was_reported(self, counts: dict[str, Any], usage: Usage | None) -> None:
        line = {"message": {"role": "assistant", "content": ""}, "done": True, **counts}
        assert read(line)[1].usage == usage


class TestFailures:
    SAID = chat_line("Half")

    @pytest.mark.parametrize(
        ("rest", "words"),
        [
            (b"", "the answer ended before its last line"),
            (b'{"message":{"con', "a line of the answer is not JSON"),
            (b'{"message":\n', "a line of the answer is not JSON"),
            (b"<html>\n", "a line of the answer is not JSON"),
            (b'"text"\n', "a line of the answer is not a JSON object"),
            (b"[1]\n", "a line of the answer is not a JSON object"),
            (b'{"choices":[]}\n', "a line of the answer is none of Ollama's"),
            (b'{"message":{"content":7},"done":false}\n', "content of the answer is not text"),
            (b'{"message":{"thinking":[]},"done":false}\n', "thinking of the answer is not text"),
            (b'{"message":{"tool_calls":{}},"done":false}\n', "the answer ended before its last line"),
            (b'{"message":{"tool_calls":{"a":1}},"done":false}\n', "tool_calls of the answer are not a list"),
            (b'{"message":{"tool_calls":[7]},"done":false}\n', "a tool call of the answer has no function"),
            (b'{"message":{"tool_calls":[{"function":{}}]},"done":false}\n', "a tool call of the answer has no name"),
            (
                b'{"message":{"tool_calls":[{"function":{"name":"f","arguments":%b}}]}}\n' % (b"[" * 900 + b"]" * 900),
                "the arguments of a tool call are nested too deep",
            ),
            (
                b'{"message":{"tool_calls":[{"function":{"name":"%b"}}]}}\n' % (b"f" * 4097),
                "a tool call's name or id has more than 4096 characters",
            ),
            (b'{"message":{"content":"\xff"},"done":false}\n', "a line of the answer is not JSON"),
            (
                b'{"error":"an error was encountered while running the model"}\n',
                "an error was encountered while running",
            ),
            (b'{"error":{"message":"inner","type":"x"}}\n', "inner"),
            (b'{"error":["?"]}', "the provider reported an error without a message"),
        ],
    )
    def test_an_answer_that_breaks_keeps_what_was_whole(self, rest: bytes, words: str) -> None:
        events, said = fails(self.SAID, rest)
        assert events == [("text", "Half")]
        assert said.startswith(words)

    def test_tool_calls_have_a_bound(self) -> None:
        call = b'{"function":{"name":"f","arguments":{}}}'
        calls = b",".join([call] * (ollama_answer.TOOL_CALLS_MAX + 1))
        events, said = fails(b"", b'{"message":{"tool_calls":[%b]},"done":true}\n' % calls)
        assert len(events) == ollama_answer.TOOL_CALLS_MAX
        assert said == "the answer has more than 1024 tool calls"

    def test_an_error_has_its_status_where_one_is_said(self) -> None:
        for line, status in (
            (b'{"error":"x"}', 500),
            (b'{"error":"x","status":503}', 503),
            (b'{"error":"x","status":7}', 500),
        ):
            reader = StreamReader(EventSink(), new_ids())
            with pytest.raises(ProviderError) as caught:
                reader.feed(line + b"\n")
            assert (caught.value.status, reader.has_begun) == (status, False)

    def test_a_line_that_never_ends_is_cut(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ollama_answer, "LINE_BYTES_MAX", 1_000)
        events, said = fails(self.SAID, b"x" * 600, b"x" * 600)
        assert (events, said) == ([("text", "Half")], "the answer cannot be read: a line is over 1000 bytes")


def embed(count: int, *pieces: bytes) -> tuple[list[tuple[Any, ...]], EmbeddingReader]:
    sink = EventSink()
    reader = EmbeddingReader(sink, count)
    for piece in pieces:
        reader.feed(piece)
    reader.finish()
    return sink.events, reader


ANSWER = b'{"model":"m","embeddings":[[0.5,-1e-3],[1,2.25]],"total_duration":5,"prompt_eval_count":8}'


class TestEmbeddings:
    @pytest.mark.parametrize("answer", [ANSWER, ANSWER.replace(b",", b" , ").replace(b"[", b" [ "), ANSWER + b"\n"])
    def test_each_input_gets_its_embedding(self, answer: bytes) -> None:
        events, reader = embed(2, answer)
        assert events == [("embedding", 0, [0.5, -0.001]), ("embedding", 1, [1, 2.25])]
        assert (reader.is_whole, reader.usage) == (True, Usage(8, 0, 0))

    def test_an_unknown_count_of_tokens_is_unknown(self) -> None:
        assert embed(1, b'{"embeddings":[[1]]}')[1].usage is None

    @pytest.mark.parametrize("at", range(len(ANSWER) + 1))
    def test_it_may_be_cut_anywhere(self, at: int) -> None:
        """B20, for embeddings."""
        whole = embed(2, ANSWER)
        cut = embed(2, ANSWER[:at], ANSWER[at:])
        assert cut[0] == whole[0]
        assert cut[1].usage == whole[1].usage

    @pytest.mark.parametrize(
        ("answer", "words"),
        [
            (b"", "the answer is not JSON, or not whole"),
            (ANSWER[:-1], "the answer is not JSON, or not whole"),
            (ANSWER[:30], "the answer is not JSON, or not whole"),
            (b'{"embeddings":[[1]]}', "the answer has 1 embeddings, expected 2"),
            (b'{"embeddings":[[1],[1],[1]]}', "the answer has 3 embeddings, expected 2"),
            (b'{"embeddings":[]}', "the answer has 0 embeddings, expected 2"),
            (b'{"embedding":[1]}', "the answer has 0 embeddings, expected 2"),
            (b'{"embeddings":[[1],["a"]]}', "an embedding of the answer is not a list of numbers"),
            (b'{"embeddings":[[],[1]]}', "an embedding of the answer is not a list of numbers"),
            (b'{"embeddings":[[true],[1]]}', "an embedding of the answer is not a list of numbers"),
            (b'{"embeddings":[[[1]],[1]]}', "an embedding of the answer is not a list of numbers"),
            (b'{"embeddings":[[1],[NaN]]}', "an embedding of the answer is not a list of numbers"),
            (b'{"embeddings":[[1],null]}', "the answer has 1 embeddings, expected 2"),
            (b"[[1],[2]]", "the answer is not a JSON object"),
            (b'{"error":"the input length exceeds the context length"}', "the input length exceeds the context length"),
        ],
    )
    def test_what_is_no_answer_is_said(self, answer: bytes, words: str) -> None:
        with pytest.raises((AnswerError, ProviderError)) as caught:
            embed(2, answer)
        assert str(caught.value) == words

    def test_nothing_grows_without_bound(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ollama_answer, "REST_BYTES_MAX", 1_000)
        monkeypatch.setattr(ollama_answer, "VECTOR_BYTES_MAX", 1_000)
        for start, words in (
            (b'{"model":"', "the answer has no embeddings"),
            (b'{"embeddings":[[1,', "an embedding is over 1000 bytes"),
            (b'{"embeddings":[[1]],"x":"', "the answer does not end behind its embeddings"),
        ):
            with pytest.raises(AnswerError) as caught:
                embed(1, start, *[b"1" * 300] * 5)
            assert str(caught.value) == words

    def test_an_embedding_fits_a_message(self) -> None:
        most = ollama_answer.VECTOR_NUMBERS_MAX
        assert most * 4 < MAX_MESSAGE_BYTES / 2
        embed(1, b'{"embeddings":[[%b]]}' % b",".join([b"0"] * most))
        with pytest.raises(AnswerError, match="an embedding has more than 65536 numbers"):
            embed(1, b'{"embeddings":[[%b]]}' % b",".join([b"0"] * (most + 1)))

    def test_a_large_batch_is_read_piece_by_piece(self) -> None:
        vectors = [[at / 7, at * 1.5, -1.0] for at in range(2_000)]
        whole = json.dumps({"model": "m", "embeddings": vectors, "prompt_eval_count": 9}).encode()
        events, _ = embed(len(vectors), *[whole[at : at + 1_000] for at in range(0, len(whole), 1_000)])
        assert [event[2] for event in events] == vectors
        assert [event[1] for event in events] == list(range(2_000))
