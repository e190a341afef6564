"""What real processes tell the service manager that started them, from their start over a reload to their end."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from tests.fakes.service_manager import FakeServiceManager
from tests.integration.edge_harness import CHAT, TOKEN, config, run
from tests.integration.fleet import free_ports

ECHO = {"id": "p1", "type": "native", "profile": "echo", "models": ["served"], "capacity": 2}
LIMIT_S = 30.0


@asynccontextmanager
async def service(folder: Path, kind: str, manager: FakeServiceManager) -> AsyncIterator[asyncio.subprocess.Process]:
    """Start `iop edge` or `iop node` as a service manager does; it is gone at the end."""
    log = folder / f"{kind}.log"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "iop_fast.cli", kind, "-c", str(folder / f"{kind}.yaml")),
            stdout=output,
            stderr=output,
            env={**os.environ, **manager.environment, "WATCHDOG_USEC": "100000", "IOP_NODE_TOKEN": TOKEN},
        )
    try:
        yield process
    except BaseException:
        print(log.read_text(errors="replace")[-3000:])
        raise
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def has_ended(process: asyncio.subprocess.Process) -> int:
    async with asyncio.timeout(LIMIT_S):
        return await process.wait()


def write(folder: Path, settings: dict[str, Any]) -> None:
    (folder / "edge.yaml").write_text(yaml.safe_dump(settings))


def has_status(*parts: str) -> Any:
    """A condition: some message's status has all the parts."""
    return lambda said: any(all(part in each.get("STATUS", "") for part in parts) for each in said)


def test_edge_and_node_tell_their_service_manager_what_they_do(tmp_path: Path) -> None:
    http, link, admin = free_ports(3)
    settings = config(
        {"n1": [ECHO], "n2": [{**ECHO, "id": "p2"}]},
        edge={"listen": f"127.0.0.1:{link}"},
        openai={"listen": f"127.0.0.1:{http}", "limits": {"drain_ms": 19_000, "drain_delay_ms": 1}},
        admin={"listen": f"127.0.0.1:{admin}"},
    )
    write(tmp_path, settings)
    node = {"id": "n1", "edge": {"address": f"127.0.0.1:{link}"}, "token_env": "IOP_NODE_TOKEN"}
    (tmp_path / "node.yaml").write_text(yaml.safe_dump({**node, "limits": {"drain_ms": 7000}}))

    async def work() -> None:
        with FakeServiceManager(tmp_path / "e") as of_edge, FakeServiceManager(tmp_path / "n") as of_node:
            async with service(tmp_path, "node", of_node) as node_process:
                # A Node is ready as a service when it dials: an Edge that is away must not fail the machine's start.
                ready = await of_node.said("READY")
                assert ready["STATUS"] == f"no session with the Edge 127.0.0.1:{link} takes requests, 0 running"
                async with service(tmp_path, "edge", of_edge) as edge_process, aiohttp.ClientSession() as client:
                    ready = await of_edge.said("READY")
                    for port in (http, link, admin):  # every listener is bound by then
                        (await asyncio.open_connection("127.0.0.1", port))[1].close()
                    await of_edge.until(has_status("1 of 2 nodes ready, 0 running, 0 waiting"), "the Node")
                    await of_node.until(has_status(f"ready at the Edge 127.0.0.1:{link}, 0 running"), "the session")
                    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
                    async with client.post(f"http://127.0.0.1:{http}{CHAT}", json=body) as answer:
                        assert answer.status == 200
                    await reload_and_refuse(edge_process, of_edge, settings, tmp_path)
                    await stop(edge_process, of_edge, 19.0)
                await stop(node_process, of_node, 7.0)

    run(work())


async def reload_and_refuse(
    process: asyncio.subprocess.Process, manager: FakeServiceManager, settings: dict[str, Any], folder: Path
) -> None:
    """A file that is taken over, and one that is not: both reloads end."""
    write(folder, {**settings, "provider_pool": {"max_queue": 5}})
    process.send_signal(signal.SIGHUP)
    assert int((await manager.said("RELOADING"))["MONOTONIC_USEC"]) > 0
    await manager.said("READY", 2)
    (folder / "edge.yaml").write_text("models: 1\n")
    process.send_signal(signal.SIGHUP)
    ready = await manager.said("READY", 3)
    assert "the refresh of " in ready["STATUS"]
    assert ready["STATUS"].endswith(" was not applied: invalid")
    order = [name for each in manager.messages for name in each if name in ("READY", "RELOADING", "STOPPING")]
    assert order == ["READY", "RELOADING", "READY", "RELOADING", "READY"]


async def stop(process: asyncio.subprocess.Process, manager: FakeServiceManager, drain_s: float) -> None:
    """SIGTERM: the end is announced with more time than the drain may take, and comes."""
    await manager.said("WATCHDOG", 2)
    process.terminate()
    stopping = await manager.said("STOPPING")
    assert int(stopping["EXTEND_TIMEOUT_USEC"]) >= (drain_s + 15) * 1_000_000
    assert await has_ended(process) == 0
