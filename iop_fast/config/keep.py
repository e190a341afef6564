"""Carry a running configuration over into the next one, wherever both mean the same.

A refresh changes what was changed and nothing else. Order is not a change (see `diff`), but it decides between
providers that were never granted anything and it is the order of every listing; so the running order is kept: entries
of lists and keys of mappings stand where they stood, new ones come after them in the order of their file. And what
means the same *is* the same object, so that whatever is built from it can tell by identity that nothing has changed.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple, TypeVar

from iop_fast.config.places import naming_key
from iop_fast.config.schema.fields import Section, child, is_list, is_map, is_section

S = TypeVar("S", bound=Section)


class _Key(NamedTuple):
    """How one key of a section is kept. `name` is the naming key of a list of entries, "" for anything else."""

    key: str
    is_section: bool
    is_map: bool
    name: str


@cache
def _keys(kind: type[Section]) -> tuple[_Key, ...]:
    annotations = {key: child(kind, key)[1] for key in kind.model_fields}
    return tuple(
        _Key(
            key,
            is_section(annotation),
            is_map(annotation),
            (naming_key(child(annotation, 0)[1]) or "") if is_list(annotation) else "",
        )
        for key, annotation in annotations.items()
    )


def keep(before: S, after: S) -> S:
    """Return `after` with the parts of `before` that it repeats, in the order of `before`; `before` if that is all."""
    kept, is_same = {}, True
    for how in _keys(type(before)):
        old, new = getattr(before, how.key), getattr(after, how.key)
        value = _keep_value(how, old, new)
        is_same &= value is old
        if value is not new:
            kept[how.key] = value
    return before if is_same else after.model_copy(update=kept)


def _keep_value(how: _Key, old: Any, new: Any) -> Any:
    """Keep what is the same in one key's value: then the old object is returned, its order included."""
    if old is None or new is None:
        return new
    if how.is_section:
        return keep(old, new)
    if how.name:
        return _keep_entries(how.name, old, new)
    if old == new:
        return old
    return {**{key: new[key] for key in old if key in new}, **new} if how.is_map else new


def _keep_entries(name: str, old: tuple[Section, ...], new: tuple[Section, ...]) -> tuple[Section, ...]:
    """Match the entries of a list by their id."""
    left = {getattr(entry, name): entry for entry in new}
    kept = [keep(entry, left.pop(getattr(entry, name))) for entry in old if getattr(entry, name) in left]
    made = (*kept, *left.values())
    is_same = len(made) == len(old) and all(one is other for one, other in zip(made, old, strict=True))
    return old if is_same else made
