"""The official OpenAI SDK against an Edge with a tunnel and a normalized provider: it cannot tell them apart.

One scripted Node serves both. A tunnel's answer is what OpenAI's API would send, a normalized run's are the events that
say the same; the SDK must make equal objects of both.
"""

from __future__ import annotations

import asyncio
import base64
import json
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from io import BytesIO
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from iop_fast.wire import runtime_pb2 as pb
from tests.fakes.fake_node import FakeRun
from tests.integration.edge_harness import CHAT, Bench, bench, config, provider, run, until

HI: Any = [{"role": "user", "content": "hi"}]
TOOLS: Any = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
USAGE = pb.Usage(prompt_tokens=5, completion_tokens=2)
COUNTS = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
WHOLE = pb.RunEnd(usage=USAGE)
EVENT_STREAM = b"text/event-stream; charset=utf-8"
BASE = {"id": "x", "created": 1, "model": "m", "system_fingerprint": None}


def ollama(provider_id: str, **more: Any) -> dict[str, object]:
    return provider(provider_id, type="ollama", **more)


def two_models() -> dict[str, Any]:
    """A configuration with a model on a tunnel, one on a normalized provider and one on both."""
    models = [
        {"id": "tunnel", "providers": {"t": "served"}},
        {"id": "normalized", "providers": {"o": "served"}},
        {"id": "both", "providers": {"o": "served", "t": "served"}},
    ]
    return config({"n1": [ollama("o"), provider("t")]}, models=models)


@asynccontextmanager
async def served() -> AsyncIterator[Bench]:
    async with bench(two_models()) as made:
        await made.ready()
        yield made
        await made.idle()


def client_of(at: Bench) -> OpenAI:
    return OpenAI(base_url=at.http("/v1"), api_key="any", max_retries=0, timeout=10)


async def ask(at: Bench, work: Callable[[OpenAI], Any]) -> Any:
    """Let the synchronous SDK ask, which blocks a thread of its own."""

    def call() -> Any:
        with client_of(at) as client:
            return work(client)

    return await asyncio.to_thread(call)


def neutral(answer: Any) -> Any:
    """What the SDK made of an answer, without what tells two requests apart."""
    if isinstance(answer, list):
        return [neutral(part) for part in answer]
    return {**answer.model_dump(exclude_unset=False), "id": "", "created": 0, "model": ""}


async def both_ways(
    work: Callable[[OpenAI, str], Any],
    answered: Callable[[FakeRun], Any],
    said: Callable[[FakeRun], Any],
) -> Any:
    """Ask the tunnel and the normalized model the same; return what the SDK made of it, which must be equal."""

    async def script(run: FakeRun) -> None:
        await (said if run.is_normalized else answered)(run)

    async with served() as at:
        at.nodes[0].on_run = script
        found = {model: await ask(at, partial(work, model=model)) for model in ("tunnel", "normalized")}
        assert neutral(found["normalized"]) == neutral(found["tunnel"])
        return found["normalized"]


def text(text: str) -> pb.RunEvent:
    return pb.RunEvent(text=text)


def finish(reason: str) -> pb.RunEvent:
    return pb.RunEvent(finish_reason=reason)


def call(arguments: str, **first: str) -> pb.RunEvent:
    return pb.RunEvent(tool_call=pb.ToolCallDelta(arguments=arguments, **first))


async def answer_json(run: FakeRun, **fields: Any) -> None:
    await run.answer(json.dumps({**BASE, **fields}).encode())


async def answer_events(run: FakeRun, *documents: dict[str, Any]) -> None:
    events = [b"data: " + json.dumps({**BASE, **document}).encode() + b"\n\n" for document in documents]
    await run.answer(b"".join([*events, b"data: [DONE]\n\n"]), content_type=EVENT_STREAM)


def chunk(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
    return {"object": "chat.completion.chunk", "choices": [choice]}


def message(reason: str, **fields: Any) -> dict[str, Any]:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "refusal": None, **fields},
        "logprobs": None,
        "finish_reason": reason,
    }
    return {"object": "chat.completion", "choices": [choice], "usage": COUNTS}


def test_a_whole_chat() -> None:
    found = run(
        both_ways(
            lambda client, model: client.chat.completions.create(model=model, messages=HI),
            lambda run: answer_json(run, **message("stop", content="Hello")),
            lambda run: run.say(text("Hel"), text("lo"), finish("stop"), end=WHOLE),
        )
    )
    assert found.choices[0].message.content == "Hello"
    assert (found.model, found.id[:9]) == ("normalized", "chatcmpl-")


def test_a_stream() -> None:
    async def said(run: FakeRun) -> None:
        await run.say(text("Hel"))
        await run.say(text("lo"))
        await run.say(finish("length"), end=WHOLE)

    found = run(
        both_ways(
            lambda client, model: list(client.chat.completions.create(model=model, messages=HI, stream=True)),
            lambda run: answer_events(
                run,
                chunk({"role": "assistant", "content": "Hel"}),
                chunk({"content": "lo"}),
                chunk({}, "length"),
            ),
            said,
        )
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in found) == "Hello"


