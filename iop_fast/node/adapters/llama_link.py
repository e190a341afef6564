"""The Node's end of a worker: its process, the channel to it, what it says on its standard error, and its end.

A process of its own, since xllamacpp holds Python's lock for as long as it sets a model up, and since what crashes in
native code takes its process along. It is started with few of the Node's variables and no descriptor but the channel.

A link is one process. It is gone when the channel has ended and the process is reaped: then `on_gone` is called once,
with how it ended, behind every frame that it had sent. A thread waits for the exit, so the loop waits for nothing:
each turn reads at most READ_BYTES of a channel and as much of what is said on standard error.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from threading import Thread
from typing import Any, Protocol

from iop_fast import logs
from iop_fast.node.adapters.llama_channel import Frame, Unpacker, pack

log = logs.get(__name__)

PROGRAM = "iop_fast.node.adapters.llama_worker"
READ_BYTES = 32_768
# What a worker gets after SIGTERM, and what the kernel gets after SIGKILL: a driver may hold a process for a while.
TERM_LIMIT_S = 5.0
KILL_LIMIT_S = 5.0

# What a worker gets of the Node's environment: where things are, and the settings of libraries that compute.
KEPT = frozenset({"HOME", "LANG", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "PATH", "TMPDIR", "TZ", "USER"})
KEPT_PREFIXES = (
    *("LC_", "PYTHON", "XDG_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_"),
    *("GGML_", "CUDA_", "NVIDIA_", "HIP_", "HSA_", "ROCR_", "GPU_", "VK_", "MTL_", "ONEAPI_", "SYCL_", "ZE_", "ZES_"),
)

# Reads that empty a pipe: its last words stand at the end.
LAST_READS = 4
# Lines of standard error go to the log, so many in so many seconds; longer ones are cut.
LINES_MAX = 20
LINES_S = 10.0
LINE_BYTES = 2_000
LAST_LINE_CHARACTERS = 200


class Listener(Protocol):
    """Who speaks with a worker."""

    def on_frame(self, frame: Frame) -> None:
        """The worker says something."""
        ...

    def on_gone(self, how: str) -> None:
        """The worker is no more."""
        ...


class WorkerLink:
    """A worker's process, started when this is made; raises OSError. Of the event loop's thread, but for `_wait`."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, listener: Listener, environ: Mapping[str, str], name: str
    ) -> None:
        self._loop = loop
        self._listener = listener
        self._name = name
        self._unpacker = Unpacker()
        self._outgoing: deque[memoryview] = deque()
        self._is_writing = False
        self._code: int | None = None
        self._gone = loop.create_future()
        self._killer: asyncio.TimerHandle | None = None
        self._channel, self._process = started(environ)
        assert self._process.stderr is not None, "a worker without its standard error"
        self._errors = self._process.stderr.fileno()
        os.set_blocking(self._errors, False)
        self._lines = SaidLines(loop, name)
        loop.add_reader(self._channel, self._on_readable)
        loop.add_reader(self._errors, self._on_errors)
        Thread(target=self._wait, name=f"waits for {self._process.pid}", daemon=True).start()

    def __repr__(self) -> str:
        return f"<WorkerLink {self._name} pid {self.pid}>"

    @property
    def pid(self) -> int:
        """The worker's process."""
        return self._process.pid

    def send(self, head: Mapping[str, Any], tail: bytes = b"") -> None:
        """Send a frame; one for a worker that is gone is dropped."""
        if self._channel.fileno() < 0:
            return
        self._outgoing.append(memoryview(pack(head, tail)))
        if not self._is_writing:
            self._write()

    def end(self) -> None:
        """Have the process end; `on_gone` says that it has. Idempotent."""
        if self._killer is None and not self._gone.done():
            self._killer = self._loop.call_later(TERM_LIMIT_S, self._kill)
            self._process.terminate()

    async def ended(self) -> None:
        """Wait for the end that was asked for, as long as it may take."""
        await asyncio.wait([self._gone], timeout=TERM_LIMIT_S + KILL_LIMIT_S)
        if not self._gone.done():
            log.error("worker_not_ended", model=self._name, pid=self.pid)

    def _kill(self) -> None:
        log.warning("worker_killed", model=self._name, pid=self.pid)
        self._process.kill()

    # The channel.

    def _on_readable(self) -> None:
        try:
            piece = self._channel.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        if not piece:
            self._close_channel()
            self._process.kill()  # it exits, or has lost its head
            self._look()
            return
        for frame in self._unpacker.feed(piece):
            self._listener.on_frame(frame)

    def _write(self) -> None:
        """Send what is queued as far as the socket takes it."""
        while self._outgoing:
            rest = self._outgoing[0]
            try:
                sent = self._channel.send(rest)
            except BlockingIOError:
                break
            except OSError:
                self._outgoing.clear()  # what the worker has said is still read
                break
            if sent == len(rest):
                self._outgoing.popleft()
            else:
                self._outgoing[0] = rest[sent:]
        if bool(self._outgoing) != self._is_writing:
            self._is_writing = not self._is_writing
            if self._is_writing:
                self._loop.add_writer(self._channel, self._write)
            else:
                self._loop.remove_writer(self._channel)

    def _close_channel(self) -> None:
        self._loop.remove_reader(self._channel)
        if self._is_writing:
            self._is_writing = False
            self._loop.remove_writer(self._channel)
        self._outgoing.clear()
        self._channel.close()

    # Standard error.

    def _on_errors(self) -> None:
        try:
            piece = os.read(self._errors, READ_BYTES)
        except BlockingIOError:
            return
        if piece:
            self._lines.feed(piece)
        else:
            self._loop.remove_reader(self._errors)

    # The end.

    def _wait(self) -> None:
        """Wait for the exit, in a thread."""
        code = self._process.wait()
        with suppress(RuntimeError):  # the loop is closed: there is nobody to tell
            self._loop.call_soon_threadsafe(self._on_exited, code)

    def _on_exited(self, code: int) -> None:
        self._code = code
        self._look()

    def _look(self) -> None:
        """Say that it is gone, when nothing more can come."""
        if self._code is None or self._channel.fileno() >= 0:
            return
        for _ in range(LAST_READS):
            self._on_errors()
        self._loop.remove_reader(self._errors)
        assert self._process.stderr is not None, "a worker without its standard error"
        self._process.stderr.close()
        if self._killer is not None:
            self._killer.cancel()
        how = ended_how(self._code)
        last = self._lines.last()
        self._gone.set_result(None)
        self._listener.on_gone(f"{how}: {last}" if last else how)


