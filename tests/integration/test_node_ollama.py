"""The ollama adapter against a server on real sockets that speaks Ollama's API.

Every test runs over both HTTP clients. Where an `ollama` program is on the path, `TestRealOllama` asks it too.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from iop_fast.config.payload import TimeoutSettings
from iop_fast.node.adapters import BrokenAdapter, http_backend, ollama_run
from iop_fast.node.adapters.http_client import LibraryClient
from iop_fast.node.adapters.ollama import OllamaAdapter, make_ollama
from iop_fast.node.health import State
from iop_fast.seams import End, RunHandle, RunTask, TaskMessage, TaskPart, Usage
from iop_fast.wire import runtime_pb2 as pb
from tests.fakes.fake_ollama import FakeOllama, chat_line, encoded, error, last_line, lines, tool_call
from tests.fakes.openai_backend import BeforeBody, answer, raw
from tests.integration.node_bench import adapter_settings, on_uvloop, provider_payload, surroundings, until
from tests.unit.node.adapters.ollama_events import EventSink

RunEnd = pb.RunEnd
CHAT, COMPLETION, EMBEDDING = pb.RunRequest.CHAT, pb.RunRequest.COMPLETION, pb.RunRequest.EMBEDDING
MODEL = "qwen3:8b"
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


@pytest.fixture(autouse=True, params=["plain", "library"])
def client(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which HTTP client carries plain HTTP."""
    name: str = request.param
    if name == "library":
        monkeypatch.setattr(http_backend, "client_for", LibraryClient)
    return name


def said(role: str, text: str, **fields: Any) -> TaskMessage:
    return TaskMessage(role, [TaskPart("text", text)], **fields)


def chat(*messages: TaskMessage | str, model: str = MODEL, **parameters: Any) -> RunTask:
    made = [said("user", message) if isinstance(message, str) else message for message in messages]
    return RunTask(model, CHAT, True, made or [said("user", "hello there")], (), parameters)


class Bench:
    """An adapter and what starts runs on it."""

    def __init__(self, adapter: OllamaAdapter) -> None:
        self.adapter = adapter

    def start(
        self, task: RunTask | None = None, timeouts: TimeoutSettings | None = None
    ) -> tuple[RunHandle, EventSink]:
        sink = EventSink()
        limits = timeouts or TimeoutSettings(5_000, 60_000, 60_000)
        provider = provider_payload("box-ollama", timeouts=limits)
        return self.adapter.run_adapter(provider).start(task or chat(), sink), sink

    async def run(self, task: RunTask | None = None, timeouts: TimeoutSettings | None = None) -> EventSink:
        _, sink = self.start(task, timeouts)
        await sink.finished()
        return sink


@asynccontextmanager
async def bench(endpoint: str, options: Sequence[tuple[str, str]] = (), **settings: Any) -> AsyncIterator[Bench]:
    made = make_ollama(adapter_settings(endpoint, type="ollama", options=tuple(options), **settings), surroundings())
    assert isinstance(made, OllamaAdapter)
    try:
        yield Bench(made)
    finally:
        await made.close()
        await asyncio.sleep(0.01)  # uvloop closes transports in a later turn


def ok(usage: Usage | None) -> End:
    return End(RunEnd.OK, "", usage)


def refused(status: int, message: str) -> End:
    return End(RunEnd.REFUSED, message, None, status)


def broken(detail: str) -> End:
    return End(RunEnd.UPSTREAM_ERROR, detail, None)


# What a run is.


@on_uvloop
async def test_a_chat_is_told_as_it_is_made() -> None:
    async with FakeOllama() as ollama, bench(ollama.url) as node:
        sink = await node.run(chat("안녕하세요 to all"))
        assert sink.events == [("text", "안녕하세요 to all"), ("finish", "stop")]
        assert (sink.taken, sink.end) == (1, ok(Usage(7, 3, 0)))
        seen = ollama.requests[0]
        assert (seen.method, seen.target) == (b"POST", b"/api/chat")
        assert seen.values(b"content-type") == [b"application/json"]
        assert ollama.bodies == [
            {"model": MODEL, "messages": [{"role": "user", "content": "안녕하세요 to all"}], "stream": True}
        ]


