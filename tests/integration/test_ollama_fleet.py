"""The official OpenAI SDK through a real Edge and real Nodes to servers that speak Ollama's API."""

from __future__ import annotations

import asyncio
import base64
import functools
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from iop_fast.config.loader import load_node_text
from iop_fast.node.app import Node
from tests.fakes.fake_ollama import FakeOllama, chat_line, encoded, error, last_line, lines, tool_call
from tests.fakes.openai_backend import Exchange, FakeBackend
from tests.integration.edge_harness import TOKEN, TOKEN_HASH, Bench, bench, run, until

MODEL = "qwen3:8b"
HI: Any = [{"role": "user", "content": "say this again"}]
PNG = b"\x89PNG\r\n\x1a\n" + bytes(2_000)
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def ollama_provider(provider_id: str, url: str, **changes: Any) -> dict[str, Any]:
    return {"id": provider_id, "type": "ollama", "endpoint": url, "models": [MODEL], "capacity": 1, **changes}


class Fleet:
    """An Edge, its Nodes and a client of it."""

    def __init__(self, edge: Bench, client: AsyncOpenAI) -> None:
        self.edge = edge
        self.client = client

    async def chat(self, messages: Any = HI, **more: Any) -> Any:
        return await self.client.chat.completions.create(model="m", messages=messages, **more)

    async def refused(
        self, kind: type[openai.APIStatusError], messages: Any = HI, **more: Any
    ) -> openai.APIStatusError:
        with pytest.raises(kind) as caught:
            await self.chat(messages, **more)
        return caught.value


@asynccontextmanager
async def fleet(*providers: dict[str, Any], **model: Any) -> AsyncIterator[Fleet]:
    """One Node for each provider; all of them serve the model `m`."""
    served = {entry["id"]: entry["models"][0] for entry in providers}
    nodes = [{"id": f"n-{entry['id']}", "token_hash_sha256": TOKEN_HASH, "providers": [entry]} for entry in providers]
    settings = {
        "edge": {"listen": "127.0.0.1:0"},
        "openai": {"listen": "127.0.0.1:0"},
        "admin": {"listen": "127.0.0.1:0"},
        "provider_pool": {"queue_timeout_ms": 5_000},
        "models": [{"id": "m", "providers": served, **model}],
        "nodes": nodes,
    }
    async with AsyncExitStack() as stack:
        edge = await stack.enter_async_context(bench(settings))
        for entry in nodes:
            text = f"id: {entry['id']}\nedge: {{address: '127.0.0.1:{edge.edge.link_port}'}}\ntoken_env: TOKEN\n"
            node = Node(load_node_text(text, "node.yaml").config, TOKEN, environ={})
            await node.start()
            stack.push_async_callback(node.stop)
        client = AsyncOpenAI(base_url=edge.http("/v1"), api_key="any", max_retries=0, timeout=20)
        stack.push_async_callback(client.close)

        async def are_ready() -> bool:
            return all([(await edge.row(entry["id"]))["link"] == "ready" for entry in providers])

        await until(are_ready, "the Nodes")
        yield Fleet(edge, client)
        await edge.idle()


def on_a_loop(test: Any) -> Any:
    """Run an async test as production runs, on uvloop; what the loop could only report fails it."""

    @functools.wraps(test)
    def work(*args: Any, **kwargs: Any) -> None:
        run(test(*args, **kwargs))

    return work


@on_a_loop
async def test_a_chat_whole_and_streamed() -> None:
    async with FakeOllama() as ollama, fleet(ollama_provider("p", ollama.url)) as at:
        whole = await at.chat()
        choice = whole.choices[0]
        assert (choice.message.content, choice.finish_reason) == ("say this again", "stop")
        assert (whole.model, whole.usage.prompt_tokens, whole.usage.completion_tokens) == ("m", 7, 3)
        stream = await at.chat(stream=True, stream_options={"include_usage": True}, max_tokens=2)
        chunks = [chunk async for chunk in stream]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "say this"
        assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"
        assert chunks[-1].usage.completion_tokens == 2
        assert [body["model"] for body in ollama.bodies] == [MODEL, MODEL]


@on_a_loop
async def test_thinking_is_apart_from_the_answer() -> None:
    async with FakeOllama() as ollama, fleet(ollama_provider("p", ollama.url)) as at:
        whole = await at.chat(reasoning_effort="high")
        assert whole.choices[0].message.reasoning_content == "Let me think (high)."
        assert whole.choices[0].message.content == "say this again"
        stream = await at.chat(extra_body={"think": True}, stream=True)
        deltas = [chunk.choices[0].delta async for chunk in stream if chunk.choices]
        assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == "Let me think (True)."
        assert [body["think"] for body in ollama.bodies] == ["high", True]


