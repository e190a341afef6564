"""The end that a session is told of: its Node drains, or its Edge does."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from iop_fast.node.session import SessionState
from iop_fast.wire import runtime_pb2 as pb
from tests.unit.edge.worlds import VirtualLoop
from tests.unit.node.worlds import NodeWorld, RunEnd, ended, payload, provider


@pytest.fixture
def world() -> Iterator[NodeWorld]:
    with VirtualLoop() as loop:
        yield NodeWorld(loop)


def test_a_draining_node_refuses_new_runs_finishes_the_others_and_closes(world: NodeWorld) -> None:
    talk = world.session()
    talk.make_ready()
    talk.open(1)
    talk.session.drain(30_000)
    talk.loop.settle()
    (frame,) = talk.heard("draining")
    assert frame.draining.limit_ms == 30_000
    talk.open(2)
    assert [(frame.run_id, frame.end.status) for frame in talk.heard("end")] == [(2, RunEnd.NODE_DRAINING)]
    talk.loop.run_for(3)
    (run,) = world.adapter().runs
    run.sink.on_data(b"last")
    run.end()
    talk.loop.run_for(0.1)
    assert [frame.WhichOneof("body") for frame in talk.heard()] == ["data", "end"]
    assert ended(talk).reason == "drained"
    assert run.cancels == 0


def test_the_last_end_is_handed_over_before_a_drained_session_closes(world: NodeWorld) -> None:
    talk = world.session()
    talk.make_ready()
    talk.open(1)
    talk.stream.is_held = True
    talk.session.drain(30_000)
    world.adapter().runs[0].end()
    talk.loop.run_for(1)
    assert not talk.running.done()
    talk.stream.release()
    talk.loop.run_for(0.1)
    assert [frame.end.status for frame in talk.heard("end")] == [RunEnd.OK]
    assert ended(talk).reason == "drained"


def test_an_edge_that_does_not_read_holds_a_drained_node_for_a_limit(world: NodeWorld) -> None:
    talk = world.session()
    talk.make_ready()
    talk.stream.is_held = True
    talk.session.drain(30_000)
    talk.loop.run_for(2.5)
    assert ended(talk).reason == "drained"


def test_runs_left_at_the_drain_limit_are_stopped(world: NodeWorld) -> None:
    talk = world.session()
    talk.make_ready()
    talk.open(1)
    talk.session.drain(2_000)
    talk.loop.run_for(1.9)
    assert world.adapter().runs[0].cancels == 0
    talk.loop.run_for(0.2)
    assert [(frame.end.status, frame.end.detail) for frame in talk.heard("end")] == [
        (RunEnd.CANCELLED, "the Node shut down")
    ]
    assert ended(talk).reason == "drained"


def test_a_session_that_ends_while_it_hands_over_its_last_message_keeps_no_timer(world: NodeWorld) -> None:
    talk = world.session()
    talk.make_ready()
    talk.stream.is_held = True
    talk.session.drain(30_000)
    talk.loop.run_for(0.5)
    talk.session.close("test")
    talk.loop.settle()
    assert [timer for timer in world.loop._scheduled if not timer.cancelled()] == []  # type: ignore[attr-defined]


@pytest.mark.parametrize("accepted", [False, True])
def test_a_node_that_is_not_ready_has_nothing_to_drain(world: NodeWorld, accepted: bool) -> None:
    async def silent() -> None:
        await asyncio.sleep(3600)

    world.probe = silent
    talk = world.session()
    if accepted:
        talk.accept(payload(provider()))
    talk.session.drain(30_000)
    assert ended(talk).reason == "the Node shuts down"
    talk.loop.settle()
    assert talk.heard("ready_ack") == []


def test_a_draining_edge_lets_runs_end_and_says_when_to_come_back(world: NodeWorld) -> None:
    talk = world.session()
    talk.make_ready()
    talk.open(1)
    talk.say(pb.Frame(draining=pb.Draining(reconnect_after_ms=700, limit_ms=1)))
    assert talk.session.state is SessionState.DRAINING
    world.adapter().runs[0].end()
    talk.loop.run_for(1)
    assert [frame.end.status for frame in talk.heard("end")] == [RunEnd.OK]
    talk.stream.end()
    end = ended(talk)
    assert (end.edge_drained, end.reconnect_after_ms) == (True, 700)


def test_both_sides_may_drain(world: NodeWorld) -> None:
    talk = world.session()
    talk.make_ready()
    talk.say(pb.Frame(draining=pb.Draining(reconnect_after_ms=700)))
    talk.session.drain(1_000)
    talk.loop.run_for(0.1)
    assert ended(talk).reason == "drained"
