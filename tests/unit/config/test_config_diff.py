"""What a refresh would see: paths, classes, owners; the classification table of live and restart-required."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from iop_fast.config.diff import Change, compare
from iop_fast.config.loader import load_edge, load_edge_text
from iop_fast.config.places import bracket, naming_key
from iop_fast.config.schema import EdgeConfig
from iop_fast.config.schema.fields import Section, child, field_at, mark

from .files import HASH_A, HASH_B, accepted

EXAMPLE = Path(__file__).resolve().parents[3] / "configs" / "edge.yaml"

BASE = f"""\
provider_pool: {{max_queue: 16}}
openai:
  principal_tokens: [{{token_ref: t, token_hash_sha256: {HASH_A}, principal_ref: u}}]
models:
  - {{id: m1, providers: {{p1: s, p2: s}}}}
  - {{id: m2, providers: {{p2: s}}}}
nodes:
  - id: n1
    token_hash_sha256: {HASH_A}
    adapters: [{{name: a, type: vllm, endpoint: "http://a"}}]
    providers:
      - {{id: p1, type: vllm, endpoint: "http://h", models: [s], capacity: 1}}
      - {{id: p2, adapter: a, models: [s, t], capacity: 2}}
  - id: n2
    token_hash_sha256: {HASH_B}
    providers: []
"""


def changes(old: str, new: str) -> list[Change]:
    """The changes between two texts."""
    return list(compare(accepted(old).config, accepted(new).config).changes)


def brief(old: str, new: str) -> list[tuple[str, str, str]]:
    """The changes between two texts as path, kind, class."""
    return [(one.path, one.kind, one.apply) for one in changes(old, new)]


def leaves(section: Section, location: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Every key of a configuration that holds a plain value or a list or mapping of such, with its location."""
    for key in type(section).model_fields:
        value = getattr(section, key)
        if isinstance(value, Section):
            yield from leaves(value, (*location, key))
        elif isinstance(value, tuple) and value and isinstance(value[0], Section):
            for index, entry in enumerate(value):
                yield from leaves(entry, (*location, key, index))
        elif naming_key(child(child(type(section), key)[1], 0)[1]) is None:
            yield (*location, key), value


def replaced(holder: Any, location: tuple[str | int, ...], value: Any) -> Any:
    """A copy of a configuration with another value at a location."""
    if not location:
        return value
    part, rest = location[0], location[1:]
    if isinstance(part, int):
        return (*holder[:part], replaced(holder[part], rest, value), *holder[part + 1 :])
    return holder.model_copy(update={part: replaced(getattr(holder, part), rest, value)})


def another(value: Any) -> Any:
    """A different value of the same kind."""
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return value + "x"
        case tuple():
            return (*value, "x")
        case dict():
            return {**value, "x": "x"}
    return "x"


def path_of(config: EdgeConfig, location: tuple[str | int, ...]) -> str:
    """A location as a path, from the configuration itself."""
    path, holder, annotation = "", config, EdgeConfig
    for part in location:
        _, annotation = child(annotation, part)
        holder = holder[part] if isinstance(part, int) else getattr(holder, part)
        if isinstance(part, int):
            path += bracket(getattr(holder, naming_key(annotation) or ""))
        else:
            path += f".{part}" if path else part
    return path


CONFIG = load_edge(EXAMPLE).config
NAMES = {"id", "name", "token_ref"}
LEAVES = [
    (location, value)
    for location, value in leaves(CONFIG)
    if not (location[-1] in NAMES and isinstance(location[-2], int))
]


@pytest.mark.parametrize(("location", "value"), LEAVES, ids=[path_of(CONFIG, location) for location, _ in LEAVES])
def test_each_key_is_seen_with_its_own_class(location: tuple[str | int, ...], value: Any) -> None:
    after = replaced(CONFIG, location, another(value))
    field = field_at(EdgeConfig, location)
    assert field is not None
    (change,) = compare(CONFIG, after).changes
    path = path_of(CONFIG, location) + ("[x]" if isinstance(value, dict) else "")
    assert change.path == path
    assert change.apply == mark(field, "apply")
    if mark(field, "secret"):
        assert (change.before, change.after) == (None, None)
    elif isinstance(value, (bool, int, float, str)):
        assert (change.before, change.after) == (value, another(value))


