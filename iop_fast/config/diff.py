"""What differs between two configurations, and whether a refresh can take it over.

Entries of lists are matched by their id, so that a new first entry is one addition and not a change of all. The class
of a difference, live or restart, is the mark on the innermost key that it lies in; an added or removed entry has the
mark of its list. Order never counts, neither that of keys nor that of entries: `keep` carries the running order over.
Values that two files write differently but mean the same (max_queue 0 and 16) are no difference.

Nothing of a secret leaves here: such a key is only said to have changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pydantic.fields import FieldInfo

from iop_fast.config.places import bracket, naming_key
from iop_fast.config.schema import EdgeConfig
from iop_fast.config.schema.fields import Apply, Section, child, is_list, is_map, is_section, mark, unwrap

Kind = Literal["changed", "added", "removed"]
# The entries that a difference lies in, outermost first: (("nodes", "gpu-1"), ("providers", "vllm-a")).
Owners = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Change:
    """One difference. `before` and `after` are plain values, None where there is none or it may not be shown."""

    path: str
    kind: Kind
    apply: Apply
    owners: Owners
    before: Any = None
    after: Any = None


@dataclass(frozen=True, slots=True)
class Diff:
    """All differences, sorted by path."""

    changes: tuple[Change, ...]

    @property
    def is_empty(self) -> bool:
        """True when the two configurations mean the same."""
        return not self.changes

    @property
    def restart_required_paths(self) -> tuple[str, ...]:
        """Paths that a refresh refuses, sorted."""
        return tuple(change.path for change in self.changes if change.apply == "restart")

    @property
    def changed_nodes(self) -> tuple[str, ...]:
        """Ids of Nodes that differ in anything, their providers included, sorted."""
        return self._owners("nodes")

    @property
    def changed_providers(self) -> tuple[str, ...]:
        """Ids of providers that differ in anything, sorted."""
        return self._owners("providers")

    @property
    def changed_models(self) -> tuple[str, ...]:
        """Ids of models that differ in anything, sorted."""
        return self._owners("models")

    def _owners(self, kind: str) -> tuple[str, ...]:
        return tuple(sorted({name for change in self.changes for key, name in change.owners if key == kind}))


def compare(before: EdgeConfig, after: EdgeConfig) -> Diff:
    """Compare two accepted configurations."""
    changes = _compare_sections(before, after, "", ())
    return Diff(tuple(sorted(changes, key=lambda change: (change.path, change.kind))))


def _compare_sections(before: Section, after: Section, path: str, owners: Owners) -> list[Change]:
    changes: list[Change] = []
    for key, field in type(before).model_fields.items():
        old, new = getattr(before, key), getattr(after, key)
        if old is not new and old != new:
            _, annotation = child(type(before), key)
            changes += _compare(field, key, annotation, old, new, f"{path}.{key}" if path else key, owners)
    return changes


def _compare(
    field: FieldInfo, key: str, annotation: Any, old: Any, new: Any, path: str, owners: Owners
) -> list[Change]:
    """Compare two unequal values of one key."""
    apply: Apply = mark(field, "apply")
    if old is None or new is None:
        kind: Kind = "added" if old is None else "removed"
        return [Change(path, kind, apply, owners, _shown(field, old), _shown(field, new))]
    if is_section(annotation):
        return _compare_sections(old, new, path, owners)
    if is_map(annotation):
        return _compare_maps(apply, old, new, path, owners)
    item = unwrap(child(annotation, 0)[1]) if is_list(annotation) else None
    name = naming_key(item) if item is not None else None
    if name is not None:
        return _compare_entries(field, key, name, old, new, path, owners)
    return [Change(path, "changed", apply, owners, _shown(field, old), _shown(field, new))]


def _compare_maps(apply: Apply, old: dict[str, Any], new: dict[str, Any], path: str, owners: Owners) -> list[Change]:
    changes = []
    for key in [*old, *(key for key in new if key not in old)]:
        before, after = old.get(key), new.get(key)
        if before != after:
            kind: Kind = "added" if before is None else "removed" if after is None else "changed"
            changes.append(Change(path + bracket(key), kind, apply, owners, before, after))
    return changes


def _compare_entries(
    field: FieldInfo,
    key: str,
    name: str,
    old: tuple[Section, ...],
    new: tuple[Section, ...],
    path: str,
    owners: Owners,
) -> list[Change]:
    """Match the entries of a list by their id."""
    before = {getattr(entry, name): entry for entry in old}
    after = {getattr(entry, name): entry for entry in new}
    apply: Apply = mark(field, "apply")
    changes: list[Change] = []
    for entry_id in [*before, *(entry_id for entry_id in after if entry_id not in before)]:
        place, inner = path + bracket(entry_id), (*owners, (key, entry_id))
        if entry_id not in after:
            changes += _whole(before[entry_id], place, "removed", apply, inner)
        elif entry_id not in before:
            changes += _whole(after[entry_id], place, "added", apply, inner)
        elif before[entry_id] is not after[entry_id] and before[entry_id] != after[entry_id]:
            changes += _compare_sections(before[entry_id], after[entry_id], place, inner)
    return changes


def _whole(entry: Section, path: str, kind: Kind, apply: Apply, owners: Owners) -> list[Change]:
    """An entry that came or went. The providers of a whole Node are named too: a report counts them by id."""
    changes = [Change(path, kind, apply, owners)]
    for key, field in type(entry).model_fields.items():
        if not mark(field, "ordered"):
            continue
        name = naming_key(child(child(type(entry), key)[1], 0)[1])
        assert name is not None, "an ordered list has entries with ids"
        for inner in getattr(entry, key):
            inner_id = getattr(inner, name)
            changes += _whole(inner, f"{path}.{key}{bracket(inner_id)}", kind, apply, (*owners, (key, inner_id)))
    return changes


def _shown(field: FieldInfo, value: Any) -> Any:
    """A value as a report may show it: plain values, and nothing of secrets or of whole sections."""
    if mark(field, "secret") or isinstance(value, Section):
        return None
    return list(value) if isinstance(value, tuple) else value
