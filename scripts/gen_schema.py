"""Write configs/*.schema.json as `iop schema` prints them; with --check only say if they are fresh (exit 1 if not)."""

from __future__ import annotations

import sys
from pathlib import Path

from iop_fast.config import json_schema
from iop_fast.config.kinds import Kind
from scripts.generated import ROOT, write_or_check

FOLDER = ROOT / "configs"
FILES: dict[str, Kind] = {"edge.schema.json": "edge", "node.schema.json": "node"}


def files() -> dict[Path, str]:
    """The files as the schema gives them."""
    return {FOLDER / name: json_schema.render(kind) for name, kind in FILES.items()}


def main(arguments: list[str]) -> int:
    """Write or check every file."""
    return write_or_check(files(), arguments)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
