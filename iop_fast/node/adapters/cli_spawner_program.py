"""The spawner: a small process that starts a profile's programs for the Node and ends them, whatever happens.

Run as a script, `python -I -S cli_spawner_program.py FD`: it imports nothing of ours and little of Python's, and
it has one thread, so that it may fork. FD is a stream socket to the Node. The Node decides everything (when to start,
which signal, when a run is over); this process carries it out and says what became of it. `cli_spawner` is the other
end, and its `Order` the form of an order.

One run:

    spawn     a child is forked, leads a session and a process group of its own, takes its limits and executes the
              program; its report pipe closes on exec. "started", or "failed" with the step and errno
    exited    the program has exited. It is not reaped: as long as it is a zombie nobody else gets its number, so the
              group can be signalled without hitting a stranger
    finish    SIGKILL to the group; the program is reaped; what escaped from the group is killed; "gone" is the last
              word about the run, and nothing of it is left then

What escapes. On Linux this process is a child subreaper: what loses its parent becomes its child, in whatever session
it is. At finish, children are killed which are of the run's session or have its IOP_RUN in their environment, until
there are none; those that hide both are killed when no run is left. Elsewhere (macOS) a process that leaves its group
by setsid stays.

What must not happen: a program that outlives the Node. The socket closes when the Node is gone, however it went: then
every run gets SIGTERM, a second, and its finish, and directories that are a run's own are removed. Should this process
be killed, the programs die with it on Linux (PR_SET_PDEATHSIG) and the Node kills their groups.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import time

TYPE_CHECKING = False  # typing is not imported: this process starts while a request waits
if TYPE_CHECKING:
    from typing import Any

HEADER = struct.Struct(">I")
FDS_OF_A_SPAWN = 3

# How long a finish looks for what escaped, and how often; how long programs get after SIGTERM when the Node is gone.
FINISH_LIMIT_S = 1.0
FINISH_TICK_S = 0.02
FAREWELL_S = 1.0

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

# Signals that Python or this process ignores: a program must find them as usual.
RESTORED = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
CAN_LOOK = hasattr(os, "waitid")  # macOS: from Python 3.13 on

MARK = "IOP_RUN"


class Child:
    """A program of one run. `report` is the read end of its report pipe until it has executed."""

    def __init__(self, run: int, pid: int, report: int, mark: str) -> None:
        self.run = run
        self.pid = pid
        self.report = report
        self.mark = mark
        self.has_exited = False
        self.is_reaped = False
        self.finish_by_s = 0.0  # 0: no finish was asked for


class Spawner:
    """The loop. `prctl` is None where there is none."""

    def __init__(self, link: socket.socket, wakeup: int, prctl: Prctl | None) -> None:
        self.link = link
        self.wakeup = wakeup
        self.prctl = prctl
        self.is_subreaper = prctl is not None and prctl(PR_SET_CHILD_SUBREAPER, 1)
        self.children: dict[int, Child] = {}
        self.reports: dict[int, Child] = {}
        self.scratch: dict[int, list[str]] = {}  # directories of their own of the runs that are not over
        self.poller = select.poll()
        self.poller.register(link, select.POLLIN)
        self.poller.register(wakeup, select.POLLIN)

    def serve(self) -> None:
        """Carry out orders until the Node is gone."""
        while self.turn(self.is_finishing()):
            pass

    def turn(self, has_tick: bool) -> bool:
        """Wait for one thing to happen and see to it; False when the Node is gone."""
        is_linked = True
        for fd, _ in self.poller.poll(FINISH_TICK_S * 1000 if has_tick else None):
            if fd == self.wakeup:
                os.read(fd, 4096)
                self.look()
            elif fd in self.reports:
                self.read_report(self.reports[fd])
            else:
                is_linked = self.read_order()
        for child in [child for child in self.children.values() if child.finish_by_s]:
            self.try_finish(child)
        return is_linked

    def is_finishing(self) -> bool:
        """True while a finish waits for something that no signal may tell of."""
        return any(child.finish_by_s for child in self.children.values())

    # Orders.

    def read_order(self) -> bool:
        """Read one order with its descriptors and carry it out."""
        header, fds = receive_header(self.link)
        for fd in fds:
            os.set_inheritable(fd, False)
        body = receive(self.link, HEADER.unpack(header)[0]) if header else b""
        if not body:
            return False
        order = json.loads(body)
        child = self.children.get(order["run"])
        if order["do"] == "spawn":
            self.spawn(order, fds)
        elif child is None:
            pass  # it failed to start while the order was on its way
        elif order["do"] == "signal":
            self.signal(child, order["signal"])
        else:
            child.finish_by_s = time.monotonic() + FINISH_LIMIT_S
            self.signal(child, signal.SIGKILL)
        return True

    def spawn(self, order: dict[str, Any], fds: list[int]) -> None:
        """Fork a child that becomes the program."""
        run = order["run"]
        assert len(fds) == FDS_OF_A_SPAWN, "an order without its descriptors"
        self.scratch[run] = [order["directory"]] if order["is_scratch"] else []
        report, mine = os.pipe()
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            os.close(report)
            self.tell(failed=run, step="fork", errno=error.errno)
        else:
            if pid == 0:
                become(order, fds, mine, parent, self.prctl)
            child = self.children[run] = self.reports[report] = Child(run, pid, report, order["mark"])
            self.poller.register(child.report, select.POLLIN)
        os.close(mine)
        for fd in fds:
            os.close(fd)

    def read_report(self, child: Child) -> None:
        """Take the report of a child: nothing when it has executed the program."""
        said = os.read(child.report, 4096)
        self.poller.unregister(child.report)
        del self.reports[child.report]
        os.close(child.report)
        if said:
            step, _, number = said.decode().partition(" ")
            os.waitpid(child.pid, 0)  # it exits right after its report
            del self.children[child.run]
            self.tell(failed=child.run, step=step, errno=int(number))
        else:
            self.tell(started=child.run, pid=child.pid)
            self.look()  # it may have exited before this was read

    def signal(self, child: Child, number: int) -> None:
        """Send a signal to the whole group; a stopped one goes on, to die of it."""
        if child.is_reaped and CAN_LOOK:
            return  # nothing keeps its number any more; without a look it was reaped at its exit, and the group is left
        for one in (number, signal.SIGCONT):
            try:
                os.killpg(child.pid, one)
            except ProcessLookupError:
                # Forked and not yet the leader of a group.
                if not child.has_exited:
                    os.kill(child.pid, one)
            except PermissionError:
                pass  # macOS: nothing in the group but zombies, or processes of another user

    def tell(self, **said: Any) -> None:
        """Say something to the Node, which sees to a run's directory once it hears that the run is over."""
        for word in ("gone", "failed"):
            if word in said:
                del self.scratch[said[word]]
        body = json.dumps(said).encode()
        self.link.sendall(HEADER.pack(len(body)) + body)

    # Exits.

    def look(self) -> None:
        """See who has exited, and reap what this process inherited."""
        for child in list(self.children.values()):
            if child.has_exited or child.report in self.reports:
                continue
            status = peek(child.pid) if CAN_LOOK else reap(child.pid)
            if status is not None:
                child.has_exited = True
                child.is_reaped = not CAN_LOOK
                self.tell(exited=child.run, code=status)
        if self.is_subreaper:
            self.reap_inherited()

    def reap_inherited(self) -> None:
        """Reap what has exited and is no program of ours. One of ours that waits for its finish hides what is behind
        it in the kernel's list, until then."""
        ours = {child.pid for child in self.children.values()}
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if found is None or found.si_pid in ours:
                return
            reap(found.si_pid)

    def try_finish(self, child: Child) -> None:
        """Take a run one step nearer to its end, and say when nothing is left of it."""
        if child.report in self.reports or not child.has_exited:
            return
        if not child.is_reaped:
            os.waitpid(child.pid, 0)
            child.is_reaped = True
        left = 0
        if self.is_subreaper:
            del self.children[child.run]
            self.reap_inherited()
            left = self.kill_escaped(child) + has_group(child.pid)
            self.children[child.run] = child
        if left and time.monotonic() < child.finish_by_s:
            return
        del self.children[child.run]
        self.tell(gone=child.run, left=left)

    def kill_escaped(self, child: Child) -> int:
        """Kill what this process inherited from a run; the number of those found. (The run itself is not in the table
        meanwhile.)"""
        if has_no_children():
            return 0
        ours = {other.pid for other in self.children.values()}
        found = 0
        for pid, session in children_of(os.getpid()):
            if pid in ours:
                continue
            if session == child.pid or not ours or has_mark(pid, child.mark):
                found += 1
                try:
                    os.kill(pid, signal.SIGKILL)
                except (ProcessLookupError, PermissionError):
                    found -= 1
                reap(pid)
        return found

    # The end.

    def end_all(self) -> None:
        """End every run: the Node is gone. Nobody hears of it."""
        self.poller.unregister(self.link)
        self.tell = silent  # type: ignore[method-assign]
        scratch = [directory for own in self.scratch.values() for directory in own]
        for child in self.children.values():
            self.signal(child, signal.SIGTERM)
        end_s = time.monotonic() + FAREWELL_S
        while time.monotonic() < end_s and any(not child.has_exited for child in self.children.values()):
            self.turn(has_tick=True)
        for child in self.children.values():
            child.finish_by_s = time.monotonic() + FINISH_LIMIT_S
            self.signal(child, signal.SIGKILL)
        end_s = time.monotonic() + FINISH_LIMIT_S + FAREWELL_S
        while self.children and time.monotonic() < end_s:
            self.turn(has_tick=True)
        remove_trees(scratch)


