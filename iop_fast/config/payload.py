"""What a Node is told: the part of the Edge's configuration that concerns it, as plain data.

`wire/payload.py` turns it into a NodeConfigPayload and back; equal payloads give equal bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from iop_fast.config.catalog import label_of, type_of
from iop_fast.config.schema import ADAPTER_OF_TYPE, Adapter, EdgeConfig, Node, Provider


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


def compile_payloads(config: EdgeConfig) -> dict[str, NodePayload]:
    """Compile what each Node is told, by Node id.

    Equal configurations give equal payloads: adapters sorted by name, providers in file order.
    """
    return {node.id: _payload(node) for node in config.nodes}


def compile_payload(config: EdgeConfig, node_id: str) -> NodePayload:
    """Compile what one Node is told; raise KeyError for a Node that the configuration does not have."""
    node = next((node for node in config.nodes if node.id == node_id), None)
    if node is None:
        raise KeyError(node_id)
    return _payload(node)


def _payload(node: Node) -> NodePayload:
    adapters = sorted((_settings(a.name, a.type, a) for a in node.adapters), key=lambda settings: settings.name)
    return NodePayload(
        runtime=RuntimeSettings(node.runtime.drain_limit_ms, node.runtime.concurrency),
        adapters=tuple(adapters),
        providers=tuple(_provider(node, provider) for provider in node.providers),
    )


def _settings(name: str, kind: str, source: Adapter | Provider) -> AdapterSettings:
    options = source.options if isinstance(source, Adapter) else {}
    return AdapterSettings(
        name=name,
        type=ADAPTER_OF_TYPE[kind],
        endpoint=source.endpoint or "",
        endpoint_env=source.endpoint_env or "",
        api_key_env=source.api_key_env or "",
        profile=source.profile or "",
        options=tuple(sorted(options.items())),
    )


def _provider(node: Node, provider: Provider) -> ProviderPayload:
    kind = type_of(node, provider)
    timeouts = provider.timeouts
    return ProviderPayload(
        id=provider.id,
        type=kind,
        label=label_of(provider, kind),
        adapter_type=ADAPTER_OF_TYPE[kind],
        adapter=provider.adapter or "",
        settings=_settings("", kind, provider) if provider.adapter is None else None,
        models=tuple(provider.models),
        timeouts=TimeoutSettings(timeouts.connect_ms, timeouts.first_byte_ms, timeouts.idle_ms),
        enabled=provider.enabled,
        health=provider.health,
        capacity=provider.capacity,
        long_context_capacity=provider.long_context_capacity,
        priority=provider.priority,
    )