class SaidLines:
    """What a worker says on its standard error: logged within bounds, the last line kept."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self._loop = loop
        self._name = name
        self._rest = b""
        self._last = b""
        self._since_s = loop.time()
        self._logged = 0
        self._left_out = 0

    def feed(self, piece: bytes) -> None:
        """Take a piece."""
        *lines, rest = (self._rest + piece).split(b"\n")
        self._rest = rest[:LINE_BYTES]
        for line in lines:
            self._take(line[:LINE_BYTES])

    def last(self) -> str:
        """Return the last line, whole or not, cut."""
        line = self._rest.strip() or self._last
        return text_of(line)[:LAST_LINE_CHARACTERS]

    def _take(self, line: bytes) -> None:
        line = line.strip()
        if not line:
            return
        self._last = line
        now_s = self._loop.time()
        if now_s - self._since_s >= LINES_S:
            if self._left_out:
                log.warning("worker_lines_left_out", model=self._name, lines=self._left_out)
            self._since_s, self._logged, self._left_out = now_s, 0, 0
        if self._logged < LINES_MAX:
            self._logged += 1
            log.info("worker_said", model=self._name, line=text_of(line))
        else:
            self._left_out += 1


def text_of(line: bytes) -> str:
    """Return a line as text that may stand in a log and in a reason."""
    return line.decode("utf-8", "replace")


def started(environ: Mapping[str, str]) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Start a worker; return the channel to it and its process. Raises OSError."""
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", PROGRAM, str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=(theirs.fileno(),),
                cwd="/",
                env=reduced(environ),
                start_new_session=True,
            )
        except OSError:
            ours.close()
            raise
    ours.setblocking(False)
    return ours, process


def reduced(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what a worker gets of an environment. llama.cpp's last words are why it aborts, not where: its backtrace
    starts a debugger."""
    kept = {name: value for name, value in environ.items() if name in KEPT or name.startswith(KEPT_PREFIXES)}
    return {"GGML_NO_BACKTRACE": "1"} | kept


def ended_how(code: int) -> str:
    """Say how a process ended."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"ended by signal {-code}"
