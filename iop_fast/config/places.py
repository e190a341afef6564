"""Places in a configuration: a location (tuple of keys and indices) as a path for people, and as line and column.

A path names entries of lists by their id: `nodes[gpu-1].providers[vllm-a].capacity`. An id with characters that an id
cannot have is quoted as in JSON; an entry without an id is named by its number, `nodes[#2]`, counted from 1. Keys that
the file's author chooses stand in brackets too: `models[chat].providers[vllm-a]`.
"""

from __future__ import annotations

import json
import re
from typing import Any

from iop_fast.config.schema.fields import ID_PATTERN, child, is_map, unwrap
from iop_fast.config.tree import Entry, ListNode, Location, MapNode, Node, Scalar

# The keys that name an entry of a list.
NAMING_KEYS = ("id", "name", "token_ref")
PLAIN_ID = re.compile(ID_PATTERN.removesuffix("$") + r"\Z")
PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def bracket(name: str) -> str:
    """Write a name that the file's author chose."""
    return f"[{name}]" if PLAIN_ID.match(name) else f"[{json.dumps(name[:128], ensure_ascii=False)}]"


def naming_key(annotation: Any) -> str | None:
    """Return the key by which entries of this kind are named, None for entries without one."""
    fields = getattr(unwrap(annotation), "model_fields", {})
    return next((key for key in NAMING_KEYS if key in fields), None)


def render(model: Any, root: Node, location: Location) -> str:
    """Write a location as a path."""
    annotation: Any = model
    node: Node | None = root
    path = ""
    for part in location:
        is_named_by_author = is_map(unwrap(annotation))
        _, annotation = child(annotation, part)
        if isinstance(part, int):
            node = node.items[part] if isinstance(node, ListNode) and part < len(node.items) else None
            path += _entry(node, part, annotation)
        else:
            entry = node.entries.get(part) if isinstance(node, MapNode) else None
            node = entry.value if entry is not None else None
            path += bracket(part) if is_named_by_author else _key(part, path)
    return path


def _entry(node: Node | None, index: int, annotation: Any) -> str:
    key = naming_key(annotation)
    entry = node.entries.get(key) if key is not None and isinstance(node, MapNode) else None
    if entry is not None and isinstance(entry.value, Scalar) and entry.value.text:
        return bracket(entry.value.text)
    return f"[#{index + 1}]"


def _key(part: str, path: str) -> str:
    shown = part if PLAIN_KEY.match(part) else json.dumps(part[:128], ensure_ascii=False)
    return f".{shown}" if path else shown


def find(root: Node, location: Location) -> tuple[Node | None, Entry | None]:
    """Return the node at a location, and the entry that holds it where it is a mapping's value."""
    node: Node | None = root
    entry: Entry | None = None
    for part in location:
        entry = None
        if isinstance(node, MapNode) and isinstance(part, str):
            entry = node.entries.get(part)
            node = entry.value if entry is not None else None
        elif isinstance(node, ListNode) and isinstance(part, int) and part < len(node.items):
            node = node.items[part]
        else:
            return None, None
    return node, entry


def position(root: Node, location: Location, *, at_key: bool = False) -> tuple[int, int]:
    """Return line and column of the value at a location (its key on request), or of what comes nearest above it."""
    for length in range(len(location), -1, -1):
        node, entry = find(root, location[:length])
        if node is not None:
            if entry is not None and (at_key or length < len(location)):
                return entry.line, entry.column
            return node.line, node.column
    return 1, 1
