"""A load run that is ended, however that happens, leaves no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.load import proc
from scripts.generated import ROOT

LIMIT_S = 90.0
COMMAND = [sys.executable, "-m", "benchmarks.load.run", "--scenarios", "closed-1", "--subjects", "direct"]


def until(check: Callable[[], bool], what: str) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + LIMIT_S
    while not check():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def is_there(pid: int) -> bool:
    """Whether a process runs; one that has ended and that nobody has waited for does not."""
    try:
        return (proc.PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
def running(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A load run of an hour with spinners and upstream up."""
    command = [*COMMAND, "--seconds", "3600", "--json", str(tmp_path / "l.json"), "--chart", str(tmp_path / "l.svg")]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    run = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, start_new_session=True)
    try:
        yield run
    finally:
        run.kill()
        run.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL], ids=lambda number: number.name)
def test_what_was_started_ends_with_the_run(
    running: subprocess.Popen[bytes], number: signal.Signals, tmp_path: Path
) -> None:
    wanted = len(os.sched_getaffinity(0)) + 1

    def is_up() -> bool:
        assert running.poll() is None, running.communicate()[1].decode()
        return len(proc.children(running.pid)) == wanted

    until(is_up, "spinners and an upstream expected")
    started = proc.children(running.pid)
    running.send_signal(number)
    _, said = running.communicate(timeout=LIMIT_S)
    until(lambda: not any(map(is_there, started)), f"{started} outlive the run that has started them")
    if number != signal.SIGKILL:
        assert said.decode() == "load: ended by a signal\n"
        assert not list(tmp_path.glob("iop-bench-*"))


def test_what_a_process_leaves_in_its_group_ends_with_it(tmp_path: Path) -> None:
    child = tmp_path / "child"
    code = f"""
import subprocess, sys, pathlib, time
left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
pathlib.Path({str(child)!r}).write_text(f"{{left.pid}}\\n")
time.sleep(3600)
"""
    process = proc.start([sys.executable, "-c", code], os.sched_getaffinity(0))
    try:
        until(lambda: child.exists() and child.read_text().endswith("\n"), "a child expected")
    finally:
        proc.stop([process])
    assert process.returncode == -signal.SIGTERM
    until(lambda: not is_there(int(child.read_text())), "the child outlives its group")
