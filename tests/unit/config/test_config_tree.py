"""Shapes of YAML text: what is refused before any key is looked at, and where (B15)."""

from __future__ import annotations

import pytest

from iop_fast.config import tree
from iop_fast.config.tree import MapNode, Scalar, read_tree

from .files import errors, places


def test_nodes_know_where_they_stand() -> None:
    root, remarks = read_tree("a: 1\nb:\n  - c: x\n    d: 'y'\n")
    assert isinstance(root, MapNode)
    assert remarks == []
    entry = root.entries["b"]
    assert (entry.line, entry.column) == (2, 1)
    inner = entry.value.items[0]  # type: ignore[union-attr]
    value = inner.entries["d"].value
    assert isinstance(value, Scalar)
    assert (value.line, value.column, value.text, value.is_plain) == (4, 8, "y", False)


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n", "---\n", "~\n", "---\n...\n", "\ufeff"])
def test_an_empty_file_is_one_finding(text: str) -> None:
    assert errors(text) == [": the file is empty, expected a mapping"]


@pytest.mark.parametrize(("text", "got"), [("- a\n", "a list"), ("word\n", "a text"), ("3\n", "a number")])
def test_the_file_is_a_mapping(text: str, got: str) -> None:
    assert errors(text) == [f": expected a mapping, got {got}"]


def test_a_key_given_twice_is_refused_with_both_lines() -> None:
    text = "edge:\n  id: a\n  name: x\n  id: b\n"
    assert errors(text) == ["edge.id: given twice, first in line 2"]
    assert places(text) == [(4, 3)]


def test_a_key_that_a_merge_brings_again_is_refused() -> None:
    text = "nodes:\n  - &n\n    id: a\n    alias: x\n  - <<: *n\n    id: b\n"
    assert "nodes[b].id: given twice, in line 6 and by the merge in line 5" in errors(text)


def test_two_merges_with_the_same_key_are_refused() -> None:
    text = "a2a: &a {enabled: false}\nbootstrap: {<<: [*a, *a]}\n"
    assert errors(text) == ["bootstrap.enabled: given twice, in line 1 and by the merge in line 2"]


def test_a_merge_without_conflict_is_taken() -> None:
    text = "a2a: &a {enabled: false}\nbootstrap: {<<: *a, artifact_path: /x}\n"
    assert errors(text) == []


def test_only_mappings_can_be_merged() -> None:
    assert errors("a2a: {<<: x}\n") == ["a2a: a text cannot be merged, expected a mapping or a list of mappings"]


def test_two_documents_are_refused() -> None:
    text = "edge: {id: a}\n---\nedge: {id: b}\n"
    assert errors(text) == [": a second document starts here, expected one configuration a file"]
    assert places(text) == [(2, 1)]


@pytest.mark.parametrize(("text", "place"), [("edge:\n\tid: a\n", (2, 1)), ("edge:\n  id: a\n \t name: b\n", (3, 2))])
def test_tabs_do_not_indent(text: str, place: tuple[int, int]) -> None:
    assert [message.split(": ", 1)[1] for message in errors(text)] == ["a tab cannot indent YAML, expected spaces"]
    assert places(text) == [place]


def test_a_syntax_error_says_what_it_was_in() -> None:
    assert errors("edge: {id: a\nopenai: {}\n") == [
        "edge: did not find expected ',' or '}' while parsing a flow mapping that began in line 1"
    ]


def test_tags_are_refused() -> None:
    assert errors("edge: {id: !!str 3, name: !x word}\n") == [
        "edge.id: a tag (tag:yaml.org,2002:str) has no meaning here",
        "edge.id: expected a text, got a number '3'; put it in quotes",
        "edge.name: a tag (!x) has no meaning here",
    ]


@pytest.mark.parametrize("key", ["8", "no", "1e3", "2026-01-01", "~"])
def test_a_key_is_a_text_to_every_reader(key: str) -> None:
    text = f"models: [{{id: m, providers: {{{key}: s}}}}]\n"
    assert f"models[m].providers: the key {key} is no text to every YAML reader, expected it in quotes" in errors(text)


def test_a_key_without_text_is_refused() -> None:
    assert errors("? [a]\n: b\n") == [": a list cannot be a key, expected a name"]
    assert errors("edge: {? : b}\n") == [
        "edge: the key (nothing) is no text to every YAML reader, expected it in quotes"
    ]


def test_an_alias_of_itself_ends_the_reading() -> None:
    assert errors("edge: &a {id: *a}\n") == ["edge.id: the alias *a stands for itself"]


def test_an_alias_without_anchor_is_refused() -> None:
    assert errors("edge: *nowhere\n") == ["edge: the alias *nowhere has no anchor before it"]


def test_an_alias_bomb_is_refused_by_what_it_stands_for() -> None:
    layers = "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 10))
    found = errors("a0: &a0 [x]\n" + layers)
    assert len(found) == 1
    assert f"more than {tree.NODES_MAX} values, those behind aliases included" in found[0]


def test_depth_is_bounded_in_text_and_through_aliases() -> None:
    assert "nested deeper than 64 levels" in errors("[" * 70)[0]
    chain = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 100))
    assert "nested deeper than 64 levels" in errors(chain)[0]


def test_the_size_of_a_file_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "FILE_BYTES_MAX", 100)
    assert errors("#" * 101) == [": the file is too long, expected at most 100 bytes"]
    assert errors("#" * 100) == [": the file is empty, expected a mapping"]


def test_what_is_not_utf8_is_refused_at_its_place() -> None:
    assert errors(b"edge:\n  id: \xff\n") == [": byte 0xff is not UTF-8"]
    assert places(b"edge:\n  id: \xff\n") == [(2, 7)]
    assert errors("edge: {}".encode("utf-16")) == [": the file is UTF-16, expected UTF-8"]


def test_a_control_character_is_refused_at_its_place() -> None:
    assert errors("edge: {id: a}\n# \x07\n") == [": the character U+0007 cannot stand in YAML"]
    assert places("edge: {id: a}\n# \x07\n") == [(2, 3)]


def test_a_lone_surrogate_is_a_finding() -> None:
    assert errors("edge: {id: \ud800}\n") == [": byte 0xed is not UTF-8"]


def test_a_byte_order_mark_is_skipped() -> None:
    assert errors(b"\xef\xbb\xbfedge: {id: a}\n") == []


def test_reading_stops_after_very_many_refusals() -> None:
    found = errors("a: 1\n" * 5_000)
    assert len(found) == tree.TREE_FINDINGS_MAX
