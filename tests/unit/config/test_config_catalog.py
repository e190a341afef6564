"""What dispatch and Nodes are told: types, labels and settings as the file gives them."""

from __future__ import annotations

import pytest

from iop_fast.config.catalog import build_catalog
from iop_fast.config.payload import compile_payload
from iop_fast.config.schema import ADAPTER_OF_TYPE

from .files import FLEET, accepted, provider

SHARED = """\
models:
  - {id: b, providers: {p2: s2, p1: s1}, context_window_tokens: 9}
  - {id: a, providers: {p1: s1}}
nodes:
  - id: n
    token_hash_sha256: HASH
    runtime: {drain_limit_ms: 7, concurrency: 3}
    adapters:
      - {name: z, type: seulgivibe_openai, endpoint: "http://z", api_key_env: KEY}
      - {name: y, type: ollama, endpoint_env: URL, options: {num_ctx: "8192", keep_alive: 1h}}
    providers:
      - {id: p1, adapter: z, models: [s1], capacity: 4, long_context_capacity: 1, priority: -3, health: down}
      - {id: p2, type: native, profile: echo, models: [s2, s3], capacity: 0, enabled: false, label: own}
      - {id: p3, adapter: y, models: [s3], capacity: 2, timeouts: {connect_ms: 1, first_byte_ms: 2, idle_ms: 3}}
""".replace("HASH", "a" * 64)


def test_models_keep_file_order_and_map_keys_to_served_names() -> None:
    catalog = build_catalog(accepted(SHARED).config)
    assert list(catalog.models) == ["b", "a"]
    assert list(catalog.models["b"].served.items()) == [(("n", "p2"), "s2"), (("n", "p1"), "s1")]
    assert catalog.models["b"].context_window_tokens == 9
    assert catalog.models["a"].context_window_tokens is None


def test_providers_keep_file_order_over_all_nodes() -> None:
    catalog = build_catalog(accepted(FLEET).config)
    assert [one.key for one in catalog.providers] == [("n1", "p1"), ("n2", "p2")]


def test_a_provider_carries_the_policy() -> None:
    one = build_catalog(accepted(SHARED).config).providers[0]
    assert (one.capacity, one.long_context_capacity, one.priority, one.enabled, one.health) == (4, 1, -3, True, "down")


@pytest.mark.parametrize("kind", ADAPTER_OF_TYPE)
def test_types_keep_their_name_and_find_their_adapter(kind: str) -> None:
    base = "profile: x" if kind in ("cli", "native") else "endpoint_env: U"
    config = accepted(provider("", base=f"type: {kind}, {base}")).config
    catalogued = build_catalog(config).providers[0]
    told = compile_payload(config, "n").providers[0]
    assert (catalogued.type, catalogued.adapter_type) == (kind, ADAPTER_OF_TYPE[kind])
    assert (told.type, told.adapter_type) == (kind, ADAPTER_OF_TYPE[kind])
    label = kind if kind.startswith("seulgivibe_") else ""
    assert (catalogued.label, told.label) == (label, label)


@pytest.mark.parametrize("kind", ["seulgivibe_claude", "seulgivibe_openai", "vllm"])
def test_a_given_label_is_kept(kind: str) -> None:
    config = accepted(provider("label: mine", base=f"type: {kind}, endpoint_env: U")).config
    assert build_catalog(config).providers[0].label == "mine"
    assert compile_payload(config, "n").providers[0].label == "mine"


def test_an_adapters_type_labels_the_provider_that_names_it() -> None:
    config = accepted(SHARED).config
    one = compile_payload(config, "n").providers[0]
    assert (one.type, one.adapter_type, one.label) == ("seulgivibe_openai", "openai_compat", "seulgivibe_openai")


def test_payload_has_adapters_by_name_and_providers_in_file_order() -> None:
    payload = compile_payload(accepted(SHARED).config, "n")
    assert (payload.runtime.drain_limit_ms, payload.runtime.concurrency) == (7, 3)
    assert [(one.name, one.type) for one in payload.adapters] == [("y", "ollama"), ("z", "openai_compat")]
    assert payload.adapters[0].options == (("keep_alive", "1h"), ("num_ctx", "8192"))
    assert payload.adapters[1].api_key_env == "KEY"
    assert payload.adapters[0].endpoint == ""
    assert [one.id for one in payload.providers] == ["p1", "p2", "p3"]
    assert payload.providers[1].models == ("s2", "s3")
    assert (payload.providers[2].timeouts.connect_ms, payload.providers[2].timeouts.idle_ms) == (1, 3)


def test_a_provider_has_an_adapter_or_settings() -> None:
    first, second, _ = compile_payload(accepted(SHARED).config, "n").providers
    assert (first.adapter, first.settings) == ("z", None)
    assert second.adapter == ""
    assert second.settings is not None
    assert (second.settings.name, second.settings.type, second.settings.profile) == ("", "native", "echo")


def test_equal_configurations_give_equal_payloads() -> None:
    again = SHARED.replace('{num_ctx: "8192", keep_alive: 1h}', "{keep_alive: '1h', num_ctx: '8192'}").replace(
        "    providers:\n", "    providers: # x\n"
    )
    assert compile_payload(accepted(SHARED).config, "n") == compile_payload(accepted(again).config, "n")


def test_what_does_not_concern_the_node_changes_no_payload() -> None:
    other = SHARED.replace("context_window_tokens: 9", "context_window_tokens: 10") + "provider_pool: {max_queue: 3}\n"
    assert compile_payload(accepted(SHARED).config, "n") == compile_payload(accepted(other).config, "n")


def test_options_may_stand_on_the_provider() -> None:
    text = provider("options: {keep_alive: '-1'}", base="type: ollama, endpoint: 'http://h'")
    settings = compile_payload(accepted(text).config, "n").providers[0].settings
    assert settings is not None
    assert settings.options == (("keep_alive", "-1"),)


WINDOWS = """\
models:
  - {id: a, providers: {p: s1}, context_window_tokens: 10}
  - {id: b, providers: {p: s1, q: s1}, context_window_tokens: 30}
  - {id: c, providers: {p: s2}, context_window_tokens: 20}
  - {id: d, providers: {p: s3}}
nodes:
  - id: n
    token_hash_sha256: HASH
    providers:
      - {id: p, type: ollama, endpoint: "http://h", models: [s3, s2, s1], capacity: 1}
      - {id: q, type: vllm, endpoint: "http://h", models: [s1], capacity: 1, context_window_tokens: 5}
""".replace("HASH", "a" * 64)


@pytest.mark.parametrize(
    ("old", "new", "windows"),
    [
        ("", "", (("s1", 30), ("s2", 20))),
        ("s1], capacity: 1", "s1], capacity: 1, context_window_tokens: 7", (("s1", 7), ("s2", 7), ("s3", 7))),
        (", context_window_tokens: 20", "", (("s1", 30),)),
    ],
)
def test_an_ollama_is_told_its_context_windows(old: str, new: str, windows: tuple[tuple[str, int], ...]) -> None:
    """B25: without num_ctx Ollama cuts prompts at its own default; the provider's own window counts before models'."""
    first, second = compile_payload(accepted(WINDOWS.replace(old, new, 1)).config, "n").providers
    assert first.context_windows == windows
    assert second.context_windows == (), "others do not ask their backend"


def test_an_unknown_node_has_no_payload() -> None:
    with pytest.raises(KeyError, match="ghost"):
        compile_payload(accepted(SHARED).config, "ghost")
