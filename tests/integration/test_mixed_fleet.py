"""One model on a tunnel, Ollama, a program and a native model: clients cannot tell which answers, one queue has all."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial, wraps
from pathlib import Path
from random import Random
from typing import Any

import openai
import pytest

from tests.fakes.fake_ollama import error
from tests.fakes.openai_backend import answer
from tests.integration.edge_harness import run, until
from tests.integration.mixed_fleet import CALL_IT, CAN_CALL, KINDS, NODE_OF, WEATHER, MixedFleet, mixed_fleet

HI: Any = [{"role": "user", "content": "one two three four"}]
PICTURE: Any = [
    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}]}
]
# What the model that says all back and the one that makes arguments up call the tool with is the same.
CALLS: Any = {
    "messages": [{"role": "user", "content": '{"city": "some city"}'}],
    "tools": [WEATHER],
    "tool_choice": CALL_IT,
}
CALLED: Any = [
    *HI,
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Seoul"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
]

Make = Callable[..., Any]


def with_a_fleet(test: Callable[[Make], Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test as production runs; it is given what makes the fleet."""

    @wraps(test)
    def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        run(test(partial(mixed_fleet, tmp_path, monkeypatch)))

    del work.__wrapped__  # type: ignore[attr-defined]  # pytest would look at its arguments
    return work


# Structure

# Their values have a meaning; of the others the type counts.
WORDS = {"object", "finish_reason", "role", "type", "index", "code", "param"}


def shape(value: Any) -> Any:
    """What clients rely on in a document: names of fields, types, words; of a list the kinds of what it holds."""
    if isinstance(value, dict):
        return {name: one if name in WORDS else shape(one) for name, one in value.items()}
    if isinstance(value, list):
        return list({repr(kind): kind for kind in map(shape, value)}.values())
    return type(value).__name__


@with_a_fleet
async def test_whoever_answers_the_client_sees_the_same(make: Make) -> None:
    usage = {"stream_options": {"include_usage": True}}
    conversations: list[dict[str, Any]] = [
        {"messages": HI},
        {"messages": [{"role": "developer", "content": "be brief"}, *HI]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "in parts"}]}]},
        {"messages": HI, "stream": True},
        {"messages": HI, "stream": True} | usage,
        CALLS,
        CALLS | {"stream": True},
        CALLS | {"stream": True} | usage,
        {"messages": CALLED},
        {"messages": CALLED, "stream": True} | usage,
    ]
    async with make() as at:
        for asked in conversations:
            kinds = [kind for kind in KINDS if "tools" not in asked or kind in CAN_CALL]
            seen = {kind: await as_the_sdk_sees_it(at, kind, asked) for kind in kinds}
            for found in seen.values():
                assert found == seen["tunnel"]
            written = {kind: await as_it_is_written(at, kind, asked) for kind in kinds}
            del written["tunnel"]  # its bytes are its server's own
            for found in written.values():
                assert found == written["ollama"]


async def as_the_sdk_sees_it(at: MixedFleet, model: str, asked: dict[str, Any]) -> Any:
    """The shape of an answer as the SDK's objects have it."""
    raw = await at.client.chat.completions.with_raw_response.create(model=model, **asked)
    assert (raw.headers["x-iop-provider"], raw.headers["x-iop-node"]) == (model, NODE_OF[model])
    assert {"x-request-id", "x-iop-queue-ms"} <= set(raw.headers)
    made: Any = raw.parse()
    kind = raw.headers["content-type"].split(";")[0]
    if asked.get("stream"):
        return kind, put_together([chunk.model_dump() async for chunk in made])
    assert made.usage.total_tokens > 0
    return kind, shape(made.model_dump())


async def as_it_is_written(at: MixedFleet, model: str, asked: dict[str, Any]) -> Any:
    """The shape of an answer as it is on the wire."""
    reply = await at.say("", model, **asked)
    assert reply.status == 200, reply
    if not asked.get("stream"):
        return shape(json.loads(reply.body))
    events = reply.body.split(b"\n\n")
    assert events[-2:] == [b"data: [DONE]", b""]
    chunks = [json.loads(event.removeprefix(b"data: ")) for event in events[:-2]]
    check_order(chunks, "tool_calls" if "tools" in asked else "stop", "stream_options" in asked)
    return put_together(chunks)


def check_order(chunks: list[dict[str, Any]], reason: str, wants_usage: bool) -> None:
    """Hold a stream to its order: the role, what is said, why it ended, the usage where it is wanted."""
    if wants_usage:
        *chunks, last = chunks
        assert last["choices"] == []
        assert last["usage"]["total_tokens"] > 0
        assert all(chunk["usage"] is None for chunk in chunks)
    choices = [chunk["choices"][0] for chunk in chunks]
    assert ["role" in one["delta"] for one in choices] == [True] + [False] * (len(choices) - 1)
    assert [one["finish_reason"] for one in choices] == [None] * (len(choices) - 1) + [reason]
    assert choices[-1]["delta"] == {}


