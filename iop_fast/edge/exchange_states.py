"""The states of a request and what moves it from one to the next; what they mean stands at the head of exchange.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum


class State(IntEnum):
    """Where a request stands; the module's head says what each state means."""

    RECEIVING = 0
    QUEUED = 1
    DISPATCHED = 2
    STREAMING = 3
    CANCELLING = 4
    DONE = 5


class Event(IntEnum):
    """What moves a request on."""

    SUBMITTED = 0
    GRANTED = 1
    READMITTED = 2
    ANSWERED = 3
    ABANDONED = 4
    FINISHED = 5


MOVES: Mapping[tuple[State, Event], State] = {
    (State.RECEIVING, Event.SUBMITTED): State.QUEUED,
    (State.RECEIVING, Event.FINISHED): State.DONE,
    (State.QUEUED, Event.GRANTED): State.DISPATCHED,
    (State.QUEUED, Event.FINISHED): State.DONE,
    (State.DISPATCHED, Event.READMITTED): State.QUEUED,
    (State.DISPATCHED, Event.ANSWERED): State.STREAMING,
    (State.DISPATCHED, Event.ABANDONED): State.CANCELLING,
    (State.DISPATCHED, Event.FINISHED): State.DONE,
    (State.STREAMING, Event.ABANDONED): State.CANCELLING,
    (State.STREAMING, Event.FINISHED): State.DONE,
    (State.CANCELLING, Event.FINISHED): State.DONE,
}

# The same by state and event, for reading on every move: None where there is no move.
NEXT: Sequence[Sequence[State | None]] = tuple(tuple(MOVES.get((state, event)) for event in Event) for state in State)
