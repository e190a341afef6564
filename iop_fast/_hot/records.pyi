"""Named tuples, made and read without their class's Python.

The constructor of a NamedTuple is a Python function and costs six times as much as this, and `record[0]` looks a method
up by its name, since a subclass of tuple might have one of its own: ten times as much.
"""

from typing import Any, TypeVar

Record = TypeVar("Record")

def new_record(kind: type[Record], values: tuple[Any, ...]) -> Record:
    """Make a named tuple of `values`, as many as it has fields: they are not counted. Raises TypeError for a class that
    is no direct subclass of tuple."""

def item(record: tuple[Any, ...], place: int) -> Any:
    """Return record[place]; raise TypeError for what has no such value."""
