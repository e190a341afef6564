"""What a Node is told: the part of the Edge's configuration that concerns it, as plain data.

`wire/payload.py` turns it into a NodeConfigPayload and back; equal payloads give equal bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from iop_fast.config.catalog import label_of, type_of
from iop_fast.config.schema import ADAPTER_OF_TYPE, Adapter, EdgeConfig, Node, Provider

# Adapters that ask their backend for a context of a given size. The others are not told of it: a change would be pushed
# to their Nodes for nothing.
ASKING_ADAPTERS = frozenset({"ollama"})

# Tokens by provider id and served model.
Windows = dict[str, dict[str, int]]


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
    """One provider of a Node. Either `adapter` names an entry of the payload's adapters or `settings` is given.

    `context_windows` are tokens by served model, sorted, for adapters that ask the backend for a context of that size.
    """

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
    context_windows: tuple[tuple[str, int], ...] = ()


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
    windows = _windows_of_models(config)
    return {node.id: _payload(node, windows) for node in config.nodes}


def compile_payload(config: EdgeConfig, node_id: str) -> NodePayload:
    """Compile what one Node is told; raise KeyError for a Node that the configuration does not have."""
    node = next((node for node in config.nodes if node.id == node_id), None)
    if node is None:
        raise KeyError(node_id)
    return _payload(node, _windows_of_models(config))


def _windows_of_models(config: EdgeConfig) -> Windows:
    """Return the context windows that models give to a provider's served models: the largest, where several map."""
    windows: Windows = {}
    for model in config.models:
        if model.context_window_tokens is not None:
            for provider_id, served in model.providers.items():
                known = windows.setdefault(provider_id, {})
                known[served] = max(known.get(served, 0), model.context_window_tokens)
    return windows


def _payload(node: Node, windows: Windows) -> NodePayload:
    adapters = sorted((_settings(a.name, a.type, a) for a in node.adapters), key=lambda settings: settings.name)
    return NodePayload(
        runtime=RuntimeSettings(node.runtime.drain_limit_ms, node.runtime.concurrency),
        adapters=tuple(adapters),
        providers=tuple(_provider(node, provider, windows) for provider in node.providers),
    )


def _settings(name: str, kind: str, source: Adapter | Provider) -> AdapterSettings:
    return AdapterSettings(
        name=name,
        type=ADAPTER_OF_TYPE[kind],
        endpoint=source.endpoint or "",
        endpoint_env=source.endpoint_env or "",
        api_key_env=source.api_key_env or "",
        profile=source.profile or "",
        options=tuple(sorted(source.options.items())),
    )


def _provider(node: Node, provider: Provider, windows: Windows) -> ProviderPayload:
    kind = type_of(node, provider)
    adapter_type = ADAPTER_OF_TYPE[kind]
    timeouts = provider.timeouts
    return ProviderPayload(
        id=provider.id,
        type=kind,
        label=label_of(provider, kind),
        adapter_type=adapter_type,
        adapter=provider.adapter or "",
        settings=_settings("", kind, provider) if provider.adapter is None else None,
        models=tuple(provider.models),
        timeouts=TimeoutSettings(timeouts.connect_ms, timeouts.first_byte_ms, timeouts.idle_ms),
        enabled=provider.enabled,
        health=provider.health,
        capacity=provider.capacity,
        long_context_capacity=provider.long_context_capacity,
        priority=provider.priority,
        context_windows=_windows(provider, windows) if adapter_type in ASKING_ADAPTERS else (),
    )


def _windows(provider: Provider, windows: Windows) -> tuple[tuple[str, int], ...]:
    """Return a provider's context windows: its own counts for all that it serves, else what models say of each."""
    own = provider.context_window_tokens
    if own is not None:
        return tuple((model, own) for model in sorted(provider.models))
    return tuple(sorted(windows.get(provider.id, {}).items()))
