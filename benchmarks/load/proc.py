"""Processes: starting them so that none outlives the run, and what Linux says of CPU time, memory, open files."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from functools import partial
from pathlib import Path
from typing import IO

PROC = Path("/proc")
_CPUCLOCK_SCHED = 2
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)
STOP_LIMIT_S = 15.0


def start(
    command: list[str],
    cores: set[int],
    output: IO[bytes] | None = None,
    environment: dict[str, str] | None = None,
    folder: Path | None = None,
    ends_by: signal.Signals = signal.SIGTERM,
) -> subprocess.Popen[bytes]:
    """Start a process on the given cores, as a group of its own: what a terminal sends reaches this program alone.

    The kernel sends it `ends_by` when the thread that has started it ends, by whatever: call from the main thread.
    """
    return subprocess.Popen(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env={**os.environ, **(environment or {})},
        process_group=0,
        preexec_fn=partial(_prepare, cores, ends_by, os.getpid()),
    )


def _prepare(cores: set[int], ends_by: signal.Signals, parent: int) -> None:
    os.sched_setaffinity(0, cores)  # before it makes threads, which inherit it
    _LIBC.prctl(_PR_SET_PDEATHSIG, int(ends_by), 0, 0, 0)
    if os.getppid() != parent:  # it has ended before it could be watched
        os.kill(os.getpid(), signal.SIGKILL)


def stop(processes: list[subprocess.Popen[bytes]]) -> None:
    """End processes and whatever is left of their groups."""
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:  # as it should be: it has left nobody behind
            continue


def move(pid: int, cores: set[int], proc: Path = PROC) -> None:
    """Let all threads of a process run on these cores alone."""
    for task in (proc / str(pid) / "task").iterdir():
        try:
            os.sched_setaffinity(int(task.name), cores)
        except ProcessLookupError:  # a thread that has ended meanwhile
            continue


def cpu_ns(pid: int) -> int:
    """CPU time of a process in ns: all its threads, those that have ended too, up to this moment.

    The clock of another process, as clock_getcpuclockid(3) names it. /proc/PID/task/*/schedstat is as fine, but lags
    behind for a thread that runs alone on its core.
    """
    try:
        return time.clock_gettime_ns((~pid << 3) | _CPUCLOCK_SCHED)
    except OSError as error:
        raise ProcessLookupError(f"no process {pid} to take the CPU time of") from error


def machine_ns(proc: Path = PROC) -> tuple[int, int]:
    """CPU time that all cores have spent on anything, and that the hypervisor has kept from them (ns, by 10 ms)."""
    return parse_stat((proc / "stat").read_text())


def parse_stat(text: str) -> tuple[int, int]:
    """Busy and stolen time of the first line of /proc/stat, whose numbers are in hundredths of a second."""
    name, *numbers = text.split("\n", 1)[0].split()
    if name != "cpu" or len(numbers) < 8:
        raise ValueError(f"the line of all cores expected in /proc/stat, got {text[:60]!r}")
    user, nice, system, _, _, irq, softirq, steal = map(int, numbers[:8])
    return (user + nice + system + irq + softirq) * 10_000_000, steal * 10_000_000


def rss_bytes(pid: int, proc: Path = PROC) -> int:
    """Resident memory of a process."""
    status = (proc / str(pid) / "status").read_text()
    if "VmRSS:" not in status:
        raise ProcessLookupError(f"process {pid} has ended")
    return parse_status_kib(status, "VmRSS") * 1024


def parse_status_kib(text: str, name: str) -> int:
    """A size of /proc/PID/status in KiB."""
    for line in text.splitlines():
        key, _, rest = line.partition(":")
        if key == name:
            value, unit = rest.split()
            if unit != "kB":
                raise ValueError(f"kB expected for {name}, got {rest!r}")
            return int(value)
    raise ValueError(f"no {name} in the status of a process")


def open_files(pid: int, proc: Path = PROC) -> int:
    """How many descriptors a process holds."""
    return sum(1 for _ in (proc / str(pid) / "fd").iterdir())


def children(pid: int, proc: Path = PROC) -> list[int]:
    """Processes that a process has started, and theirs."""
    found: list[int] = []
    for task in (proc / str(pid) / "task").iterdir():
        for child in (task / "children").read_text().split():
            found += [int(child), *children(int(child), proc)]
    return found


def cpu_model(proc: Path = PROC) -> str:
    """The name of the processor."""
    for line in (proc / "cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown processor"