def remove_trees(directories: list[str]) -> None:
    """Remove directories and what is in them, as far as that can be done: nobody is left to be told."""
    import shutil  # only for an end that nobody orders

    for directory in directories:
        shutil.rmtree(directory, ignore_errors=True)


def silent(**_: Any) -> None:
    """Nobody listens any more."""


def become(order: dict[str, Any], fds: list[int], report: int, parent: int, prctl: Prctl | None) -> None:
    """In the child: take descriptors, directory and limits, then execute the program. Never returns."""
    step = "setsid"
    try:
        os.setsid()
        if prctl is not None:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)  # the spawner died before the kernel knew
        for number, fd in enumerate(fds):
            os.dup2(fd, number)
        signal.set_wakeup_fd(-1)
        for one in RESTORED:
            signal.signal(one, signal.SIG_DFL)
        step = "chdir"
        os.chdir(order["directory"])
        for name, value in order["limits"]:
            step = name
            lower(getattr(resource, name), value)
        step = "exec"
        os.execve(order["path"], order["argv"], order["environment"])
    except OSError as error:
        os.write(report, f"{step} {error.errno}".encode())
    except BaseException:  # noqa: BLE001 - whatever it is, a child of a fork must not go on in its parent's code
        os.write(report, f"{step} 0".encode())
    finally:
        os._exit(127)


