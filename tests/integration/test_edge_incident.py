"""An incident tells one story by every page at once: whatever one says, the others and the log say too."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from rich.console import Console

from iop_fast.cli import explain as explain_command
from iop_fast.cli import queue as queue_command
from iop_fast.cli import runs as runs_command
from iop_fast.cli import top
from iop_fast.cli.status import provider_state
from iop_fast.wire import runtime_pb2 as pb  # imports grpc_env before grpc
from tests.fakes.fake_node import FakeNode
from tests.integration.edge_harness import Bench, bench, config, provider, run
from tests.integration.edge_pages import Samples, metrics, page, value


def access_lines(text: str) -> list[dict[str, Any]]:
    """The access lines in what was written to standard error."""
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == "request"]


def shown_by_top(status: Any, queue: Any) -> str:
    """The frame of `iop top` as plain text."""
    console = Console(width=120, file=io.StringIO(), record=True)
    console.print(top.frame(top.Sample(0.0, status, queue), None))
    return console.export_text()


class Incident:
    """An Edge with two Nodes of one slot each, both taken, and two who wait."""

    def __init__(self, b: Bench, file: Path, one: FakeNode, two: FakeNode) -> None:
        self.b, self.file, self.one, self.two = b, file, one, two
        self.calls: list[asyncio.Task[aiohttp.ClientResponse]] = []

    def call(self) -> asyncio.Task[aiohttp.ClientResponse]:
        self.calls.append(asyncio.create_task(self.b.chat()))
        return self.calls[-1]

    async def look(self) -> tuple[Any, Any, Any, Any, Samples]:
        """Queue, explanation, runs, status and metrics of one moment."""
        b = self.b
        told = [await page(b, path) for path in ("/queue", "/explain?model=m", "/runs", "/status")]
        return told[0], told[1], told[2], told[3], await metrics(b)

    async def assert_alike(self, *, running: dict[str, int], waiting: int) -> None:
        """Every page tells the same numbers."""
        queue, explained, runs, status, samples = await self.look()
        assert queue["waiting"] == len(queue["waiters"]) == waiting
        assert sum(line["waiting"] for line in queue["lines"]) == waiting
        assert status["queue"]["waiting"] == waiting
        assert value(samples, "iop_queue_waiting") == waiting
        assert value(samples, "iop_model_waiting", **{"model": "m", "class": "normal"}) == waiting
        found = dict.fromkeys(running, 0)
        for row in runs["runs"]:
            found[row["provider_id"]] += 1
        assert (found, runs["total"]) == (running, sum(running.values()))
        candidates = {row["provider_id"]: row for row in explained["candidates"]}
        for row in status["providers"]:
            name, labels = row["provider_id"], {"node": row["node_id"], "provider": row["provider_id"]}
            assert row["effective"]["in_flight"] == candidates[name]["in_flight"] == running[name]
            assert value(samples, "iop_provider_in_flight", **labels) == running[name]
            assert value(samples, "iop_provider_queued", **labels) == row["effective"]["queued"]
            assert value(samples, "iop_provider_configured_capacity", **labels) == candidates[name]["capacity"]
            assert value(samples, "iop_provider_up", **labels) == (provider_state(row) == "up")
        for node in status["nodes"]:
            assert value(samples, "iop_node_up", node=node["node_id"]) == node["connected"]
            assert value(samples, "iop_node_payload_revision", node=node["node_id"]) == node["payload"]["revision"]
        self.assert_shown(queue, explained, runs, status)

    def assert_shown(self, queue: Any, explained: Any, runs: Any, status: Any) -> None:
        """`iop queue`, `explain`, `runs` and `top` show people what the pages said."""
        listed = "\n".join(queue_command.render(queue))
        assert listed.startswith(f"{queue['waiting']} of {queue['max_queue']} waiting")
        frame = shown_by_top(status, queue)
        total = sum(row["effective"]["in_flight"] for row in status["providers"])
        assert f"running {total}  waiting {queue['waiting']} of {queue['max_queue']}" in frame
        for row in queue["waiters"]:
            assert row["why"] in listed
            assert row["why"] in frame
        reasons = explain_command.render(explained)
        for row in explained["candidates"]:
            (line,) = (line for line in reasons if line.startswith(row["provider_id"]))
            assert f" {row['in_flight']}/{row['capacity']} " in line
            assert line.endswith(row["reason"])
        for row in status["providers"]:
            (line,) = (line for line in frame.splitlines() if line.startswith(row["provider_id"]))
            assert f" {row['effective']['in_flight']}/{row['configured']['capacity']} " in line
            assert line.rstrip().endswith(provider_state(row))
        at_work = runs_command.render(runs)
        for row in runs["runs"]:
            (line,) = (line for line in at_work if line.endswith(row["request"]))
            assert line.startswith(row["provider_id"])


@asynccontextmanager
async def incident(file: Path) -> AsyncIterator[Incident]:
    settings = config(
        {"n1": [provider("p1")], "n2": [provider("p2")]}, provider_pool={"max_queue": 2, "queue_timeout_ms": 0}
    )
    async with bench(settings, file) as b:
        made = Incident(b, file, await b.ready("n1"), await b.ready("n2", "i2"))
        try:
            yield made
        finally:
            await asyncio.gather(*made.calls)


def test_an_incident_is_told_alike_by_every_page_and_the_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "iop_fast")

    async def work() -> None:
        async with incident(tmp_path / "edge.yaml") as i:
            await full(i)
            await node_gone(i)
            await raised(i)
            await over(i)

    async def full(i: Incident) -> None:
        """Both providers are full, the queue too."""
        i.call()
        i.first = await i.one.next_run()
        i.call()
        i.second = await i.two.next_run()
        for count in (1, 2):
            i.call()
            await i.b.waiting(count)
        refused = await i.call()
        assert (refused.status, refused.headers["x-iop-reason"]) == (429, "queue_full")
        await i.assert_alike(running={"p1": 1, "p2": 1}, waiting=2)
        queue, explained, runs, _, samples = await i.look()
        assert [row["why"] for row in queue["waiters"]] == ["2 full", "2 full"]
        assert [row["place"] for row in queue["waiters"]] == [1, 2]
        assert (explained["decision"], explained["position"]) == ("queue_full", 3)
        assert explained["retry_after_s"] == int(refused.headers["retry-after"])
        assert [row["verdict"] for row in explained["candidates"]] == ["full", "full"]
        assert {row["state"] for row in runs["runs"]} == {"dispatched"}
        labels = {"model": "m", "node": "none", "provider": "none", "outcome": "queue_full"}
        assert value(samples, "iop_requests_total", **labels) == 1
        assert value(samples, "iop_admission_total", model="m", outcome="rejected_queue_full") == 1

    async def node_gone(i: Incident) -> None:
        """One Node goes: its request fails, the others wait on."""
        await i.two.close()
        lost = await i.calls[1]
        assert (lost.status, lost.headers["x-iop-reason"]) == (502, "upstream_error")
        await i.assert_alike(running={"p1": 1, "p2": 0}, waiting=2)
        queue, explained, _, status, samples = await i.look()
        assert [row["why"] for row in queue["waiters"]] == ["1 full, 1 on a node that is offline"] * 2
        assert [row["verdict"] for row in explained["candidates"]] == ["full", "node_offline"]
        assert [node["link"] for node in status["nodes"]] == ["ready", "offline"]
        assert value(samples, "iop_link_events_total", event="runs_lost") == 1
        labels = {"model": "m", "node": "n2", "provider": "p2", "outcome": "upstream_error"}
        assert value(samples, "iop_requests_total", **labels) == 1
        assert any(record.message == "link_closed" and record.fields["node"] == "n2" for record in caplog.records)

    async def raised(i: Incident) -> None:
        """A refresh raises the capacity that is left: who waited runs."""
        settings = yaml.safe_load(await asyncio.to_thread(i.file.read_text))
        settings["nodes"][0]["providers"][0]["capacity"] = 3
        await asyncio.to_thread(i.file.write_text, yaml.safe_dump(settings))
        asking = asyncio.ensure_future(i.b.client.post(i.b.admin("/refresh"), json={"mode": "apply"}))
        asked = (await i.one.frame("refresh_request")).refresh_request
        answer = pb.NodeConfigRefreshResponse(payload_revision=asked.payload_revision, applied=True)
        await i.one.send(pb.Frame(refresh_response=answer))
        report = await (await asking).json()
        assert (report["status"], report["revision"], report["impact"]["waiters_granted"]) == ("applied", 2, 2)
        await i.assert_alike(running={"p1": 3, "p2": 0}, waiting=0)
        _, explained, _, status, samples = await i.look()
        assert (explained["decision"], explained["position"]) == ("wait", 1)
        assert status["config"]["revision"] == value(samples, "iop_config_revision") == 2
        assert value(samples, "iop_refresh_total", mode="apply", status="applied") == 1
        assert value(samples, "iop_refresh_last_apply_successful") == 1
        assert value(samples, "iop_node_observed_payload_revision", node="n1") == 2
        refreshed = [record for record in caplog.records if record.message == "refreshed"]
        assert [(record.fields["status"], record.fields["revision"]) for record in refreshed] == [("applied", 2)]

    async def over(i: Incident) -> None:
        """All end well, and every number adds up."""
        for each in (i.first, await i.one.next_run(), await i.one.next_run()):
            await each.answer(b"{}")
        assert [call.status for call in await asyncio.gather(*i.calls)] == [200, 502, 200, 200, 429]
        await i.b.idle()
        await i.assert_alike(running={"p1": 0, "p2": 0}, waiting=0)
        samples = await metrics(i.b)
        i.b.edge.state.books.access.close()  # its lines are written now
        lines = access_lines(capfd.readouterr().err)
        counted = {key: count for key, count in samples.items() if key[0] == "iop_requests_total"}
        for key, count in counted.items():
            labels = dict(key[1])
            alike = [
                line
                for line in lines
                if (line["outcome"], line["provider"] or "none") == (labels["outcome"], labels["provider"])
            ]
            assert len(alike) == count, labels
        assert sum(counted.values()) == len(lines) == 5
        assert [line["end"] for line in lines] == ["RQ", "SH", "--", "--", "--"]
        assert all(line["queue_ms"] >= 0 for line in lines)
        assert value(samples, "iop_request_queue_seconds_count", **{"model": "m", "class": "normal"}) == 4
        faults = {dict(key[1])["kind"]: count for key, count in samples.items() if key[0] == "iop_faults_total"}
        assert set(faults.values()) == {0}

    run(work())
