"""State of one backend, as this Node finds it: up, loading, unreachable or broken, with the reason.

An HTTP answer, whatever its status, says nothing about health here. What counts is whether a connection can be made:

    UP           until a connect fails, and again from the first connect that succeeds
    LOADING      reachable and not serving yet; said, and ended by `up`, by adapters that can tell
    UNREACHABLE  a connect failed (refused, no route, timed out, TLS): set at once, left by the Node's own attempts,
                 after `first_ms` doubling to `most_ms`, or by a run's connection
    BROKEN       misconfigured on this Node, or a model that does not load: for ever, until another configuration makes
                 another adapter

`on_change` is called after each change of state or reason, and never for a report that changes nothing. Attempts stop
with `close`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from enum import Enum

from iop_fast import logs
from iop_fast.wire import runtime_pb2 as pb

log = logs.get(__name__)

# One connect attempt: None when it succeeded, else the reason in a few words, without addresses or secrets.
Probe = Callable[[], Awaitable[str | None]]


class State(Enum):
    """State of a backend; the values are those of ProviderState.State."""

    UP = pb.ProviderState.UP
    LOADING = pb.ProviderState.LOADING
    UNREACHABLE = pb.ProviderState.UNREACHABLE
    BROKEN = pb.ProviderState.BROKEN


class Health:
    """The state of one backend. One without a probe is UP or BROKEN as it was made."""

    __slots__ = (
        "_attempt",
        "_delay_ms",
        "_first_ms",
        "_is_closed",
        "_loop",
        "_most_ms",
        "_probe",
        "_timer",
        "on_change",
        "reason",
        "state",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        probe: Probe | None = None,
        *,
        first_ms: int = 1_000,
        most_ms: int = 10_000,
        broken: str = "",
    ) -> None:
        self._loop = loop
        self._probe = probe
        self._first_ms = first_ms
        self._most_ms = most_ms
        self._delay_ms = first_ms
        self._timer: asyncio.TimerHandle | None = None
        self._attempt: asyncio.Task[None] | None = None
        self._is_closed = False
        self.state = State.BROKEN if broken else State.UP
        self.reason = broken
        self.on_change: Callable[[], None] = ignore

    def __repr__(self) -> str:
        return f"<Health {self.state.name} {self.reason!r}>"

    def reachable(self) -> None:
        """A connection was made."""
        self._delay_ms = self._first_ms
        if self.state is State.UNREACHABLE:
            self._cancel_timer()
            self._set(State.UP, "")

    def unreachable(self, reason: str) -> None:
        """A connection could not be made. A broken backend stays broken."""
        if self.state is State.BROKEN or self._is_closed:
            return
        self._set(State.UNREACHABLE, reason)
        if self._timer is None and self._attempt is None and self._probe is not None:
            self._timer = self._loop.call_later(self._delay_ms / 1000, self._on_timer)
            self._delay_ms = min(self._delay_ms * 2, self._most_ms)

    def loading(self, reason: str) -> None:
        """The backend is there and does not serve yet; `reason` may change while it loads."""
        if self.state is not State.BROKEN and not self._is_closed:
            self._set(State.LOADING, reason)

    def up(self) -> None:
        """The backend has loaded and serves."""
        if self.state is State.LOADING and not self._is_closed:
            self._set(State.UP, "")

    def broken(self, reason: str) -> None:
        """The backend will never serve as it is configured."""
        if not self._is_closed:
            self._cancel_timer()
            self._set(State.BROKEN, reason)

    def look(self) -> asyncio.Task[None] | None:
        """Attempt to connect now and return the attempt; None for a backend that cannot be looked at."""
        if self._probe is None or self.state is State.BROKEN or self._is_closed:
            return None
        if self._attempt is None:
            self._cancel_timer()
            self._attempt = self._loop.create_task(self._try())
        return self._attempt

    def close(self) -> None:
        """Stop every attempt. Idempotent; nothing is reported any more."""
        self._is_closed = True
        self.on_change = ignore
        self._cancel_timer()
        if self._attempt is not None:
            self._attempt.cancel()

    def _on_timer(self) -> None:
        self._timer = None
        self.look()

    async def _try(self) -> None:
        assert self._probe is not None, "an attempt without a probe"
        try:
            reason = await self._probe()
        except Exception as error:  # noqa: BLE001 - a probe's bug must not end the attempts for ever
            log.failure("probe_failed", error)
            reason = "the connect attempt failed"
        finally:
            self._attempt = None
        if reason is None:
            self.reachable()
        else:
            self.unreachable(reason)

    def _set(self, state: State, reason: str) -> None:
        if (state, reason) != (self.state, self.reason):
            self.state = state
            self.reason = reason
            self.on_change()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def ignore() -> None:
    """Nobody listens yet, or any more."""
