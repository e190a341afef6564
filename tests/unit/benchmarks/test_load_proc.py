"""What the load runs read of processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.load import proc

STATUS = "Name:\tpython\nVmPeak:\t  200000 kB\nVmRSS:\t   52340 kB\nThreads:\t4\n"
STAT = "cpu  100 20 30 4000 5 6 7 80 0 0\ncpu0 50 10 15 2000 2 3 3 40 0 0\nctxt 99\n"


def test_sizes_of_a_process_are_read_from_its_status() -> None:
    assert proc.parse_status_kib(STATUS, "VmRSS") == 52340
    with pytest.raises(ValueError, match="no VmSwap"):
        proc.parse_status_kib(STATUS, "VmSwap")
    with pytest.raises(ValueError, match="kB expected"):
        proc.parse_status_kib("VmRSS:\t 5 MB\n", "VmRSS")


def test_busy_time_of_the_machine_leaves_out_idle_waiting_and_stolen_time() -> None:
    assert proc.parse_stat(STAT) == ((100 + 20 + 30 + 6 + 7) * 10_000_000, 80 * 10_000_000)
    with pytest.raises(ValueError, match="the line of all cores"):
        proc.parse_stat("cpu0 1 2 3 4 5 6 7 8\n")


def test_a_processor_is_named_where_proc_names_it(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: A 9000 @ 3 GHz\n")
    assert proc.cpu_model(tmp_path) == "A 9000 @ 3 GHz"
    (tmp_path / "cpuinfo").write_text("processor\t: 0\n")
    assert proc.cpu_model(tmp_path) == "unknown processor"


def test_cpu_time_is_that_of_all_threads_up_to_this_moment() -> None:
    before = time.process_time_ns()
    taken = proc.cpu_ns(os.getpid())
    assert before <= taken <= time.process_time_ns()


def test_cpu_time_of_a_process_that_is_gone_is_refused() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    with pytest.raises(ProcessLookupError, match="no process"):
        proc.cpu_ns(process.pid)


def test_children_of_children_are_found_and_files_counted() -> None:
    code = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)\n"
        "print(child.pid, flush=True)\ninput()\nchild.communicate(b'x\\n')\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    grandchild = int(parent.stdout.readline())
    try:
        assert proc.children(parent.pid) == [grandchild]
        assert {parent.pid, grandchild} <= set(proc.children(os.getpid()))
        assert proc.open_files(parent.pid) >= 3
        assert proc.rss_bytes(parent.pid) > 1_000_000
    finally:
        parent.communicate("x\n")


def test_a_process_is_moved_with_all_its_threads() -> None:
    code = (
        "import threading\n"
        "done = threading.Event()\n"
        "threading.Thread(target=done.wait).start()\n"
        "print('up', flush=True)\ninput()\ndone.set()\n"
    )
    core = {max(os.sched_getaffinity(0))}
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    try:
        threads = [int(task.name) for task in Path(f"/proc/{process.pid}/task").iterdir()]
        proc.move(process.pid, core)
        assert len(threads) == 2
        assert [os.sched_getaffinity(thread) for thread in threads] == [core, core]
    finally:
        process.communicate("x\n")
