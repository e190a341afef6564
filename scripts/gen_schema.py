"""Write configs/*.schema.json as `iop schema` prints them; with --check only say if they are fresh (exit 1 if not)."""

from __future__ import annotations

import sys
from pathlib import Path

from iop_fast.config import json_schema
from iop_fast.config.kinds import Kind

FOLDER = Path(__file__).resolve().parents[1] / "configs"
FILES: dict[str, Kind] = {"edge.schema.json": "edge", "node.schema.json": "node"}


def main(arguments: list[str]) -> int:
    """Write or check every file."""
    stale = [name for name in FILES if not is_fresh(name)]
    if "--check" in arguments:
        for name in stale:
            print(f"configs/{name} is stale: run `make docs`", file=sys.stderr)
        return 1 if stale else 0
    for name in stale:
        (FOLDER / name).write_text(json_schema.render(FILES[name]), encoding="utf-8")
        print(f"wrote configs/{name}")
    return 0


def is_fresh(name: str) -> bool:
    """True when the file is what the schema gives."""
    path = FOLDER / name
    return path.exists() and path.read_text(encoding="utf-8") == json_schema.render(FILES[name])


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