@on_uvloop
async def test_requests_share_a_connection() -> None:
    async with FakeOllama() as ollama, bench(ollama.url) as node:
        for _ in range(3):
            assert (await node.run()).end == ok(Usage(6, 2, 0))
        assert await node.run(chat(model="nobody/pulled:this")) is not None
        assert (await node.run()).end == ok(Usage(6, 2, 0))
        assert (len(ollama.requests), ollama.connections) == (5, 1)


@pytest.mark.parametrize("root", ["", "/", "/v1", "/v1/", "/api"])
@on_uvloop
async def test_the_endpoint_may_name_either_api(root: str) -> None:
    async with FakeOllama() as ollama, bench(ollama.url + root) as node:
        assert (await node.run()).text == "hello there"


@on_uvloop
async def test_the_configuration_and_the_request_reach_the_server_in_their_places() -> None:
    """B25: num_ctx, keep_alive and think, which Ollama's OpenAI endpoint ignores."""
    options = [
        ("keep_alive", "1h30m"),
        ("num_ctx", "32768"),
        ("think", "false"),
        ("truncate", "false"),
        ("use_mmap", "true"),
    ]
    async with FakeOllama() as ollama, bench(ollama.url, options) as node:
        sink = await node.run(
            chat("one two three", max_tokens=2, temperature=0.5, stop="END", seed=7, reasoning_effort="low")
        )
        assert sink.events == [("reasoning", "Let me think (low)."), ("finish", "length")]
        assert ollama.bodies[0] | {"messages": []} == {
            "model": MODEL,
            "messages": [],
            "stream": True,
            "keep_alive": "1h30m",
            "think": "low",
            "truncate": False,
            "options": {
                "num_ctx": 32768,
                "use_mmap": True,
                "num_predict": 2,
                "temperature": 0.5,
                "seed": 7,
                "stop": ["END"],
            },
        }


@on_uvloop
async def test_a_trace_reaches_the_server() -> None:
    async with FakeOllama() as ollama, bench(ollama.url) as node:
        await node.run(chat("one")._replace(traceparent="00-1-2-01"))
        await node.run(chat("two"))
        assert [request.values(b"traceparent") for request in ollama.requests] == [[b"00-1-2-01"], []]


@pytest.mark.parametrize("gives_ids", [True, False])
@on_uvloop
async def test_a_tool_is_called_and_its_result_told(gives_ids: bool) -> None:
    """B25: a conversation of two turns."""
    async with FakeOllama(gives_call_ids=gives_ids) as ollama, bench(ollama.url) as node:
        question = said("user", "how is it?")
        other = {"type": "function", "function": {"name": "time", "parameters": {"type": "object", "properties": {}}}}
        first = await node.run(chat(question, tools=[WEATHER, other]))
        assert first.events[-1] == ("finish", "tool_calls")
        ids = [event[2] for event in first.events[:-1]]
        assert [event[:2] + event[3:] for event in first.events[:-1]] == [
            ("call", 0, "weather", '{"city":"some city"}'),
            ("call", 1, "time", "{}"),
        ]
        assert len(set(ids)) == 2
        assert all(one.startswith("call_") for one in ids)
        calls = [
            {"id": event[2], "type": "function", "function": {"name": event[3], "arguments": event[4]}}
            for event in first.events[:-1]
        ]
        history = [question, said("assistant", "", tool_calls=calls), said("tool", "rain", tool_call_id=ids[0])]
        second = await node.run(chat(*history, tools=[WEATHER, other]))
        assert second.events == [("text", "weather said rain"), ("finish", "stop")]
        assert ollama.bodies[1]["messages"][1]["tool_calls"][0]["function"]["arguments"] == {"city": "some city"}


@on_uvloop
async def test_images_thinking_and_formats_arrive() -> None:
    async with FakeOllama() as ollama, bench(ollama.url) as node:
        picture = TaskMessage("user", [TaskPart("text", "what?"), TaskPart("image", data=bytes(3_000))])
        assert (await node.run(chat(picture))).text == "images of 3000 bytes"
        schema = {"type": "json_schema", "json_schema": {"schema": {"type": "object", "properties": {"age": {}}}}}
        assert json.loads((await node.run(chat("x", response_format=schema))).text) == {"age": "x"}
        assert json.loads((await node.run(chat("y", response_format={"type": "json_object"}))).text) == {"said": "y"}
        assert (await node.run(chat("z", think=True))).events[0] == ("reasoning", "Let me think (True).")


