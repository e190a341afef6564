"""The process that starts the programs of the cli adapter, and sandboxes around them."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from tests.fakes.cli_tools import tool
from tests.integration.cli_bench import CANCELLED, OK, RunEnd, chat, cli_bench, has_ended, open_files
from tests.integration.node_bench import on_uvloop, until


@on_uvloop
async def test_a_spawner_that_dies_ends_its_runs_and_comes_back() -> None:
    async with cli_bench(tool("stubborn")) as bench:
        sink = bench.start()
        await sink.said("I stay")
        left = bench.marked()
        spawner = bench.adapter.spawner.pid
        assert spawner is not None
        os.kill(spawner, signal.SIGKILL)
        end = await sink.ended(limit_s=2.0)
        assert end.status == RunEnd.UPSTREAM_ERROR
        await until(lambda: all(map(has_ended, left)), "its programs are gone")
        again = bench.start()
        await again.said("I stay")
        assert again.handle is not None
        again.handle.cancel()
        assert await again.ended() == CANCELLED


@on_uvloop
async def test_closing_ends_what_runs_within_its_limit() -> None:
    async with cli_bench(tool("stubborn")) as bench:
        sink = bench.start()
        await sink.said("I stay")
        left = bench.marked()
        async with asyncio.timeout(5):
            await bench.adapter.close()
        assert all(map(has_ended, left))
        assert sink.end is not None


@on_uvloop
async def test_no_descriptor_stays_behind() -> None:
    async with cli_bench(tool("say")) as bench:
        await bench.ask()
        ours, spawners = open_files(os.getpid()), bench.spawner_fds()
        for _ in range(5):
            await asyncio.gather(*(bench.ask(chat("x" * 100_000)) for _ in range(4)))
        assert (open_files(os.getpid()), bench.spawner_fds()) == (ours, spawners)


@on_uvloop
async def test_many_at_once_keep_apart() -> None:
    async with cli_bench(tool("say")) as bench:
        texts = [f"{number}-" * 5_000 for number in range(24)]
        sinks = await asyncio.gather(*(bench.ask(chat(text)) for text in texts))
        assert [sink.text for sink in sinks] == texts


def run_directories(parent: Path) -> list[Path]:
    return list(parent.glob("iop-run-*"))


@on_uvloop
async def test_nothing_outlives_a_node_that_is_killed(tmp_path: Path) -> None:
    """SIGKILL to the Node: its programs, their children and their daemons end, and their directories go."""
    node = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.integration.cli_node",
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert node.stdout is not None
    pids = [int(pid) for pid in (await node.stdout.readline()).split()]
    assert len(pids) >= 5, "spawner, two stubborn ones, an escaped one"
    assert not any(map(has_ended, pids))
    assert len(run_directories(tmp_path)) == 2
    node.kill()
    await node.wait()
    await until(lambda: all(map(has_ended, pids)), "everything is gone")
    await until(lambda: not run_directories(tmp_path), "their directories are removed")


# The tools and their interpreter, wherever they are: a checkout may stand under /tmp or /home.
CHECKOUT = str(Path(__file__).resolve().parents[2])
SANDBOX = [
    *("bwrap", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"),
    *("--tmpfs", "/home", "--ro-bind", CHECKOUT, CHECKOUT, "--chdir", "/home"),
    *("--unshare-all", "--die-with-parent", "--"),
]


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
@on_uvloop
async def test_a_sandbox_sees_nothing_of_the_node() -> None:
    look = "ls /proc | grep -c '^[0-9]'; ls /tmp /home; cat /proc/net/route | wc -l"
    async with cli_bench([*SANDBOX, "sh", "-c", look]) as bench:
        sink = await bench.ask()
        assert sink.end == OK
        processes, *rest = sink.text.split("\n")
        assert int(processes) < 6
        assert rest[-1] == "1", "no route: a header alone"


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
@pytest.mark.parametrize("name", ["stubborn", "family"])
@on_uvloop
async def test_a_sandbox_ends_as_any_program_does(name: str) -> None:
    async with cli_bench([*SANDBOX, *tool(name)]) as bench:
        sink = bench.start()
        await until(lambda: sink.text != "", "it runs")
        assert sink.handle is not None
        sink.handle.cancel()
        assert await sink.ended(limit_s=2.0) == CANCELLED
