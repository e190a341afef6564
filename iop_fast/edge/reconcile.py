"""Find runs that the Edge holds and the Node does not know: a bug somewhere, made visible instead of a slot lost.

Each heartbeat of a Node says how many of our messages it had read and which runs it knew then. A run whose opening
frame stood in one of those messages, that has not ended and that the Node does not name, is missing. One heartbeat may
be wrong for a moment (the run's end may be in a message behind it), two in a row are not: the run is ended here.

A run whose opening frame has not been put into a message, or into one the Node has not read, is never missing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping


class Reconciler:
    """Remembers what was missing in the last heartbeat. Pure; one per session."""

    __slots__ = ("_missing",)

    def __init__(self) -> None:
        self._missing: frozenset[int] = frozenset()

    def compare(
        self, messages_read: int, known: Collection[int], held: Collection[int], sent_in: Mapping[int, int]
    ) -> list[int]:
        """Return the runs to end, sorted: missing in this heartbeat and in the one before.

        `known` are the heartbeat's run ids, `held` the runs of our table, `sent_in` the number of the message that
        carried each one's opening frame (absent: not sent).
        """
        named = frozenset(known)
        missing = frozenset(
            run_id for run_id in held if run_id not in named and run_id in sent_in and sent_in[run_id] <= messages_read
        )
        lost = missing & self._missing
        self._missing = missing - lost
        return sorted(lost)