@on_uvloop
async def test_a_completion_and_embeddings() -> None:
    async with FakeOllama() as ollama, bench(ollama.url) as node:
        completion = await node.run(RunTask(MODEL, COMPLETION, True, (), ["Once upon"], {"suffix": " the end"}))
        assert completion.events == [("text", "Once upon and so on the end"), ("finish", "stop")]
        assert completion.end == ok(Usage(2, 7, 0))
        empty = await node.run(RunTask(MODEL, COMPLETION, True, (), [""], {}))
        assert (empty.events, empty.end) == ([("finish", "stop")], ok(None))
        embedding = await node.run(RunTask(MODEL, EMBEDDING, False, (), ["ab", "abcd"], {"dimensions": 3}))
        assert embedding.events == [("embedding", 0, [0.25, 1 / 16, 2 / 16]), ("embedding", 1, [0.5, 1 / 16, 2 / 16])]
        assert embedding.end == ok(Usage(2, 0, 0))
        assert [bytes(seen.target) for seen in ollama.requests] == [b"/api/generate", b"/api/generate", b"/api/embed"]


@on_uvloop
async def test_a_large_request_and_a_large_answer_are_whole() -> None:
    async with FakeOllama() as ollama, bench(ollama.url) as node:
        words = " ".join(["가나다" * 1_000] * 300)
        sink = await node.run(chat(words, max_tokens=1_000_000))
        assert sink.text == words
        texts = [f"{number} " * 50 for number in range(200)]
        embeddings = await node.run(RunTask(MODEL, EMBEDDING, False, (), texts, {"dimensions": 1_024}))
        assert [(*event[1:2], event[2][0] * 8) for event in embeddings.told] == list(enumerate(map(len, texts)))


@on_uvloop
async def test_large_images_arrive_whole_and_can_be_withdrawn() -> None:
    pictures = [os.urandom(5_000_000), os.urandom(1_000), os.urandom(300_001)]
    asked = chat(TaskMessage("user", [TaskPart("image", data=one) for one in pictures]))
    async with FakeOllama() as ollama, bench(ollama.url) as node:
        assert (await node.run(asked)).text == "images of 5000000, 1000, 300001 bytes"
        assert [base64.b64decode(image) for image in ollama.bodies[0]["messages"][0]["images"]] == pictures
        ollama.scripts = [BeforeBody(lambda exchange: exchange.until_gone())]
        run, sink = node.start(asked)
        await until(lambda: len(ollama.requests) == 2, "the request")
        run.cancel()
        assert (await sink.finished()).status == RunEnd.CANCELLED
        assert (await node.run()).end == ok(Usage(6, 2, 0))


# Streams that are cut, wherever.

STREAM = b"".join(
    encoded(line)
    for line in (
        chat_line(thinking="음"),
        chat_line("파란 🌊"),
        chat_line(tool_calls=[tool_call("f", {"a": "é"}, "call_1")]),
        last_line("<end>"),
    )
)
EVENTS = [
    ("reasoning", "음"),
    ("text", "파란 🌊"),
    ("call", 0, "call_1", "f", '{"a":"é"}'),
    ("text", "<end>"),
    ("finish", "tool_calls"),
]


@on_uvloop
async def test_a_stream_may_be_cut_at_every_byte() -> None:
    """B20: two writes at every offset, then one byte a write."""
    async with FakeOllama() as ollama, bench(ollama.url) as node:
        for at in range(1, len(STREAM)):
            ollama.scripts = [lines([STREAM], cuts=[at])]
            sink = await node.run()
            assert (sink.events, sink.end) == (EVENTS, ok(Usage(26, 259, 0))), at
        ollama.scripts = [lines([STREAM], cuts=range(1, len(STREAM)))]
        sink = await node.run()
        assert (sink.events, sink.end) == (EVENTS, ok(Usage(26, 259, 0)))


