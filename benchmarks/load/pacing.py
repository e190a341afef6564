"""When requests are due: a fixed schedule that no slow answer moves.

A closed-loop client that waits for an answer before it sends again asks a stalled server nothing, and so leaves the
worst times out of its own figures (coordinated omission). Here each request has an intended start; its latency counts
from there, whether it could be sent then or had to wait for a free connection, and what has not ended when the run ends
counts with the age that it has by then.
"""

from __future__ import annotations

import asyncio
import ctypes
import heapq
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
        """`on_beats(number)` gets how many beats have fallen due since the last call; one beat alone for interval 0."""
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._interval_ns = interval_ns
        self._on_beats = on_beats
        self._loop = asyncio.get_running_loop()
        self._fd = self._libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_FLAGS)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        self._loop.add_reader(self._fd, self._on_readable)

    def start(self, first_ns: int) -> None:
        """Beat from `first_ns` of the monotonic clock on, and no more at what was set before."""
        spec = _Itimerspec(_spec(self._interval_ns), _spec(first_ns))
        if self._libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, ctypes.byref(spec), None):
            raise OSError(ctypes.get_errno(), "timerfd_settime failed")

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


class Alarm:
    """Calls things at times of the monotonic clock, to some 50 us: one timerfd, set to the first of them."""

    def __init__(self) -> None:
        self._timer = Metronome(0, self._on_due)
        self._waiting: list[tuple[int, int, Callable[[], None]]] = []
        self._number = 0

    def at(self, due_ns: int, call: Callable[[], None]) -> None:
        """Call at `due_ns`; things of one time in the order in which they came."""
        is_first = not self._waiting or due_ns < self._waiting[0][0]
        heapq.heappush(self._waiting, (due_ns, self._number, call))
        self._number += 1
        if is_first:
            self._timer.start(due_ns)

    def stop(self) -> None:
        """Call nothing more."""
        self._timer.stop()

    def _on_due(self, beats: int) -> None:
        while self._waiting and self._waiting[0][0] <= now_ns():
            heapq.heappop(self._waiting)[2]()
        if self._waiting:
            self._timer.start(self._waiting[0][0])


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
