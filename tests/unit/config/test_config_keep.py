"""What a refresh keeps of the running configuration: order, and the very objects that did not change."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from iop_fast.config.diff import compare
from iop_fast.config.keep import keep
from iop_fast.config.schema import EdgeConfig

from .files import HASH_A, accepted

BASE = f"""\
openai:
  principal_tokens:
    - {{token_ref: t1, token_hash_sha256: {HASH_A}, principal_ref: u}}
models:
  - {{id: m1, providers: {{p1: s, p2: s}}}}
  - {{id: m2, providers: {{p2: s}}}}
nodes:
  - id: n1
    providers:
      - {{id: p1, type: vllm, endpoint: "http://h", models: [s], capacity: 1}}
      - {{id: p2, type: vllm, endpoint: "http://i", models: [s], capacity: 2}}
  - id: n2
    providers:
      - {{id: p3, type: vllm, endpoint: "http://j", models: [s], capacity: 3}}
"""
RUNNING = accepted(BASE).config


def shuffled(config: EdgeConfig, swaps: list[int]) -> EdgeConfig:
    """The same configuration in another order: lists of entries and mappings turned around as `swaps` says."""
    turn = iter(swaps)

    def turned(items: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(reversed(items)) if next(turn) else items

    models = tuple(
        model.model_copy(update={"providers": dict(turned(tuple(model.providers.items())))}) for model in config.models
    )
    nodes = tuple(node.model_copy(update={"providers": turned(node.providers)}) for node in config.nodes)
    return config.model_copy(update={"models": turned(models), "nodes": turned(nodes)})


@given(st.lists(st.integers(0, 1), min_size=6, max_size=6))
def test_another_order_is_the_running_configuration_itself(swaps: list[int]) -> None:
    other = shuffled(RUNNING, swaps)
    assert compare(RUNNING, other).is_empty
    assert keep(RUNNING, other) is RUNNING


def test_another_file_with_the_same_meaning_is_the_running_configuration_itself() -> None:
    again = accepted("# a comment\n" + BASE.replace("capacity: 1", "capacity: 1, enabled: true")).config
    assert again is not RUNNING
    assert keep(RUNNING, again) is RUNNING


def test_one_change_leaves_every_other_object() -> None:
    after = accepted(BASE.replace("capacity: 2", "capacity: 5")).config
    kept = keep(RUNNING, after)
    assert kept == after
    assert kept.openai is RUNNING.openai
    assert kept.models is RUNNING.models
    assert kept.nodes[1] is RUNNING.nodes[1]
    first, second = kept.nodes[0].providers
    assert first is RUNNING.nodes[0].providers[0]
    assert (second.capacity, second.timeouts is RUNNING.nodes[0].providers[1].timeouts) == (5, True)


def test_new_entries_come_after_those_that_stay() -> None:
    text = BASE.replace("models:\n", "models:\n  - {id: m0, providers: {p2: s}}\n", 1)
    text = text.replace("  - {id: m1, providers: {p1: s, p2: s}}\n", "")
    text = text.replace("{id: m2, providers: {p2: s}}", "{id: m2, providers: {p1: s, p2: s}}")
    kept = keep(RUNNING, accepted(text).config)
    assert [(model.id, list(model.providers)) for model in kept.models] == [("m2", ["p2", "p1"]), ("m0", ["p2"])]


def test_the_difference_is_the_same_before_and_after_keeping() -> None:
    text = BASE.replace("capacity: 1", "capacity: 9").replace("  - {id: m2, providers: {p2: s}}\n", "")
    after = shuffled(accepted(text).config, [1, 1, 1, 1, 1, 1])
    assert compare(RUNNING, keep(RUNNING, after)) == compare(RUNNING, after)
    assert {change.path for change in compare(RUNNING, after).changes} == {
        "models[m2]",
        "nodes[n1].providers[p1].capacity",
    }
