"""Commands in docs/*.md exist: a block is run by scripts/docs_check.py or says why not, and none names what is not."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import click
import pytest

from iop_fast.cli.main import COMMANDS, main
from scripts.docs_check import ROOT, blocks

BLOCKS = blocks()
# How a block would escape the check.
ELSE_CALLED = {"bash", "console", "shell", "zsh"}


def lines() -> Iterator[tuple[str, list[str]]]:
    """Words of every command line, by document; what stands behind a pipe or another program is left out."""
    for block in BLOCKS:
        if block.kind != "sh":
            continue
        text = re.sub(r"<<'?(\w+)'?.*?\n.*?^\1$", "", block.text, flags=re.MULTILINE | re.DOTALL)
        for line in text.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            words = words[: words.index("|")] if "|" in words else words
            words = words[: words.index(">")] if ">" in words else words
            if words:
                yield block.document, words


def iop_words(words: list[str]) -> list[str]:
    """What follows `iop` in a command, behind whatever runs it (kubectl exec, docker run); empty without one."""
    runs = r"iop_fast:[\d.]+" if words[:2] == ["docker", "run"] else r"(?:.*/)?iop"
    return next((words[place + 1 :] for place, word in enumerate(words) if re.fullmatch(runs, word)), [])


IOP_LINES = [(document, found) for document, words in lines() if (found := iop_words(words))]


def test_blocks_were_found_and_those_that_are_not_run_say_why() -> None:
    assert len(BLOCKS) >= 15
    assert sum(not block.why for block in BLOCKS) >= 8
    text = {path.name: path.read_text() for path in (ROOT / "docs").glob("*.md")}
    for name, document in text.items():
        fences = re.findall(r"^```(\w*)$", document, re.MULTILINE)
        assert not ELSE_CALLED & set(fences), name
        commands = [fence for fence in fences if fence in ("sh", "haproxy")]
        assert len(commands) == sum(block.document == name for block in BLOCKS), name


@pytest.mark.parametrize(("document", "words"), IOP_LINES, ids=lambda value: " ".join(value)[:60])
def test_every_iop_command_exists_with_its_options(document: str, words: list[str]) -> None:
    if words[0] == "--version":
        return
    assert words[0] in COMMANDS, f"{document}: iop {words[0]}"
    command = main.get_command(click.Context(main), words[0])
    rest = words[1:]
    if isinstance(command, click.Group) and rest and rest[0] in command.commands:
        command, rest = command.commands[rest[0]], rest[1:]
    assert command is not None
    known = {option for parameter in command.params for option in parameter.opts}
    given = {word for word in rest if word.startswith("-")}
    assert given <= known, f"{document}: iop {' '.join(words)}"


def test_every_make_verb_exists() -> None:
    targets = set(re.findall(r"^(\w[\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {verb for path in (ROOT / "docs").glob("*.md") for verb in re.findall(r"`make ([\w-]+)", path.read_text())}
    named |= {words[1] for _, words in lines() if words[0] == "make"}
    assert named <= targets, named - targets


def test_files_that_commands_name_stand_in_deploy() -> None:
    named = [(document, word) for document, words in lines() for word in words if word.startswith("deploy/")]
    files = [(document, word) for document, word in named if word != "deploy/iop-edge"]  # a Deployment, to kubectl
    assert len(files) >= 3
    for document, word in files:
        assert (ROOT / word).exists(), f"{document}: {word}"
