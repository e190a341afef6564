"""Records: what a NamedTuple's own constructor makes, and nothing else."""

from __future__ import annotations

import gc
from typing import NamedTuple

import pytest

from iop_fast._hot.records import item, new_record
from iop_fast.seams import Usage


class Derived(Usage):
    """Has a place for attributes, which a record has not."""


class Empty(NamedTuple):
    """No field."""


def test_a_record_is_the_named_tuple() -> None:
    record = new_record(Usage, (1, 2, 3))
    assert record == Usage(1, 2, 3)
    assert type(record) is Usage
    assert record._replace(cached_tokens=4) == (1, 2, 4)
    assert hash(record) == hash(Usage(1, 2, 3))
    assert new_record(Empty, ()) == ()
    assert [item(record, place) for place in range(3)] == [1, 2, 3]
    assert item((5, 6), 1) == 6


def test_a_record_holds_its_values_as_long_as_it_lives() -> None:
    class Witness:
        pass

    alive = [Witness()]
    record = new_record(Usage, (alive[0], 0, []))
    record.cached_tokens.append(record)  # type: ignore[attr-defined]  # a cycle, which the collector finds
    del record
    assert len([one for one in gc.get_objects() if isinstance(one, Witness)]) == 1
    alive.clear()
    gc.collect()
    assert not [one for one in gc.get_objects() if isinstance(one, Witness)]


def test_what_is_no_named_tuple_is_refused() -> None:
    for kind in (tuple, list, object, Derived):
        with pytest.raises(TypeError, match="named tuple"):
            new_record(kind, ())


@pytest.mark.parametrize(("record", "place"), [((1, 2), 2), ((1, 2), -1), ([1, 2], 0), (None, 0), ((), 0)])
def test_a_value_that_is_not_there_is_refused(record: object, place: int) -> None:
    with pytest.raises(TypeError, match="record with a value"):
        item(record, place)  # type: ignore[arg-type]
