"""The official OpenAI SDK through a real Edge and a real Node to programs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import openai
import pytest
import yaml
from openai import AsyncOpenAI

from iop_fast.config.loader import load_node_text
from iop_fast.node.app import Node
from tests.fakes.cli_tools import tool
from tests.integration.cli_bench import marked
from tests.integration.edge_harness import TOKEN, TOKEN_HASH, Bench, bench, run, until

MARK = f"{os.getpid()}-"
HI: Any = [{"role": "user", "content": "hello there"}]


class Fleet:
    """An Edge, a Node and a client."""

    def __init__(self, edge: Bench, client: AsyncOpenAI, node: Node) -> None:
        self.edge = edge
        self.client = client
        self.node = node

    async def chat(self, messages: Any = HI, model: str = "m", **more: Any) -> Any:
        return await self.client.chat.completions.create(model=model, messages=messages, **more)


@asynccontextmanager
async def fleet(command: Sequence[str], *, capacity: int = 1, **keys: Any) -> AsyncIterator[Fleet]:
    """One Node with one program behind the model `m`; nothing of it may be left."""
    profile = {"id": "tool", "command": list(command), "kill_after_ms": 200, **keys}
    entry: dict[str, Any] = {"id": "p1", "type": "cli", "profile": "tool", "models": ["served"]}
    settings = {
        "edge": {"listen": "127.0.0.1:0"},
        "openai": {"listen": "127.0.0.1:0"},
        "admin": {"listen": "127.0.0.1:0"},
        "models": [{"id": "m", "providers": {"p1": "served"}}],
        "nodes": [{"id": "n1", "token_hash_sha256": TOKEN_HASH, "providers": [entry | {"capacity": capacity}]}],
    }
    async with AsyncExitStack() as stack:
        edge = await stack.enter_async_context(bench(settings))
        node_file = {"id": "n1", "edge": {"address": f"127.0.0.1:{edge.edge.link_port}"}, "token_env": "TOKEN"}
        text = yaml.safe_dump(node_file | {"cli_profiles": [profile]})
        node = Node(
            load_node_text(text, "node.yaml").config, TOKEN, environ={"PATH": os.environ["PATH"], "TOKEN": TOKEN}
        )
        await node.start()
        stack.push_async_callback(node.stop)
        client = AsyncOpenAI(base_url=edge.http("/v1"), api_key="any", max_retries=0, timeout=20)
        stack.push_async_callback(client.close)

        async def is_ready() -> bool:
            return bool((await edge.row())["link"] == "ready")

        await until(is_ready, "the Node")
        yield Fleet(edge, client, node)
        await edge.idle()
        assert marked(MARK) == []
    assert marked(MARK) == []


def test_a_chat_whole_and_streamed_and_a_completion() -> None:
    run(a_chat())


async def a_chat() -> None:
    async with fleet(tool("say")) as at:
        whole = await at.chat([{"role": "system", "content": "be brief"}, *HI])
        choice = whole.choices[0]
        assert (choice.message.content, choice.finish_reason, whole.model) == ("be brief\n\nhello there", "stop", "m")
        assert whole.usage is None or whole.usage.total_tokens == 0
        stream = await at.chat(stream=True)
        chunks = [chunk async for chunk in stream]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "hello there"
        assert chunks[-1].choices[0].finish_reason == "stop"
        done = await at.client.completions.create(model="m", prompt="once upon a time")
        assert done.choices[0].text == "once upon a time"


def test_a_hundred_programs_beside_a_live_link() -> None:
    run(a_hundred_programs())


async def a_hundred_programs() -> None:
    """None dies of what a library does between fork and exec, and never do more run than there are slots."""
    most = 0
    async with fleet(["cat"], capacity=4) as at:

        async def watch() -> None:
            nonlocal most
            while True:
                most = max(most, len(marked(MARK)))
                await asyncio.sleep(0.01)

        watching = asyncio.create_task(watch())
        async with asyncio.timeout(30):
            for start in range(0, 100, 10):
                asked = [[{"role": "user", "content": f"number {number}"}] for number in range(start, start + 10)]
                answers = await asyncio.gather(*map(at.chat, asked))
                assert [answer.choices[0].message.content for answer in answers] == [
                    messages[0]["content"] for messages in asked
                ]
        watching.cancel()
        assert most <= 4


def test_usage_of_json_lines() -> None:
    run(usage_of_json_lines())


async def usage_of_json_lines() -> None:
    fields = {
        "text": {"path": "delta"},
        "reasoning": {"path": "think"},
        "prompt_tokens": {"path": "usage.in"},
        "completion_tokens": {"path": "usage.out"},
    }
    command = tool("lines", '{"think": "hm"}', '{"delta": "Hi"}', '{"usage": {"in": 5, "out": 2}}')
    async with fleet(command, output="json_lines", fields=fields) as at:
        whole = await at.chat()
        assert whole.choices[0].message.content == "Hi"
        assert whole.choices[0].message.reasoning_content == "hm"
        assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (5, 2)


def test_a_stream_that_is_left_kills_the_group_and_frees_the_slot() -> None:
    """B29, B01."""
    run(a_stream_that_is_left())


async def a_stream_that_is_left() -> None:
    async with fleet(tool("stubborn")) as at:
        for _ in range(2):
            stream = await at.chat(stream=True)
            first = await anext(aiter(stream))
            while not first.choices[0].delta.content:
                first = await anext(aiter(stream))
            assert len(marked(MARK)) == 2, "the program and its child"
            assert (await at.edge.row())["effective"]["in_flight"] == 1
            await stream.close()
            await at.edge.idle()
            assert marked(MARK) == []


def test_a_reader_that_stops_pauses_the_program_and_nothing_is_lost() -> None:
    run(a_reader_that_stops())


async def a_reader_that_stops() -> None:
    async with fleet(tool("flood", "20000000"), output_bytes_max=50_000_000) as at:
        stream = await at.chat(stream=True)
        size = 0
        async for chunk in stream:
            if size == 0:
                await asyncio.sleep(0.3)
            size += len(chunk.choices[0].delta.content or "")
        assert size == 20_000_000


@pytest.mark.parametrize(
    ("command", "keys", "status", "expected"),
    [
        (tool("fail", "3", "no licence for {model}"), {}, 502, "exited with code 3: no licence for served"),
        (tool("die", "9"), {}, 502, "killed by SIGKILL"),
        ([*tool("say"), "{prompt}"], {"input": "argument"}, 400, "NUL"),
        (["sleep", "60"], {"run_ms_max": 200}, 504, "past its limit"),
    ],
)
def test_failures_have_their_status_and_say_why(
    command: list[str], keys: dict[str, Any], status: int, expected: str
) -> None:
    run(a_failure(command, keys, status, expected))


async def a_failure(command: list[str], keys: dict[str, Any], status: int, expected: str) -> None:
    """B28: whatever it was, the provider takes the next request."""
    async with fleet(command, **keys) as at:
        for _ in range(2):
            with pytest.raises(openai.APIStatusError) as caught:
                await at.chat([{"role": "user", "content": "a\0b"}])
            assert caught.value.status_code == status
            assert expected in str(caught.value.body)
        assert (await at.edge.row())["health"]["reported"] == "up", "an answer says nothing of health"


def test_what_no_program_does_is_refused_before_admission() -> None:
    run(what_no_program_does())


async def what_no_program_does() -> None:
    async with fleet(tool("say")) as at:
        weather: Any = {"type": "function", "function": {"name": "weather", "parameters": {}}}
        with pytest.raises(openai.BadRequestError, match="tools"):
            await at.chat(tools=[weather])
        with pytest.raises(openai.BadRequestError, match="embeddings"):
            await at.client.embeddings.create(model="m", input="x")


def test_a_node_that_stops_ends_what_runs() -> None:
    run(a_node_that_stops())


async def a_node_that_stops() -> None:
    async with fleet(tool("stubborn")) as at:
        stream = await at.chat(stream=True)
        await anext(aiter(stream))
        await until(lambda: len(marked(MARK)) == 2, "it runs")
        async with asyncio.timeout(5):
            await at.node.stop()
        assert marked(MARK) == []
        with pytest.raises(openai.APIError):
            async for _ in stream:
                pass
