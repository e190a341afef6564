"""What is measured: sets of processes in front of the same upstream, and where their clients ask.

A subject's own process is pinned to one core and everything else to the other, so that its CPU time is its own.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks.load import proc
from benchmarks.load.asks import chat

# The runs are for Linux; pages are made from their record anywhere.
CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
SUBJECT_CORE = {CORES[0]}
OTHER_CORES = {CORES[-1]}
READY_LIMIT_S = 30.0

# What a narrow target runs at once, and how many may wait where the gateway has a line with a bound.
SLOTS = 8
LINE = 64


class Absent(Exception):
    """A subject cannot be had here; the message says why, for the table."""


@dataclass(frozen=True)
class Target:
    """Where and how clients ask for one model."""

    port: int
    model: str
    headers: tuple[tuple[str, str], ...] = ()

    def request(self, **how: int | bool) -> bytes:
        """A chat request for this model; see `asks.chat`."""
        return chat(self.model, headers=self.headers, **how)  # type: ignore[arg-type]

    def requests(self, **how: int | bool) -> Callable[[int], bytes]:
        """The same request every time."""
        content = self.request(**how)
        return lambda number: content

    def numbered(self, **how: int | bool) -> Callable[[int], bytes]:
        """Requests that carry their number as `n`."""
        return lambda number: self.request(n=number, **how)


@dataclass
class Subject:
    """One gateway: where its clients ask, and its processes by role. `gateway` is the one that is pinned and compared.

    `wide` has room for everybody; `narrow` runs SLOTS requests at once, as far as the gateway has such a thing.
    """

    name: str
    wide: Target
    narrow: Target | None = None
    has_line: bool = False
    """True when what does not fit waits in order."""
    refusal: int = 0
    """The status by which it answers at once what does not fit; 0 where everything waits."""
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    admin: str = ""
    version: str = ""
    note: str = ""

    def pids(self, role: str) -> list[int]:
        """The processes of a role, with those that they have started."""
        process = self.processes.get(role)
        return [] if process is None else [process.pid, *proc.children(process.pid)]

    def cpu_ns(self) -> dict[str, int]:
        """CPU time so far by role."""
        return {role: sum(map(proc.cpu_ns, self.pids(role))) for role in self.processes}

    def rss(self, role: str = "gateway") -> int:
        """Resident memory of a role in bytes."""
        return sum(map(proc.rss_bytes, self.pids(role)))

    def dead(self) -> list[str]:
        """Processes that have ended by themselves, with how they did."""
        codes = {role: process.poll() for role, process in self.processes.items()}
        return [f"{self.name}'s {role} ended with {code}" for role, code in codes.items() if code is not None]

    def stop(self) -> None:
        """End the processes."""
        proc.stop(list(self.processes.values()))


def free_port() -> int:
    """A loopback port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        port: int = held.getsockname()[1]
        return port


def start(
    command: list[str],
    cores: set[int],
    log: Path,
    environment: dict[str, str] | None = None,
    folder: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start a process on the given cores with its output in a file, in a folder where one is given."""
    with log.open("ab") as output:
        return proc.start(command, cores, output, environment, folder)


def wait_for(check: Callable[[], bool], what: str, log: Path, limit_s: float = READY_LIMIT_S) -> None:
    """Poll until a condition holds."""
    deadline = time.monotonic() + limit_s
    while not check():
        if time.monotonic() > deadline:
            raise Absent(f"{what} did not come up within {limit_s:.0f} s: {log.read_text(errors='replace')[-600:]}")
        time.sleep(0.05)


def is_listening(port: int) -> bool:
    """True when something accepts on the port."""
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def start_upstream(folder: Path) -> Subject:
    """The upstream itself: "direct" in the tables."""
    port = free_port()
    log = folder / "upstream.log"
    process = start([sys.executable, "-m", "benchmarks.load.upstreams", str(port)], OTHER_CORES, log)
    subject = Subject("direct", Target(port, "served"), processes={"upstream": process})
    ready(subject, partial(is_listening, port), log)
    return subject


def ready(subject: Subject, check: Callable[[], bool], log: Path, limit_s: float = READY_LIMIT_S) -> None:
    """Wait for a subject; end it if it does not come."""
    try:
        wait_for(check, subject.name, log, limit_s)
    except BaseException:
        subject.stop()
        raise


def first_line(command: list[str]) -> str:
    """The first line that a program prints; where it has none on stdout, on stderr."""
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    return (run.stdout or run.stderr).splitlines()[0].strip()