def test_tool_calls_whole_and_streamed() -> None:
    function = {"name": "f", "arguments": '{"a":1}'}
    found = run(
        both_ways(
            lambda client, model: client.chat.completions.create(model=model, messages=HI, tools=TOOLS),
            lambda run: answer_json(
                run,
                **message(
                    "tool_calls", content=None, tool_calls=[{"id": "c1", "type": "function", "function": function}]
                ),
            ),
            lambda run: run.say(call('{"a"', id="c1", name="f"), call(":1}"), finish("tool_calls"), end=WHOLE),
        )
    )
    assert found.choices[0].message.tool_calls[0].function.arguments == '{"a":1}'
    found = run(
        both_ways(
            lambda client, model: list(
                client.chat.completions.create(
                    model=model, messages=HI, tools=TOOLS, stream=True, stream_options={"include_usage": True}
                )
            ),
            lambda run: answer_events(
                run,
                chunk(
                    {
                        "role": "assistant",
                        "content": None,
                        "tool_calls": [
                            {
                                "index": 0,
                                "id": "c1",
                                "type": "function",
                                "function": {"name": "f", "arguments": '{"a"'},
                            }
                        ],
                    }
                )
                | {"usage": None},
                chunk({"tool_calls": [{"index": 0, "function": {"arguments": ":1}"}}]}) | {"usage": None},
                chunk({}, "tool_calls") | {"usage": None},
                {"object": "chat.completion.chunk", "choices": [], "usage": COUNTS},
            ),
            lambda run: run.say(call('{"a"', id="c1", name="f"), call(":1}"), finish("tool_calls"), end=WHOLE),
        )
    )
    assert found[-1].usage.total_tokens == 7


def test_completions_whole_and_streamed() -> None:
    def choice(text: str, reason: str | None) -> dict[str, Any]:
        return {
            "object": "text_completion",
            "choices": [{"index": 0, "text": text, "logprobs": None, "finish_reason": reason}],
        }

    run(
        both_ways(
            lambda client, model: client.completions.create(model=model, prompt="once"),
            lambda run: answer_json(run, **choice("upon", "stop"), usage=COUNTS),
            lambda run: run.say(text("upon"), finish("stop"), end=WHOLE),
        )
    )
    run(
        both_ways(
            lambda client, model: list(client.completions.create(model=model, prompt="once", stream=True)),
            lambda run: answer_events(run, choice("upon", None), choice("", "stop")),
            lambda run: run.say(text("upon"), finish("stop"), end=WHOLE),
        )
    )


@pytest.mark.parametrize("encoding", ["float", "base64", None])
def test_embeddings(encoding: Any) -> None:
    vectors = [[0.5, -1.25], [3.0, 0.1]]

    async def answered(run: FakeRun) -> None:
        asked = json.loads(run.body)["encoding_format"]
        rows = [
            {
                "object": "embedding",
                "index": index,
                "embedding": base64.b64encode(array("f", vector)).decode()
                if asked == "base64"
                else list(array("f", vector)),
            }
            for index, vector in enumerate(vectors)
        ]
        await answer_json(run, object="list", data=rows, usage={"prompt_tokens": 5, "total_tokens": 5})

    async def said(run: FakeRun) -> None:
        assert list(run.input.inputs) == ["a", "b"]
        for index in (1, 0):
            await run.say(pb.RunEvent(embedding=pb.Embedding(values=vectors[index]), index=index))
        await run.say(end=WHOLE)

    def work(client: OpenAI, model: str) -> Any:
        more = {} if encoding is None else {"encoding_format": encoding}
        made = client.embeddings.create(model=model, input=["a", "b"], **more)
        return list(made.data), made.usage

    async def both() -> None:
        async with served() as at:
            at.nodes[0].on_run = lambda run: said(run) if run.is_normalized else answered(run)
            assert await ask(at, partial(work, model="normalized")) == await ask(at, partial(work, model="tunnel"))

    run(both())


def test_a_refusal_is_the_error_that_a_tunnel_would_pass_on() -> None:
    async def work() -> None:
        async with served() as at:
            refused = pb.RunEnd(status=pb.RunEnd.REFUSED, detail="no such model here", refusal_status=404)
            at.nodes[0].on_run = lambda run: run.say(end=refused)
            with pytest.raises(openai.NotFoundError) as caught:
                await ask(at, lambda client: client.chat.completions.create(model="normalized", messages=HI))
            assert caught.value.body == {
                "message": "no such model here",
                "type": "invalid_request_error",
                "param": None,
                "code": "model_not_found",
            }
            assert caught.value.response.headers["x-iop-provider"] == "o"
            assert "x-iop-reason" not in caught.value.response.headers

    run(work())