class TestTheTable:
    """The classification that the refresh contract states, key by key."""

    P1 = "nodes[n1].providers[p1]"

    @pytest.mark.parametrize(
        ("old", "new", "path"),
        [
            ("capacity: 1", "capacity: 3", P1 + ".capacity"),
            ("capacity: 1", "capacity: 1, long_context_capacity: 1", P1 + ".long_context_capacity"),
            ("capacity: 1", "capacity: 1, priority: 2", P1 + ".priority"),
            ("capacity: 1", "capacity: 1, enabled: false", P1 + ".enabled"),
            ("capacity: 1", "capacity: 1, health: down", P1 + ".health"),
            ("models: [s],", "models: [s, u],", P1 + ".models"),
            ("capacity: 1", "capacity: 1, context_window_tokens: 5", P1 + ".context_window_tokens"),
            ("capacity: 1", "capacity: 1, total_context_tokens: 5", P1 + ".total_context_tokens"),
            ("capacity: 1", "capacity: 1, timeouts: {idle_ms: 5}", P1 + ".timeouts.idle_ms"),
            ("{max_queue: 16}", "{max_queue: 17}", "provider_pool.max_queue"),
            ("{max_queue: 16}", "{max_queue: 16, queue_timeout_ms: 0}", "provider_pool.queue_timeout_ms"),
            ("  - {id: m2, providers: {p2: s}}\n", "", "models[m2]"),
            ("nodes:", "  - {id: m3, providers: {p1: s}}\nnodes:", "models[m3]"),
            ("{p1: s, p2: s}", "{p1: s, p2: t}", "models[m1].providers[p2]"),
            ("{p1: s, p2: s}", "{p1: s}", "models[m1].providers[p2]"),
            ("id: m1,", "id: m1, context_window_tokens: 7,", "models[m1].context_window_tokens"),
            ("id: m1,", "id: m1, generation: {max_tokens_ceiling: 3},", "models[m1].generation"),
            ("openai:\n", "openai:\n  long_context_threshold_tokens: 5\n", "openai.long_context_threshold_tokens"),
            ("  - id: n1\n", "  - id: n1\n    runtime: {drain_limit_ms: 5}\n", "nodes[n1].runtime.drain_limit_ms"),
        ],
    )
    def test_live(self, old: str, new: str, path: str) -> None:
        assert old in BASE
        found = brief(BASE, BASE.replace(old, new, 1))
        assert [(one[0], one[2]) for one in found] == [(path, "live")]

    @pytest.mark.parametrize(
        ("old", "new", "path"),
        [
            ("provider_pool:", "edge: {id: e}\nprovider_pool:", "edge.id"),
            ("provider_pool:", "edge: {listen: '127.0.0.1:1'}\nprovider_pool:", "edge.listen"),
            ("openai:\n", "openai:\n  listen: 127.0.0.1:1\n", "openai.listen"),
            ("openai:\n", "openai:\n  require_principal: true\n", "openai.require_principal"),
            ("openai:\n", "openai:\n  provider_auth: {enabled: true}\n", "openai.provider_auth.enabled"),
            ("openai:\n", "openai:\n  limits: {body_bytes: 4096}\n", "openai.limits.body_bytes"),
            ("token_ref: t,", "token_ref: t, alias: z,", "openai.principal_tokens[t].alias"),
            ("provider_pool:", "a2a: {listen: '127.0.0.1:1'}\nprovider_pool:", "a2a.listen"),
            ("provider_pool:", "control_plane: {address: 'h:1'}\nprovider_pool:", "control_plane.address"),
            ("provider_pool:", "bootstrap: {artifact_path: /x}\nprovider_pool:", "bootstrap.artifact_path"),
            ("provider_pool:", "admin: {listen: '127.0.0.1:1'}\nprovider_pool:", "admin.listen"),
            ("provider_pool:", "observe: {listen: '127.0.0.1:1'}\nprovider_pool:", "observe"),
            (f"256: {HASH_B}\n", f"256: {'c' * 64}\n", "nodes[n2].token_hash_sha256"),
            ("  - id: n1\n", "  - id: n1\n    alias: z\n", "nodes[n1].alias"),
            ('endpoint: "http://a"', 'endpoint: "http://b"', "nodes[n1].adapters[a].endpoint"),
            ("adapters: [", "adapters: [{name: b, type: cli, profile: x}, ", "nodes[n1].adapters[b]"),
            ("{id: p1, type: vllm", "{id: p1, type: lmstudio", "nodes[n1].providers[p1].type"),
            ("capacity: 1", "capacity: 1, label: z", "nodes[n1].providers[p1].label"),
            ('"http://h"', '"http://i"', "nodes[n1].providers[p1].endpoint"),
            ("capacity: 1", "capacity: 1, api_key_env: K", "nodes[n1].providers[p1].api_key_env"),
            ("providers: []", "providers: [{id: p3, type: cli, profile: x, models: [s], capacity: 1}]",
             "nodes[n2].providers[p3]"),
        ],
    )  # fmt: skip
    def test_restart(self, old: str, new: str, path: str) -> None:
        assert old in BASE
        found = brief(BASE, BASE.replace(old, new, 1))
        assert [(one[0], one[2]) for one in found] == [(path, "restart")]


