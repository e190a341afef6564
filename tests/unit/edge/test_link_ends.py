"""How a session ends on the Edge's side: at once, by silence, by a broken message, by draining."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from iop_fast._core.admission import Outcome
from iop_fast.edge.link import SESSION_FRAMES_MAX, LinkState
from iop_fast.wire import runtime_pb2 as pb
from tests.unit.edge.link_world import LinkWorld, provider
from tests.unit.edge.worlds import VirtualLoop

UP, LOADING, UNREACHABLE = pb.ProviderState.UP, pb.ProviderState.LOADING, pb.ProviderState.UNREACHABLE


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    with VirtualLoop() as virtual:
        yield virtual


@pytest.fixture
def world(loop: VirtualLoop) -> Iterator[LinkWorld]:
    made = LinkWorld(loop, [provider("p1")])
    yield made
    made.close()


# The end of a session


def test_the_end_loses_leases_then_tells_runs_then_abandons(world: LinkWorld) -> None:
    peer = world.ready()
    link = peer.link
    assert link is not None
    running = [world.submit() for _ in range(4)]
    waiting = world.submit()
    link.close("test")
    # The lease is lost before the run hears of it.
    assert [request.log[-1] for request in running] == [("lost", False)] * 4
    assert waiting.outcome is Outcome.EVICTED_UNAVAILABLE
    assert link.state is LinkState.CLOSED
    assert peer.stream.is_abandoned
    assert (world.row().link, world.row().in_flight) == ("offline", 0)
    assert world.links.counters.runs_lost == 4
    link.close("again")
    assert world.links.counters.runs_lost == 4


def test_one_run_that_fails_at_the_end_does_not_keep_the_others_from_it(world: LinkWorld) -> None:
    peer = world.ready()
    running = [world.submit() for _ in range(3)]
    running[0].fails_on = "lost"
    peer.stream.end()
    world.loop.settle()
    assert [request.kinds[-1] for request in running] == ["lost"] * 3
    assert world.links.counters.runs_failed == 1


def test_a_closed_session_swallows_everything(world: LinkWorld) -> None:
    world.ready()
    request = world.submit()
    link = request.link
    assert link is not None
    link.close("test")
    sent = len(world._peers[0].stream.sent)
    link.send_body(request.run_id, b"x", True)
    link.cancel(request.run_id)
    link.say_draining(1, 1)
    assert link.withdraw(request.run_id) is False
    with pytest.raises(RuntimeError, match="not up"):
        request.open_on(link)
    world.loop.run_for(30)
    assert len(world._peers[0].stream.sent) == sent


def test_silence_closes_the_session(world: LinkWorld) -> None:
    """B12: a Node that hangs is lost within the limit, though its stream stays open."""
    peer = world.ready()
    request = world.submit()
    world.loop.run_for(14)
    assert request.kinds == ["sent"]
    world.loop.run_for(1.1)
    assert request.kinds == ["sent", "lost"]
    assert world.row().link == "offline"
    assert world.links.counters.silent == 1
    assert peer.stream.is_abandoned


def test_heartbeats_keep_the_session_and_go_both_ways(world: LinkWorld) -> None:
    """B12: a healthy Node that has nothing else to say is never cut."""
    peer = world.ready()
    request = world.submit()
    for _ in range(20):
        world.loop.run_for(5)
        peer.beat(request.run_id)
    assert request.kinds == ["sent"]
    beats = peer.take("heartbeat")
    assert len(beats) >= 20
    assert beats[-1].heartbeat.messages_read >= 20


def test_our_own_pause_does_not_close_the_session(world: LinkWorld) -> None:
    peer = world.ready()
    world.loop.run_for(3)
    world.loop.jump(60)
    peer.stream.feed(pb.Batch(frames=[pb.Frame(heartbeat=pb.Heartbeat())]).SerializeToString())
    world.loop.run_for(5)
    assert world.row().link == "ready"


@pytest.mark.parametrize(
    "message", [b"\xff\xff\xff", b"\x0a\x05ab", pb.Batch().SerializeToString() + b"\x0a\x02\x2a\x01"]
)
def test_a_malformed_message_ends_the_session(world: LinkWorld, message: bytes) -> None:
    peer = world.ready()
    request = world.submit()
    peer.stream.feed(message)
    world.loop.settle()
    assert request.kinds[-1] == "lost"
    assert world.links.counters.malformed == 1
    assert peer.stream.is_abandoned


@pytest.mark.parametrize("surplus", [0, 1])
def test_a_message_brings_so_many_session_frames_and_no_more(world: LinkWorld, surplus: int) -> None:
    peer = world.ready()
    for _ in range(2):  # the limit is a message's
        peer.send(*[pb.Frame(heartbeat=pb.Heartbeat()) for _ in range(SESSION_FRAMES_MAX + surplus)])
    assert peer.stream.is_abandoned == bool(surplus)
    assert world.links.counters.malformed == surplus


def test_unknown_and_misplaced_session_frames_are_ignored(world: LinkWorld) -> None:
    peer = world.ready()
    peer.send(
        pb.Frame(),
        pb.Frame(register_request=pb.RegisterRequest(node_id="n1")),
        pb.Frame(register_response=pb.RegisterResponse()),
        pb.Frame(refresh_response=pb.NodeConfigRefreshResponse(payload_revision=77, applied=True)),
    )
    assert world.row().link == "ready"
    assert peer.link is not None
    assert peer.link.pushes.observed_revision == 1


def test_a_peer_that_does_not_read_cannot_hold_the_close_up(world: LinkWorld) -> None:
    peer = world.ready()
    peer.stream.is_held = True
    request = world.submit()
    world.loop.run_for(16)
    assert request.kinds[-1] == "lost"
    assert world.row().link == "offline"
    peer.stream.release()
    world.loop.settle()
    assert world.ready("n1", "i2").response.generation == 2


def test_a_stream_that_ended_by_itself_needs_no_abandoning(world: LinkWorld) -> None:
    peer = world.ready()
    request = world.submit()
    peer.stream.end()
    world.loop.settle()
    assert request.log[-1] == ("lost", False)
    assert not peer.stream.is_abandoned
    assert peer.serving.done()


# Draining


def test_a_draining_node_finishes_what_it_has_and_gets_nothing_new(world: LinkWorld) -> None:
    peer = world.ready()
    request = world.submit()
    peer.send(pb.Frame(draining=pb.Draining(limit_ms=1000)))
    peer.send(pb.Frame(draining=pb.Draining(limit_ms=1000)))
    assert peer.link is not None
    assert (peer.link.state, peer.link.is_up) == (LinkState.DRAINING, True)
    assert (world.row().link, world.row().in_flight) == ("draining", 1)
    assert world.submit().outcome is Outcome.REJECTED_UNAVAILABLE
    world.refresh([provider("p1", capacity=2)])
    assert world.links.push_changed() == {}
    peer.send(pb.Frame(run_id=request.run_id, head=pb.ResponseHead(status=200)))
    peer.send(pb.Frame(run_id=request.run_id, end=pb.RunEnd()))
    assert request.kinds == ["sent", "answer", "answer"]
    peer.stream.end()
    world.loop.settle()
    assert world.row().link == "offline"
    assert world.links.counters.runs_lost == 0


def test_a_node_that_drains_before_its_ack_never_becomes_ready(world: LinkWorld) -> None:
    peer = world.peer()
    peer.register()
    peer.send(pb.Frame(draining=pb.Draining()))
    peer.ack()
    assert world.row().link == "offline"
    assert peer.link is not None
    assert (peer.link.state, peer.link.is_up) == (LinkState.DRAINING, False)


def test_an_edge_that_drains_says_so(world: LinkWorld) -> None:
    peer = world.ready()
    world.links.say_draining(1500, 30000)
    world.loop.settle()
    draining = peer.take("draining")
    assert [(frame.draining.reconnect_after_ms, frame.draining.limit_ms) for frame in draining] == [(1500, 30000)]
