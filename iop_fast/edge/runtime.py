"""One revision of the configuration, ready for use: what requests, Nodes and admission read. Immutable.

A refresh builds the next Runtime aside and swaps the one reference in `EdgeState`. A request reads the current one
when its body is whole and again when it is granted a slot, and keeps that second one to its end. Nothing here refers
to a live object: no link, no lease, no request.

Building is slow and pure, so a refresh does it off the loop; what the loop needs afterwards (a plan for admission, a
payload as frames) is prepared here. What a Runtime shares with the one before, it shares as objects: admission tells by
identity which providers and models a plan leaves alone, and freeing the one before costs only what changed.
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
from iop_fast.config.schema import EdgeConfig, OpenAi
from iop_fast.edge.auth import Field, FieldTable, ForwardRule, Principal
from iop_fast.edge.needs import can_of, is_normalized
from iop_fast.edge.settings import Key as Key
from iop_fast.edge.settings import ModelEntry, Served, Settings
from iop_fast.wire.payload import EncodedPayload, encode_payload, refresh_entries

NS_PER_MS = 1_000_000

Specs = tuple[ProviderSpec, ProviderSpec]  # while its Node does not report it up, while it does

# Of so many models, the ones nearest in length, a name is compared with: looking for near names stays under 2 ms.
NEAR_CANDIDATES_MAX = 64
NEAR_NAMES_MAX = 3


@dataclass(frozen=True, slots=True)
class Runtime:
    """Everything that one revision of the configuration says. `settings` is what every request reads of it.

    `file_sha256` is that of the file it was read from. `payload_revisions` gives for each Node the revision at which
    its payload last changed, `pushes` the frames that push that payload (none for the first revision, which no Node is
    ever pushed). `specs` holds each provider as admission takes it, while its Node does not report it up and while it
    does; `candidates` the keys of each model. `normalized` are the providers that take no tunnel. `routes` gives for
    each provider the fields by which an answer names it. The last ones are settings that every request reads.
    """

    revision: int
    file_sha256: str
    config: EdgeConfig
    catalog: Catalog
    payloads: Mapping[str, NodePayload]
    encoded: Mapping[str, EncodedPayload]
    payload_revisions: Mapping[str, int]
    pushes: Mapping[str, Sequence[bytes]]
    specs: Sequence[Specs]
    candidates: Mapping[str, tuple[Key, ...]]
    can: Mapping[Key, int]
    normalized: frozenset[Key]
    models: Mapping[str, ModelEntry]
    models_page: bytes
    principals: Mapping[bytes, Principal]
    routes: Mapping[Key, Sequence[Field]]
    fields: FieldTable
    forward_rule: ForwardRule | None
    requires_principal: bool
    exposes_route: bool
    long_threshold_tokens: int
    body_bytes_max: int
    run_window_bytes: int
    settings: Settings

    @classmethod
    def build(
        cls,
        config: EdgeConfig,
        catalog: Catalog,
        payloads: Mapping[str, NodePayload],
        *,
        revision: int = 1,
        file_sha256: str = "",
        previous: Self | None = None,
    ) -> Self:
        """Build the Runtime of a validated configuration.

        A Node whose payload is the one of `previous` keeps its payload revision, any other gets `revision`. Raises
        ValueError for a payload that is too large to be sent.
        """
        payloads = kept_payloads(payloads, previous)
        encoded = encoded_payloads(payloads, previous)
        revisions = payload_revisions(payloads, revision, previous)
        can = {provider.key: can_of(provider.adapter_type, provider.can) for provider in catalog.providers}
        normalized = frozenset(provider.key for provider in catalog.providers if is_normalized(provider.adapter_type))
        models = model_entries(config, catalog, can, normalized)
        rule = forward_rule(config.openai)
        routes = {key: route_fields(key) if config.openai.expose_route else () for key in can}
        settings = Settings(
            models,
            normalized,
            routes,
            exposes_route=config.openai.expose_route,
            long_threshold_tokens=config.openai.long_context_threshold_tokens,
            body_bytes_max=config.openai.limits.body_bytes,
            run_window_bytes=config.edge.link.run_window_bytes,
        )
        return cls(
            revision=revision,
            file_sha256=file_sha256,
            config=config,
            catalog=catalog,
            payloads=MappingProxyType(payloads),
            encoded=MappingProxyType(encoded),
            payload_revisions=MappingProxyType(revisions),
            pushes=MappingProxyType(push_frames(encoded, revisions, previous)),
            specs=provider_specs(catalog, can, previous),
            candidates=MappingProxyType(model_candidates(catalog, previous)),
            can=MappingProxyType(can),
            normalized=normalized,
            models=MappingProxyType(models),
            models_page=b'{"object":"list","data":[' + b",".join(entry.page for entry in models.values()) + b"]}",
            principals=MappingProxyType(principals_of(catalog)),
            routes=MappingProxyType(routes),
            fields=FieldTable(rule),
            forward_rule=rule,
            requires_principal=config.openai.require_principal,
            exposes_route=settings.exposes_route,
            long_threshold_tokens=settings.long_threshold_tokens,
            body_bytes_max=settings.body_bytes_max,
            run_window_bytes=settings.run_window_bytes,
            settings=settings,
        )

    def plan(self, is_reported_up: Callable[[Key], bool]) -> Plan:
        """Build what admission needs. `is_reported_up` gives a Node's last word on a provider of `health: auto`."""
        pool = self.config.provider_pool
        return Plan(
            providers=tuple(
                down if down is up or not is_reported_up((up.node_id, up.provider_id)) else up
                for down, up in self.specs
            ),
            models=self.candidates,
            max_queue=pool.max_queue,
            queue_timeout_ns=pool.queue_timeout_ms * NS_PER_MS,
        )

    def near_names(self, model: str) -> list[str]:
        """Return up to three models whose names look like `model`, the nearest first."""
        length = len(model)
        candidates = heapq.nsmallest(NEAR_CANDIDATES_MAX, self.models, key=lambda name: abs(len(name) - length))
        return get_close_matches(model, candidates, NEAR_NAMES_MAX)


