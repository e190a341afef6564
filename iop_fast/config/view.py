"""A reading glass for rules: entries of the tree with their location, values only where they are what they should be.

A rule asks for a text or a number and gets None where there is none or where it is of another kind, which another pass
has reported. So a rule states what it is about and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from iop_fast.config.scalars import read_plain
from iop_fast.config.tree import Known, ListNode, Location, MapNode, Node, Remark, Scalar


def text(node: Node | None) -> str | None:
    """Return a text value, None for anything else."""
    if not isinstance(node, Scalar):
        return None
    value = read_plain(node.text) if node.is_plain else node.text
    return value if isinstance(value, str) else None


def whole(node: Node | None) -> int | None:
    """Return a whole number, None for anything else."""
    if not isinstance(node, Scalar) or not node.is_plain:
        return None
    value = read_plain(node.text)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def truth(node: Node | None, default: bool) -> bool:
    """Return a truth value, the default for anything else."""
    value = read_plain(node.text) if isinstance(node, Scalar) and node.is_plain else None
    return value if isinstance(value, bool) else default


def to_plain(node: Node) -> Any:
    """Turn a tree into Python values, each plain value read by `scalars`."""
    if isinstance(node, MapNode):
        return {key: to_plain(entry.value) for key, entry in node.entries.items()}
    if isinstance(node, ListNode):
        return tuple(to_plain(item) for item in node.items)
    return read_plain(node.text) if node.is_plain else node.text


@dataclass(frozen=True, slots=True)
class Spot:
    """A mapping of the tree and where it is."""

    node: MapNode
    location: Location

    def has(self, key: str) -> bool:
        return key in self.node.entries

    def get(self, key: str) -> Node | None:
        entry = self.node.entries.get(key)
        return entry.value if entry is not None else None

    def text(self, key: str) -> str | None:
        return text(self.get(key))

    def whole(self, key: str) -> int | None:
        return whole(self.get(key))

    def place(self, key: str, *, at_key: bool = False) -> tuple[int, int]:
        """Line and column of a key's value, or of the key, or of the mapping where the key is absent."""
        entry = self.node.entries.get(key)
        if entry is None:
            return self.node.line, self.node.column
        return (entry.line, entry.column) if at_key else (entry.value.line, entry.value.column)

    def remark(
        self, key: str, message: str, severity: str = "error", *, at_key: bool = False, known: Known | None = None
    ) -> Remark:
        """Say something about a key; "" is the mapping itself."""
        line, column = self.place(key, at_key=at_key)
        return Remark(line, column, (*self.location, key) if key else self.location, message, severity, known)

    def section(self, key: str) -> Spot | None:
        node = self.get(key)
        return Spot(node, (*self.location, key)) if isinstance(node, MapNode) else None

    def spots(self, key: str) -> list[Spot]:
        """Return the mappings in the list under a key."""
        node = self.get(key)
        if not isinstance(node, ListNode):
            return []
        return [
            Spot(item, (*self.location, key, index))
            for index, item in enumerate(node.items)
            if isinstance(item, MapNode)
        ]


def spots(root: MapNode, key: str) -> list[Spot]:
    """Return the mappings in a list at the top of the file."""
    return Spot(root, ()).spots(key)
