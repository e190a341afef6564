"""What a configuration comes to, value by value, and where each value is from.

A value stands in the file, is a default, or is taken over from an earlier form of the key (`legacy`). Secrets are
masked. A provider's own queue pair is no part of an accepted configuration (see `legacy`) and is not listed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from iop_fast.config.legacy import KEYS, first_line
from iop_fast.config.places import bracket, naming_key
from iop_fast.config.schema import Provider, ProviderPool
from iop_fast.config.schema.fields import Section, mark
from iop_fast.config.tree import ListNode, MapNode, Node

From = Literal["file", "default", "legacy"]
MASK = "***"


@dataclass(frozen=True, slots=True)
class Value:
    """One key. `value` is plain data, None where nothing is given and nothing is the default; a secret is masked.

    `line` is where the value stands in the file, None for a default.
    """

    path: str
    value: Any
    source: From
    line: int | None


def effective_values(config: Section, root: MapNode) -> list[Value]:
    """Return every value of an accepted configuration, in the order of the schema; `root` is the tree of its file."""
    return list(_section(config, root, "", root))


def _section(section: Section, node: Node | None, path: str, root: MapNode) -> Iterator[Value]:
    entries = node.entries if isinstance(node, MapNode) else {}
    for key, field in type(section).model_fields.items():
        if isinstance(section, Provider) and key in KEYS:
            continue
        place = f"{path}.{key}" if path else key
        value, entry = getattr(section, key), entries.get(key)
        if isinstance(value, Section):
            yield from _section(value, entry.value if entry is not None else None, place, root)
        elif isinstance(value, tuple) and value and isinstance(value[0], Section):
            yield from _entries(value, entry.value if entry is not None else None, place, root)
        else:
            source: From = "file" if entry is not None else "default"
            line = entry.line if entry is not None else None
            if isinstance(section, ProviderPool) and entry is None:
                line = first_line(root, key)
                source = "legacy" if line is not None else source
            shown = MASK if mark(field, "secret") and value is not None else value
            yield Value(place, list(shown) if isinstance(shown, tuple) else shown, source, line)


def _entries(values: tuple[Section, ...], node: Node | None, path: str, root: MapNode) -> Iterator[Value]:
    name = naming_key(type(values[0]))
    assert name is not None, "entries of a list have ids"
    items = node.items if isinstance(node, ListNode) else [None] * len(values)
    for value, item in zip(values, items, strict=True):
        yield from _section(value, item, path + bracket(getattr(value, name)), root)
