"""When requests are due: a fixed schedule that no slow answer moves.

A closed-loop client that waits for an answer before it sends again asks a stalled server nothing, and so leaves the
worst times out of its own figures (coordinated omission). Here each request has an intended start; its latency counts
from there, whether it could be sent then or had to wait for a free connection, and what has not ended when the run ends
counts with the age that it has by then.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

NS_PER_S = 1_000_000_000

Connection = TypeVar("Connection")

_CLOCK_MONOTONIC = 1
_TFD_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC
_TFD_TIMER_ABSTIME = 1


class _Timespec(ctypes.Structure):
    _fields_ = [("sec", ctypes.c_long), ("nsec", ctypes.c_long)]


class _Itimerspec(ctypes.Structure):
    _fields_ = [("interval", _Timespec), ("value", _Timespec)]


def _spec(ns: int) -> _Timespec:
    return _Timespec(ns // NS_PER_S, ns % NS_PER_S)


class Metronome:
    """Calls back at start + k * interval, by a timerfd: the timers of event loops know milliseconds only."""

    def __init__(self, interval_ns: int, on_beats: Callable[[int], None]) -> None:
        """`on_beats(number)` gets how many beats have fallen due since the last call."""
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._interval_ns = interval_ns
        self._on_beats = on_beats
        self._loop = asyncio.get_running_loop()
        self._fd = self._libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_FLAGS)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")

    def start(self, first_ns: int) -> None:
        """Beat from `first_ns` of the monotonic clock on."""
        spec = _Itimerspec(_spec(self._interval_ns), _spec(first_ns))
        if self._libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, ctypes.byref(spec), None):
            raise OSError(ctypes.get_errno(), "timerfd_settime failed")
        self._loop.add_reader(self._fd, self._on_readable)

    def stop(self) -> None:
        """Beat no more."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _on_readable(self) -> None:
        try:
            beats = int.from_bytes(os.read(self._fd, 8), "little")
        except BlockingIOError:  # a spurious wake-up
            return
        self._on_beats(beats)


class OpenLoop(Generic[Connection]):
    """Requests that are due, the connections that are free, and what came of both. Decides; sends by a callback.

    It reads no clock: every call says what time it is.
    """

    def __init__(self, first_ns: int, interval_ns: int, send: Callable[[Connection, int], None]) -> None:
        """Request k is due at first + k * interval; `send(connection, intended_ns)` sends one."""
        self._next_ns = first_ns
        self._interval_ns = interval_ns
        self._send = send
        self._free: deque[Connection] = deque()
        self._waiting: deque[int] = deque()
        self._running: dict[Connection, int] = {}
        self.offered = 0
        self.late_ns: list[int] = []

    def on_free(self, connection: Connection, now_ns: int) -> None:
        """A connection can take a request."""
        if self._waiting:
            self._begin(connection, self._waiting.popleft(), now_ns)
        else:
            self._free.append(connection)

    def on_beats(self, beats: int, now_ns: int) -> None:
        """So many further requests are due."""
        for _ in range(beats):
            intended = self._next_ns
            self._next_ns += self._interval_ns
            self.offered += 1
            if self._free:
                self._begin(self._free.popleft(), intended, now_ns)
            else:
                self._waiting.append(intended)

    def on_end(self, connection: Connection, now_ns: int) -> int:
        """The request on a connection has ended; return its latency from its intended start."""
        return now_ns - self._running.pop(connection)

    def unfinished(self, now_ns: int) -> list[int]:
        """Ages of all requests that were due and have not ended."""
        return [now_ns - due for due in (*self._running.values(), *self._waiting)]

    def _begin(self, connection: Connection, intended_ns: int, now_ns: int) -> None:
        self._running[connection] = intended_ns
        self.late_ns.append(now_ns - intended_ns)
        self._send(connection, intended_ns)


def now_ns() -> int:
    """The clock of the load runs; upstream and client read the same one."""
    return time.monotonic_ns()
