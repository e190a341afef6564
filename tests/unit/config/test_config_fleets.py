"""Whole fleets: accepted without a finding, shown in the documentation, told to Nodes completely and to no other."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from iop_fast.config.catalog import Catalog, CatalogPrincipal, build_catalog
from iop_fast.config.loader import load_edge_text
from iop_fast.config.payload import NodePayload, compile_payload, compile_payloads
from iop_fast.config.schema import ADAPTER_OF_TYPE, EdgeConfig, Node, Provider
from iop_fast.wire.payload import decode_payload, encode_payload
from tests.fixtures.fleets import CONFIGS, SHOWN, large, shown

ROOT = Path(__file__).resolve().parents[3]
TEXTS = {
    **{name: shown(name) for name in SHOWN},
    "five-hundred": large(500, 25),
    "shipped": (ROOT / "configs" / "edge.yaml").read_text(),
    "shipped-minimal": (ROOT / "configs" / "edge.minimal.yaml").read_text(),
}


@cache
def load(name: str) -> EdgeConfig:
    """An accepted fleet without a single finding."""
    loaded = load_edge_text(TEXTS[name], f"{name}.yaml")
    assert loaded.warnings == ()
    return loaded.config


@pytest.fixture(params=TEXTS)
def config(request: pytest.FixtureRequest) -> EdgeConfig:
    return load(request.param)


def test_the_documentation_shows_the_files() -> None:
    page = (ROOT / "docs" / "fleets.md").read_text(encoding="utf-8")
    assert re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) == [TEXTS[name] for name in SHOWN]
    assert {path.stem for path in CONFIGS.glob("*.yaml")} == set(SHOWN)


class TestPayloads:
    def test_all_nodes_together_are_told_each_provider_once(self, config: EdgeConfig) -> None:
        told = [(node, one.id) for node, payload in compile_payloads(config).items() for one in payload.providers]
        assert told == [(node.id, one.id) for node in config.nodes for one in node.providers]
        assert max(Counter(provider for _, provider in told).values()) == 1
        assert told == [one.key for one in build_catalog(config).providers]

    def test_the_wire_brings_every_payload_whole(self, config: EdgeConfig) -> None:
        for node in config.nodes:
            payload = compile_payload(config, node.id)
            encoded = encode_payload(payload)
            assert decode_payload(encoded.data) == payload
            assert encoded.sha256 == hashlib.sha256(encoded.data).digest()
            assert [what_is_told(one, payload) for one in payload.providers] == [
                what_is_written(one, node) for one in node.providers
            ]

    def test_a_node_sees_nothing_of_another(self, config: EdgeConfig) -> None:
        for node in config.nodes:
            data = encode_payload(compile_payload(config, node.id)).data
            others = [one.id for other in config.nodes if other is not node for one in other.providers]
            others += [other.id for other in config.nodes if other is not node]
            own = {one.id for one in node.providers}
            assert all(holds(data, name) for name in own)
            assert [name for name in others if holds(data, name) and name not in own] == []

    def test_no_secret_is_told(self, config: EdgeConfig) -> None:
        hashes = [node.token_hash_sha256 for node in config.nodes if node.token_hash_sha256 is not None]
        hashes += [entry.token_hash_sha256 for entry in config.openai.principal_tokens]
        names = [name for one in config.openai.principal_tokens for name in (one.token_ref, one.principal_ref)]
        assert hashes
        for payload in compile_payloads(config).values():
            data = encode_payload(payload).data
            assert not [one for one in hashes if one.encode() in data or bytes.fromhex(one) in data]
            assert not [one for one in names if holds(data, one)]

    def test_the_bytes_depend_on_what_the_file_means_alone(self, config: EdgeConfig) -> None:
        """Comments, style, the order of keys and what concerns other Nodes change neither bytes nor hash."""
        text = next(text for name, text in TEXTS.items() if load(name) == config)
        again = load_edge_text(yaml.safe_dump(upside_down(yaml.safe_load(text)), sort_keys=False), "again").config
        for node in config.nodes:
            assert encode_payload(compile_payload(config, node.id)) == encode_payload(compile_payload(again, node.id))

    def test_each_change_of_a_provider_changes_its_nodes_hash_and_no_other(self) -> None:
        before = {node: encode_payload(one).sha256 for node, one in compile_payloads(load("mixed")).items()}
        changed = load_edge_text(TEXTS["mixed"].replace("capacity: 16", "capacity: 15"), "f").config
        after = {node: encode_payload(one).sha256 for node, one in compile_payloads(changed).items()}
        assert after["gpu"] != before["gpu"]
        assert after["mini"] == before["mini"]


def holds(data: bytes, name: str) -> bool:
    """True when a name stands in the bytes as a text of its own: its length goes before it in protobuf."""
    return bytes([len(name)]) + name.encode() in data


def upside_down(value: Any) -> Any:
    """The same data with the keys of every mapping in reverse order."""
    if isinstance(value, dict):
        return {key: upside_down(value[key]) for key in reversed(value)}
    return [upside_down(item) for item in value] if isinstance(value, list) else value


def what_is_told(provider: Any, payload: NodePayload) -> tuple[Any, ...]:
    """A provider of a payload, its settings found by name where it names an adapter."""
    named = {adapter.name: adapter for adapter in payload.adapters}
    settings = provider.settings or named[provider.adapter]
    assert (provider.settings is None) == bool(provider.adapter)
    assert settings.type == provider.adapter_type == ADAPTER_OF_TYPE[provider.type]
    return (
        provider.id,
        provider.type,
        provider.label,
        (settings.endpoint, settings.endpoint_env, settings.api_key_env, settings.profile),
        provider.models,
        (provider.timeouts.connect_ms, provider.timeouts.first_byte_ms, provider.timeouts.idle_ms),
        (provider.enabled, provider.health),
        (provider.capacity, provider.long_context_capacity, provider.priority),
    )


def what_is_written(provider: Provider, node: Node) -> tuple[Any, ...]:
    """The same of the file's section."""
    named = {adapter.name: adapter for adapter in node.adapters}
    source = named[provider.adapter] if provider.adapter else provider
    own_label = source.type if source.type and source.type.startswith("seulgivibe_") else ""
    return (
        provider.id,
        source.type,
        provider.label or own_label,
        (source.endpoint or "", source.endpoint_env or "", source.api_key_env or "", source.profile or ""),
        tuple(provider.models),
        (provider.timeouts.connect_ms, provider.timeouts.first_byte_ms, provider.timeouts.idle_ms),
        (provider.enabled, provider.health),
        (provider.capacity, provider.long_context_capacity, provider.priority),
    )


