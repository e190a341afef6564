"""Hostile requests to every kind of normalized provider, and an Ollama that misbehaves, through a real Edge and Nodes.

Whatever comes: a client's fault is a 4xx with an error object, what a provider breaks is an error and never looks
whole, others do not notice, and nothing is left (`mixed_fleet` looks).
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.fake_ollama import chat_line, encoded, error, last_line, lines, tool_call
from tests.fakes.openai_backend import Exchange, Script, raw
from tests.integration.edge_harness import CHAT, run
from tests.integration.mixed_fleet import MixedFleet, mixed_fleet

COMPLETIONS, EMBEDDINGS = "/v1/completions", "/v1/embeddings"
HI = '"messages":[{"role":"user","content":"hi"}]'


def nested(depth: int) -> str:
    return '{"a":' * depth + "1" + "}" * depth


def said(message: str) -> str:
    return f'"messages":[{{"role":"user","content":"hi"}},{message}]'


def part(part: str) -> str:
    return f'"messages":[{{"role":"user","content":[{part}]}}]'


def call(arguments: str) -> str:
    function = f'{{"id":"a","type":"function","function":{{"name":"f","arguments":{arguments}}}}}'
    return said(f'{{"role":"assistant","content":null,"tool_calls":[{function}]}}')


def image(url: str) -> str:
    return part(f'{{"type":"image_url","image_url":{{"url":"{url}"}}}}')


# What no provider of the kind can make anything of; the others may answer or refuse.
MALFORMED = [
    '"x":1',
    '"messages":[]',
    '"messages":{}',
    '"messages":[null]',
    '"messages":[{}]',
    *(f'"messages":[{{"role":{role},"content":"x"}}]' for role in ("null", "1", '"USER"', '"\\ud800"')),
    *(f'"messages":[{{"role":"user","content":{content}}}]' for content in ("null", "1", "{}", "[null]", '["x"]')),
    *map(part, ("{}", '{"type":"text"}', '{"type":"text","text":1}', '{"type":"image_url"}', '{"type":"\\ud800"}')),
    *map(image, ("ftp://a", "data:,x", "data:image/png;base64,A", "data:image/png;base64,!!!!", "http://a/b.png")),
    image("data:image/png;base64," + "A" * 100_001),
    image("data:image/png;base64," + "!" * 1_000_000),
    part('{"type":"input_audio","input_audio":{"data":"!"}}'),
    part('{"type":"video_url","video_url":{"url":"data:,"}}'),
    *map(call, ("1", "[]", "true")),
    *(said(f'{{"role":"assistant","tool_calls":{calls}}}') for calls in ("{}", "[1]", "[{}]", '[{"function":{}}]')),
    said('{"role":"tool","tool_call_id":1,"content":"x"}'),
    '"messages":[{"role":"user","content":"\\ud800"}]',
    f'{HI},"user":"a","user":"b"',
    f'{HI},"stream":"yes"',
    f'{HI},"temperature":NaN',
    f'{HI},"temperature":1e400',
    f'{HI},"seed":1{"0" * 400}',
    f'{HI},"metadata":{{"\\ud800":1}}',
    f'{HI},"zzz":{nested(2_000)}',
    f'{HI},"tools":[{nested(130)}]',
    *(f'{HI},"n":{count}' for count in ("0", "-1", "2", '"1"', "1e400")),
    '"messages":[' + ",".join(['{"role":"user","content":"hi"}'] * 10_000) + "]",
    f"{HI}," + ",".join(f'"k{number}":1' for number in range(300)),
]
# What some refuse and others pass over.
ODD = [
    *map(call, ("null", '""', '"{"', '"[]"', json.dumps('{"a":' + "[" * 2_000 + "]" * 2_000 + "}"))),
    *(f'{HI},"max_tokens":{count}' for count in ("0", "-5", "1.5", '"x"', "1e30", "18446744073709551616")),
    *(f'{HI},"stop":{stop}' for stop in ("1", "[null]", "{}", '"' + "x" * 100_000 + '"')),
    *(f'{HI},"response_format":{form}' for form in ("[]", '"json"', "{}", '{"type":"json_schema"}')),
    *(f'{HI},"tools":{tools}' for tools in ('"x"', "[null]", "[{}]", '[{"type":"custom"}]', f"[{nested(100)}]")),
    *(
        f'{HI},"tools":[{{"type":"function","function":{{"name":"f"}}}}],"tool_choice":{choice}'
        for choice in ("1", "{}")
    ),
    *(f'{HI},"temperature":{heat}' for heat in ("-1", '"hot"', "1e308")),
    f'{HI},"stream":true,"stream_options":{{"include_usage":"x"}}',
]
OTHERS = [
    *(
        (COMPLETIONS, f'"prompt":{prompt}')
        for prompt in ("null", "[]", "{}", '["a","b"]', "[1]", '["a",1]', '"\\ud800"')
    ),
    *((EMBEDDINGS, f'"input":{text}') for text in ("null", "[]", "1", "[[1]]", '["a",null]')),
    *((EMBEDDINGS, f'"input":"x","{name}":{value}') for name, value in (("dimensions", "0"), ("encoding_format", "1"))),
]

Test = Callable[[MixedFleet], Coroutine[Any, Any, None]]


@pytest.fixture
def with_fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Test], None]:
    """Runs a test's coroutine with a fleet."""

    async def work(test: Test) -> None:
        async with mixed_fleet(tmp_path, monkeypatch) as at:
            await test(at)

    return lambda test: run(work(test))


