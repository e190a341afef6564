"""What the two tables of hand-made faults share: the row, its making, a command in the scratch copy, the verdict."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]


class Mutant(NamedTuple):
    """In the source of `module` the piece `old` becomes `new`."""

    name: str
    module: str
    old: str
    new: str


def mutants(module: str, *rows: tuple[str, str, str]) -> list[Mutant]:
    """The faults of one module: name, piece, what it becomes."""
    return [Mutant(name, module, old, new) for name, old, new in rows]


def chosen(table: Sequence[Mutant], names: Sequence[str]) -> list[Mutant]:
    """Those with one of the names; all when none is named."""
    return [mutant for mutant in table if not names or mutant.name in names]


def mutated(mutant: Mutant, path: Path) -> str:
    """The source with the fault in it; ends the program where the piece does not stand there exactly once."""
    source = path.read_text()
    count = source.count(mutant.old)
    if count != 1:
        raise SystemExit(f"mutant {mutant.name!r}: its piece stands {count} times in {path.name}")
    return source.replace(mutant.old, mutant.new)


def run(tree: Path, *words: str, limit_s: float) -> subprocess.CompletedProcess[str] | None:
    """Run Python in a scratch copy, on its own modules; None when it did not end in time."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, *words]
    try:
        return subprocess.run(
            command, cwd=tree, env=environment, timeout=limit_s, capture_output=True, text=True, check=False
        )
    except subprocess.TimeoutExpired:
        return None


def close(count: int, survivors: int) -> int:
    """Say how it ended; the exit status."""
    print(f"{count} mutants, {survivors} survived")
    return 1 if survivors else 0