def model_entries(
    config: EdgeConfig, catalog: Catalog, can: Mapping[Key, int], normalized: frozenset[Key]
) -> dict[str, ModelEntry]:
    """Put together what dispatch reads about each model."""
    policies = {model.id: model.generation for model in config.models}
    names = dict.fromkeys(name for model in catalog.models.values() for name in model.served.values())
    served = {name: Served(name, orjson.dumps(name)) for name in names}
    return {
        model.id: ModelEntry(
            id=model.id,
            served={key: served[name] for key, name in model.served.items()},
            abilities=tuple(dict.fromkeys(can[key] for key in model.served)),
            has_normalized=not normalized.isdisjoint(model.served),
            generation=policies.get(model.id),
            page=orjson.dumps(model_object(model.id, model.context_window_tokens)),
        )
        for model in catalog.models.values()
    }


def provider_specs(catalog: Catalog, can: Mapping[Key, int], previous: Runtime | None) -> tuple[Specs, ...]:
    """Translate each provider for admission, for both words of its Node; one object where the file's word stands."""
    known = {} if previous is None else {(up.node_id, up.provider_id): (down, up) for down, up in previous.specs}
    specs = []
    for provider in catalog.providers:
        down, up = spec_of(provider, can, provider.health == "up"), spec_of(provider, can, provider.health != "down")
        pair = (up, up) if down == up else (down, up)
        before = known.get(provider.key)
        specs.append(before if before == pair else pair)
    return tuple(specs)


def spec_of(provider: CatalogProvider, can: Mapping[Key, int], is_healthy: bool) -> ProviderSpec:
    """Translate one provider for admission."""
    return ProviderSpec(
        node_id=provider.node_id,
        provider_id=provider.provider_id,
        capacity=provider.capacity,
        long_capacity=provider.long_context_capacity,
        priority=provider.priority,
        enabled=provider.enabled,
        healthy=is_healthy,
        can=can[provider.key],
    )


def model_candidates(catalog: Catalog, previous: Runtime | None) -> dict[str, tuple[Key, ...]]:
    """Return the keys of each model's providers, in order."""
    known: Mapping[str, tuple[Key, ...]] = {} if previous is None else previous.candidates
    candidates = {}
    for model in catalog.models.values():
        keys, before = tuple(model.served), known.get(model.id)
        candidates[model.id] = before if before == keys else keys
    return candidates


def kept_payloads(payloads: Mapping[str, NodePayload], previous: Runtime | None) -> dict[str, NodePayload]:
    """Take the payload of `previous` for each Node where it is the same."""
    known: Mapping[str, NodePayload] = {} if previous is None else previous.payloads
    return {
        node_id: known[node_id] if known.get(node_id) == payload else payload for node_id, payload in payloads.items()
    }


def encoded_payloads(payloads: Mapping[str, NodePayload], previous: Runtime | None) -> dict[str, EncodedPayload]:
    """Serialize the payloads that `previous` has not serialized."""
    return {
        node_id: previous.encoded[node_id]
        if previous is not None and previous.payloads.get(node_id) is payload
        else encode_payload(payload)
        for node_id, payload in payloads.items()
    }


def push_frames(
    encoded: Mapping[str, EncodedPayload], revisions: Mapping[str, int], previous: Runtime | None
) -> dict[str, Sequence[bytes]]:
    """Make the frames that push each payload that has changed since the start."""
    if previous is None:
        return {}
    frames: dict[str, Sequence[bytes]] = {}
    for node_id, revision in revisions.items():
        if previous.payload_revisions.get(node_id) != revision:
            frames[node_id] = refresh_entries(revision, encoded[node_id])
        elif node_id in previous.pushes:
            frames[node_id] = previous.pushes[node_id]
    return frames


def payload_revisions(payloads: Mapping[str, NodePayload], revision: int, previous: Runtime | None) -> dict[str, int]:
    """Say for each Node at which revision its payload last changed."""
    if previous is None:
        return dict.fromkeys(payloads, revision)
    return {
        node_id: previous.payload_revisions[node_id] if previous.payloads.get(node_id) is payload else revision
        for node_id, payload in payloads.items()
    }


def model_object(model_id: str, context_window_tokens: int | None) -> dict[str, object]:
    """Build a model object of OpenAI's API; the context window under the name that vLLM gives it."""
    entry: dict[str, object] = {"id": model_id, "object": "model", "created": 0, "owned_by": "iop"}
    if context_window_tokens is not None:
        entry["max_model_len"] = context_window_tokens
    return entry


def route_fields(key: Key) -> Sequence[Field]:
    """Name a provider in an answer."""
    return ((b"x-iop-provider", key[1].encode()), (b"x-iop-node", key[0].encode()))


def principals_of(catalog: Catalog) -> dict[bytes, Principal]:
    """Map the sha256 of each known token to its labels."""
    return {digest: Principal(one.name, one.token_ref) for digest, one in catalog.principals.items()}


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
