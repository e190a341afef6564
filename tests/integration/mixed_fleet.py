"""One model on providers of every kind: a tunnel, Ollama, a program and a native model, on two Nodes of a real Edge."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest
import yaml
from openai import AsyncOpenAI

from iop_fast.config.loader import load_node_text
from iop_fast.edge import exchange
from iop_fast.node.adapters.echo import EchoRun
from iop_fast.node.app import Node
from tests.fakes.cli_tools import tool
from tests.fakes.fake_ollama import FakeOllama
from tests.fakes.openai_backend import Exchange, FakeBackend, Script, sse
from tests.integration.cli_bench import marked
from tests.integration.edge_harness import CHAT, TOKEN, TOKEN_HASH, Bench, bench, until

MARK = f"{os.getpid()}-"

# Provider -> its Node.
NODE_OF = {"tunnel": "far", "ollama": "far", "cli": "near", "echo": "near"}
KINDS = tuple(NODE_OF)
CAN_CALL = frozenset({"tunnel", "ollama", "echo"})
SERVED = {"tunnel": "served", "ollama": "qwen3:8b", "cli": "base", "echo": "echo"}

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL_IT: Any = {"type": "function", "function": {"name": "weather"}}


class Hold:
    """Keeps every provider from answering while it is on: requests that have a slot keep it."""

    def __init__(self, file: Path) -> None:
        self.file = file  # exists while it is on, for programs
        self._is_off = asyncio.Event()
        self._is_off.set()

    def on(self) -> None:
        """Nobody answers from here on."""
        self.file.touch()
        self._is_off.clear()

    def off(self) -> None:
        """Everybody answers."""
        self.file.unlink(missing_ok=True)
        self._is_off.set()

    def held(self, script: Script) -> Script:
        """Hold a server's script."""

        async def wait_first(exchange: Exchange) -> None:
            await self._is_off.wait()
            await script(exchange)

        return wait_first

    def hold_echo(self, patch: pytest.MonkeyPatch) -> None:
        """Hold the native model, which stands in this process."""
        wait = EchoRun._wait

        def wait_first(run: EchoRun, delay_ms: int) -> None:
            if self._is_off.is_set():
                wait(run, delay_ms)
            else:
                run._timer = run._loop.call_later(0.005, wait_first, run, delay_ms)

        patch.setattr(EchoRun, "_wait", wait_first)