class TestCatalog:
    def test_models_map_to_providers_that_exist_and_list_the_name(self, config: EdgeConfig) -> None:
        catalog = build_catalog(config)
        listed = {(node.id, one.id): set(one.models) for node in config.nodes for one in node.providers}
        for model in config.models:
            served = catalog.models[model.id].served
            assert {key[1]: name for key, name in served.items()} == model.providers
            assert all(name in listed[key] for key, name in served.items())

    def test_nothing_in_it_can_be_changed(self, config: EdgeConfig) -> None:
        catalog = build_catalog(config)
        for part in (catalog, catalog.providers[0], next(iter(catalog.models.values()))):
            for field in dataclasses.fields(part):
                with pytest.raises(dataclasses.FrozenInstanceError):
                    setattr(part, field.name, None)
        mappings: list[Mapping[Any, Any]] = [catalog.models, catalog.principals]
        mappings += [model.served for model in catalog.models.values()]
        for mapping in mappings:
            with pytest.raises(TypeError):
                mapping["x"] = None  # type: ignore[index]
        assert isinstance(catalog.providers, tuple)

    def test_principals_are_found_by_the_hash_of_a_token_and_by_nothing_else(self) -> None:
        """B18, the hash's side: the hash that stands in the file is no token, in whatever spelling."""
        catalog = build_catalog(load("seulgivibe"))

        def whose(token: bytes) -> CatalogPrincipal | None:
            return catalog.principals.get(hashlib.sha256(token).digest())

        assert whose(b"assistant-app") == CatalogPrincipal("assistant", "user-1001", "assistant-app")
        assert whose(b"nightly-jobs") == CatalogPrincipal("assistant", "user-1001", "nightly-jobs")
        digest = hashlib.sha256(b"assistant-app").hexdigest()
        others = [digest.encode(), digest.upper().encode(), bytes.fromhex(digest), b"", b"caf\xe9", b"Assistant-app"]
        assert [whose(token) for token in others] == [None] * len(others)

    def test_a_hash_in_upper_case_is_the_same_token(self) -> None:
        text = re.sub(r"token_hash_sha256: (\w+)", lambda m: f"token_hash_sha256: {m[1].upper()}", TEXTS["seulgivibe"])
        assert (
            build_catalog(load_edge_text(text, "f").config).principals == build_catalog(load("seulgivibe")).principals
        )

    def test_without_tokens_there_is_nobody(self) -> None:
        assert Catalog((), {}).principals == {}


class TestWhatTheFleetsMean:
    def test_seulgivibe_types_are_openai_compatible_and_label_themselves(self) -> None:
        config = load("seulgivibe")
        first, second = build_catalog(config).providers
        assert (first.type, first.adapter_type, first.label) == (
            "seulgivibe_claude",
            "openai_compat",
            "seulgivibe_claude",
        )
        assert (second.type, second.adapter_type, second.label) == (
            "seulgivibe_openai",
            "openai_compat",
            "Seulgivibe GPT",
        )
        auth = config.openai.provider_auth
        assert (auth.from_header, auth.target_header, auth.scheme, auth.required) == (
            "X-IOP-Provider-Authorization",
            "Authorization",
            "Bearer",
            True,
        )

    def test_a_mixed_group_has_both_adapters(self) -> None:
        catalog = build_catalog(load("mixed"))
        kinds = {one.key: one.adapter_type for one in catalog.providers}
        assert [kinds[key] for key in catalog.models["chat"].served] == ["openai_compat", "ollama"]

    def test_an_ollama_only_group_is_a_group_like_any(self) -> None:
        catalog = build_catalog(load("ollama-only"))
        assert {one.adapter_type for one in catalog.providers} == {"ollama"}
        assert len(catalog.models["local"].served) == 3

    def test_long_slots_stand_on_one_provider(self) -> None:
        catalog = build_catalog(load("long-context"))
        assert [one.long_context_capacity for one in catalog.providers] == [2, 0]

    def test_five_hundred_providers(self) -> None:
        catalog = build_catalog(load("five-hundred"))
        assert len(catalog.providers) == 500
        assert sum(len(model.served) for model in catalog.models.values()) == 500
