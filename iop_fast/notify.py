"""What the program says to the service manager that started it: systemd's notification protocol (sd_notify(3)).

A message is one datagram of `NAME=value` lines to the socket that NOTIFY_SOCKET names, a path or an abstract name
("@..."). Without that variable nothing is sent and nothing is kept.

    ready      once, when every listener is bound
    reloading  at each request to reload, then `ready` again when what it asked for is done or refused
    stopping   once, with the time that the stop may take: a drain that the file makes longer than the unit's
               TimeoutStopSec is not cut short by it
    tick       the watchdog's sign of life and the status line; it runs on the event loop, so a loop that hangs is
               told from one that works, and the process is restarted

Rules: nothing here blocks, and nothing raises for what the manager does. A message that the socket has no room for
waits behind those before it, the watchdog's excepted: the next one says the same. Once `stopping` was said, no reload
is spoken of any more. The variables are taken out of the environment, so that no child process speaks for this one.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections import deque
from collections.abc import Callable, MutableMapping

from iop_fast import logs

log = logs.get(__name__)

VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")

# How often the status line is looked at where no watchdog asks for more.
STATUS_LOOK_S = 5.0
# A sign of life is given this many times within the watchdog's limit, as sd_watchdog_enabled(3) advises.
SIGNS_PER_LIMIT = 2
# When a message that found no room is tried again.
RETRY_S = 0.05
# A manager that takes nothing any more is not waited for: older messages give way.
UNSENT_MAX = 16
# STATUS= is for a person's eye; a manager reads at most 4096 bytes of a message.
STATUS_CHARS_MAX = 200

US_PER_S = 1_000_000


class ServiceManager:
    """The manager's end of the socket. Every method is called on the loop's thread."""

    def __init__(self, environ: MutableMapping[str, str], loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._address = address_of(environ.get("NOTIFY_SOCKET", ""))
        self._socket = datagram_socket() if self._address else None
        self._watchdog_s = watchdog_limit_s(environ) if self._address else 0.0
        for name in VARIABLES:
            environ.pop(name, None)
        self._unsent: deque[bytes] = deque(maxlen=UNSENT_MAX)
        self._retry: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._status: Callable[[], str] = str
        self._said_status = ""
        self._said_error = ""
        self._is_stopping = False

    def ready(self, status: Callable[[], str]) -> None:
        """Say that the service serves; `status` is asked for one line about it from now on, as it changes."""
        self._status = status
        self._say("READY=1", has_status=True)
        if self._timer is None:
            self._tick()

    def reloading(self) -> None:
        """Say that a reload has begun. The time lets the manager tell it from an earlier one (Type=notify-reload)."""
        if not self._is_stopping:
            self._say("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def reloaded(self) -> None:
        """Say that the service runs on after a reload, whatever came of it."""
        if not self._is_stopping:
            self._say("READY=1", has_status=True)

    def stopping(self, limit_s: float) -> None:
        """Say that the stop has begun and takes up to `limit_s` seconds."""
        self._is_stopping = True
        self._say("STOPPING=1", f"EXTEND_TIMEOUT_USEC={int(limit_s * US_PER_S)}", has_status=True)

    def close(self) -> None:
        """Say nothing any more; idempotent."""
        for timer in (self._timer, self._retry):
            if timer is not None:
                timer.cancel()
        self._timer = self._retry = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _tick(self) -> None:
        """Give a sign of life, with the status line where it changed."""
        if self._socket is None:
            return
        every_s = min(STATUS_LOOK_S, self._watchdog_s / SIGNS_PER_LIMIT) if self._watchdog_s else STATUS_LOOK_S
        self._timer = self._loop.call_later(every_s, self._tick)
        before = self._said_status
        line = self._status_line()
        if line != before:
            self._say(line)
        if self._watchdog_s and not self._unsent:
            self._send(b"WATCHDOG=1")

    def _status_line(self) -> str:
        # One line: what a provider's name holds must not end it and forge another assignment.
        text = " ".join(self._status().split())[:STATUS_CHARS_MAX]
        self._said_status = f"STATUS={text}"
        return self._said_status

    def _say(self, *lines: str, has_status: bool = False) -> None:
        if self._socket is None:
            return
        said = (*lines, self._status_line()) if has_status else lines
        self._unsent.append("\n".join(said).encode())
        self._flush()

    def _flush(self) -> None:
        """Send what waits, in order, as far as there is room."""
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        while self._unsent:
            if not self._send(self._unsent[0]):
                self._retry = self._loop.call_later(RETRY_S, self._flush)
                return
            self._unsent.popleft()

    def _send(self, message: bytes) -> bool:
        """Send one message; False when there is no room for it now. A manager that is gone is logged once."""
        assert self._socket is not None
        try:
            self._socket.sendto(message, self._address)  # to an address each time: a manager may bind it anew
        except BlockingIOError:
            return False
        except OSError as error:
            if str(error) != self._said_error:
                self._said_error = str(error)
                log.warning("service_manager_unreachable", error=error)
        return True


def address_of(name: str) -> str:
    """Return the address of the manager's socket; empty where there is none, or none of a kind that is spoken here."""
    if name and (name[0] not in "/@" or "\0" in name):
        log.warning("service_manager_unreachable", address=name, error="expected a path or an abstract name")
        return ""
    return "\0" + name[1:] if name.startswith("@") else name


def datagram_socket() -> socket.socket:
    """Return a socket that never blocks."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    made.setblocking(False)
    return made


def watchdog_limit_s(environ: MutableMapping[str, str]) -> float:
    """Return the seconds within which the manager expects a sign of life of this process; 0 for never."""
    limit, meant = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
    if not limit.isascii() or not limit.isdecimal() or (meant and meant != str(os.getpid())):
        return 0.0
    return int(limit) / US_PER_S