@pytest.mark.parametrize("gives_ids", [True, False])
@on_a_loop
async def test_a_tool_is_called_and_answered(gives_ids: bool) -> None:
    """B25: the second turn of a tool loop, whole and streamed."""
    async with FakeOllama(gives_call_ids=gives_ids) as ollama, fleet(ollama_provider("p", ollama.url)) as at:
        first = await at.chat(tools=[WEATHER])
        assert first.choices[0].finish_reason == "tool_calls"
        message = first.choices[0].message
        call = message.tool_calls[0]
        assert (call.type, call.function.name, json.loads(call.function.arguments)) == (
            "function",
            "weather",
            {"city": "some city"},
        )
        result = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
        second = await at.chat([*HI, message.model_dump(exclude_none=True), result], tools=[WEATHER])
        assert second.choices[0].message.content == "weather said rain"
        assert ollama.bodies[1]["messages"][1]["tool_calls"][0]["function"]["arguments"] == {"city": "some city"}
        parts = [chunk.choices[0] async for chunk in await at.chat(tools=[WEATHER, WEATHER], stream=True)]
        calls = [call for part in parts for call in part.delta.tool_calls or []]
        assert {call.index for call in calls} == {0, 1}
        assert len({call.id for call in calls if call.id}) == 2
        assert parts[-1].finish_reason == "tool_calls"
        assert "tools" not in (await said_to(at, ollama, tools=[WEATHER], tool_choice="none"))


async def said_to(at: Fleet, ollama: FakeOllama, messages: Any = HI, **more: Any) -> dict[str, Any]:
    """What a chat becomes at the server."""
    await at.chat(messages, **more)
    return ollama.bodies[-1]


@on_a_loop
async def test_images_and_formats_reach_the_model() -> None:
    async with FakeOllama() as ollama, fleet(ollama_provider("p", ollama.url)) as at:
        url = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
        parts = [{"type": "text", "text": "what is this?"}, {"type": "image_url", "image_url": {"url": url}}]
        body = await said_to(at, ollama, [{"role": "user", "content": parts}])
        message = {"role": "user", "content": "what is this?", "images": [base64.b64encode(PNG).decode()]}
        assert body["messages"] == [message]
        schema = {"type": "object", "properties": {"age": {"type": "integer"}}}
        form: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema}}
        whole = await at.chat(response_format=form)
        assert json.loads(whole.choices[0].message.content) == {"age": "x"}
        assert ollama.bodies[-1]["format"] == schema
        assert (await said_to(at, ollama, response_format={"type": "json_object"}))["format"] == "json"


@on_a_loop
async def test_completions_and_embeddings() -> None:
    async with FakeOllama() as ollama, fleet(ollama_provider("p", ollama.url)) as at:
        completion = await at.client.completions.create(model="m", prompt="Once upon", max_tokens=4)
        assert (completion.choices[0].text, completion.choices[0].finish_reason) == ("Once upon and so", "length")
        floats = await at.client.embeddings.create(
            model="m", input=["ab", "abcd"], dimensions=3, encoding_format="float"
        )
        assert [one.embedding for one in floats.data] == [[0.25, 0.0625, 0.125], [0.5, 0.0625, 0.125]]
        packed = await at.client.embeddings.create(model="m", input="ab")  # base64 unless told otherwise
        assert packed.data[0].embedding == [0.25, 0.0625, 0.125, 0.1875]
        assert packed.usage.prompt_tokens == 1
        assert ollama.bodies[1] == {"model": MODEL, "input": ["ab", "abcd"], "dimensions": 3}


@on_a_loop
async def test_the_configured_context_window_is_asked_for() -> None:
    """B25: the provider's own, else the model's; an option before both."""
    async with FakeOllama() as ollama:
        options = {"num_ctx": "4096", "keep_alive": "-1"}
        for provider, model, asked in (
            (ollama_provider("p", ollama.url), {}, None),
            (ollama_provider("p", ollama.url), {"context_window_tokens": 8192}, {"num_ctx": 8192}),
            (ollama_provider("p", ollama.url, context_window_tokens=16384), {}, {"num_ctx": 16384}),
            (ollama_provider("p", ollama.url, context_window_tokens=16384, options=options), {}, {"num_ctx": 4096}),
        ):
            async with fleet(provider, **model) as at:
                body = await said_to(at, ollama)
                assert body.get("options") == asked
                assert body.get("keep_alive") == (-1 if "options" in provider else None)


@on_a_loop
async def test_a_client_that_leaves_stops_the_model_and_frees_the_slot() -> None:
    async with FakeOllama(chunk_delay_s=0.01) as ollama, fleet(ollama_provider("p", ollama.url)) as at:
        stream = await at.chat([{"role": "user", "content": "word " * 5_000}], stream=True)
        async for _ in stream:
            break

        async def next_one(exchange: Exchange) -> None:
            assert ollama.requests[0].closed.is_set(), "the slot was given before the model had stopped"
            await ollama.script(exchange)

        ollama.scripts = [next_one]
        waiting = asyncio.create_task(at.chat([{"role": "user", "content": "next"}]))
        await at.edge.waiting(1)
        await stream.close()
        assert (await waiting).choices[0].message.content == "next"


