"""Refreshes of real programs: a signal, the command, a real Node that swaps its registry while a stream runs."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

from tests.fakes.openai_backend import FakeBackend
from tests.integration.edge_harness import provider, run, until
from tests.integration.fleet import Fleet, fleet
from tests.integration.test_process_life import Gate


async def iop_refresh(f: Fleet, *arguments: str) -> tuple[int, str]:
    """Run `iop refresh`; exit code and output."""
    command = [sys.executable, "-m", "iop_fast.cli", "refresh", "--admin", f"127.0.0.1:{f.admin_port}", *arguments]
    program = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await program.communicate()
    assert program.returncode is not None
    return program.returncode, output.decode()


async def write(file: Path, settings: Any) -> None:
    await asyncio.to_thread(file.write_text, settings if isinstance(settings, str) else yaml.safe_dump(settings))


def capacity(settings: dict[str, Any], value: int, node: int = 0) -> dict[str, Any]:
    """The same fleet with another capacity of one Node's provider."""
    made = deepcopy(settings)
    made["nodes"][node]["providers"][0]["capacity"] = value
    return made


def test_signal_and_command_refresh_a_running_fleet(tmp_path: Path) -> None:
    """B04, B14: a request that runs is left alone by all of it; a waiter starts when there is room for it."""

    async def work() -> None:
        gate = Gate()
        async with FakeBackend(gate) as backend:
            nodes = {
                "n1": [provider("p1", endpoint=backend.url, health="up")],
                "n2": [provider("p2", endpoint=backend.url, models=["elsewhere"])],
            }
            models = [{"id": "m", "providers": {"p1": "served"}}]
            async with fleet(tmp_path, nodes, ["n1"], models=models) as f:
                assert f.edge is not None
                file = f.folder / "edge.yaml"
                answers = [asyncio.create_task(f.chat(user="first")), asyncio.create_task(f.chat(user="second"))]
                await until(lambda: len(gate.names) == 1, "the first runs")
                await until(lambda: f.has_waiting(1), "the second waits")

                await write(file, capacity(f.settings, 2))
                f.edge.signal(signal.SIGHUP)
                await until(lambda: len(gate.names) == 2, "the second runs beside it")
                assert f.nodes["n1"].said("registry_swapped") == 2  # the first one and this

                code, output = await iop_refresh(f)
                assert code == 0
                assert output.endswith("no change: revision 2 runs what the file says\n")
                await write(file, "models: [\n")
                code, output = await iop_refresh(f)
                assert code == 2
                assert output.startswith(f"{file}:2:1: error:")
                f.edge.signal(signal.SIGHUP)
                await until(lambda: f.edge is not None and f.edge.said("config_finding") >= 1, "the log says why")

                await write(file, {**capacity(f.settings, 3), "observe": {"listen": "127.0.0.1:1"}})
                code, output = await iop_refresh(f)
                assert code == 3
                assert "+ observe  (needs a restart)\n" in output
                candidate = tmp_path / "candidate.yaml"
                await write(candidate, capacity(f.settings, 1))
                code, output = await iop_refresh(f, "--dry-run", "-c", str(candidate))
                assert code == 0
                assert "running requests, all of which finish: 1 above the new capacity\n" in output
                assert (await f.status())["config"]["disk"]["differs"] is True

                await write(file, capacity(capacity(f.settings, 2), 9, node=1))
                code, output = await iop_refresh(f, "--json")
                report = json.loads(output)
                assert (code, report["status"], report["revision"]) == (4, "applied", 3)
                assert [push["node_id"] for push in report["node_pushes"]] == ["n2"]
                assert "offline" in report["node_pushes"][0]["reason"]
                await f.start_node("n2")
                observed = [node["payload"]["observed"] for node in (await f.status())["nodes"]]
                assert observed == [2, 3]

                gate.let(2)
                assert [status for status, _, _ in await asyncio.gather(*answers)] == [200, 200]
                await f.idle()
                assert backend.connections <= 4  # nothing was dialled anew for any of this

    run(work())
