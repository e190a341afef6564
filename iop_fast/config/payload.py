"""What a Node is told: the part of the Edge's configuration that concerns it, as plain data.

`wire/payload.py` turns it into a NodeConfigPayload and back; equal payloads give equal bytes.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RuntimeSettings:
    """nodes[].runtime."""

    drain_limit_ms: int
    concurrency: int


@dataclass(frozen=True, slots=True)
class AdapterSettings:
    """An entry of nodes[].adapters, or the settings that stand on a provider itself (then `name` is "").

    Empty strings mean "not given". `options` is sorted by key.
    """

    name: str
    type: str  # "openai_compat" | "ollama" | "cli" | "native"
    endpoint: str
    endpoint_env: str
    api_key_env: str
    profile: str
    options: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class TimeoutSettings:
    """nodes[].providers[].timeouts, in milliseconds."""

    connect_ms: int
    first_byte_ms: int
    idle_ms: int


@dataclass(frozen=True, slots=True)
class ProviderPayload:
    """One provider of a Node. Either `adapter` names an entry of the payload's adapters or `settings` is given."""

    id: str
    type: str
    label: str
    adapter_type: str
    adapter: str
    settings: AdapterSettings | None
    models: tuple[str, ...]
    timeouts: TimeoutSettings
    enabled: bool
    health: str
    capacity: int
    long_context_capacity: int
    priority: int


@dataclass(frozen=True, slots=True)
class NodePayload:
    """The whole payload of one Node."""

    runtime: RuntimeSettings
    adapters: tuple[AdapterSettings, ...]
    providers: tuple[ProviderPayload, ...]