class Talker:
    """An OpenAI server (platform.openai.com): says the last user message back, calls a tool where it has to."""

    def __init__(self, pause_s: float = 0.0) -> None:
        self.pause_s = pause_s

    async def __call__(self, exchange: Exchange) -> None:
        asked = exchange.json
        content = [message["content"] for message in asked["messages"] if message["role"] == "user"][-1]
        told = content if isinstance(content, str) else "".join(part["text"] for part in content)
        words = re.findall(r"\S+\s*", told)
        usage = {"prompt_tokens": len(words), "completion_tokens": len(words), "total_tokens": 2 * len(words)}
        deltas: list[dict[str, Any]] = [{"content": word} for word in words]
        reason = "stop"
        if isinstance(asked.get("tool_choice"), dict):
            called = {"name": "weather", "arguments": json.dumps({"city": "some city"})}
            deltas = [{"tool_calls": [{"id": "call_1", "type": "function", "function": called}]}]
            reason = "tool_calls"
        base = {"id": "chatcmpl-1", "created": 1, "model": asked["model"]}
        if not asked.get("stream"):
            await asyncio.sleep(self.pause_s * len(words))
            text = None if reason == "tool_calls" else told
            message = {"role": "assistant", "content": text, "refusal": None}
            message |= deltas[0] if reason == "tool_calls" else {}
            choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reason}
            whole = {**base, "object": "chat.completion", "choices": [choice], "usage": usage}
            await exchange.respond(json.dumps(whole).encode())
            return
        wants_usage = (asked.get("stream_options") or {}).get("include_usage")
        for call in deltas[0].get("tool_calls", []):
            call["index"] = 0
        deltas[0] = {"role": "assistant", "content": None, **deltas[0]}
        ends = [(delta, None) for delta in deltas] + [({}, reason)]
        base = {**base, "object": "chat.completion.chunk"} | ({"usage": None} if wants_usage else {})
        events = [
            {**base, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": end}]}
            for delta, end in ends
        ]
        if wants_usage:
            events.append({**base, "choices": [], "usage": usage})
        lines = [b"data: " + json.dumps(event).encode() + b"\n\n" for event in events]
        await sse([*lines, b"data: [DONE]\n\n"], self.pause_s)(exchange)


class Reply(NamedTuple):
    """An answer as far as it came."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def provider(self) -> str:
        return self.headers["x-iop-provider"]

    @property
    def is_whole(self) -> bool:
        """True for an answer that ends as one does, whole or streamed."""
        if self.status != 200 or not self.body.startswith(b"{"):
            return self.status == 200 and self.body.endswith(b"data: [DONE]\n\n")
        return json.loads(self.body)["choices"][0]["finish_reason"] in ("stop", "tool_calls")


class MixedFleet:
    """The Edge, its two Nodes, the servers, and clients. The model `m` is on all four providers, and each provider is a
    model of its own name too. `grants` are (request's name, provider) in the order in which slots were given."""

    def __init__(
        self, edge: Bench, hold: Hold, backend: FakeBackend, ollama: FakeOllama, settings: dict[str, Any]
    ) -> None:
        self.edge = edge
        self.hold = hold
        self.backend = backend
        self.ollama = ollama
        self.settings = settings
        self.nodes: dict[str, Node] = {}
        self.grants: list[tuple[str, str]] = []
        self.highest: dict[str, int] = {}
        self.client = AsyncOpenAI(base_url=edge.http("/v1"), api_key="any", max_retries=0, timeout=20)

    async def start_node(self, node_id: str, pause_ms: int = 0) -> None:
        """Start a Node, the first time or again, and wait until it is a candidate."""
        talk = {
            "id": "talk",
            "command": tool("talk", str(pause_ms), str(self.hold.file)),
            "template": "{last_user}",
            "output": "json_lines",
            "fields": {
                "text": {"path": "text"},
                "finish_reason": {"path": "done"},
                "prompt_tokens": {"path": "in"},
                "completion_tokens": {"path": "out"},
            },
        }
        file = {
            "id": node_id,
            "edge": {"address": f"127.0.0.1:{self.edge.edge.link_port}"},
            "token_env": "TOKEN",
            "limits": {"probe_ms_min": 50, "probe_ms_max": 100},
            "cli_profiles": [talk],
            "native_models": [{"id": "echo", "adapter": "echo", "options": {"chunk_ms": pause_ms}}],
        }
        environ = {"PATH": os.environ["PATH"], "TOKEN": TOKEN}
        node = Node(load_node_text(yaml.safe_dump(file), "node.yaml").config, TOKEN, environ=environ)
        await node.start()
        self.nodes[node_id] = node

        async def is_ready() -> bool:
            rows = (await self.edge.status())["providers"]
            return all(row["link"] == "ready" for row in rows if row["node_id"] == node_id)

        await until(is_ready, f"{node_id} is ready")

    async def say(self, name: str, model: str = "m", **more: Any) -> Reply:
        """Post a chat whose grant is noted under a name; read what comes of the answer."""
        body = {"model": model, "messages": [{"role": "user", "content": "one two three four"}], "user": name, **more}
        pieces = []
        async with self.edge.client.post(self.edge.http(CHAT), json=body) as answer:
            with contextlib.suppress(aiohttp.ClientPayloadError):  # the answer breaks off
                async for piece in answer.content.iter_any():
                    pieces.append(piece)
        return Reply(answer.status, answer.headers, b"".join(pieces))

    async def say_next(self, name: str, **more: Any) -> asyncio.Task[Reply]:
        """Begin a chat, and return once admission has it: so requests arrive in the order of the calls."""
        before = self.submitted
        task = asyncio.create_task(self.say(name, **more))
        await until(lambda: self.submitted > before, f"{name} came")
        return task

    @property
    def submitted(self) -> int:
        return self.edge.edge.gate.counters()["submitted"]

    def note_grants(self, patch: pytest.MonkeyPatch) -> None:
        """Note who gets a slot, and how many of each provider's are taken by then."""
        prepare = exchange.prepare_run

        def prepare_noted(request: Any, body: Any, scan: Any, model: str, runtime: Any, key: Any, *more: Any) -> Any:
            span = scan.value_span("user")
            self.grants.append((json.loads(body.slice(*span)) if span else "", key[1]))
            for kind, count in self.in_flight().items():
                self.highest[kind] = max(self.highest.get(kind, 0), count)
            return prepare(request, body, scan, model, runtime, key, *more)

        patch.setattr(exchange, "prepare_run", prepare_noted)

    def in_flight(self) -> dict[str, int]:
        """Requests that run, by provider."""
        return {row.provider_id: row.in_flight for row in self.edge.edge.gate.snapshot()}

    async def refresh(self, **changes: Mapping[str, Any]) -> None:
        """Change keys of providers in the Edge's file and have it take them over."""
        for node in self.settings["nodes"]:
            for entry in node["providers"]:
                entry.update(changes.get(entry["id"], {}))
        file = self.hold.file.with_name("edge.yaml")
        await asyncio.to_thread(file.write_text, yaml.safe_dump(self.settings))
        async with self.edge.client.post(self.edge.admin("/refresh"), json={"mode": "apply"}) as answer:
            report = await answer.json()
            assert (answer.status, report["status"]) == (200, "applied"), report

    async def usage(self) -> dict[str, tuple[int, int, int]]:
        """What is booked, by provider: requests that are complete, partial and unknown."""
        rows = (await self.edge.status())["usage"]["rows"]
        booked: dict[str, tuple[int, int, int]] = {}
        for row in rows:
            old = booked.get(row["provider_id"], (0, 0, 0))
            found = (row["complete"], row["partial"], row["unknown"])
            booked[row["provider_id"]] = (old[0] + found[0], old[1] + found[1], old[2] + found[2])
        return booked


def settings_of(backend: str, ollama: str, capacity: int | Mapping[str, int]) -> dict[str, Any]:
    """The Edge's file."""
    of_kind: dict[str, dict[str, Any]] = {
        "tunnel": {"type": "vllm", "endpoint": backend},
        "ollama": {"type": "ollama", "endpoint": ollama},
        "cli": {"type": "cli", "profile": "talk"},
        "echo": {"type": "native", "profile": "echo"},
    }
    entries: dict[str, list[dict[str, Any]]] = {"far": [], "near": []}
    for kind, node_id in NODE_OF.items():
        slots = capacity if isinstance(capacity, int) else capacity[kind]
        entry = {"id": kind, **of_kind[kind], "models": [SERVED[kind]], "capacity": slots}
        entries[node_id].append(entry)
    return {
        "edge": {"listen": "127.0.0.1:0"},
        "openai": {"listen": "127.0.0.1:0"},
        "admin": {"listen": "127.0.0.1:0"},
        "provider_pool": {"max_queue": 1_000, "queue_timeout_ms": 20_000},
        "models": [{"id": "m", "providers": SERVED}]
        + [{"id": kind, "providers": {kind: SERVED[kind]}} for kind in KINDS],
        "nodes": [
            {"id": node_id, "token_hash_sha256": TOKEN_HASH, "providers": listed} for node_id, listed in entries.items()
        ],
    }


@asynccontextmanager
async def mixed_fleet(
    folder: Path, patch: pytest.MonkeyPatch, capacity: int | Mapping[str, int] = 2, pause_ms: int = 0
) -> AsyncIterator[MixedFleet]:
    """Everything, ready; nothing of it may be left. A word takes `pause_ms` with every provider."""
    async with AsyncExitStack() as stack:
        hold = Hold(folder / "hold")
        hold.hold_echo(patch)
        backend = await stack.enter_async_context(FakeBackend(hold.held(Talker(pause_ms / 1000))))
        ollama = await stack.enter_async_context(FakeOllama(chunk_delay_s=pause_ms / 1000))
        ollama.script = hold.held(ollama.script)
        settings = settings_of(backend.url, ollama.url, capacity)
        edge = await stack.enter_async_context(bench(settings, folder / "edge.yaml"))
        at = MixedFleet(edge, hold, backend, ollama, settings)
        at.note_grants(patch)
        stack.push_async_callback(at.client.close)
        try:
            for node_id in ("far", "near"):
                await at.start_node(node_id, pause_ms)
            yield at
            await edge.idle()
            for node in at.nodes.values():
                assert all(not relay.runs for relay in node.dialer.relays)
            assert marked(MARK) == []
        finally:
            hold.off()
            for node in at.nodes.values():
                await node.stop()