def put_together(chunks: list[dict[str, Any]]) -> Any:
    """The shapes of a stream's chunks, whatever of the answer shares one, and that of what all their deltas come to."""
    message: dict[str, Any] = {}
    kinds: dict[str, Any] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            delta = choice["delta"]
            for name, value in delta.items():
                if name != "tool_calls" or value is None:
                    message[name] = message.get(name) or value
                elif name not in message:
                    message[name] = value
                elif message[name][-1]["index"] == value[0]["index"]:
                    assert not value[0].get("id")
                    message[name][-1]["function"]["arguments"] += value[0]["function"]["arguments"]
            choice["delta"] = None
        found = shape(chunk)
        kinds[repr(found)] = found
    return list(kinds.values()), shape(message)


@with_a_fleet
async def test_whoever_refuses_the_sdk_raises_the_same(make: Make) -> None:
    openai_error = {"error": {"message": "no", "type": "invalid_request_error", "param": None, "code": None}}
    async with make() as at:
        for stream in (False, True):
            at.backend.scripts = [answer(json.dumps(openai_error).encode(), 400)]
            at.ollama.scripts = [error(400, "its own words")]
            found = {}
            for kind, more in (("tunnel", {}), ("ollama", {}), ("echo", {"max_tokens": 0})):
                with pytest.raises(openai.BadRequestError) as caught:
                    await at.client.chat.completions.create(model=kind, messages=HI, stream=stream, **more)
                headers = caught.value.response.headers
                assert headers["x-iop-provider"] == kind
                assert "x-iop-reason" not in headers
                found[kind] = headers["content-type"], shape(caught.value.response.json())
            assert all(one == found["tunnel"] for one in found.values()), found
        at.backend.scripts = at.ollama.scripts = []
        reply = await at.say("", "cli", messages=PICTURE)
        assert (reply.status, reply.headers["x-iop-reason"]) == (400, "unsupported_by_model")
        assert shape(json.loads(reply.body)) == found["tunnel"][1] | {"error": shape(json.loads(reply.body))["error"]}


# The queue


@with_a_fleet
async def test_one_line_for_all_in_order_and_within_every_capacity(make: Make) -> None:
    """Nobody is overtaken but where it could not have been served. Tools go to those that can."""
    capacity = {"tunnel": 2, "ollama": 1, "cli": 2, "echo": 1}
    seed = Random().getrandbits(32)
    print(f"seed {seed}")
    random = Random(seed)
    async with make(capacity) as at:
        at.hold.on()
        asked = [await at.say_next(f"plain {number}") for number in range(6)]
        assert at.in_flight() == capacity
        is_calling = {str(number): random.random() < 0.4 for number in range(54)}
        for name, calls in is_calling.items():
            more = {"tools": [WEATHER], "stream": random.random() < 0.5} if calls else {}
            asked.append(await at.say_next(name, **more))
        assert (at.in_flight(), at.edge.edge.gate.waiting) == (capacity, 54)
        at.hold.off()
        replies = [await task for task in asked]
        assert all(reply.is_whole for reply in replies)
        assert at.highest == capacity
        assert len(at.grants) == 60
        left = dict.fromkeys(is_calling)
        for name, kind in at.grants[6:]:
            assert kind in CAN_CALL or not is_calling[name]
            before = list(left)[: list(left).index(name)]
            assert all(is_calling[one] and kind not in CAN_CALL for one in before), (name, kind, before)
            del left[name]
        booked = {kind: sum(counts) for kind, counts in (await at.usage()).items()}
        assert booked == Counter(reply.provider for reply in replies) == Counter(kind for _, kind in at.grants)
        assert set(booked) == set(KINDS)


@with_a_fleet
async def test_tools_wait_for_who_can_while_others_are_free(make: Make) -> None:
    async with make(1) as at:
        at.hold.on()
        held = [await at.say_next(kind, model=kind) for kind in sorted(CAN_CALL)]
        calling = await at.say_next("calls", tools=[WEATHER])
        assert at.edge.edge.gate.waiting == 1
        plain = await at.say_next("plain")
        assert at.edge.edge.gate.waiting == 1, "the program is free for what it can"
        at.hold.off()
        assert (await plain).provider == "cli"
        assert (await calling).provider in CAN_CALL
        assert all([(await task).is_whole for task in held])


@with_a_fleet
async def test_two_hundred_clients_over_a_capacity_of_three(make: Make) -> None:
    async with make({"tunnel": 1, "ollama": 1, "cli": 0, "echo": 1}) as at:
        asked = [{"stream": True, "stream_options": {"include_usage": True}}, {}]
        replies = await asyncio.gather(*[at.say(str(number), **asked[number % 2]) for number in range(200)])
        assert all(reply.is_whole for reply in replies)
        assert at.highest == {"tunnel": 1, "ollama": 1, "cli": 0, "echo": 1}
        booked = await at.usage()
        assert sum(complete for complete, _, _ in booked.values()) == sum(map(sum, booked.values())) == 200


