"""The Node's end of a spawner: orders out, news in. The other end is `cli_spawner_program`, whose head says what each
order does and what may come of it.

Why a process of its own. A Node has gRPC's threads, so between fork and exec it may run nothing but what the C library
promises to be safe: no limits, no signals, no Python. uvloop's subprocesses fork there all the same, keep SIGCHLD for
themselves and say nothing of processes that a program leaves behind. The spawner is small and has one thread: it forks
in well under a millisecond, sets limits in the child, reaps what programs orphan, and ends everything when its socket
closes, which no death of the Node can prevent.

A `SpawnerLink` starts its process with the first order and again when it has died. Descriptors in an order belong to
the link from `start` on: it closes them when they are on their way.

Listeners. After `start` a run hears exactly one of on_started and on_failed, unless on_gone comes first; on_exited at
most once, after on_started; then on_gone, once, after `finish`. on_failed and on_gone are last words. If the spawner
itself dies every run hears on_gone at once, and its group is killed from here.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from iop_fast import logs
from iop_fast.node.adapters.cli_spawner_program import HEADER, MARK

log = logs.get(__name__)

PROGRAM = Path(__file__).with_name("cli_spawner_program.py")
READ_BYTES = 65_536
# The spawner gives programs a second after SIGTERM and two to what remains; then it is killed itself.
CLOSE_LIMIT_S = 4.0
REAP_TICK_S = 0.005
# What an interpreter may need to find its own library. Programs do not get the spawner's environment.
LOADER_VARIABLES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")


class Order(NamedTuple):
    """A program to start. `limits` are names of resource.RLIMIT_* with the value of both, soft and hard.

    A directory that `is_scratch` belongs to this run alone: who orders removes it, or the spawner should the Node die.
    """

    path: str
    argv: Sequence[str]
    environment: Mapping[str, str]
    directory: str
    is_scratch: bool
    limits: Sequence[tuple[str, int]]


class Listener(Protocol):
    """Who wants to know what becomes of a program."""

    def on_started(self) -> None:
        """The program was executed."""
        ...

    def on_failed(self, step: str, number: int) -> None:
        """It was not: the step that failed and its errno."""
        ...

    def on_exited(self, code: int) -> None:
        """It has exited: its code, or the negative number of the signal that killed it."""
        ...

    def on_gone(self, left: int) -> None:
        """It is reaped and its group is no more. `left` counts processes that could not be killed in time."""
        ...


class Program:
    """A started program, as whoever started it holds it."""

    __slots__ = ("_link", "listener", "number", "pid")

    def __init__(self, link: SpawnerLink, number: int, listener: Listener) -> None:
        self._link = link
        self.number = number
        self.listener = listener
        self.pid = 0  # from on_started on

    def signal(self, number: int) -> None:
        """Send a signal to the program's group."""
        self._link.order(do="signal", run=self.number, signal=number)

    def finish(self) -> None:
        """Kill what is left and be told when it is gone."""
        self._link.order(do="finish", run=self.number)


