"""The schema of both files as JSON Schema, for editors and other tools.

It holds what single keys may be. Rules between keys and the syntax of addresses are left to the loader, which says more
about them: what the schema refuses, the loader refuses too.
"""

from __future__ import annotations

import json
from typing import Any

from iop_fast.config.kinds import Kind
from iop_fast.config.schema import EdgeConfig, NodeConfig
from iop_fast.config.schema.fields import Section

MODELS: dict[Kind, type[Section]] = {"edge": EdgeConfig, "node": NodeConfig}
# Marks of our own that say nothing to a file's author.
HIDDEN = ("title", "quiet", "ordered")


def render(kind: Kind) -> str:
    """Return the JSON Schema of a file as text; the same schema gives the same text."""
    top = {"$schema": "https://json-schema.org/draft/2020-12/schema", **tidy(MODELS[kind].model_json_schema())}
    return json.dumps(top, indent=2, ensure_ascii=False) + "\n"


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
        if key not in HIDDEN and not (key == "default" and item is None)
    }
