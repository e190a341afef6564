"""Health of one Node's providers, from what the file says and what the Node reports.

    healthy = the file says `up`, or it says `auto` and the Node reports UP

Bad news counts at once and evicts like a disable. Good news counts after it has held for 2 s, so that a provider that
comes and goes is not sent requests at every turn; any other report in between starts the wait again. The reports in a
ready ack are the exception: the Node has just built its registry and tried its providers, so they count as they are.

This module keeps the reports of one session and decides what they mean. It changes nothing in admission: it calls
`on_change` with the providers whose verdict changed. A new session starts from nothing, and so does its health.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from iop_fast.seams import Clock
from iop_fast.wire import runtime_pb2 as pb
from iop_fast.wire.liveness import NS_PER_S

HOLD_NS = 2 * NS_PER_S
# Of a Node's words on why, this much is kept.
REASON_CHARS_MAX = 512


class Report(NamedTuple):
    """What a Node said last about a provider; `state` is a lower-case name of ProviderState.State."""

    state: str
    reason: str


UNREPORTED = Report("unreported", "")

STATE_NAMES: Mapping[int, str] = {
    pb.ProviderState.UP: "up",
    pb.ProviderState.LOADING: "loading",
    pb.ProviderState.UNREACHABLE: "unreachable",
    pb.ProviderState.BROKEN: "broken",
}


def is_healthy(file_health: str, is_up: bool) -> bool:
    """Apply the health rule: the file's word `up` or `down` stands, `auto` follows the Node's (held) report."""
    return file_health == "up" or (file_health == "auto" and is_up)


class ProviderHealth:
    """The reports of one session and the verdict on each provider. `on_change` maps provider ids to `is_up`.

    `known` are the ids of the Node's providers: what a peer says about others is not kept.
    """

    __slots__ = ("_clock", "_hold_ns", "_known", "_loop", "_on_change", "_reports", "_rising", "_timer", "_up")

    def __init__(
        self,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        known: frozenset[str],
        on_change: Callable[[Mapping[str, bool]], None],
        hold_ns: int = HOLD_NS,
    ) -> None:
        self._clock = clock
        self._loop = loop
        self._known = known
        self._on_change = on_change
        self._hold_ns = hold_ns
        self._reports: dict[str, Report] = {}
        self._up: dict[str, bool] = {}
        # Providers that report UP and are not believed yet, with when they are. All wait equally long, so the order of
        # insertion is the order of time and one timer on the first serves all.
        self._rising: dict[str, int] = {}
        self._timer: asyncio.TimerHandle | None = None

    def start(self, states: Iterable[pb.ProviderState]) -> None:
        """Take the reports of the ready ack: they count at once and `on_change` is not called."""
        for provider_id, report in self._read(states):
            self._reports[provider_id] = report
            self._up[provider_id] = report.state == "up"

    def report(self, states: Iterable[pb.ProviderState]) -> None:
        """Take later reports; providers not named keep theirs. What went down is handed on in one `on_change`."""
        fallen: dict[str, bool] = {}
        for provider_id, report in self._read(states):
            self._reports[provider_id] = report
            if report.state != "up":
                self._rising.pop(provider_id, None)
                if self._up.get(provider_id, False):
                    self._up[provider_id] = False
                    fallen[provider_id] = False
            elif not self._up.get(provider_id, False) and provider_id not in self._rising:
                self._rising[provider_id] = self._clock.now_ns() + self._hold_ns
        self._set_timer()
        if fallen:
            self._on_change(fallen)

    def is_up(self, provider_id: str) -> bool:
        """The verdict on the Node's reports, before the file's word."""
        return self._up.get(provider_id, False)

    def last_report(self, provider_id: str) -> Report:
        """The last report, held or not, for people."""
        return self._reports.get(provider_id, UNREPORTED)

    @property
    def reports(self) -> Mapping[str, Report]:
        """The last report on every provider that was reported on, for people."""
        return self._reports

    def stop(self) -> None:
        """Forget what is rising. Idempotent."""
        self._rising.clear()
        self._set_timer()

    def _read(self, states: Iterable[pb.ProviderState]) -> Iterable[tuple[str, Report]]:
        """Read wire states; one this build does not know is not UP and keeps its number as its name."""
        for state in states:
            if state.provider_id in self._known:
                name = STATE_NAMES.get(state.state, f"state_{state.state}")
                yield state.provider_id, Report(name, state.reason[:REASON_CHARS_MAX])

    def _set_timer(self) -> None:
        """Keep the timer exactly while something rises; one that fires early for a newer first is harmless."""
        if self._timer is not None and not self._rising:
            self._timer.cancel()
            self._timer = None
        elif self._timer is None and self._rising:
            due_ns = next(iter(self._rising.values()))
            self._timer = self._loop.call_later((due_ns - self._clock.now_ns()) / NS_PER_S, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now_ns = self._clock.now_ns()
        risen = {provider_id: True for provider_id, due_ns in self._rising.items() if due_ns <= now_ns}
        for provider_id in risen:
            del self._rising[provider_id]
        self._up.update(risen)
        self._set_timer()
        if risen:
            self._on_change(risen)
