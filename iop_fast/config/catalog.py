"""Which provider serves which model under what name, and whose tokens are whose: what dispatch needs. Immutable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from iop_fast.config.schema import ADAPTER_OF_TYPE, LABELLING_TYPES, EdgeConfig, Node, OpenAi, Provider


@dataclass(frozen=True, slots=True)
class CatalogProvider:
    """One provider of the fleet. `health` is the file's word: auto, up or down; `can` is what the file says that it can
    do, None for what its type can."""

    node_id: str
    provider_id: str
    type: str
    adapter_type: str  # "openai_compat" | "ollama" | "cli" | "native"
    label: str
    capacity: int
    long_context_capacity: int
    priority: int
    enabled: bool
    health: str
    can: tuple[str, ...] | None = None

    @property
    def key(self) -> tuple[str, str]:
        """(node_id, provider_id)."""
        return (self.node_id, self.provider_id)


@dataclass(frozen=True, slots=True)
class CatalogModel:
    """One model that clients ask for. `served` maps a provider's key to the served model's name, in file order."""

    id: str
    served: Mapping[tuple[str, str], str]
    context_window_tokens: int | None


@dataclass(frozen=True, slots=True)
class CatalogPrincipal:
    """Whom a token's usage is booked to. `name` is the principal's alias, else its ref."""

    name: str
    principal_ref: str
    token_ref: str


@dataclass(frozen=True, slots=True)
class Catalog:
    """All providers in file order, all models by id, in file order, and principals by their tokens' hashes.

    A hash is the 32 bytes of sha256: a request's token is hashed to be looked up, so the hash as the file writes it, 64
    hex characters, is a token like any other and finds nobody.
    """

    providers: tuple[CatalogProvider, ...]
    models: Mapping[str, CatalogModel]
    principals: Mapping[bytes, CatalogPrincipal] = field(default_factory=lambda: MappingProxyType({}))


def build_catalog(config: EdgeConfig) -> Catalog:
    """Compile an accepted configuration: every provider with its adapter's type, every model with its mapping."""
    providers = tuple(_provider(node, provider) for node in config.nodes for provider in node.providers)
    keys = {provider.provider_id: provider.key for provider in providers}
    models = {
        model.id: CatalogModel(
            model.id,
            MappingProxyType({keys[provider_id]: served for provider_id, served in model.providers.items()}),
            model.context_window_tokens,
        )
        for model in config.models
    }
    return Catalog(providers, MappingProxyType(models), MappingProxyType(principals_of(config.openai)))


def principals_of(openai: OpenAi) -> dict[bytes, CatalogPrincipal]:
    """Map the sha256 of each known token to whom it stands for; several tokens may stand for one principal."""
    return {
        bytes.fromhex(entry.token_hash_sha256): CatalogPrincipal(
            entry.alias or entry.principal_ref, entry.principal_ref, entry.token_ref
        )
        for entry in openai.principal_tokens
    }


def type_of(node: Node, provider: Provider) -> str:
    """Return a provider's type as the file gives it, on the provider itself or on the adapter that it names."""
    if provider.adapter is None:
        assert provider.type is not None, "the rules demand adapter or type"
        return provider.type
    return next(adapter.type for adapter in node.adapters if adapter.name == provider.adapter)


def label_of(provider: Provider, kind: str) -> str:
    """Return a provider's label: its own, else its type where that labels, else ""."""
    if provider.label is not None:
        return provider.label
    return kind if kind in LABELLING_TYPES else ""


def _provider(node: Node, provider: Provider) -> CatalogProvider:
    kind = type_of(node, provider)
    return CatalogProvider(
        node_id=node.id,
        provider_id=provider.id,
        type=kind,
        adapter_type=ADAPTER_OF_TYPE[kind],
        label=label_of(provider, kind),
        capacity=provider.capacity,
        long_context_capacity=provider.long_context_capacity,
        priority=provider.priority,
        enabled=provider.enabled,
        health=provider.health,
        can=provider.can,
    )