# What goes wrong


@with_a_fleet
async def test_a_server_that_is_gone_swallows_nothing(make: Make) -> None:
    """A port that refuses is the emptiest provider of all, and must not get what the others could do."""

    async def keep_asking(count: int) -> list[Any]:
        return [await at.say("", stream=bool(number % 2)) for number in range(count)]

    async with make(4) as at:
        load = [asyncio.create_task(keep_asking(12)) for _ in range(6)]
        await until(lambda: len(at.ollama.bodies) > 4, "Ollama is asked")
        await at.ollama.stop()
        asked = len(at.ollama.bodies)
        replies = [reply for task in load for reply in await task]
        # What was there when it stopped breaks off; nobody else notices.
        broken = [reply for reply in replies if not reply.is_whole]
        assert {(reply.status, reply.provider) for reply in broken} <= {(200, "ollama"), (502, "ollama")}
        assert len(broken) <= 4
        assert (await at.edge.row("ollama"))["health"]["reported"] == "unreachable"
        assert all(reply.is_whole for reply in await keep_asking(20))
        assert len(at.ollama.bodies) == asked
        await at.ollama.start(at.ollama.port)


@with_a_fleet
async def test_a_refresh_changes_slots_while_streams_run(make: Make) -> None:
    async with make(1) as at:
        at.hold.on()
        running = [await at.say_next(f"r{number}", stream=True) for number in range(4)]
        assert at.in_flight() == dict.fromkeys(KINDS, 1)
        waiting = [await at.say_next(f"w{number}", stream=True) for number in range(4)]
        assert at.edge.edge.gate.waiting == 4
        await at.refresh(tunnel={"enabled": False}, ollama={"capacity": 3}, echo={"capacity": 2})
        assert [name for name, _ in at.grants[4:]] == ["w0", "w1", "w2"]
        assert Counter(kind for _, kind in at.grants[4:]) == {"ollama": 2, "echo": 1}
        await at.refresh(ollama={"capacity": 0}, cli={"capacity": 2})
        assert at.grants[7:] == [("w3", "cli")]
        at.hold.off()
        assert all([(await task).is_whole for task in [*running, *waiting]])
        at.highest.clear()
        replies = await asyncio.gather(*[at.say("") for _ in range(16)])
        assert {reply.provider for reply in replies} == {"cli", "echo"}
        assert at.highest == {"tunnel": 0, "ollama": 0, "cli": 2, "echo": 2}


@with_a_fleet
async def test_a_node_starts_again_under_load(make: Make) -> None:
    """Runs of a Node that goes break off; who waits is served by the other one, and by this one when it is back."""
    async with make(1) as at:
        at.hold.on()
        running = {kind: await at.say_next(kind, model=kind, stream=True) for kind in KINDS}
        waiting = [await at.say_next(f"w{number}") for number in range(6)]
        await at.nodes["near"].stop()
        assert (await running["cli"]).status == (await running["echo"]).status == 502
        at.hold.off()
        assert (await running["tunnel"]).is_whole
        assert (await running["ollama"]).is_whole
        replies = [await task for task in waiting]
        assert {(reply.is_whole, reply.headers["x-iop-node"]) for reply in replies} == {(True, "far")}
        assert (await at.say("", "cli")).status == 503
        await at.start_node("near")
        assert (await at.say("", "cli")).is_whole
        booked = await at.usage()
        assert booked["cli"] == (1, 1, 0)
        assert sum(map(sum, booked.values())) == 4 + 6 + 1


@with_a_fleet
async def test_streams_are_left_at_every_stage(make: Make) -> None:
    """B01: while it waits, before the first word, in the middle: every slot is free again, and is booked once."""
    async with make(1, pause_ms=20) as at:
        for kind in KINDS:
            at.hold.on()
            held = await at.say_next("held", model=kind)
            for stage in ("waiting", "before"):
                before = at.submitted
                asked: Any = at.client.chat.completions.create(model=kind, messages=HI, stream=True)
                task = asyncio.ensure_future(asked)
                await until(lambda before=before: at.submitted > before, "it came")  # type: ignore[misc]
                if stage == "before":
                    at.hold.off()
                    assert (await held).is_whole
                    at.hold.on()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            at.hold.off()
            await at.edge.idle()
            stream = await at.client.chat.completions.create(model=kind, messages=HI, stream=True)
            async for chunk in stream:
                if chunk.choices[0].delta.content:
                    break
            await stream.close()
            await at.edge.idle()
        counted = await at.usage()
        assert {kind: sum(counts) for kind, counts in counted.items()} == dict.fromkeys(KINDS, 3)
        assert {kind: partial for kind, (_, partial, _) in counted.items()} == dict.fromkeys(KINDS, 2)