@pytest.mark.parametrize(
    ("script", "end"),
    [
        (lines([chat_line("Half")]), broken("the answer ended before its last line")),
        (lines([chat_line("Half")], then="close"), broken("the answer was cut short")),
        (lines([chat_line("Half")], then="reset"), broken("the answer was cut short")),
        (lines([chat_line("Half"), b'{"message":{"cont']), broken("a line of the answer is not JSON")),
        (lines([chat_line("Half"), b"oops\n"], then="hold"), broken("a line of the answer is not JSON")),
        (
            lines([chat_line("Half"), {"error": "an error was encountered while running the model"}], then="hold"),
            broken("an error was encountered while running the model"),
        ),
    ],
)
@on_uvloop
async def test_an_answer_that_breaks_is_never_whole(script: Any, end: End) -> None:
    async with FakeOllama() as ollama, bench(ollama.url) as node:
        ollama.scripts = [script]
        sink = await node.run()
        assert (sink.events, sink.end, sink.taken) == ([("text", "Half")], end, 1)
        assert (await node.run()).end == ok(Usage(6, 2, 0))
        assert node.adapter.health.state is State.UP


@on_uvloop
async def test_what_ends_behind_the_last_line_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ollama_run, "LINGER_S", 0.05)
    async with FakeOllama() as ollama, bench(ollama.url) as node:
        for then in ("end", "close", "reset", "hold"):
            ollama.scripts = [lines([last_line("whole"), b"rubbish"], then=then)]
            sink = await node.run()
            assert (sink.events, sink.end) == ([("text", "whole"), ("finish", "stop")], ok(Usage(26, 259, 0))), then
        assert (await node.run()).end == ok(Usage(6, 2, 0))


@on_uvloop
async def test_a_whole_answer_without_a_stream_is_an_answer() -> None:
    """Some servers that speak this API ignore `stream`."""
    whole = encoded(last_line("all at once")).rstrip()
    async with FakeOllama() as ollama, bench(ollama.url) as node:
        ollama.scripts = [answer(whole)]
        assert (await node.run()).events == [("text", "all at once"), ("finish", "stop")]


# Refusals.


@pytest.mark.parametrize(
    ("script", "end"),
    [
        (
            error(404, f"model '{MODEL}' not found"),
            refused(404, f"model '{MODEL}' not found (on provider box-ollama: run `ollama pull {MODEL}` there)"),
        ),
        (error(400, "invalid options"), refused(400, "invalid options")),
        (error(401, "unauthorized"), refused(401, "unauthorized")),
        (error(429, "too many"), refused(429, "too many")),
        (
            error(503, "server busy, please try again.  maximum pending requests exceeded"),
            refused(503, "server busy, please try again.  maximum pending requests exceeded"),
        ),
        (error(500, "model requires more system memory"), refused(500, "model requires more system memory")),
        (error(500, "a\nb\x00c" + "x" * 2_000), refused(500, "a b c" + "x" * 992 + "...")),
        (answer(b"<html>Bad Gateway</html>", 502, b"text/html"), refused(502, "the provider answered 502 Status")),
        (answer(b"", 500), refused(500, "the provider answered 500 Internal Server Error")),
        (answer(b'{"error":{"message":"inner"}}', 400), refused(400, "inner")),
        (answer(b"x" * 200_000, 500), refused(500, "the provider answered 500 Internal Server Error")),
        (
            answer(b"404 page not found", 404, b"text/plain"),
            broken("the provider answered 404: its endpoint is not the root of an Ollama, or an old one's"),
        ),
        (answer(b"", 302), broken("the provider answered 302, expected 200")),
        (answer(b"", 200), broken("the answer ended before its last line")),
        (answer(b"hello", 200), broken("a line of the answer is not JSON")),
        # Older servers can say an error no other way once the stream's head is out.
        (lines([{"error": "unexpected EOF"}]), refused(500, "unexpected EOF")),
        (raw([b"SSH-2.0-OpenSSH\r\n"]), broken("the answer is not HTTP: expected a status line")),
        (raw([b""]), broken("the provider closed the connection before it answered")),
    ],
)
@on_uvloop
async def test_a_refusal_keeps_its_status_and_its_words(script: Any, end: End, client: str) -> None:
    async with FakeOllama() as ollama, bench(ollama.url) as node:
        ollama.scripts = [script]
        sink = await node.run()
        assert sink.events == []
        assert sink.end is not None
        if client == "library" and sink.end.detail.startswith("the answer is not HTTP"):
            assert sink.end.status == end.status
        else:
            assert sink.end == end
        # B28: an answer, whatever it says, is no word about health.
        assert node.adapter.health.state is State.UP
        assert (await node.run()).end == ok(Usage(6, 2, 0))


