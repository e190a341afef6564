"""Runs that the Node does not know are found in two heartbeats, and no others."""

from __future__ import annotations

from iop_fast.edge.reconcile import Reconciler


def test_missing_twice_in_a_row_is_lost() -> None:
    reconciler = Reconciler()
    held, sent = [1, 2, 3], {1: 4, 2: 4, 3: 5}
    assert reconciler.compare(5, [2], held, sent) == []
    assert reconciler.compare(6, [2], held, sent) == [1, 3]
    assert reconciler.compare(7, [2], [2], sent) == []


def test_named_once_in_between_starts_the_count_again() -> None:
    reconciler = Reconciler()
    assert reconciler.compare(5, [], [1], {1: 2}) == []
    assert reconciler.compare(6, [1], [1], {1: 2}) == []
    assert reconciler.compare(7, [], [1], {1: 2}) == []
    assert reconciler.compare(8, [], [1], {1: 2}) == [1]


def test_a_run_that_the_node_cannot_have_seen_is_never_missing() -> None:
    reconciler = Reconciler()
    for _ in range(5):
        assert reconciler.compare(7, [], [1, 2], {1: 8}) == []


def test_a_run_that_ended_between_heartbeats_is_not_lost() -> None:
    reconciler = Reconciler()
    assert reconciler.compare(5, [], [1], {1: 2}) == []
    assert reconciler.compare(6, [], [], {1: 2}) == []


def test_runs_of_the_node_that_we_do_not_hold_do_not_matter() -> None:
    reconciler = Reconciler()
    for _ in range(3):
        assert reconciler.compare(9, [1, 7, 8], [1], {1: 2, 7: 1}) == []