@on_a_loop
async def test_a_model_that_was_not_pulled_is_said_with_what_to_do() -> None:
    async with FakeOllama(models=["other:1b"]) as ollama, fleet(ollama_provider("p", ollama.url)) as at:
        for more in ({}, {"stream": True}):
            caught = await at.refused(openai.NotFoundError, **more)
            assert caught.code == "model_not_found"
            assert f"model '{MODEL}' not found (on provider p: run `ollama pull {MODEL}` there)" in caught.message


@on_a_loop
async def test_ollamas_own_errors_keep_their_status() -> None:
    """B28: and leave health alone."""
    async with FakeOllama() as ollama, fleet(ollama_provider("p", ollama.url)) as at:
        for status, kind in ((400, openai.BadRequestError), (500, openai.InternalServerError)):
            ollama.scripts = [error(status, "its own words")]
            caught = await at.refused(kind)
            assert (caught.status_code, "its own words" in caught.message) == (status, True)
        ollama.scripts = [error(503, "server busy, please try again.  maximum pending requests exceeded")]
        assert (await at.refused(openai.InternalServerError)).status_code == 503
        assert (await at.edge.row("p"))["health"]["reported"] == "up"
        assert (await at.chat()).choices[0].message.content == "say this again"


@on_a_loop
async def test_an_answer_that_breaks_is_an_error_and_no_answer() -> None:
    async with FakeOllama() as ollama, fleet(ollama_provider("p", ollama.url)) as at:
        for script in (
            lines([chat_line("Half")]),
            lines([chat_line("Half")], then="reset"),
            lines([chat_line("Half"), {"error": "out of memory"}]),
            lines([chat_line("Half"), b"rubbish"]),
        ):
            ollama.scripts = [script, script]
            assert (await at.refused(openai.APIStatusError)).status_code == 502
            with pytest.raises(openai.APIError):
                async for _ in await at.chat(stream=True):
                    pass
        assert (await at.chat()).choices[0].message.content == "say this again"


@on_a_loop
async def test_characters_and_calls_survive_every_cut_of_the_stream() -> None:
    """B20."""
    stream = b"".join(
        map(encoded, (chat_line("파란 🌊"), chat_line(tool_calls=[tool_call("f", {"a": "é"})]), last_line("<end>")))
    )
    async with FakeOllama() as ollama, fleet(ollama_provider("p", ollama.url)) as at:
        for cuts in (list(range(1, len(stream))), [17], [80], [len(stream) - 1]):
            ollama.scripts = [lines([stream], cuts=cuts)]
            message = (await at.chat(tools=[WEATHER])).choices[0].message
            assert (message.content, message.tool_calls[0].function.arguments) == ("파란 🌊<end>", '{"a":"é"}')


@on_a_loop
async def test_several_ollamas_behind_one_name_take_turns() -> None:
    async with (
        FakeOllama() as one,
        FakeOllama() as two,
        fleet(ollama_provider("p1", one.url), ollama_provider("p2", two.url)) as at,
    ):
        for _ in range(8):
            await at.chat()
        assert (len(one.bodies), len(two.bodies)) == (4, 4)
        await asyncio.gather(*[at.chat() for _ in range(8)])
        assert len(one.bodies) + len(two.bodies) == 16
        assert (one.highest, two.highest) == (1, 1)


@on_a_loop
async def test_ollama_beside_an_openai_server_is_asked_for_what_it_can() -> None:
    async with FakeOllama() as ollama, FakeBackend() as server:
        vllm = {"id": "v", "type": "vllm", "endpoint": server.url, "models": ["served"], "capacity": 1}
        async with fleet(vllm, ollama_provider("o", ollama.url)) as at:
            answers = [(await at.chat()).choices[0].message.content for _ in range(4)]
            assert sorted(answers) == ["say this again"] * 2 + ["w0 w1 w2 w3 w4 "] * 2
            for _ in range(3):  # several choices are what the tunnel alone carries
                await at.chat(n=2)
            assert (len(ollama.bodies), len(server.requests)) == (2, 5)


@on_a_loop
async def test_a_server_that_is_gone_is_asked_no_more_and_the_other_answers() -> None:
    async with (
        FakeOllama() as one,
        FakeOllama() as two,
        fleet(ollama_provider("p1", one.url), ollama_provider("p2", two.url)) as at,
    ):
        await one.stop()
        for _ in range(3):
            assert (await at.chat()).choices[0].message.content == "say this again"
        assert len(two.bodies) == 3
        await one.start(one.port)