@on_uvloop
async def test_what_ollama_refuses_of_a_request_is_passed_on() -> None:
    async with FakeOllama(models=[MODEL, "plain:1b"], plain=["plain:1b"]) as ollama, bench(ollama.url) as node:
        assert (await node.run(chat(model="plain:1b", think=True))).end == refused(
            400, '"plain:1b" does not support thinking'
        )
        assert (await node.run(chat(model="plain:1b", tools=[WEATHER]))).end == refused(
            400, "registry.ollama.ai/library/plain:1b does not support tools"
        )
        assert len(ollama.bodies) == 2


@on_uvloop
async def test_what_cannot_be_translated_reaches_nobody() -> None:
    async with FakeOllama() as ollama, bench(ollama.url) as node:
        run, sink = node.start(chat(n=2))
        assert sink.end is None, "an end from within start"
        run.pause()
        run.resume()
        run.cancel()
        assert await sink.finished() == refused(400, "n: expected 1, Ollama gives one choice a request, got 2")
        assert (sink.taken, ollama.requests) == (0, [])


# Time, and leaving.


@on_uvloop
async def test_loading_a_model_counts_for_the_first_byte() -> None:
    async with FakeOllama(load_delay_s=30) as ollama, bench(ollama.url) as node:
        sink = await node.run(timeouts=TimeoutSettings(5_000, 100, 60_000))
        assert sink.end == End(RunEnd.UPSTREAM_TIMEOUT, "the provider was silent for 100 ms", None)
        await asyncio.wait_for(ollama.requests[0].closed.wait(), 5)


@on_uvloop
async def test_a_stream_that_stalls_is_cut() -> None:
    """B21."""
    async with FakeOllama() as ollama, bench(ollama.url) as node:
        ollama.scripts = [lines([chat_line("a")], then="hold")]
        sink = await node.run(timeouts=TimeoutSettings(5_000, 5_000, 100))
        assert (sink.events, sink.end) == (
            [("text", "a")],
            End(RunEnd.UPSTREAM_TIMEOUT, "the provider was silent for 100 ms", None),
        )
        await asyncio.wait_for(ollama.requests[0].closed.wait(), 5)


@on_uvloop
async def test_a_cancelled_run_closes_its_connection_and_then_ends() -> None:
    async with FakeOllama(chunk_delay_s=0.01) as ollama, bench(ollama.url) as node:
        run, sink = node.start(chat(" ".join(["word"] * 10_000)))
        await until(lambda: bool(sink.told), "the first event")
        run.cancel()
        run.cancel()
        end = await sink.finished()
        assert (end.status, end.detail) == (RunEnd.CANCELLED, "cancelled")
        await asyncio.wait_for(ollama.requests[0].closed.wait(), 5)
        run.pause()
        run.resume()
        run.cancel()  # too late


@on_uvloop
async def test_a_run_is_cancelled_while_its_model_loads_or_its_connection_is_made() -> None:
    async with FakeOllama(load_delay_s=30) as ollama, bench(ollama.url) as node:
        run, sink = node.start()
        run.cancel()
        assert (await sink.finished()).status == RunEnd.CANCELLED
        run, sink = node.start()
        await until(lambda: any(seen.is_complete for seen in ollama.requests), "the request")
        run.cancel()
        assert (await sink.finished()).status == RunEnd.CANCELLED
        assert sink.events == []


@on_uvloop
async def test_a_paused_run_reads_no_more_and_goes_on() -> None:
    words = " ".join(["word" * 2_000] * 2_000)  # more than sockets hold
    async with FakeOllama() as ollama, bench(ollama.url) as node:
        run, sink = node.start(chat(words))
        await until(lambda: bool(sink.told), "the first event")
        run.pause()
        run.pause()
        sizes = [-1, len(sink.text)]
        while sizes[-1] != sizes[-2]:  # what was on its way comes, and then nothing
            await asyncio.sleep(0.1)
            sizes.append(len(sink.text))
        assert sink.end is None
        assert len(sink.text) < len(words)
        run.resume()
        run.resume()
        assert (await sink.finished()).status == RunEnd.OK
        assert sink.text == words


