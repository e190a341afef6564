"""Whatever stands in a file, loading ends in a configuration or in findings (the runner's timeout bounds the time)."""

from __future__ import annotations

import string
from collections.abc import Callable
from typing import Any

import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from iop_fast.config.catalog import build_catalog
from iop_fast.config.loader import load_edge_text, load_node_text
from iop_fast.config.payload import compile_payload
from iop_fast.config.scalars import odd_kind
from iop_fast.config.schema import EdgeConfig, NodeConfig
from iop_fast.errors import ConfigError

KEYS = sorted(
    {"<<", "models", "nodes", "providers", "adapters", *EdgeConfig.model_fields, *NodeConfig.model_fields}
    | {"id", "capacity", "type", "endpoint", "token_hash_sha256", "timeouts", "limits", "tls", "enabled", "max_queue"}
    | {"long_context_capacity", "total_context_tokens", "context_window_tokens", "principal_tokens", "listen"}
)
WORDS = ["p", "n", "m", "s", "vllm", "seulgivibe_claude", "cli", "http://h:1", "127.0.0.1:1", "é", "漢"]
ODD_WORDS = ["no", "yes", "012", "1_000", "1e3", "~", "2026-01-01", "=", "true", "0", "4", "-1", "9" * 20]
SOME_KEYS = ["edge", "openai", "models", "nodes", "providers", "id", "capacity"]
SIGNS = ["\n", "\n  ", "\n    - ", "- ", ": ", "? ", "{", "}", "[", "]", ", ", "&a ", "*a", "!!str ", "!x ", "|\n", "'"]
LINES = ["---\n", "...\n", "%YAML 1.1\n", ">-\n", "<<: ", "#", '"']
ODDITIES = ["\t", "\r", "\x85", "\u2028", "\ufeff", "\x00", "\ud800"]
SCALARS = st.one_of(st.sampled_from(["", "a" * 64, *WORDS, *ODD_WORDS]), st.text(max_size=8))
PIECES = st.sampled_from([*WORDS, *ODD_WORDS, *SOME_KEYS, *SIGNS, *LINES, *ODDITIES])


def loads_or_refuses(load: Callable[[Any, str], Any], text: str | bytes) -> Any:
    """Load a text; return the configuration or None. Any other end is a failure."""
    try:
        return load(text, "f").config
    except ConfigError as error:
        refused = error
    assert any(finding.severity == "error" for finding in refused.findings)
    assert all(finding.line >= 1 and finding.column >= 1 and finding.message for finding in refused.findings)
    assert refused.findings == sorted(refused.findings)
    return None


@given(st.one_of(st.text(), st.binary(), st.lists(PIECES, max_size=60).map("".join)))
@example("? \n? \n")
@example("a: &a [*a]")
@example("models: [{id: [], providers: {p: [x]}}]\nnodes: [{id: {}, providers: [{id: p, models: [{}]}]}]")
@example("nodes: [[], 1, ~, {providers: {a: b}, adapters: 3}]")
@example("provider_pool: ~\nnodes: [{providers: [{max_queue: 1}]}]")
def test_any_text_loads_or_is_refused(text: str | bytes) -> None:
    loads_or_refuses(load_edge_text, text)
    loads_or_refuses(load_node_text, text)


def trees(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Nested data with keys of the schema in places where they may and may not stand."""
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.lists(inner, max_size=4), st.dictionaries(st.one_of(st.sampled_from(KEYS), leaves), inner, max_size=5)
        ),
        max_leaves=25,
    )


@given(trees(SCALARS))
@example({"[key]": [], "models": [{"id": "m", "providers": {"[key]": 1, "é": "s"}}]})
def test_any_tree_of_known_keys_loads_or_is_refused(data: Any) -> None:
    try:
        text = yaml.safe_dump(data, allow_unicode=True)
    except yaml.YAMLError:
        return
    config = loads_or_refuses(load_edge_text, text)
    if config is not None:
        payloads = [compile_payload(config, node.id) for node in config.nodes]
        assert sum(len(payload.providers) for payload in payloads) == len(build_catalog(config).providers)
    loads_or_refuses(load_node_text, text)


IDS = st.lists(st.sampled_from([f"p{i}" for i in range(6)]), min_size=1, max_size=6, unique=True)


@st.composite
def fleets(draw: st.DrawFn) -> dict[str, Any]:
    """A good file with one Node a provider."""
    ids = draw(IDS)
    count = st.integers(0, 1_000_000)
    nodes = [
        {
            "id": f"node-{name}",
            "token_hash_sha256": f"{index:063x}f",
            "providers": [
                {
                    "id": name,
                    "type": draw(st.sampled_from(["vllm", "ollama", "seulgivibe_openai"])),
                    "endpoint": "http://h:1",
                    "models": ["s", "t"],
                    "capacity": draw(count),
                    "long_context_capacity": draw(count),
                    "priority": draw(st.integers(-1_000, 1_000)),
                    "enabled": draw(st.booleans()),
                }
            ],
        }
        for index, name in enumerate(ids)
    ]
    models = [
        {"id": f"m{index}", "providers": dict.fromkeys(draw(st.permutations(ids)), draw(st.sampled_from(["s", "t"])))}
        for index in range(draw(st.integers(1, 3)))
    ]
    return {"models": models, "nodes": nodes}


@given(fleets(), st.booleans())
def test_a_good_fleet_comes_out_as_it_went_in(data: dict[str, Any], flow: bool) -> None:
    config = load_edge_text(yaml.safe_dump(data, default_flow_style=flow, sort_keys=False), "f").config
    catalog = build_catalog(config)
    given_providers = [one for node in data["nodes"] for one in node["providers"]]
    assert [one.provider_id for one in catalog.providers] == [one["id"] for one in given_providers]
    assert [(one.capacity, one.long_context_capacity, one.priority, one.enabled) for one in catalog.providers] == [
        (one["capacity"], one["long_context_capacity"], one["priority"], one["enabled"]) for one in given_providers
    ]
    for model in data["models"]:
        served = catalog.models[model["id"]].served
        assert [(key[1], name) for key, name in served.items()] == list(model["providers"].items())
    again = load_edge_text(yaml.safe_dump(data, sort_keys=False), "g").config
    for node in config.nodes:
        assert compile_payload(config, node.id) == compile_payload(again, node.id)


@given(st.text(alphabet=string.digits + "abcdefxonysNYTZE_+-.:~=< ", max_size=12))
def test_no_plain_id_is_changed_in_silence(word: str) -> None:
    """A plain id either comes out letter by letter or is refused; PyYAML agrees that the accepted ones are texts."""
    text = f"edge: {{id: {word}}}"
    try:
        config = load_edge_text(text, "f").config
    except ConfigError:
        return
    if not word.strip():
        return
    assert config.edge.id == word.strip()
    assert odd_kind(config.edge.id) is None
    assert yaml.safe_load(text) == {"edge": {"id": word.strip()}}
