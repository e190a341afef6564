"""Whether a session is alive, as its messages alone tell.

Both sides send a heartbeat every 5 s, so a session that brings no message of any kind for 15 s is dead: its process
hangs, its host is gone, the network is cut. gRPC's keepalive decides nothing here; a hung process still answers it.

The silence timer is one timer a session and is not moved by each message: it fires, looks at when the last message
came and is set again for what is left. It also asks whether it is itself late. A process that was stopped or starved
wakes up to a timer long past and to a socket full of messages that nobody read: the silence is its own. A timer that
fires late therefore grants one more interval before it judges again; late is more than a second, or than a tenth of the
limit where that is less.

How often the other side sends heartbeats is its own file's to say, and each side tells it in its first frame. A limit
that is shorter than three of the other side's would end every quiet session; it is stretched to that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from iop_fast.seams import Clock

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000

HEARTBEAT_NS = 5 * NS_PER_S
SILENCE_LIMIT_NS = 15 * NS_PER_S
LATE_NS = 1 * NS_PER_S
# So many heartbeats of the other side may be missing.
BEATS_MISSED = 3
# What the schema allows for one; a side that says more is not believed.
HEARTBEAT_MS_MAX = 600_000


class Silence:
    """Calls `on_silent` once when nothing was heard for the limit. Not started until `start`; dead after `stop`."""

    __slots__ = ("_clock", "_due_ns", "_heard_ns", "_late_ns", "_limit_ns", "_loop", "_on_silent", "_timer")

    def __init__(
        self,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        on_silent: Callable[[], None],
        limit_ns: int = SILENCE_LIMIT_NS,
    ) -> None:
        self._clock = clock
        self._loop = loop
        self._on_silent = on_silent
        self._limit_ns = limit_ns
        self._late_ns = min(LATE_NS, limit_ns // 10)
        self._heard_ns = clock.now_ns()
        self._due_ns = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to watch, as if something had just been heard."""
        self.heard()
        self._wait_until(self._heard_ns + self._limit_ns)

    def allow_for(self, heartbeat_ms: int) -> bool:
        """Wait for as many heartbeats of the other side as may be missing; True where that is longer than the limit."""
        needed_ns = BEATS_MISSED * min(heartbeat_ms, HEARTBEAT_MS_MAX) * NS_PER_MS
        is_longer = needed_ns > self._limit_ns
        if is_longer:
            self._limit_ns = needed_ns
            self._late_ns = min(LATE_NS, needed_ns // 10)
        return is_longer

    @property
    def limit_ms(self) -> int:
        """The limit in force."""
        return self._limit_ns // NS_PER_MS

    def heard(self) -> None:
        """Note that a message came. One clock read, no timer is touched."""
        self._heard_ns = self._clock.now_ns()

    def stop(self) -> None:
        """Stop watching. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def is_within_limit(self) -> bool:
        """True while the last message is younger than the limit."""
        return self.silent_ns < self._limit_ns

    @property
    def silent_ns(self) -> int:
        """How long ago the last message came."""
        return self._clock.now_ns() - self._heard_ns

    def _wait_until(self, due_ns: int) -> None:
        self._due_ns = due_ns
        self._timer = self._loop.call_later((due_ns - self._clock.now_ns()) / NS_PER_S, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now_ns = self._clock.now_ns()
        if now_ns - self._due_ns > self._late_ns:
            self._wait_until(now_ns + self._limit_ns)
        elif now_ns - self._heard_ns >= self._limit_ns:
            self._on_silent()
        else:
            self._wait_until(self._heard_ns + self._limit_ns)


class Beat:
    """Calls `on_beat` at once and then every interval, until stopped."""

    __slots__ = ("_interval_ns", "_loop", "_on_beat", "_timer")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, on_beat: Callable[[], None], interval_ns: int = HEARTBEAT_NS
    ) -> None:
        self._loop = loop
        self._on_beat = on_beat
        self._interval_ns = interval_ns
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Beat now and go on."""
        self._timer = self._loop.call_later(self._interval_ns / NS_PER_S, self.start)
        self._on_beat()

    def stop(self) -> None:
        """Stop beating. Idempotent, also from within `on_beat`."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