def lower(limit: int, value: int) -> None:
    """Set a resource limit, soft and hard; never above the hard one that there is."""
    _, hard = resource.getrlimit(limit)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(limit, (value, value))


def peek(pid: int) -> int | None:
    """Return how a child exited without reaping it: its code, or the negative number of the signal; None if it runs."""
    found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if found is None:
        return None
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


def reap(pid: int) -> int | None:
    """Reap a child if it has exited and return how, as `peek` does."""
    try:
        found, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None
    return os.waitstatus_to_exitcode(status) if found else None


def has_group(group: int) -> bool:
    """True while a process group has members."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def has_no_children() -> bool:
    """True when this process has no child at all, which is quicker to learn than which ones it has."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return False


def children_of(parent: int) -> list[tuple[int, int]]:
    """Return (pid, session) of every child of a process, from /proc."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                # The name in parentheses may hold anything; state, parent, group and session follow its last one.
                fields = file.read(4096).rpartition(b")")[2].split()
        except OSError:
            continue  # it is gone
        if int(fields[1]) == parent:
            found.append((int(name), int(fields[3])))
    return found


def has_mark(pid: int, mark: str) -> bool:
    """True when a process was started with a run's mark in its environment."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return f"{MARK}={mark}".encode() in file.read().split(b"\0")
    except OSError:
        return False


def receive_header(link: socket.socket) -> tuple[bytes, list[int]]:
    """Receive an order's header and the descriptors that come with its first byte; (b"", []) at the end."""
    header, fds, _, _ = socket.recv_fds(link, HEADER.size, FDS_OF_A_SPAWN)
    if not header:
        return b"", []
    rest = receive(link, HEADER.size - len(header))
    return header + rest, list(fds)


def receive(link: socket.socket, size: int) -> bytes:
    """Receive so many bytes; b"" when the stream ends before."""
    pieces = bytearray()
    while len(pieces) < size:
        piece = link.recv(size - len(pieces))
        if not piece:
            return b""
        pieces += piece
    return bytes(pieces)


class Prctl:
    """Linux's prctl for calls with one whole number."""

    def __init__(self) -> None:
        import ctypes  # only Linux has what it is for

        self._call = ctypes.CDLL(None, use_errno=True).prctl

    def __call__(self, option: int, value: int) -> bool:
        """True when the kernel took it."""
        return bool(self._call(option, value, 0, 0, 0) == 0)


def main(argv: list[str]) -> int:
    """Serve the socket FD until the Node is gone."""
    link = socket.socket(fileno=int(argv[1]))
    link.set_inheritable(False)  # no program may hold it
    read, write = os.pipe()
    os.set_blocking(write, False)
    os.set_blocking(read, False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # only the Node ends this process
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    spawner = Spawner(link, read, Prctl() if sys.platform == "linux" else None)
    try:
        spawner.serve()
    except (BrokenPipeError, ConnectionResetError):
        pass  # the Node is gone, and something was to be said to it
    finally:
        spawner.end_all()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