def test_a_stream_that_breaks_off_is_an_error() -> None:
    async def script(run: FakeRun) -> None:
        await run.say(text("a"))
        await run.say(text("b"), end=pb.RunEnd(status=pb.RunEnd.UPSTREAM_ERROR, detail="it fell over"))

    async def work() -> None:
        async with served() as at:
            at.nodes[0].on_run = script
            with pytest.raises(openai.APIError, match="broke off"):
                await ask(
                    at,
                    lambda client: list(client.chat.completions.create(model="normalized", messages=HI, stream=True)),
                )

    run(work())


def test_an_image_of_a_mebibyte_travels_in_pieces() -> None:
    raw = bytes(range(256)) * 4096
    url = "data:image/png;base64," + base64.b64encode(raw).decode()
    parts: Any = [{"type": "text", "text": "what is it?"}, {"type": "image_url", "image_url": {"url": url}}]

    async def work() -> None:
        async with served() as at:
            node = at.nodes[0]
            body = json.dumps({"model": "normalized", "messages": [{"role": "user", "content": parts}]}).encode()
            headers = {"content-type": "application/json"}
            asked = asyncio.create_task(at.client.post(at.http(CHAT), data=BytesIO(body), headers=headers))
            seen = await node.next_run()
            assert not seen.opening.input_complete
            window = 256 * 1024
            while not seen.is_complete:
                came = len(seen.body)
                assert came <= window
                window += 100_000
                await node.send(pb.Frame(run_id=seen.run_id, window=pb.WindowUpdate(bytes=100_000)))
                await until(lambda came=came: len(seen.body) > came or seen.is_complete, "more")  # type: ignore[misc]
            assert seen.input.messages[0].parts[1].image == raw
            await seen.say(text("a ramp"), end=WHOLE)
            assert (await (await asked).json())["choices"][0]["message"]["content"] == "a ramp"

    run(work())


def test_both_kinds_stand_in_one_line() -> None:
    """Capacity 1 each: four requests run two at a time, in the order they came, wherever a slot is free."""

    async def work() -> None:
        async with served() as at:
            node = at.nodes[0]
            tasks = []
            for number in range(4):
                tasks.append(asyncio.create_task(at.chat("both", user=f"u{number}")))
                await until(lambda number=number: len(node.runs) + at.edge.gate.waiting == number + 1, "it came")  # type: ignore[misc]
            assert len(node.runs) == 2
            order = []
            for _ in range(4):
                seen = await node.next_run()
                order.append(json.loads(seen.input.parameters_json if seen.is_normalized else seen.body)["user"])
                assert at.in_flight <= 2
                if seen.is_normalized:
                    await seen.say(text("a"), finish("stop"), end=WHOLE)
                else:
                    await answer_json(seen, **message("stop", content="a"))
            answers = [await task for task in tasks]
            assert order == ["u0", "u1", "u2", "u3"]
            assert {answer.headers["x-iop-provider"] for answer in answers} == {"o", "t"}
            assert [(await answer.json())["choices"][0]["message"]["content"] for answer in answers] == ["a"] * 4

    run(work())


def test_a_client_that_leaves_and_a_node_that_is_lost() -> None:
    async def work() -> None:
        async with served() as at:
            node = at.nodes[0]
            async with AsyncOpenAI(base_url=at.http("/v1"), api_key="any", max_retries=0) as client:
                asked = asyncio.create_task(client.chat.completions.create(model="normalized", messages=HI))
                seen = await node.next_run()
                asked.cancel()
                await node.until(lambda: seen.is_cancelled or None, "the cancel")
                assert at.in_flight == 1
                await seen.end(pb.RunEnd.CANCELLED)
                await at.idle()
                asked = asyncio.create_task(client.chat.completions.create(model="normalized", messages=HI))
                await node.next_run()
                await node.close()
                with pytest.raises(openai.InternalServerError) as caught:
                    await asked
                assert caught.value.status_code == 502

    run(work())


def test_what_only_a_tunnel_can_is_refused_by_name_or_goes_there() -> None:
    async def work() -> None:
        async with served() as at:
            answer = await at.chat("normalized", n=2)
            assert answer.status == 400
            assert "several choices" in (await answer.json())["error"]["message"]
            at.nodes[0].on_run = lambda run: answer_json(run, **message("stop", content="a"))
            url = {"url": "http://127.0.0.1/x.png"}
            elsewhere = [{"role": "user", "content": [{"type": "image_url", "image_url": url}]}]
            for _ in range(3):
                assert (await at.chat("both", n=2)).headers["x-iop-provider"] == "t"
                assert (await at.chat("both", messages=elsewhere)).headers["x-iop-provider"] == "t"
            answer = await at.chat(
                "normalized",
                messages=[
                    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "ftp://127.0.0.1/x.png"}}]}
                ],
            )
            assert (answer.status, (await answer.json())["error"]["param"]) == (
                400,
                "messages[0].content[0].image_url.url",
            )

    run(work())
