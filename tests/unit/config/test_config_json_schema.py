"""The JSON Schemas for editors: valid schemas that accept every good file and refuse what keys alone show as wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from iop_fast.config.json_schema import MODELS, render
from iop_fast.config.kinds import Kind
from iop_fast.config.loader import load_edge_text, load_node_text
from iop_fast.errors import ConfigError
from tests.fixtures.fleets import SHOWN, large, shown

from .files import FLEET, HASH_A, NODE, provider

CONFIGS = Path(__file__).resolve().parents[3] / "configs"
VALIDATORS = {
    kind: Draft202012Validator(json.loads((CONFIGS / f"{kind}.schema.json").read_text())) for kind in ("edge", "node")
}
GOOD_EDGES = {
    "full": (CONFIGS / "edge.yaml").read_text(),
    "minimal": (CONFIGS / "edge.minimal.yaml").read_text(),
    "large": large(40, 4),
    "fleet": FLEET,
    "quoted number": provider("label: '70'"),
    **{name: shown(name) for name in SHOWN},
}
GOOD_NODES = {"full": (CONFIGS / "node.yaml").read_text(), "least": NODE}


def complaints(kind: Kind, text: str) -> list[str]:
    """What the schema says about a file, each as path and the schema's keyword."""
    errors = VALIDATORS[kind].iter_errors(yaml.safe_load(text))
    return sorted(f"{'.'.join(map(str, error.absolute_path))} {error.validator}" for error in errors)


@pytest.mark.parametrize("kind", MODELS)
def test_a_schema_is_one_and_is_what_iop_prints(kind: Kind) -> None:
    Draft202012Validator.check_schema(VALIDATORS[kind].schema)
    assert json.loads(render(kind)) == VALIDATORS[kind].schema
    assert VALIDATORS[kind].schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"


@pytest.mark.parametrize("name", GOOD_EDGES)
def test_good_edges_are_valid(name: str) -> None:
    assert load_edge_text(GOOD_EDGES[name], name).warnings == ()
    assert complaints("edge", GOOD_EDGES[name]) == []


@pytest.mark.parametrize("name", GOOD_NODES)
def test_good_nodes_are_valid(name: str) -> None:
    assert load_node_text(GOOD_NODES[name], name).warnings == ()
    assert complaints("node", GOOD_NODES[name]) == []


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("edge", "edg: {}", [" additionalProperties"]),
        ("edge", "edge: {lisen: 'h:1'}", ["edge additionalProperties"]),
        ("edge", "models: {a: b}", ["models type"]),
        ("edge", "models: ~", ["models type"]),
        ("edge", "observe: ~", ["observe type"]),
        ("edge", "models: [{id: m}]", ["models.0 required"]),
        ("edge", "models: [{id: m, providers: {}}]", ["models.0.providers minProperties"]),
        ("edge", "models: [{id: m, providers: {p: 7}}]", ["models.0.providers.p type"]),
        ("edge", "provider_pool: {max_queue: -1}", ["provider_pool.max_queue minimum"]),
        ("edge", "provider_pool: {max_queue: 1000001}", ["provider_pool.max_queue maximum"]),
        ("edge", "provider_pool: {max_queue: '16'}", ["provider_pool.max_queue type"]),
        ("edge", "openai: {long_context_threshold_tokens: 0}", ["openai.long_context_threshold_tokens minimum"]),
        ("edge", "openai: {expose_route: 'true'}", ["openai.expose_route type"]),
        ("edge", "nodes: [{id: 'a b'}]", ["nodes.0.id pattern"]),
        ("edge", "nodes: [{id: n, token_hash_sha256: raw}]", ["nodes.0.token_hash_sha256 pattern"]),
        ("edge", f"nodes: [{{id: n, token: {HASH_A}}}]", ["nodes.0 additionalProperties"]),
        ("edge", provider("", base="type: vlm, endpoint: 'http://h'"), ["nodes.0.providers.0.type enum"]),
        ("edge", provider("", capacity=""), ["nodes.0.providers.0 required"]),
        ("edge", provider("priority: 1001"), ["nodes.0.providers.0.priority maximum"]),
        ("edge", provider("").replace("models: [s]", "models: []"), ["nodes.0.providers.0.models minItems"]),
        ("node", "id: n", [" required"]),
        ("node", NODE + "token: raw", [" additionalProperties"]),
        ("node", NODE + "native_models: [{id: e, adapter: x, options: {a: [1]}}]", ["native_models.0.options.a type"]),
        ("node", NODE + "log: {level: loud}", ["log.level enum"]),
        ("node", NODE + "limits: {drain_ms: -1}", ["limits.drain_ms minimum"]),
    ],
)
def test_what_keys_alone_show_is_refused_by_schema_and_loader(kind: Kind, text: str, expected: list[str]) -> None:
    assert complaints(kind, text) == expected
    with pytest.raises(ConfigError):
        (load_edge_text if kind == "edge" else load_node_text)(text, "f")


def properties(schema: Any) -> list[tuple[str, dict[str, Any]]]:
    """Every key of a schema, wherever it stands, with what is said about it."""
    sections = [schema, *schema["$defs"].values()]
    return [(key, value) for section in sections for key, value in section.get("properties", {}).items()]


@pytest.mark.parametrize("kind", MODELS)
def test_every_key_has_a_description_and_its_class(kind: Kind) -> None:
    sections = VALIDATORS[kind].schema["$defs"]
    for key, value in properties(VALIDATORS[kind].schema):
        section = sections[value["$ref"].rpartition("/")[2]] if "$ref" in value else {}
        assert value.get("description", section.get("description", "")).endswith("."), key
        assert value["apply"] in ("live", "restart"), key
        assert "quiet" not in value
        if value.get("type") in ("integer", "number"):
            assert {"minimum", "maximum"} <= value.keys(), f"{key} has no bounds"
        assert value.get("default", "") is not None
