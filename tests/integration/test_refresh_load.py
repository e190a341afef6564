"""A thousand refreshes while streams run: none of them is refused, cut or left waiting."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from iop_fast.edge.refresh import Asked
from iop_fast.edge.refresh_report import Status
from iop_fast.wire import runtime_pb2 as pb
from tests.fakes.fake_node import FakeNode, FakeRun
from tests.integration.edge_harness import CHAT, Bench, bench, config, provider, run, until

REFRESHES = 1_000
CLIENTS = 8
CHUNKS = 4
CHUNK = b"data: %d\n\n"
WHOLE = b"".join(CHUNK % number for number in range(CHUNKS))


def first_settings() -> dict[str, Any]:
    made = config(
        {"n1": [provider("p1", 2), provider("p2", 2)], "n2": [provider("p3", 2)]},
        provider_pool={"max_queue": 100, "queue_timeout_ms": 60_000},
        edge={"log": {"access": False}},
    )
    made["models"].append({"id": "alias", "providers": {"p3": "served", "p1": "served"}})
    return made


def change(settings: dict[str, Any], draw: Random) -> dict[str, Any]:
    """One edit of the file. Whatever it is, models `m` and `alias` keep an enabled provider with a slot: p1."""
    made = deepcopy(settings)
    entries = [entry for node in made["nodes"] for entry in node["providers"]]
    one = draw.choice(entries)
    match draw.choice(("capacity", "priority", "enabled", "timeout", "queue", "threshold", "model", "served", "order")):
        case "capacity":
            one["capacity"] = draw.randint(1, 4)
        case "priority":
            one["priority"] = draw.randint(-2, 2)
        case "enabled":
            other = draw.choice([entry for entry in entries if entry["id"] != "p1"])
            other["enabled"] = not other.get("enabled", True)
        case "timeout":
            one["timeouts"] = {"idle_ms": draw.randint(10_000, 90_000)}
        case "queue":
            made["provider_pool"] = {"max_queue": draw.randint(50, 99), "queue_timeout_ms": draw.randint(0, 1) * 60_000}
        case "threshold":
            made["openai"]["long_context_threshold_tokens"] = draw.randint(1_000, 2_000)
        case "model":
            extra = {"id": f"extra-{draw.randint(1, 3)}", "providers": {one["id"]: "served"}}
            kept = [model for model in made["models"] if model["id"] != extra["id"]]
            made["models"] = kept if len(kept) < len(made["models"]) else [*kept, extra]
        case "served":
            made["models"][0]["generation"] = {"defaults": {"temperature": draw.randint(0, 10) / 10}}
        case "order":
            made["nodes"].reverse()
    return made


async def serve(node: FakeNode, busiest: Counter[str]) -> None:
    """Answer what the Edge sends: runs by streams of some length, pushes by acks."""
    running: Counter[str] = Counter()

    async def stream(run: FakeRun) -> None:
        provider_id = run.request.provider_id
        running[provider_id] += 1
        busiest[provider_id] = max(busiest[provider_id], running[provider_id])
        await run.taken()
        await run.head(200, (b"content-type", b"text/event-stream"))
        for number in range(CHUNKS):
            await asyncio.sleep(0.005)
            await run.data(CHUNK % number)
        running[provider_id] -= 1
        await run.end()

    node.on_run = stream
    await node.register()
    await node.ack()
    while True:
        request = (await node.frame("refresh_request")).refresh_request
        answer = pb.NodeConfigRefreshResponse(payload_revision=request.payload_revision, applied=True)
        await node.send(pb.Frame(refresh_response=answer))


async def ask(b: Bench, model: str, outcomes: Counter[str], is_over: asyncio.Event) -> None:
    """Stream answers one after the other and look at each whole."""
    body = json.dumps({"model": model, "stream": True, "messages": [{"role": "user", "content": "hi"}]})
    while not is_over.is_set():
        async with b.client.post(b.http(CHAT), data=body, headers={"content-type": "application/json"}) as answer:
            whole = await answer.read()
        outcomes["good" if answer.status == 200 and whole == WHOLE else f"{answer.status} {whole[:200]!r}"] += 1


async def refresh(b: Bench, settings: Any, candidate: str | None = None) -> Status:
    mode = "apply" if candidate is None else "dry_run"
    if candidate is None:
        path = Path(b.edge.status()["config"]["file"])
        await asyncio.to_thread(path.write_text, settings if isinstance(settings, str) else dump(settings))
    return (await b.edge.refresher.refresh(Asked(mode, "http", candidate))).status  # type: ignore[arg-type]


def dump(settings: Any) -> str:
    return str(yaml.dump(settings, Dumper=yaml.CSafeDumper))


@pytest.mark.parametrize("seed", [20_260_717])
def test_a_thousand_refreshes_under_streams_fail_and_cut_nothing(tmp_path: Path, seed: int) -> None:
    print(f"seed {seed}")
    draw = Random(seed)

    async def work() -> None:
        settings = first_settings()
        outcomes: Counter[str] = Counter()
        statuses: Counter[Status] = Counter()
        busiest: Counter[str] = Counter()
        is_over = asyncio.Event()
        async with bench(settings, tmp_path / "edge.yaml") as b:
            nodes = [b.node("n1"), b.node("n2", "i2")]
            serving = [asyncio.create_task(serve(node, busiest)) for node in nodes]
            await until(lambda: all(row.link == "ready" for row in b.edge.gate.snapshot()), "both nodes ready")
            clients = [
                asyncio.create_task(ask(b, ("m", "alias")[number % 2], outcomes, is_over)) for number in range(CLIENTS)
            ]
            revision = 1
            for _ in range(REFRESHES):
                kind = draw.choices(("change", "same", "dry_run", "invalid", "restart"), (70, 10, 10, 5, 5))[0]
                if kind == "change":
                    settings = change(settings, draw)
                    status = await refresh(b, settings)
                elif kind == "same":
                    status = await refresh(b, f"# {draw.random()}\n{dump(settings)}")
                elif kind == "dry_run":
                    status = await refresh(b, None, dump(change(settings, draw)))
                elif kind == "invalid":
                    status = await refresh(b, "models: [\n")
                else:
                    status = await refresh(b, {**change(settings, draw), "observe": {"listen": "127.0.0.1:0"}})
                statuses[status] += 1
                revision += kind in ("change", "same") and status is Status.APPLIED
                assert b.edge.state.runtime.revision == revision
            is_over.set()
            await asyncio.gather(*clients)
            await b.idle()
            for task in serving:
                task.cancel()
            await asyncio.gather(*serving, return_exceptions=True)
            assert set(outcomes) == {"good"}, outcomes
            assert outcomes["good"] > 20 * CLIENTS
            assert set(statuses) == set(Status) - {Status.STALE}
            assert sum(statuses.values()) == REFRESHES
            assert max(busiest.values()) <= 4  # no capacity was ever above
            assert all(b.edge.links.current(node.node_id).pushes.observed_revision > 1 for node in nodes)  # type: ignore[union-attr]
            counters = b.edge.gate.counters()
            assert counters["callback_failed"] == 0
            print(f"{outcomes['good']} streams, {dict(statuses)}")

    run(work())
