"""Fifty secrets through every path of a fleet at debug level: found where they belong and nowhere else.

Each secret is a random word of its own. They are sent as callers' credentials in every spelling, as provider tokens, in
bodies that are served, refused, cut and malformed, in targets and in header names; the provider's key comes from the
Node's environment. What the fleet writes is searched: both programs' logs at debug, the usage log, the snapshot, the
OpenAPI page, every answer that is not the provider's, and the configuration report of the check command.
"""

from __future__ import annotations

import asyncio
import json
import random
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.all_apis import AllApis
from tests.fakes.openai_backend import Exchange, FakeBackend, raw
from tests.integration.edge_harness import CHAT, bench, provider, run, until
from tests.integration.fleet import Fleet, fleet

SEED = 20_26
COUNT = 50


class Canaries:
    """Makes the secrets and remembers what each was for."""

    def __init__(self) -> None:
        self._random = random.Random(SEED)
        self.made: dict[str, str] = {}  # secret -> where it was put

    def new(self, place: str) -> str:
        secret = f"canary{self._random.getrandbits(80):020x}"
        self.made[secret] = place
        return secret

    def found_in(self, text: bytes, but: Sequence[str] = ()) -> list[str]:
        """Places of the secrets that stand in a text, as they are or as base64."""
        return [
            place
            for secret, place in self.made.items()
            if place not in but and (secret.encode() in text or b64encode(secret.encode()).rstrip(b"=")[:-1] in text)
        ]


def chat(secret: str) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": secret}]}).encode()


async def send(port: int, block: bytes) -> bytes:
    """Raw bytes on a connection of their own; everything that comes back until the server closes it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(block)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


def post(body: bytes, *fields: str, path: str = CHAT, length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    lines = [f"POST {path} HTTP/1.1", "Host: a", f"Content-Length: {size}", "Connection: close", *fields]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def credentials(birds: Canaries) -> list[str]:
    """Fields that carry what is the caller's own."""
    names = [
        "Authorization: Bearer {}",
        "Authorization: Basic {}",
        "Authorization: {}",
        "X-Api-Key: {}",
        "Api-Key: {}",
        "X-Goog-Api-Key: {}",
        "Cookie: session={}",
        "Proxy-Authorization: Basic {}",
        "X_Api_Key: {}",
        "Api_Key: {}",
        "X-Goog_Api-Key: {}",
        "X_Iop_Provider_Authorization: {}",
        "X-Request-Id: {}",
        "Connection: close, {}",
    ]
    return [name.format(birds.new(f"field {name.partition(':')[0]} {number}")) for number, name in enumerate(names)]


async def be_served(made: Fleet, birds: Canaries, backend: FakeBackend) -> None:
    """Requests that reach the provider: of each, the credentials do not, and the forwarded token does, once."""
    for number, field in enumerate(credentials(birds)):
        token = birds.new(f"provider token {number}")
        body = birds.new(f"prompt {number}")
        answer = await send(made.http_port, post(chat(body), field, f"X-Provider-Token: {token}"))
        assert answer.startswith(b"HTTP/1.1 200 "), (field, answer[:300])
        assert birds.found_in(answer) == []
        seen = backend.requests[-1]
        assert birds.found_in(seen.head + bytes(seen.body)) == [f"provider token {number}", f"prompt {number}"]
        assert seen.values(b"authorization") == [b"Bearer " + token.encode()]


async def be_refused(made: Fleet, birds: Canaries) -> None:
    """Requests that the gateway answers itself. What a client wrote as a model's name is said back to it alone."""
    port, token = made.http_port, f"X-Provider-Token: {birds.new('token of refused')}"
    chunked = f"POST {CHAT} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    end = " HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    blocks = {
        "bad json": post(chat(birds.new("bad json"))[:-1], token),
        "duplicate": post(b'{"model":"m","model":"%s"}' % birds.new("duplicate").encode(), token),
        "deep": post(b"[" * 2000 + birds.new("deep").encode(), token),
        "utf8": post(b'{"model":"\xff' + birds.new("utf8").encode() + b'"}', token),
        "key": post(b'{"model":7,"%s":1}' % birds.new("key").encode(), token),
        "no provider token": post(chat(birds.new("no provider token"))),
        "path": post(b"{}", path="/v1/" + birds.new("path")),
        "query": post(b"{}", token, path=f"{CHAT}?key={birds.new('query')}"),
        "method": f"{birds.new('method').upper()} / HTTP/1.1\r\nHost: a\r\n\r\n".encode(),
        "line": f"GET /{birds.new('line')} HTTP/9.9\r\nHost: a\r\n\r\n".encode(),
        "host": f"GET / HTTP/1.1\r\nHost: {birds.new('host')}@b\r\n\r\n".encode(),
        "bad field": f"GET / HTTP/1.1\r\nHost: a\r\nX {birds.new('bad field')}: 1\r\n\r\n".encode(),
        "expect": post(b"{}", f"Expect: {birds.new('expect')}"),
        "coding": post(b"{}", f"Transfer-Encoding: {birds.new('coding')}"),
        "chunk": f"{chunked}{birds.new('chunk')}\r\n".encode(),
        "content coding": post(b"{}", f"Content-Encoding: {birds.new('content coding')}"),
        "model page": f"GET /v1/models/{birds.new('model page')}{end}".encode(),
        "model": post(b'{"model":"%s"}' % birds.new("model").encode(), token),
    }
    for place, block in blocks.items():
        answer = await send(port, block)
        assert answer.startswith((b"HTTP/1.1 4", b"HTTP/1.1 5")), (place, answer[:300])
        assert birds.found_in(answer, but=["model", "model page"]) == []


