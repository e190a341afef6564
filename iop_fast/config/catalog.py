"""Which provider serves which model under what name: the configuration as dispatch needs it. Immutable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CatalogProvider:
    """One provider of the fleet. `health` is the file's word: auto, up or down."""

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
class Catalog:
    """All providers in file order and all models by id, in file order."""

    providers: tuple[CatalogProvider, ...]
    models: Mapping[str, CatalogModel]