@on_uvloop
async def test_a_server_that_is_not_there_was_not_asked() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    async with bench(f"http://127.0.0.1:{port}") as node:
        sink = await node.run()
        assert sink.end == End(RunEnd.CONNECT_FAILED, "connection refused", None)
        assert sink.taken == 0
        assert node.adapter.health.state is State.UNREACHABLE


@on_uvloop
async def test_a_sink_that_fails_ends_its_run_alone(caplog: pytest.LogCaptureFixture) -> None:
    async with FakeOllama() as ollama, bench(ollama.url) as node:
        sink = EventSink()

        def fail(text: str, index: int = 0) -> None:
            raise RuntimeError("the sink is broken")

        sink.on_text = fail  # type: ignore[method-assign]
        node.adapter.run_adapter(provider_payload()).start(chat(), sink)
        assert await sink.finished() == End(RunEnd.INTERNAL, "the Node failed", None)
        assert "run_failed" in caplog.text
        assert (await node.run()).end == ok(Usage(6, 2, 0))
        assert len(ollama.requests) == 2


# Configuration.


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"endpoint": "ftp://h"}, "endpoint: expected a URL"),
        ({"endpoint": "", "endpoint_env": "NONE"}, "variable NONE of the Node's environment (endpoint_env) is not set"),
        ({"options": (("num_ctx", "many"),)}, "options.num_ctx: expected a whole number of at least 1, got 'many'"),
        (
            {"options": (("temperature", "1"),)},
            "options.temperature: the type ollama has no such option, expected keep_",
        ),
        ({"api_key_env": "NONE"}, "variable NONE of the Node's environment (api_key_env) is not set"),
    ],
)
@on_uvloop
async def test_a_wrong_configuration_breaks_the_provider_with_the_reason(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(BrokenAdapter) as caught:
        make_ollama(adapter_settings(**({"endpoint": "http://h", "type": "ollama"} | changes)), surroundings())
    assert str(caught.value).startswith(reason)


@on_uvloop
async def test_a_key_of_the_node_goes_out_as_a_bearer_token() -> None:
    """An Ollama behind a proxy that asks for one."""
    async with FakeOllama() as ollama:
        settings = adapter_settings(ollama.url, type="ollama", api_key_env="KEY")
        adapter = make_ollama(settings, surroundings({"KEY": "secret"}))
        assert isinstance(adapter, OllamaAdapter)
        await Bench(adapter).run()
        assert ollama.requests[0].values(b"authorization") == [b"Bearer secret"]
        await adapter.close()


# The real thing, where it is installed.


@pytest.fixture(scope="module")
def real_ollama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of an `ollama serve` of our own, without any model."""
    program = shutil.which("ollama")
    if program is None:
        pytest.skip("no `ollama` on the path")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host = f"127.0.0.1:{listener.getsockname()[1]}"
    home: Path = tmp_path_factory.mktemp("ollama")
    environ = {**os.environ, "OLLAMA_HOST": host, "OLLAMA_MODELS": str(home), "HOME": str(home)}
    server = subprocess.Popen([program, "serve"], env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        asyncio.run(until_it_answers(f"http://{host}"))
        yield f"http://{host}"
    finally:
        server.terminate()
        server.wait(10)


async def until_it_answers(url: str) -> None:
    """Wait until a server answers."""

    def answers() -> bool:
        try:
            with urlopen(url, timeout=1) as got:
                return bool(got.status == 200)
        except OSError:
            return False

    await until(answers, "ollama serve", 30)


class TestRealOllama:
    @on_uvloop
    async def test_a_model_that_was_not_pulled_is_refused_the_same_way(self, real_ollama: str) -> None:
        async with bench(real_ollama) as node:
            for task in (
                chat(),
                RunTask(MODEL, COMPLETION, True, (), ["x"], {}),
                RunTask(MODEL, EMBEDDING, False, (), ["x"], {}),
            ):
                sink = await node.run(task)
                assert sink.end is not None
                assert (sink.end.status, sink.end.refusal_status) == (RunEnd.REFUSED, 404)
                assert f"run `ollama pull {MODEL}`" in sink.end.detail
