"""Each event in each state: what it leads to, and that nothing is lost or given back twice whatever comes when."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from iop_fast._core.admission import Outcome
from iop_fast._core.ledger import Lease
from iop_fast.edge.exchange_states import MOVES, Event, State
from iop_fast.seams import End, Head
from iop_fast.wire.runtime_pb2 import RunEnd
from tests.unit.edge.exchange_world import JSON_HEAD, OK, SSE_HEAD, Call, ExchangeWorld

R, Q, D, S, C, X = State.RECEIVING, State.QUEUED, State.DISPATCHED, State.STREAMING, State.CANCELLING, State.DONE
BODY = b'{"model":"m"}'


def receiving(world: ExchangeWorld) -> Call:
    call = world.open(length=len(BODY))
    call.receiver.on_body(BODY)
    return call


def queued(world: ExchangeWorld) -> Call:
    world.post()
    return world.post(BODY)


def dispatched(world: ExchangeWorld) -> Call:
    return world.post(BODY)


def streaming(world: ExchangeWorld) -> Call:
    call = world.post(BODY)
    world.link.answer(1, SSE_HEAD, b"data: 1\n\n")
    return call


def cancelling(world: ExchangeWorld) -> Call:
    call = streaming(world)
    call.leave()
    return call


def done(world: ExchangeWorld) -> Call:
    call = streaming(world)
    world.link.answer(1, None, b"data: 2\n\n", end=OK)
    return call


WAYS_IN: dict[State, Callable[[ExchangeWorld], Call]] = {
    R: receiving,
    Q: queued,
    D: dispatched,
    S: streaming,
    C: cancelling,
    X: done,
}


def answer(taken: bool, head: Head | None, data: list[bytes], end: End | None) -> Callable[[ExchangeWorld, Call], None]:
    return lambda world, call: call.exchange.on_answer(taken, head, data, end)


def failed(status: int) -> End:
    return End(status, "", None)


def foreign_lease(world: ExchangeWorld, call: Call) -> None:
    """A grant that nobody waits for (a second provider's slot): it must not stay taken."""
    taker = Taker(world)
    lease = world.gate.submit(taker, "m", False, 1 << 16)
    if isinstance(lease, Lease):
        call.exchange.on_granted(lease)
        assert call.exchange.state is Q or not lease.is_held


class Taker:
    """An owner that gives back what it gets."""

    def __init__(self, world: ExchangeWorld) -> None:
        self.world = world

    def on_granted(self, lease: Lease) -> None:
        self.world.gate.release(lease)

    def on_evicted(self, outcome: Outcome) -> None:
        """It does not mind."""


# Event -> (what happens, the state that it leads to from each state; the same where none stands).
EVENTS: dict[str, tuple[Callable[[ExchangeWorld, Call], None], dict[State, State]]] = {
    "body": (lambda world, call: call.receiver.on_body(b" "), {}),
    "bad body": (lambda world, call: call.receiver.on_body(b"!"), {R: X}),
    "body complete": (lambda world, call: call.receiver.on_body_complete(), {R: D}),
    "client gone": (lambda world, call: call.leave(), {R: X, Q: X, D: C, S: C}),
    "writable": (lambda world, call: call.receiver.on_writable(), {}),
    "evicted": (lambda world, call: call.exchange.on_evicted(Outcome.EVICTED_TIMEOUT), {}),
    "sent": (lambda world, call: call.exchange.on_sent(1), {}),
    "window": (lambda world, call: call.exchange.on_window(1000), {}),
    "taken": (answer(True, None, [], None), {}),
    "head": (answer(False, JSON_HEAD, [], None), {D: S, S: C}),
    "data": (answer(False, None, [b"x"], None), {D: C}),
    "nothing": (answer(False, None, [], None), {}),
    "whole answer": (answer(True, JSON_HEAD, [b"x"], OK), {D: X, S: X, C: X}),
    "good end": (answer(False, None, [], OK), {D: X, S: X, C: X}),
    "bad end": (answer(False, None, [], failed(RunEnd.UPSTREAM_ERROR)), {D: X, S: X, C: X}),
    "unseen end": (answer(False, None, [], failed(RunEnd.CONNECT_FAILED)), {D: X, S: X, C: X}),
    "link lost": (lambda world, call: call.exchange.on_link_lost(), {D: X, S: X, C: X}),
    "confirm expired": (lambda world, call: call.exchange.on_confirm_expired(), {C: X}),
    "foreign lease": (foreign_lease, {}),
}
# A waiter of ours cannot be evicted by a call that the core did not make: it would stay in the queue.
IMPOSSIBLE = {("evicted", Q)}


def wind_down(world: ExchangeWorld) -> None:
    """End whatever is still there, as Nodes and clients would."""
    for link in list(world.links.values()):
        for run_id in link.run_ids:
            link.answer(run_id, status=RunEnd.CANCELLED)


@pytest.mark.parametrize("state", list(State), ids=lambda state: state.name)
@pytest.mark.parametrize("name", list(EVENTS))
def test_an_event_leads_where_the_table_says(name: str, state: State) -> None:
    if (name, state) in IMPOSSIBLE:
        return
    event, leads = EVENTS[name]
    with ExchangeWorld() as world:
        call = WAYS_IN[state](world)
        assert call.exchange.state is state
        event(world, call)
        assert call.exchange.state is leads.get(state, state)
        event(world, call)  # once more: late or double, it changes nothing that matters
        if not call.exchange.is_done:
            call.leave()
        for _ in range(3):
            wind_down(world)
        assert call.exchange.is_done
        assert "broken" not in world.edge.counters
        world.assert_idle()


@pytest.mark.parametrize("first", list(EVENTS))
@pytest.mark.parametrize("second", list(EVENTS))
def test_any_two_events_leave_a_request_that_can_end(first: str, second: str) -> None:
    for state in State:
        if (first, state) in IMPOSSIBLE or "evicted" in (first, second):
            continue
        with ExchangeWorld() as world:
            call = WAYS_IN[state](world)
            EVENTS[first][0](world, call)
            EVENTS[second][0](world, call)
            if not call.exchange.is_done:
                call.leave()
            for _ in range(3):
                wind_down(world)
            assert call.exchange.is_done, (state, first, second)
            assert "broken" not in world.edge.counters, (state, first, second)
            world.assert_idle()


def test_the_table_reaches_every_state_and_leaves_every_state_but_the_last() -> None:
    assert set(MOVES.values()) == set(State) - {R}
    assert {state for state, _ in MOVES} == set(State) - {X}
    assert {event for _, event in MOVES} == set(Event)
    assert all((state, Event.FINISHED) in MOVES for state in State if state is not X)
