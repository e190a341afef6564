"""Says in the log when the process has no file descriptor left, and when it has one again.

The event loop keeps serving then, but who connects is closed at once and nobody hears of it: libuv spares a descriptor
to take such connections off the queue with, and reports nothing. So the ticker asks for a descriptor and gives it back.
"""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable

from iop_fast import logs

log = logs.get(__name__)

NS_PER_MS = 1_000_000
# While it lasts, it is said again so often.
REPEAT_NS = 60_000 * NS_PER_MS
NONE_LEFT = frozenset({errno.EMFILE, errno.ENFILE})


def probe() -> None:
    """Take a descriptor and give it back; raises OSError where none is left."""
    os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))


class OpenFiles:
    """Watches for the end of the file descriptors. `exhaustions` counts how often it came."""

    __slots__ = ("_ended_at_ns", "_probe", "_said_at_ns", "exhaustions")

    def __init__(self, probe: Callable[[], None] = probe) -> None:
        self._probe = probe
        self._ended_at_ns = 0  # 0 while there are some
        self._said_at_ns = 0
        self.exhaustions = 0

    def look(self, now_ns: int) -> None:
        """Look once; called by the ticker."""
        try:
            self._probe()
        except OSError as error:
            if error.errno in NONE_LEFT:
                self._on_none(now_ns, error)
                return
        if self._ended_at_ns:
            log.warning("open_files_again", after_ms=(now_ns - self._ended_at_ns) // NS_PER_MS)
            self._ended_at_ns = 0

    def _on_none(self, now_ns: int, error: OSError) -> None:
        if not self._ended_at_ns:
            self._ended_at_ns = now_ns
            self.exhaustions += 1
        elif now_ns - self._said_at_ns < REPEAT_NS:
            return
        self._said_at_ns = now_ns
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        log.error("open_files_exhausted", limit=limit, what="new connections are closed unheard", error=error)