def test_equal_files_do_not_differ() -> None:
    diff = compare(accepted(BASE).config, accepted(BASE).config)
    assert diff.is_empty
    assert (diff.restart_required_paths, diff.changed_nodes, diff.changed_providers, diff.changed_models) == (
        (),
        (),
        (),
        (),
    )


def test_comments_key_order_and_spelled_out_defaults_are_no_difference() -> None:
    """B04: only a changed meaning is a change."""
    other = BASE.replace("{max_queue: 16}", "{queue_timeout_ms: 30000, max_queue: 0} # the default")
    other = other.replace("{p1: s, p2: s}", "{p2: s, p1: s}").replace("capacity: 1}", "capacity: 1, enabled: true}")
    other = other.replace(HASH_A, HASH_A.upper())
    assert brief(BASE, other) == []


def test_the_earlier_queue_pair_and_its_new_place_are_no_difference() -> None:
    old = BASE.replace("provider_pool: {max_queue: 16}\n", "")
    old = old.replace("capacity: 1}", "capacity: 1, max_queue: 9, queue_timeout_ms: 8}")
    new = BASE.replace("{max_queue: 16}", "{max_queue: 9, queue_timeout_ms: 8}")
    assert brief(old, new) == []


def test_an_entry_put_first_is_one_addition() -> None:
    new = BASE.replace("models:\n", "models:\n  - {id: m0, providers: {p1: s}}\n", 1)
    assert brief(BASE, new) == [("models[m0]", "added", "live")]


def test_order_of_models_nodes_and_providers_is_no_difference() -> None:
    two = "  - {id: m1, providers: {p1: s, p2: s}}\n", "  - {id: m2, providers: {p2: s}}\n"
    assert brief(BASE, BASE.replace(two[0] + two[1], two[1] + two[0])) == []
    lines = BASE.splitlines(keepends=True)
    first = next(index for index, line in enumerate(lines) if "{id: p1, type" in line)
    lines[first], lines[first + 1] = lines[first + 1], lines[first]
    assert brief(BASE, "".join(lines)) == []


def test_order_of_tokens_and_adapters_means_nothing() -> None:
    token = "{token_ref: %s, token_hash_sha256: %s, principal_ref: u}"
    one, two = token % ("t", HASH_A), token % ("u", HASH_B)
    assert brief(f"openai: {{principal_tokens: [{one}, {two}]}}", f"openai: {{principal_tokens: [{two}, {one}]}}") == []


def test_a_node_that_comes_brings_its_providers() -> None:
    new = BASE + (
        f"  - id: n3\n    token_hash_sha256: {'d' * 64}\n"
        "    providers: [{id: p9, type: cli, profile: x, models: [s], capacity: 1}]\n"
    )
    diff = compare(accepted(BASE).config, accepted(new).config)
    assert [(one.path, one.kind, one.apply) for one in diff.changes] == [
        ("nodes[n3]", "added", "restart"),
        ("nodes[n3].providers[p9]", "added", "restart"),
    ]
    assert (diff.changed_nodes, diff.changed_providers) == (("n3",), ("p9",))
    back = compare(accepted(new).config, accepted(BASE).config)
    assert [one.kind for one in back.changes] == ["removed", "removed"]
    assert back.restart_required_paths == ("nodes[n3]", "nodes[n3].providers[p9]")


def test_owners_are_named_once_and_sorted() -> None:
    new = BASE.replace("capacity: 1}", "capacity: 5, priority: 6}").replace("capacity: 2}", "capacity: 7}")
    new = new.replace("id: m2,", "id: m2, context_window_tokens: 1,")
    diff = compare(accepted(BASE).config, accepted(new).config)
    assert diff.changed_nodes == ("n1",)
    assert diff.changed_providers == ("p1", "p2")
    assert diff.changed_models == ("m2",)
    assert [one.path for one in diff.changes] == sorted(one.path for one in diff.changes)
    assert diff.restart_required_paths == ()


def test_values_are_shown_and_secrets_are_not() -> None:
    new = BASE.replace("capacity: 1}", "capacity: 3}").replace(HASH_B, "e" * 64).replace("[s, t]", "[s, u]")
    shown = {one.path: (one.before, one.after) for one in changes(BASE, new)}
    assert shown == {
        "nodes[n1].providers[p1].capacity": (1, 3),
        "nodes[n1].providers[p2].models": (["s", "t"], ["s", "u"]),
        "nodes[n2].token_hash_sha256": (None, None),
    }


def test_ids_with_other_characters_do_not_occur_in_accepted_files() -> None:
    assert load_edge_text("edge: {id: 'a:b/c@d+e'}", "f").config.edge.id == "a:b/c@d+e"
    assert bracket("a:b/c@d+e") == "[a:b/c@d+e]"
    assert bracket('a"]b') == '["a\\"]b"]'
