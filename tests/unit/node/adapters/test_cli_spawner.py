"""The spawner's own parts, and the road it takes where the kernel offers less."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from iop_fast.node.adapters import cli_spawner
from iop_fast.node.adapters.cli_spawner_program import (
    HEADER,
    children_of,
    has_group,
    has_mark,
    lower,
    peek,
    reap,
    receive,
    receive_header,
)
from tests.fakes.cli_tools import tool
from tests.integration.cli_bench import RunEnd, cli_bench
from tests.integration.node_bench import on_uvloop, until


def test_orders_arrive_whole_however_they_are_cut_and_with_their_descriptors() -> None:
    near, far = socket.socketpair()
    with near, far:
        body = b'{"run": 1}'
        data = HEADER.pack(len(body)) + body
        read, write = os.pipe()
        socket.send_fds(near, [data[:1]], [write])
        os.close(write)
        near.send(data[1:])
        near.send(data)  # the next one stands behind it
        near.shutdown(socket.SHUT_WR)
        header, fds = receive_header(far)
        assert receive(far, HEADER.unpack(header)[0]) == body
        os.write(fds[0], b"x")
        assert os.read(read, 9) == b"x"
        for fd in (read, *fds):
            os.close(fd)
        header, fds = receive_header(far)
        assert (receive(far, HEADER.unpack(header)[0]), fds) == (body, [])
        assert receive_header(far) == (b"", [])
        assert receive(far, 1) == b""


def test_how_a_child_exited_is_seen_before_it_is_reaped() -> None:
    for command, code in ((["true"], 0), (["sh", "-c", "exit 7"], 7), (["sh", "-c", "kill -9 $$"], -9)):
        pid = os.posix_spawnp(command[0], command, os.environ)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert peek(pid) == code
        assert peek(pid) == code
        assert reap(pid) == code
        assert reap(pid) is None, "somebody else's"


def test_a_child_that_runs_has_not_exited() -> None:
    child = subprocess.Popen(["sleep", "3600"], env={"IOP_RUN": "7-8-9"}, start_new_session=True)
    try:
        assert peek(child.pid) is None
        assert reap(child.pid) is None
        assert (child.pid, child.pid) in children_of(os.getpid())
        while not has_mark(child.pid, "7-8-9"):  # the kernel has closed the descriptors and not yet set this
            assert child.poll() is None
        assert not has_mark(child.pid, "7-8")
        assert has_group(child.pid)
    finally:
        child.kill()
        child.wait()
    assert not has_group(child.pid)
    assert not has_mark(child.pid, "7-8-9")


def test_a_limit_is_never_raised() -> None:
    before = resource.getrlimit(resource.RLIMIT_CORE)
    lower(resource.RLIMIT_CORE, before[1] if before[1] != resource.RLIM_INFINITY else 0)
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    lower(resource.RLIMIT_CORE, hard + 1 if hard >= 0 else 0)
    assert resource.getrlimit(resource.RLIMIT_CORE) == (soft, hard)


@pytest.fixture
def poor_spawner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A spawner without prctl and waitid, as on macOS."""
    program = tmp_path / "poor.py"
    program.write_text(
        textwrap.dedent(f"""
            import sys
            sys.path.insert(0, {str(cli_spawner.PROGRAM.parent)!r})
            import cli_spawner_program as program
            program.CAN_LOOK = False
            program.Prctl = lambda: None
            sys.exit(program.main(sys.argv))
        """)
    )
    monkeypatch.setattr(cli_spawner, "PROGRAM", program)


@pytest.mark.usefixtures("poor_spawner")
@pytest.mark.parametrize(
    ("command", "status", "is_cancelled"),
    [
        (tool("say"), RunEnd.OK, False),
        (tool("holder"), RunEnd.OK, False),
        (tool("fail", "3", "x"), RunEnd.REFUSED, False),
        (tool("die", "9"), RunEnd.REFUSED, False),
        (tool("stubborn"), RunEnd.CANCELLED, True),
        (tool("family"), RunEnd.CANCELLED, True),
    ],
)
@on_uvloop
async def test_groups_end_without_linuxs_help(command: list[str], status: int, is_cancelled: bool) -> None:
    async with cli_bench(command) as bench:
        sink = bench.start()
        if is_cancelled:
            await until(lambda: sink.text != "", "it runs")
            assert sink.handle is not None
            sink.handle.cancel()
        end = await sink.ended()
        assert end.status == status
        # Their own parent being gone, the rest of a group is reaped by init in its own time.
        await until(lambda: bench.marked() == [], "the group is gone")


def test_the_program_runs_without_site_packages_and_obeys_no_signal_but_the_end_of_its_link() -> None:
    near, far = socket.socketpair()
    with near:
        with far:
            spawner = subprocess.Popen(
                [sys.executable, "-I", "-S", str(cli_spawner.PROGRAM), str(far.fileno())],
                pass_fds=(far.fileno(),),
                env={},
            )
        near.settimeout(5)
        unknown = b'{"do": "signal", "run": 1, "signal": 15}'
        order = b'{"do": "spawn", "run": 2, "mark": "m", "path": "/no/such", "argv": ["x"], "environment": {},'
        order += b' "directory": "/", "is_scratch": false, "limits": []}'
        for _ in range(2):
            near.sendall(HEADER.pack(len(unknown)) + unknown)
            nulls = [os.open(os.devnull, os.O_RDWR) for _ in range(3)]
            socket.send_fds(near, [HEADER.pack(len(order)) + order], nulls)
            for fd in nulls:
                os.close(fd)
            size = HEADER.unpack(near.recv(HEADER.size))[0]
            assert near.recv(size) == b'{"failed": 2, "step": "exec", "errno": 2}'
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                spawner.send_signal(number)
    assert spawner.wait(5) == 0
