"""Adapters: what stands between a run and a backend, made from settings of the payload and this Node's own file.

An adapter is one backend: its connections and its health. Providers with equal settings share one, and it outlives
refreshes that leave its settings alone. What may change without touching it (timeouts, served models) is given to
`upstream` or `run_adapter`, a cheap view of the adapter for one provider of one payload.

There are two kinds. A `TunnelAdapter` (openai_compat) is handed HTTP requests to pass on byte for byte. A
`NormalizedAdapter` (ollama, cli, native) is handed tasks in the terms of the OpenAI API, does them in its own way and
tells of them in events.

A backend that cannot be used as configured raises `BrokenAdapter` with the reason; the others of the Node serve on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from iop_fast.config.payload import AdapterSettings, ProviderPayload
from iop_fast.config.schema import CliProfile, NativeModel, NodeLimits
from iop_fast.node.health import Health
from iop_fast.seams import RunAdapter, Upstream


class BrokenAdapter(Exception):
    """A backend cannot be used as configured. The text is shown to operators: no addresses, no secrets."""


class Backing(Protocol):
    """One backend, as both kinds of adapter are one. `health` is its state, always current."""

    @property
    def health(self) -> Health:
        """The backend's state."""
        ...

    async def close(self) -> None:
        """Close idle connections and stop looking at the backend. Called once, when its last run has ended."""
        ...


@runtime_checkable
class TunnelAdapter(Backing, Protocol):
    """An adapter that passes HTTP requests on."""

    def upstream(self, provider: ProviderPayload) -> Upstream:
        """Return what starts runs for this provider."""
        ...


@runtime_checkable
class NormalizedAdapter(Backing, Protocol):
    """An adapter that does normalized runs."""

    def run_adapter(self, provider: ProviderPayload) -> RunAdapter:
        """Return what starts runs for this provider."""
        ...


Adapter = TunnelAdapter | NormalizedAdapter


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What adapters may use of this Node.

    `environ` is the process environment, `native_models` and `cli_profiles` are the Node's own entries by id.
    """

    loop: asyncio.AbstractEventLoop
    environ: Mapping[str, str]
    native_models: Mapping[str, NativeModel]
    limits: NodeLimits
    cli_profiles: Mapping[str, CliProfile] = field(default_factory=dict)


# Makes the adapter for settings; raises BrokenAdapter.
Maker = Callable[[AdapterSettings, Surroundings], Adapter]
