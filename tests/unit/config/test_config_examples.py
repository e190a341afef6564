"""The files in configs/: accepted, complete, true to the defaults; the JSON Schemas are fresh."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from iop_fast.config.loader import load_edge, load_node
from iop_fast.config.schema import EdgeConfig, NodeConfig
from iop_fast.config.schema.fields import Section, child, is_section, mark, unwrap
from iop_fast.config.schema.native import BUILT_IN_OPTIONS
from scripts import gen_config_docs, gen_schema

CONFIGS = Path(__file__).resolve().parents[3] / "configs"


@pytest.mark.parametrize("name", ["edge.yaml", "edge.minimal.yaml"])
def test_edge_examples_are_accepted_without_a_warning(name: str) -> None:
    loaded = load_edge(CONFIGS / name)
    assert loaded.warnings == ()
    assert loaded.config.models


def test_node_example_is_accepted_without_a_warning() -> None:
    loaded = load_node(CONFIGS / "node.yaml")
    assert loaded.warnings == ()
    assert loaded.config.cli_profiles


def sections(model: type[Section], seen: set[type[Section]]) -> Iterator[type[Section]]:
    """The model and every section below it."""
    if model in seen:
        return
    seen.add(model)
    yield model
    for name in model.model_fields:
        _, annotation = child(model, name)
        for inner in (annotation, child(annotation, 0)[1]):
            if inner is not None and is_section(unwrap(inner)):
                yield from sections(unwrap(inner), seen)


@pytest.mark.parametrize(("name", "model"), [("edge.yaml", EdgeConfig), ("node.yaml", NodeConfig)])
def test_examples_show_every_key(name: str, model: type[Section]) -> None:
    text = (CONFIGS / name).read_text()
    shown = set(re.findall(r"(?:^|[\s{#,-])([a-z][a-z0-9_]*):", text))
    missing = {
        f"{one.__name__}.{key}" for one in sections(model, set()) for key in one.model_fields if key not in shown
    }
    assert missing == set()


def defaults_that_differ(section: Section, path: str) -> list[str]:
    """Keys under a section whose value is not the default, lists and what has no default left out."""
    found = []
    for key, field in type(section).model_fields.items():
        value: Any = getattr(section, key)
        if isinstance(value, Section):
            found += defaults_that_differ(value, f"{path}{key}.")
        elif not field.is_required() and not isinstance(value, (tuple, dict)) and value != field.get_default():
            found.append(f"{path}{key}")
    return found


def test_examples_show_the_defaults() -> None:
    edge = load_edge(CONFIGS / "edge.yaml").config
    assert defaults_that_differ(edge, "") == ["edge.name"]
    node = load_node(CONFIGS / "node.yaml").config
    assert defaults_that_differ(node, "") == ["token_env"]
    assert defaults_that_differ(node.cli_profiles[0], "") == []


def test_the_reference_page_has_a_card_for_every_key() -> None:
    page = gen_config_docs.TARGET.read_text(encoding="utf-8")
    for path in (
        "nodes[].providers[].capacity",
        "openai.limits.body_bytes",
        "provider_pool.max_queue",
        "cli_profiles[].id",
        "native_models[].options.context_tokens",
    ):
        assert f"#### `{path}`" in page
    assert page.count("#### ") == sum(
        not is_section(unwrap(field.annotation))
        for model in (EdgeConfig, NodeConfig)
        for _, one in gen_config_docs.sections(model, "")
        for field in one.model_fields.values()
    ) + sum(len(options.model_fields) for options in BUILT_IN_OPTIONS.values())


@pytest.mark.parametrize("script", [gen_schema, gen_config_docs])
def test_what_is_generated_is_fresh(script: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(["--check"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", ["edge.yaml", "edge.minimal.yaml", "node.yaml"])
def test_editors_find_the_schema(name: str) -> None:
    first = (CONFIGS / name).read_text().splitlines()[0]
    kind = name.split(".")[0]
    assert first == f"# yaml-language-server: $schema={kind}.schema.json"
    assert (CONFIGS / f"{kind}.schema.json").exists()


@pytest.mark.parametrize("model", [EdgeConfig, NodeConfig])
def test_every_key_is_declared_in_full(model: type[Section]) -> None:
    for section in sections(model, set()):
        assert section.__doc__, section
        for key, field in section.model_fields.items():
            where = f"{section.__name__}.{key}"
            assert field.description, where
            assert field.description.endswith("."), where
            assert mark(field, "apply") in ("live", "restart"), where
            unit = {"ms": "ms", "bytes": "bytes", "tokens": "tokens"}.get(key.rsplit("_", 1)[-1])
            if unit is not None and key not in ("principal_tokens", "principal_ref"):
                assert mark(field, "unit") == unit, where
