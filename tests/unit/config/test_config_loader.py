"""Loading as a whole: all findings in one run, their form, files that cannot be read."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
import yaml

from iop_fast.config import verdict
from iop_fast.config.loader import load_edge, load_node
from iop_fast.errors import ConfigError

from .files import FLEET, NODE, accepted, errors, findings


def test_an_accepted_file_has_configuration_hash_and_name(tmp_path: Path) -> None:
    path = tmp_path / "edge.yaml"
    path.write_text(FLEET)
    loaded = load_edge(path)
    assert loaded.config.nodes[1].providers[0].id == "p2"
    assert loaded.sha256 == hashlib.sha256(FLEET.encode()).hexdigest()
    assert loaded.path == str(path)
    assert loaded.warnings == ()


def test_every_pass_reports_in_one_run() -> None:
    """A duplicate key, a wrong type, a bound and a dangling reference, each hidden by no other."""
    text = """\
edge: {id: a, id: b}
openai: {expose_route: yes, long_context_threshold_tokens: 0}
models:
  - id: m
    providers: {ghost: s}
"""
    assert errors(text) == [
        "edge.id: given twice, first in line 1",
        "openai.expose_route: expected true or false, got a truth value 'yes'; YAML readers disagree about it",
        "openai.long_context_threshold_tokens: '0': expected at least 1",
        "models[m].providers[ghost]: no Node has this provider, there are none",
    ]


def test_a_finding_reads_as_compilers_write_them() -> None:
    assert str(findings("edge:\n  lisen: x\n")[0]) == ("f:2:3: error: edge.lisen: unknown key, did you mean listen?")


def test_a_far_off_key_gets_the_list_of_known_ones() -> None:
    assert errors("admin: {zzz: 1}\n") == ["admin.zzz: unknown key, expected one of listen"]


@pytest.mark.parametrize("key", ["models", "nodes", "openai", "edge", "observe", "provider_pool"])
@pytest.mark.parametrize("null", ["", "~", "null"])
def test_a_section_without_a_value_is_one_clear_finding(key: str, null: str) -> None:
    """B15: all entries of a section commented out leave a null."""
    kind = "list" if key in ("models", "nodes") else "mapping"
    assert errors(f"{key}: {null}\n") == [f"{key}: has no value, expected a {kind} (leave the key out for the default)"]


def test_a_wrong_shape_is_named_without_its_value() -> None:
    assert errors("openai: {principal_tokens: [sk-very-secret]}\n") == [
        "openai.principal_tokens[#1]: expected a mapping, got a text"
    ]
    assert errors("models: {id: a}\n") == ["models: expected a list, got a mapping"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("provider_pool: {max_queue: '16'}", "expected a whole number, got a text '16'; leave the quotes out"),
        ("provider_pool: {max_queue: 1.0}", "expected a whole number, got a number '1.0'"),
        ("provider_pool: {max_queue: true}", "expected a whole number, got a truth value 'true'"),
        ("edge: {id: 012}", "expected a text, got a number '012'; put it in quotes"),
        ("edge: {id: 2026-01-01}", "expected a text, got a date '2026-01-01'; put it in quotes"),
        ("edge: {id: true}", "expected a text, got a truth value 'true'; put it in quotes"),
        ("openai: {expose_route: 'true'}", "expected true or false, got a text 'true'"),
        ("openai: {expose_route: 1}", "expected true or false, got a number '1'"),
    ],
)
def test_wrong_types_are_named_with_what_came(text: str, expected: str) -> None:
    (found,) = errors(text)
    assert found.split(": ", 1)[1].startswith(expected)


@pytest.mark.parametrize("number", ["012", "1_000", "1e3", "0x10", "+5", "1:30", "9" * 30])
def test_odd_numbers_are_refused_not_read(number: str) -> None:
    (found,) = errors(f"provider_pool: {{max_queue: {number}}}")
    assert "write decimal digits without leading zero, underscore or exponent" in found


def test_quoted_texts_are_taken_as_they_stand() -> None:
    assert accepted("edge: {id: '012'}\n").config.edge.id == "012"


@pytest.mark.parametrize(
    "secret_line",
    [
        "openai: {principal_tokens: [{token_ref: a, principal_ref: b, token_hash_sha256: SECRET}]}",
        "openai: {principal_tokens: [{token_ref: a, principal_ref: b, token: SECRET}]}",
        "nodes: [{id: n, token: SECRET}]",
        "nodes: [{id: n, token_hash_sha256: SECRET}]",
        "nodes: [{id: n, providers: [{id: p, api_key: SECRET}]}]",
        "nodes: [{id: n, providers: [{id: p, api_key_env: SEC-SECRET}]}]",
        "nodes: [{id: n, providers: [{id: p, endpoint: 'http://u:SECRET@h/'}]}]",
        "nodes: [{id: n, providers: [{id: p, endpoint: 'http://h/?key=SECRET'}]}]",
        "nodes: [{id: n, adapters: [{name: a, type: vllm, api_key_env: 'SECRET key'}]}]",
        "nodes: [SECRET]",
    ],
)
def test_what_may_be_a_secret_is_never_repeated(secret_line: str) -> None:
    found = findings(secret_line)
    assert any(one.severity == "error" for one in found)
    assert "SECRET" not in "\n".join(map(str, found))


def test_a_raw_token_is_refused_with_what_to_write() -> None:
    (found,) = [line for line in errors("nodes: [{id: n, token: x}]") if "token" in line]
    assert "a raw token never stands in the file, expected token_hash_sha256" in found


def test_a_hopeless_file_is_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict, "FINDINGS_MAX", 10)
    found = findings("".join(f"wrong{i}: 1\n" for i in range(50)))
    assert len(found) == 11
    assert "more than 10 findings, the others are not shown" in [one.message for one in found]


def test_very_many_warnings_do_not_refuse_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict, "FINDINGS_MAX", 10)
    loaded = accepted("nodes:\n" + "".join(f"  - id: n{i}\n" for i in range(50)))
    assert len(loaded.warnings) == 11
    assert {one.severity for one in loaded.warnings} == {"warning"}


def test_errors_are_shown_before_warnings_where_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict, "FINDINGS_MAX", 10)
    found = errors("nodes:\n" + "".join(f"  - id: n{i}\n" for i in range(50)) + "    alias: 3\n")
    assert "nodes[n49].alias: expected a text, got a number '3'; put it in quotes" in found


def test_what_libyaml_alone_refuses_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise yaml.YAMLError("no place given")

    monkeypatch.setattr("iop_fast.config.tree.yaml.parse", refuse)
    assert errors("edge: {}") == [": cannot be read as YAML: no place given"]


def test_paths_name_entries_by_id_and_quote_odd_ones() -> None:
    text = "nodes: [{id: 'a b', alias: 3}, {alias: 4}]\nmodels: [{id: m, providers: {'x y': 1}}]\n"
    found = "\n".join(errors(text))
    assert 'nodes["a b"].alias: ' in found
    assert "nodes[#2].alias: " in found
    assert 'models[m].providers["x y"]: ' in found


class TestFilesThatCannotBeRead:
    def refusal(self, path: Path) -> str:
        with pytest.raises(ConfigError) as caught:
            load_edge(path)
        return str(caught.value)

    def test_missing(self, tmp_path: Path) -> None:
        path = tmp_path / "none.yaml"
        assert self.refusal(path) == f"{path}:1:1: error: cannot be read: no such file or directory"

    def test_folder(self, tmp_path: Path) -> None:
        assert self.refusal(tmp_path) == f"{tmp_path}:1:1: error: is not a regular file, expected a YAML file"

    def test_pipe_does_not_block(self, tmp_path: Path) -> None:
        path = tmp_path / "pipe"
        os.mkfifo(path)
        assert self.refusal(path) == f"{path}:1:1: error: is not a regular file, expected a YAML file"

    def test_no_permission(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: object) -> int:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr("iop_fast.config.loader.os.open", refuse)
        assert self.refusal(tmp_path / "x").endswith("cannot be read: permission denied")

    def test_name_with_nul(self) -> None:
        with pytest.raises(ConfigError, match="cannot be read"):
            load_edge("a\0b")

    def test_link_to_a_file_is_followed(self, tmp_path: Path) -> None:
        (tmp_path / "real").write_text(NODE)
        (tmp_path / "link").symlink_to(tmp_path / "real")
        assert load_node(tmp_path / "link").config.id == "n1"
