"""Files that are written from something else: written where they are stale, or with --check only judged."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def stale(files: Mapping[Path, str]) -> list[Path]:
    """Those of the files that are missing, or not what they should be."""
    return [path for path, text in files.items() if not path.exists() or path.read_text(encoding="utf-8") != text]


def write_or_check(files: Mapping[Path, str], arguments: Sequence[str], verb: str = "make docs") -> int:
    """Write the stale ones and say so; with --check in `arguments` name them instead and return 1."""
    found = stale(files)
    is_check = "--check" in arguments
    for path in found:
        name = path.relative_to(ROOT)
        if is_check:
            print(f"{name} is stale: run `{verb}`", file=sys.stderr)
        else:
            path.write_text(files[path], encoding="utf-8")
            print(f"wrote {name}")
    return 1 if is_check and found else 0
