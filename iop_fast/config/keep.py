"""Carry a running configuration over into the next one, wherever both mean the same.

A refresh changes what was changed and nothing else. Order is not a change (see `diff`), but it decides between
providers that were never granted anything and it is the order of every listing; so the running order is kept: entries
of lists and keys of mappings stand where they stood, new ones come after them in the order of their file. And what
means the same *is* the same object, so that whatever is built from it can tell by identity that nothing has changed.
"""

from __future__ import annotations

from typing import Any, TypeVar

from iop_fast.config.places import naming_key
from iop_fast.config.schema.fields import Section, child, is_list, is_map, is_section

S = TypeVar("S", bound=Section)


def keep(before: S, after: S) -> S:
    """Return `after` with the parts of `before` that it repeats, in the order of `before`; `before` if that is all."""
    if before == after:
        return before
    kept = {}
    for key in type(before).model_fields:
        old, new = getattr(before, key), getattr(after, key)
        value = _keep_value(child(type(before), key)[1], old, new)
        if value is not new:
            kept[key] = value
    made = after.model_copy(update=kept)
    return before if made == before else made


def _keep_value(annotation: Any, old: Any, new: Any) -> Any:
    """Keep what is the same in one key's value. Equal mappings may differ in order, so equal means the old object."""
    if old is None or new is None:
        return new
    if old == new:
        return old
    if is_section(annotation):
        return keep(old, new)
    if is_map(annotation):
        return {**{key: new[key] for key in old if key in new}, **new}
    name = naming_key(child(annotation, 0)[1]) if is_list(annotation) else None
    return new if name is None else _keep_entries(name, old, new)


def _keep_entries(name: str, old: tuple[Section, ...], new: tuple[Section, ...]) -> tuple[Section, ...]:
    """Match the entries of a list by their id."""
    left = {getattr(entry, name): entry for entry in new}
    kept = [keep(entry, left.pop(getattr(entry, name))) for entry in old if getattr(entry, name) in left]
    made = (*kept, *left.values())
    return old if made == old else made