class SpawnerLink:
    """A spawner, started when it is needed. Of the event loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._numbers = count(1)
        self._programs: dict[int, Program] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._link: socket.socket | None = None
        self._outgoing: deque[tuple[memoryview, Sequence[int]]] = deque()
        self._incoming = bytearray()
        self._is_writing = False
        self._reaping: dict[asyncio.Future[None], None] = {}
        self._lost: asyncio.Future[None] | None = None  # close() waits

    def __repr__(self) -> str:
        pid = None if self._process is None else self._process.pid
        return f"<SpawnerLink pid {pid}, {len(self._programs)} programs>"

    @property
    def pid(self) -> int | None:
        """The spawner's process; None while there is none."""
        return None if self._process is None else self._process.pid

    def start(self, order: Order, fds: tuple[int, int, int], listener: Listener) -> Program:
        """Start a program with these as its standard input, output and error; raise OSError if no spawner can be had.

        The descriptors are closed in either case.
        """
        number = next(self._numbers)
        if self._link is None:
            try:
                self._open()
            except OSError:
                close_all(fds)
                raise
        mark = f"{os.getpid()}-{id(self):x}-{number}"
        program = self._programs[number] = Program(self, number, listener)
        self.order(
            fds=fds,
            do="spawn",
            run=number,
            mark=mark,
            path=order.path,
            argv=list(order.argv),
            environment={**order.environment, MARK: mark},
            directory=order.directory,
            is_scratch=order.is_scratch,
            limits=list(order.limits),
        )
        return program

    def order(self, *, fds: Sequence[int] = (), **order: Any) -> None:
        """Queue an order. One for a spawner that is gone is dropped: its programs were told."""
        if self._link is None:
            close_all(fds)
            return
        body = json.dumps(order).encode()
        self._outgoing.append((memoryview(HEADER.pack(len(body)) + body), fds))
        if not self._is_writing:
            self._write()

    async def close(self) -> None:
        """End every program and the spawner. At most CLOSE_LIMIT_S, and what the kernel takes."""
        process, link = self._process, self._link
        if link is not None and process is not None:
            self._lost = self._loop.create_future()
            with suppress(OSError):
                link.shutdown(socket.SHUT_WR)  # the spawner ends everything, then closes its side
            await asyncio.wait((self._lost,), timeout=CLOSE_LIMIT_S)
            if self._link is not None:
                log.error("spawner_killed", pid=process.pid)
                process.kill()
                self._on_lost()
        if self._reaping:
            await asyncio.wait(list(self._reaping))

    # The process.

    def _open(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(PROGRAM), str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    cwd="/",
                    env={name: os.environ[name] for name in LOADER_VARIABLES if name in os.environ},
                    start_new_session=True,
                )
            except OSError:
                ours.close()
                raise
        ours.setblocking(False)
        self._link = ours
        self._loop.add_reader(ours, self._on_readable)
        log.info("spawner_started", pid=self._process.pid)

    def _on_lost(self) -> None:
        """The spawner is gone: so are its programs, or they are killed from here."""
        link, process = self._link, self._process
        if link is None or process is None:
            return
        self._link = self._process = None
        self._loop.remove_reader(link)
        if self._is_writing:
            self._is_writing = False
            self._loop.remove_writer(link)
        link.close()
        self._incoming.clear()
        for _, fds in self._outgoing:
            close_all(fds)
        self._outgoing.clear()
        reaped = self._loop.create_future()
        self._reaping[reaped] = None
        reaped.add_done_callback(self._reaping.__delitem__)
        self._reap(process, reaped)
        programs, self._programs = self._programs, {}
        if self._lost is None:
            log.error("spawner_lost", pid=process.pid, programs=len(programs))
        elif not self._lost.done():
            self._lost.set_result(None)
        for program in programs.values():
            if program.pid:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(program.pid, signal.SIGKILL)
            program.listener.on_gone(0)

    def _reap(self, process: subprocess.Popen[bytes], reaped: asyncio.Future[None]) -> None:
        """Reap a spawner that has closed its side: it has exited, or is about to."""
        if process.poll() is None:
            self._loop.call_later(REAP_TICK_S, self._reap, process, reaped)
        else:
            reaped.set_result(None)

    # Orders out.

    def _write(self) -> None:
        """Send what is queued as far as the socket takes it."""
        link = self._link
        assert link is not None, "orders without a spawner"
        while self._outgoing:
            rest, fds = self._outgoing[0]
            try:
                # The receiver takes the descriptors with the first byte, before anything behind it.
                sent = socket.send_fds(link, [rest], fds) if fds else link.send(rest)
            except BlockingIOError:
                break
            except OSError:
                self._loop.call_soon(self._on_lost)
                break
            close_all(fds)
            if sent == len(rest):
                self._outgoing.popleft()
            else:
                self._outgoing[0] = (rest[sent:], ())
        if bool(self._outgoing) != self._is_writing:
            self._is_writing = not self._is_writing
            if self._is_writing:
                self._loop.add_writer(link, self._write)
            else:
                self._loop.remove_writer(link)

    # News in.

    def _on_readable(self) -> None:
        link = self._link
        assert link is not None, "news without a spawner"
        try:
            piece = link.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        if not piece:
            self._on_lost()
            return
        self._incoming += piece
        while len(self._incoming) >= HEADER.size:
            end = HEADER.size + HEADER.unpack_from(self._incoming)[0]
            if len(self._incoming) < end:
                return
            said = json.loads(self._incoming[HEADER.size : end])
            del self._incoming[:end]
            self._hear(said)

    def _hear(self, said: Mapping[str, Any]) -> None:
        """Pass one piece of news on."""
        if "started" in said:
            program = self._programs[said["started"]]
            program.pid = said["pid"]
            program.listener.on_started()
        elif "failed" in said:
            self._programs.pop(said["failed"]).listener.on_failed(said["step"], said["errno"])
        elif "exited" in said:
            self._programs[said["exited"]].listener.on_exited(said["code"])
        else:
            self._programs.pop(said["gone"]).listener.on_gone(said["left"])


def close_all(fds: Sequence[int]) -> None:
    """Close descriptors."""
    for fd in fds:
        os.close(fd)