async def be_cut(made: Fleet, birds: Canaries, backend: FakeBackend) -> None:
    """Requests whose client or provider goes."""

    async def hold(exchange: Exchange) -> None:
        await exchange.until_gone()

    token = f"X-Provider-Token: {birds.new('token of cut')}"
    backend.scripts = [hold]
    _, writer = await asyncio.open_connection("127.0.0.1", made.http_port)
    writer.write(post(chat(birds.new("prompt of one who left")), token))
    await until(lambda: backend.running == 1, "it runs")
    writer.transport.abort()
    await until(made.is_idle, "it ended")
    secret = birds.new("answer that is none").encode()
    backend.scripts = [raw([b"HTTP/9.9 " + secret + b"\r\n\r\n"])]
    answer = await send(made.http_port, post(chat("x"), token))
    assert answer.startswith(b"HTTP/1.1 502 ")
    assert birds.found_in(answer) == []
    unfinished = await asyncio.open_connection("127.0.0.1", made.http_port)
    unfinished[1].write(post(chat(birds.new("half a body")), token, length=9999))
    await unfinished[1].drain()
    unfinished[1].close()


async def be_uploaded(made: Fleet, birds: Canaries) -> None:
    """Forms that are refused for what stands in them, whose words stay in them."""
    form = (
        '--b\r\nContent-Disposition: form-data; name="{}"; filename="{}"\r\nContent-Type: {}\r\n\r\n{}\r\n'
        '--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n{}'
    )
    for number, bad in enumerate(["a b", "Model", "_charset_", "model", "unfinished"]):
        words = [birds.new(f"form {number} {place}") for place in ("file", "type", "data", "tail")]
        block = form.format(bad, *words).encode()
        fields = ["Content-Type: multipart/form-data; boundary=b", f"X-Provider-Token: {birds.new(f'form {number}')}"]
        answer = await send(made.http_port, post(block, *fields, path="/v1/audio/transcriptions"))
        assert answer.startswith(b"HTTP/1.1 400 "), answer[:300]
        assert birds.found_in(answer) == []
    boundary = f"Content-Type: multipart/form-data; boundary={birds.new('boundary')} x"
    answer = await send(made.http_port, post(b"", boundary, path="/v1/audio/transcriptions"))
    assert answer.startswith(b"HTTP/1.1 400 "), answer[:300]
    assert birds.found_in(answer) == []


async def admin_pages() -> list[str]:
    """Every path that an admin listener shows, asked of one that serves them."""
    async with bench() as b:
        return sorted(path for method, path in b.edge.admin_paths if method == "GET")


async def be_operated(made: Fleet, birds: Canaries) -> list[bytes]:
    """What an operator asks for, rightly and wrongly; all answers."""
    base = f"http://127.0.0.1:{made.admin_port}"
    pages = []
    shown = await admin_pages()
    assert {"/status", "/metrics", "/openapi.json", "/events"} <= {*shown}
    for path in (*shown, "/explain?model=m", "/readyz?verbose", f"/{birds.new('admin path')}"):
        async with made.client.get(base + path, headers={"X-A": birds.new(f"admin field {path}")}) as answer:
            # Events go on for ever; the first piece is all that there is to know at the time.
            pages.append(await (answer.content.readany() if path == "/events" else answer.read()))
    settings: dict[str, Any] = {**made.settings, "nodes": [{"id": "n9", "token": birds.new("raw token in a file")}]}
    async with made.client.post(f"{base}/refresh", json={"mode": "dry_run", "config": json.dumps(settings)}) as answer:
        pages.append(await answer.read())
    levels = {"logger": birds.new("a logger's name"), "level": "info"}
    async with made.client.post(f"{base}/logs", json=levels) as answer:
        assert answer.status == 404
        assert birds.found_in(await answer.read(), but=["a logger's name"]) == []
    return pages


def test_fifty_secrets_are_found_where_they_belong_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    birds = Canaries()
    monkeypatch.setenv("IOP_TEST_PROVIDER_KEY", birds.new("the provider's own key"))
    usage = tmp_path / "usage.jsonl"
    openai = {
        "provider_auth": {"enabled": True, "from_header": "X-Provider-Token"},
        "usage_log": {"path": str(usage)},
    }

    async def work() -> list[bytes]:
        async with FakeBackend(AllApis()) as backend:
            nodes = {"n1": [provider("p1", 4, endpoint=backend.url, api_key_env="IOP_TEST_PROVIDER_KEY")]}
            edge = {"log": {"level": "debug"}}
            async with fleet(tmp_path, nodes, openai=openai, edge=edge) as made:
                await made.start_node("n1", log={"level": "debug"})
                await be_served(made, birds, backend)
                await be_refused(made, birds)
                await be_uploaded(made, birds)
                await be_cut(made, birds, backend)
                pages = await be_operated(made, birds)
                await made.idle()
            own = [seen for seen in backend.requests if birds.found_in(seen.head) == ["the provider's own key"]]
            assert own == [], "a forwarded token is sent in its place"
            return pages

    pages = run(work())
    assert len(birds.made) >= COUNT
    assert [birds.found_in(page) for page in pages] == [[]] * len(pages)
    written = [path for path in tmp_path.iterdir() if path.suffix in (".log", ".jsonl")]
    assert len(written) == 3
    for path in written:
        content = path.read_bytes()
        assert content
        assert birds.found_in(content) == [], path.name
    assert usage.read_bytes().count(b'"state":"complete"') == 14
    lines = [json.loads(line) for line in (tmp_path / "edge-0.log").read_bytes().splitlines() if line.startswith(b"{")]
    requests = [line for line in lines if line["event"] == "request"]
    assert len({line["request"] for line in requests}) == len(requests) >= 14 + 18 + 2
    assert {"--", "PR", "CH", "SH"} <= {line["end"] for line in requests}
