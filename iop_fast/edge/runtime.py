"""One revision of the configuration, ready for use: what requests, Nodes and admission read. Immutable.

A refresh builds the next Runtime aside and swaps the one reference in `EdgeState`. A request reads the current one
when its body is whole and again when it is granted a slot, and keeps that second one to its end. Nothing here refers
to a live object: no link, no lease, no request.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType
from typing import Self

import orjson

from iop_fast._core.admission import Plan, ProviderSpec
from iop_fast.config.catalog import Catalog, CatalogProvider
from iop_fast.config.payload import NodePayload
from iop_fast.config.schema import EdgeConfig, Generation, OpenAi
from iop_fast.edge.auth import PRIVATE, ForwardRule, Principal
from iop_fast.edge.needs import can_of

NS_PER_MS = 1_000_000

Key = tuple[str, str]  # (node_id, provider_id)

# Of so many models, the ones nearest in length, a name is compared with: looking for near names stays under 2 ms.
NEAR_CANDIDATES_MAX = 64
NEAR_NAMES_MAX = 3


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """What dispatch reads about one model. `abilities` are the distinct `can` sets of its providers."""

    id: str
    served: Mapping[Key, str]
    abilities: Sequence[int]
    generation: Generation | None
    page: bytes


@dataclass(frozen=True, slots=True)
class Runtime:
    """Everything that one revision of the configuration says.

    `payload_revisions` gives for each Node the revision at which its payload last changed. `dropped_fields` are the
    request fields that no provider gets.
    """

    revision: int
    config: EdgeConfig
    catalog: Catalog
    payloads: Mapping[str, NodePayload]
    payload_revisions: Mapping[str, int]
    can: Mapping[Key, int]
    models: Mapping[str, ModelEntry]
    models_page: bytes
    principals: Mapping[bytes, Principal]
    forward_rule: ForwardRule | None
    dropped_fields: frozenset[bytes]

    @classmethod
    def build(
        cls,
        config: EdgeConfig,
        catalog: Catalog,
        payloads: Mapping[str, NodePayload],
        *,
        revision: int = 1,
        previous: Self | None = None,
    ) -> Self:
        """Build the Runtime of a validated configuration.

        A Node whose payload is the one of `previous` keeps its payload revision, any other gets `revision`.
        """
        can = {provider.key: can_of(provider.adapter_type) for provider in catalog.providers}
        policies = {model.id: model.generation for model in config.models}
        models = {
            model.id: ModelEntry(
                model.id,
                model.served,
                tuple(dict.fromkeys(can[key] for key in model.served)),
                policies.get(model.id),
                orjson.dumps(model_object(model.id, model.context_window_tokens)),
            )
            for model in catalog.models.values()
        }
        rule = forward_rule(config.openai)
        return cls(
            revision=revision,
            config=config,
            catalog=catalog,
            payloads=MappingProxyType(dict(payloads)),
            payload_revisions=MappingProxyType(
                {
                    node_id: previous.payload_revisions[node_id]
                    if previous is not None and previous.payloads.get(node_id) == payload
                    else revision
                    for node_id, payload in payloads.items()
                }
            ),
            can=MappingProxyType(can),
            models=MappingProxyType(models),
            models_page=b'{"object":"list","data":[' + b",".join(entry.page for entry in models.values()) + b"]}",
            principals=MappingProxyType(principals_of(config.openai)),
            forward_rule=rule,
            dropped_fields=PRIVATE if rule is None else rule.dropped,
        )

    def plan(self, is_reported_up: Callable[[Key], bool]) -> Plan:
        """Build what admission needs. `is_reported_up` gives a Node's last word on a provider of `health: auto`."""
        pool = self.config.provider_pool
        return Plan(
            providers=[self._spec(provider, is_reported_up) for provider in self.catalog.providers],
            models={model.id: list(model.served) for model in self.models.values()},
            max_queue=pool.max_queue,
            queue_timeout_ns=pool.queue_timeout_ms * NS_PER_MS,
        )

    def _spec(self, provider: CatalogProvider, is_reported_up: Callable[[Key], bool]) -> ProviderSpec:
        is_healthy = provider.health == "up" or (provider.health == "auto" and is_reported_up(provider.key))
        return ProviderSpec(
            node_id=provider.node_id,
            provider_id=provider.provider_id,
            capacity=provider.capacity,
            long_capacity=provider.long_context_capacity,
            priority=provider.priority,
            enabled=provider.enabled,
            healthy=is_healthy,
            can=self.can[provider.key],
        )

    def near_names(self, model: str) -> list[str]:
        """Return up to three models whose names look like `model`, the nearest first."""
        length = len(model)
        candidates = heapq.nsmallest(NEAR_CANDIDATES_MAX, self.models, key=lambda name: abs(len(name) - length))
        return get_close_matches(model, candidates, NEAR_NAMES_MAX)


def model_object(model_id: str, context_window_tokens: int | None) -> dict[str, object]:
    """Build a model object of OpenAI's API; the context window under the name that vLLM gives it."""
    entry: dict[str, object] = {"id": model_id, "object": "model", "created": 0, "owned_by": "iop"}
    if context_window_tokens is not None:
        entry["max_model_len"] = context_window_tokens
    return entry


def principals_of(openai: OpenAi) -> dict[bytes, Principal]:
    """Map the sha256 of each known token to its labels."""
    return {
        bytes.fromhex(entry.token_hash_sha256): Principal(entry.alias or entry.principal_ref, entry.token_ref)
        for entry in openai.principal_tokens
    }


def forward_rule(openai: OpenAi) -> ForwardRule | None:
    """Return the rule of `openai.provider_auth`, None while it is off."""
    rule = openai.provider_auth
    if not rule.enabled:
        return None
    return ForwardRule(
        from_header=rule.from_header.lower().encode(),
        target_header=rule.target_header.lower().encode(),
        scheme=rule.scheme.encode(),
        is_required=rule.required,
    )
