"""A backend with the runs on it, and a provider: a backend as one entry of the payload sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from iop_fast.config.payload import ProviderPayload
from iop_fast.node.adapters import Adapter
from iop_fast.node.health import Health
from iop_fast.seams import RunAdapter, Upstream
from iop_fast.wire import runtime_pb2 as pb


class Cuttable(Protocol):
    """A run, as a backend knows it."""

    def cut(self, detail: str) -> None:
        """End now; `detail` is for people."""
        ...


class Backend:
    """An adapter and the runs on it. `adapter` is None for one that is broken; `health` says why."""

    __slots__ = ("_on_idle", "adapter", "health", "key", "runs")

    def __init__(self, key: str, adapter: Adapter | None, health: Health) -> None:
        self.key = key
        self.adapter = adapter
        self.health = health
        self.runs: dict[Cuttable, None] = {}
        self._on_idle: Callable[[], None] | None = None

    def __repr__(self) -> str:
        return f"<Backend {self.key[:8]} {self.health.state.name}, {len(self.runs)} runs>"

    def enter(self, run: Cuttable) -> None:
        """Note a run that starts; it must leave."""
        self.runs[run] = None

    def leave(self, run: Cuttable) -> None:
        """Note that a run has ended."""
        del self.runs[run]
        if not self.runs and self._on_idle is not None:
            on_idle, self._on_idle = self._on_idle, None
            on_idle()

    def when_idle(self, on_idle: Callable[[], None]) -> None:
        """Call back once when the last run has left, at once if none is there."""
        if self.runs:
            self._on_idle = on_idle
        else:
            on_idle()

    async def close(self) -> None:
        """Close the adapter."""
        self.health.close()
        if self.adapter is not None:
            await self.adapter.close()


class Provider:
    """One provider of a registry; nothing of it changes. Of `upstream` and `run_adapter` it has the one that its
    adapter's kind has, and none when its backend is broken."""

    __slots__ = ("backend", "id", "payload", "run_adapter", "upstream")

    def __init__(
        self,
        payload: ProviderPayload,
        backend: Backend,
        upstream: Upstream | None = None,
        run_adapter: RunAdapter | None = None,
    ) -> None:
        self.id = payload.id
        self.payload = payload
        self.backend = backend
        self.upstream = upstream
        self.run_adapter = run_adapter

    def state(self) -> pb.ProviderState:
        """Return the state as the link says it."""
        health = self.backend.health
        return pb.ProviderState(provider_id=self.id, state=health.state.value, reason=health.reason)