def test_a_clients_fault_is_told_and_costs_nobody_anything(with_fleet: Callable[[Test], None]) -> None:
    with_fleet(refuse_all)


async def refuse_all(at: MixedFleet) -> None:
    asked = [(CHAT, body, True) for body in MALFORMED] + [(CHAT, body, False) for body in ODD]
    asked += [(path, body, False) for path, body in OTHERS]
    for kind in ("ollama", "echo", "cli"):
        for path, body, is_malformed in asked:
            if kind == "cli" and not is_malformed:
                continue  # a program takes no parameters; each would start one
            text = f'{{"model":"{kind}",{body}}}'.encode()
            headers = {"content-type": "application/json"}
            async with at.edge.client.post(at.edge.http(path), data=text, headers=headers) as answer:
                shown = (kind, body[:200], answer.status, (await answer.read())[:300])
                assert 400 <= answer.status <= 499 or not is_malformed, shown
                assert answer.status in (200, 400, 413), shown
                if answer.status != 200:
                    found = (await answer.json())["error"]
                    assert set(found) == {"message", "type", "param", "code"}
                    assert found["message"], shown
        assert (await at.say("", kind)).is_whole
    assert (await at.edge.status())["counters"]["requests"]["internal"] == 0


def whole(body: bytes, *fields: tuple[bytes, bytes], status: int = 200) -> Script:
    async def script(exchange: Exchange) -> None:
        await exchange.head(status, [(b"Content-Length", b"%d" % len(body)), *fields])
        await exchange.write(body)

    return script


def misbehaviour() -> Iterator[tuple[str, Script]]:
    """An Ollama's bad habits, each with a name; none of them is a whole answer."""
    half, end = chat_line("Half"), last_line("end")
    yield "nothing", whole(b"")
    yield "no lines", lines([])
    yield "HTML", whole(b"<html>", (b"Content-Type", b"text/html"))
    yield "a redirect", whole(b"", (b"Location", b"http://127.0.0.1:1/"), status=302)
    yield "an error page", whole(b"<html>", status=500)
    yield "gzip", whole(gzip.compress(encoded(end)), (b"Content-Encoding", b"gzip"))
    yield "no HTTP", raw([b"\x16\x03\x01\x02\x00"])
    yield "half a head", raw([b"HTTP/1.1 200"])
    yield "an endless head", raw([b"HTTP/1.1 200 OK\r\nX: " + b"y" * 200_000 + b"\r\n\r\n"])
    yield "a bad chunk", raw([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"])
    yield "too long a length", raw([b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n" + encoded(half)])
    yield "a reset", raw([], then="reset")
    for then in ("end", "close", "reset"):
        yield f"never done, {then}", lines([half], then=then)
    yield "an error first", lines([{"error": "boom"}])
    yield "an error in the middle", lines([half, {"error": "boom"}])
    yield "503", error(503, "busy")
    texts: Sequence[bytes] = (b"rubbish\n", b"[1]\n", b"null\n", b'"x"\n', b"\xef\xbb\xbf{}\n", b'{"message":{"con\n')
    for text in (*texts, b'{"x":' + b"[" * 5_000 + b"]" * 5_000 + b"}\n", b'{"message":{"content":"\xff"}}\n'):
        yield f"{text[:20]!r}", lines([text])
        yield f"{text[:20]!r} behind text", lines([half, text])
    for message in ({"content": 5}, {"content": ["a"]}, {"thinking": 5}, {"tool_calls": "x"}, {"tool_calls": [{}]}):
        yield f"{message}", lines([{"message": message, "done": True}])
    yield "a thousand tool calls and more", lines([chat_line(tool_calls=[tool_call("f", {})] * 1_025), end])
    yield "a long line", lines([b"x" * 5_000_000])


def test_an_answer_that_an_ollama_breaks_never_looks_whole(with_fleet: Callable[[Test], None]) -> None:
    with_fleet(break_all)


async def break_all(at: MixedFleet) -> None:
    for name, script in misbehaviour():
        for stream in (False, True):
            at.ollama.scripts = [script]
            reply = await at.say("", "ollama", stream=stream)
            assert not reply.is_whole, (name, stream, reply.body[-300:])
            assert b"[DONE]" not in reply.body, (name, stream)
            assert reply.status in (500, 502, 503) or stream, (name, reply.status)
            assert reply.provider == "ollama"
        assert (await at.say("", "ollama")).is_whole, name
    # Odd, and yet whole: what cannot be a count is not known, what follows the end is dropped.
    for script in (
        lines([last_line("a", prompt=2**64 - 1, answer=2**64 - 1)]),
        lines([last_line("a", prompt=-1, answer=-1)]),
        lines([last_line("a"), last_line("b")]),
        lines([last_line("a"), {"error": "late"}]),
        lines([b"\r\n\n", encoded(last_line("a")).replace(b"\n", b"\r\n")]),
    ):
        at.ollama.scripts = [script]
        assert (await at.say("", "ollama")).is_whole
    assert (await at.edge.row("ollama"))["health"]["reported"] == "up"
    assert (await at.edge.status())["counters"]["requests"]["internal"] == 0
