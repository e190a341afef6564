"""Write configs/*.schema.json from the schema; with --check only say whether they are fresh (exit code 1 if not)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from iop_fast.config.schema import EdgeConfig, NodeConfig
from iop_fast.config.schema.fields import Section

FOLDER = Path(__file__).resolve().parents[1] / "configs"
FILES: dict[str, type[Section]] = {"edge.schema.json": EdgeConfig, "node.schema.json": NodeConfig}


def tidy(value: Any, *, is_properties: bool = False) -> Any:
    """Drop what says nothing to a file's author: titles that repeat a key's name, and null, which no file may hold."""
    if isinstance(value, list):
        return [tidy(item) for item in value]
    if not isinstance(value, dict):
        return value
    if is_properties:
        return {key: tidy(item) for key, item in value.items()}
    choices = [choice for choice in value.get("anyOf", []) if choice != {"type": "null"}]
    if len(choices) == 1:
        value = {**choices[0], **{key: item for key, item in value.items() if key != "anyOf"}}
    return {
        key: tidy(item, is_properties=key in ("properties", "$defs"))
        for key, item in value.items()
        if key not in ("title", "quiet", "ordered") and not (key == "default" and item is None)
    }


def render(name: str) -> str:
    """Return the content of one schema file."""
    schema = tidy(FILES[name].model_json_schema())
    top = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
    return json.dumps(top, indent=2, ensure_ascii=False) + "\n"


def main(arguments: list[str]) -> int:
    """Write or check every file."""
    stale = [name for name in FILES if not is_fresh(name)]
    if "--check" in arguments:
        for name in stale:
            print(f"configs/{name} is stale: run scripts/gen_schema.py", file=sys.stderr)
        return 1 if stale else 0
    for name in stale:
        (FOLDER / name).write_text(render(name), encoding="utf-8")
        print(f"wrote configs/{name}")
    return 0


def is_fresh(name: str) -> bool:
    """True when the file is what the schema gives."""
    path = FOLDER / name
    return path.exists() and path.read_text(encoding="utf-8") == render(name)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
