"""cli_profiles of a Node's file: what they may say, and what is refused where."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from iop_fast.config.loader import load_node_text
from iop_fast.config.schema import CliProfile

from .files import NODE, lines, node_findings


def findings(profiles: str, more: str = "") -> list[str]:
    return [str(one).partition(": ")[2] for one in node_findings(NODE + f"cli_profiles: [{profiles}]\n{more}")]


def only(profile: str) -> CliProfile:
    loaded = load_node_text(NODE + f"cli_profiles: [{profile}]\n", "f")
    assert loaded.warnings == ()
    (one,) = loaded.config.cli_profiles
    return one


def test_the_least_profile_and_its_defaults() -> None:
    profile = only("{id: p, command: [x]}")
    assert profile.command == ("x",)
    assert (profile.input, profile.output, profile.template, profile.fields) == ("stdin", "text", None, None)
    assert (profile.working_directory, profile.environment, profile.pass_environment) == (None, {}, ())
    assert (profile.run_ms_max, profile.output_bytes_max, profile.line_bytes_max) == (600_000, 16_777_216, 1_048_576)
    assert (profile.stderr_bytes_max, profile.open_files_max, profile.kill_after_ms) == (8_192, 1_024, 1_000)
    assert (
        profile.memory_bytes_max is profile.cpu_seconds_max is profile.processes_max is profile.file_bytes_max is None
    )


def test_a_whole_profile() -> None:
    profile = only(
        "{id: p, command: [/bin/x, -m, '{model}', -s, '{system}', '', '--', '{prompt}'], input: argument,"
        ' template: "Say:\\n{last_user}", output: json_lines, fields: {text: {path: a.0.b, where: {type: d}},'
        " reasoning: {path: r}, error: {path: e}}, environment: {A: b}, pass_environment: [C]}"
    )
    assert profile.command == ("/bin/x", "-m", "{model}", "-s", "{system}", "", "--", "{prompt}")
    assert profile.template == "Say:\n{last_user}"
    assert profile.environment == {"A": "b"}
    assert profile.fields is not None
    assert (profile.fields.text.path, profile.fields.text.where) == ("a.0.b", {"type": "d"})


LINES = "output: json_lines, fields"
REFUSED = {
    "command: []": "command: is empty, expected at least one entry",
    "command: x": "command: expected a list, got a text",
    "command: ['']": "command: expected the name of a program first, got an empty text",
    "command: [./x]": "command: expected a name on PATH or an absolute path, got './x'",
    "command: ['{model}']": "command: the program is fixed, expected no placeholder in its name",
    "command: [x, '{model}'], input: argument": (
        "command: input is argument, expected {prompt} in one of the arguments"
    ),
    "command: [x, '{prompt}']": "command: {prompt} stands in the arguments, expected input: argument",
    "command: [x, '-{last_user}']": "command: {last_user} stands in the arguments, expected input: argument",
    "command: [x], template: hello": "template: expected {prompt} or {last_user} in it",
    "command: [x], output: json_lines": ("output: output is json_lines, expected fields: what is read from the lines"),
    "command: [x], fields: {text: {path: a}}": "fields: has no meaning for output: text",
    f"command: [x], {LINES}: {{text: {{path: a..b}}}}": (
        "fields.text.path: 'a..b': expected names and list indexes with dots between them, as choices.0.delta.text"
    ),
    f"command: [x], {LINES}: {{text: {{path: a, where: {{b: true}}}}}}": "fields.text.where",
    "command: [x], environment: {A: b}, pass_environment: [A]": "pass_environment: A is set by environment already",
    'command: [x], environment: {A: "b\\0c"}': "environment[A]: 'b\\x00c': expected a text without NUL",
    "command: [x], working_directory: here": "working_directory: expected an absolute path, got 'here'",
    "command: [x], shell: true": "shell: unknown key",
    "command: [x], run_ms_max: 0": "run_ms_max: '0': expected at least 1",
    "command: [x], memory_bytes_max: 1": "memory_bytes_max: '1': expected at least 16777216",
}


@pytest.mark.parametrize("profile", REFUSED)
def test_profiles_that_are_refused(profile: str) -> None:
    (found,) = findings(f"{{id: p, {profile}}}")
    assert found.startswith(f"error: cli_profiles[p].{REFUSED[profile]}")


def test_profile_ids_are_unique() -> None:
    text = NODE + "cli_profiles: [{id: p, command: [x]}, {id: p, command: [y]}]\n"
    assert lines(node_findings(text)) == ["cli_profiles[p].id: profile id p is given twice, first in line 4"]


@pytest.mark.parametrize("key", ["command: [x, 'say {promt}']", "command: [x], template: '{prompt} {promt}'"])
def test_what_looks_like_a_placeholder_is_a_warning(key: str) -> None:
    (found,) = findings(f"{{id: p, {key}}}")
    assert found.startswith("warning: ")
    assert "{promt} is no placeholder and stays as it is, expected one of {prompt}, {system}" in found


def test_other_braces_are_left_alone() -> None:
    assert findings("{id: p, command: [x, '{\"a\": 1}', '{}', '{{x}}', '{A}', '{0}']}") == [
        "warning: cli_profiles[p].command: {x} is no placeholder and stays as it is, expected one of {prompt}, "
        "{system}, {last_user}, {model}"
    ]


@pytest.mark.parametrize(
    ("kill_after_ms", "limits", "expected"),
    [
        (4_001, "", "the Edge gives the slot of a client that left away after 5 s"),
        (3_000, "limits: {old_runs_ms: 3000}\n", "kill_after_ms 3000 is not below limits.old_runs_ms 3000"),
    ],
)
def test_a_program_that_may_take_too_long_to_end_is_a_warning(kill_after_ms: int, limits: str, expected: str) -> None:
    (found,) = findings(f"{{id: p, command: [x], kill_after_ms: {kill_after_ms}}}", limits)
    assert found.startswith(f"warning: cli_profiles[p].kill_after_ms: {expected}")


def test_the_documentations_profiles_are_accepted() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "command-line-tools.md").read_text(encoding="utf-8")
    whole, sandboxed = re.findall(r"^ *```yaml\n(.*?)```", page, re.DOTALL | re.MULTILINE)
    loaded = load_node_text(whole, "node.yaml")
    assert loaded.warnings == ()
    assert [profile.id for profile in loaded.config.cli_profiles] == ["summarize", "assistant"]
    command = yaml.safe_load(sandboxed)["command"]
    assert only(f"{{id: p, command: {command}}}").command == tuple(command)
