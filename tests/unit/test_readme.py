"""README.md says what is true: its configurations load, its commands exist with the options that it gives them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from iop_fast.cli.main import COMMANDS, main
from iop_fast.config.loader import load_node

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, re.DOTALL)


def commands(program: str) -> list[list[str]]:
    """Words of every line of README's shell blocks that runs `program`, variables and comments left out."""
    lines = [line for kind, text in BLOCKS if kind == "sh" for line in text.splitlines()]
    words = [[word for word in shlex.split(line, comments=True) if not re.match(r"\w+=", word)] for line in lines]
    return [line for line in words if line and line[0] == program]


def test_the_edge_configuration_is_the_minimal_one() -> None:
    blocks = [text for kind, text in BLOCKS if kind == "yaml"]
    assert blocks[0] == (ROOT / "configs" / "edge.minimal.yaml").read_text()
    assert len([line for line in blocks[0].splitlines() if line and not line.startswith("#")]) <= 15


def test_the_node_configuration_loads(tmp_path: Path) -> None:
    file = tmp_path / "node.yaml"
    file.write_text(next(text for kind, text in BLOCKS if kind == "yaml" and text.startswith("id: ")))
    assert load_node(file).config.id == "gpu-1"


def test_every_make_verb_exists() -> None:
    verbs = {words[1] for words in commands("make")}
    assert {"up", "test", "smoke"} <= verbs
    targets = set(re.findall(r"^(\w[\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert verbs <= targets


@pytest.mark.parametrize("words", commands("iop"), ids=" ".join)
def test_every_iop_command_exists_with_its_options(words: list[str]) -> None:
    assert words[1] in COMMANDS
    context = click.Context(main)
    command = main.get_command(context, words[1])  # type: ignore[attr-defined]
    if isinstance(command, click.Group) and len(words) > 2:
        command = command.commands[words[2]]
    known = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in words[2:] if word.startswith("-")} <= known
