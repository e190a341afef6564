"""From a stream's first frame to a session: refusals with their reasons, supersession, who holds a node id."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from iop_fast.edge.link import LinkState
from iop_fast.edge.registration import FIELD_CHARS_MAX, TOKEN_CHARS_MAX, UNREGISTERED_MAX, first_request
from iop_fast.wire import runtime_pb2 as pb
from tests.unit.edge.link_world import LinkWorld, provider
from tests.unit.edge.worlds import TestStream, VirtualLoop


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    with VirtualLoop() as virtual:
        yield virtual


@pytest.fixture
def world(loop: VirtualLoop) -> Iterator[LinkWorld]:
    made = LinkWorld(loop, [provider("p1"), provider("p2", "n2")])
    yield made
    made.close()


def refusal(response: pb.RegisterResponse) -> str:
    """The refusal's name; a refused answer carries nothing else but words."""
    assert not response.HasField("payload")
    assert (response.generation, response.payload_revision) == (0, 0)
    assert response.detail
    return pb.Refusal.Name(response.refusal)


# Refusals


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"token": "wrong"}, "BAD_TOKEN"),
        ({"node_id": "n9"}, "UNKNOWN_NODE"),
        ({"node_id": "n9", "token": "wrong"}, "UNKNOWN_NODE"),
        ({"protocol": "2.0"}, "VERSION"),
        ({"protocol": "0.9"}, "VERSION"),
        ({"protocol": "1"}, "BAD_REQUEST"),
        ({"protocol": "1.0.0"}, "BAD_REQUEST"),
        ({"protocol": "1.0\n"}, "BAD_REQUEST"),
        ({"protocol": "one.zero"}, "BAD_REQUEST"),
        ({"protocol": ""}, "BAD_REQUEST"),
        ({"node_id": ""}, "BAD_REQUEST"),
        ({"token": ""}, "BAD_REQUEST"),
        ({"instance_id": ""}, "BAD_REQUEST"),
        ({"instance_id": "x" * (FIELD_CHARS_MAX + 1)}, "BAD_REQUEST"),
        ({"node_id": "x" * (FIELD_CHARS_MAX + 1)}, "BAD_REQUEST"),
        ({"token": "x" * (TOKEN_CHARS_MAX + 1)}, "BAD_REQUEST"),
    ],
)
def test_a_refusal_names_its_reason_and_ends_the_stream(
    world: LinkWorld, changes: dict[str, str], expected: str
) -> None:
    peer = world.peer()
    assert refusal(peer.register(**changes)) == expected
    assert peer.serving.done()
    assert world.links.current("n1") is None
    assert world.links.counters.refused == 1
    assert "wrong" not in peer.response.detail


def test_another_minor_version_is_welcome(world: LinkWorld) -> None:
    assert world.peer().register(protocol="1.7").refusal == 0


def test_a_node_without_a_configured_token_cannot_register(world: LinkWorld) -> None:
    config = world.edge.runtime.config
    bare = config.model_copy(
        update={"nodes": tuple(node.model_copy(update={"token_hash_sha256": None}) for node in config.nodes)}
    )
    object.__setattr__(world.edge.runtime, "config", bare)
    assert refusal(world.peer().register()) == "BAD_TOKEN"


def test_a_refused_registration_never_disturbs_the_current_session(world: LinkWorld) -> None:
    peer = world.ready()
    request = world.submit()
    for changes in ({"token": "wrong"}, {"protocol": "9.0"}, {"instance_id": ""}):
        assert world.peer().register(**changes).refusal != 0
    assert request.kinds == ["sent"]
    assert peer.link is not None
    assert peer.link.state is LinkState.READY


@pytest.mark.parametrize(
    "message",
    [
        b"\xff\xff",
        b"",
        pb.Batch(frames=[pb.Frame(heartbeat=pb.Heartbeat())]).SerializeToString(),
        pb.Batch(frames=[pb.Frame(run_id=1, data=b"x")]).SerializeToString(),
        pb.Batch(frames=[pb.Frame()]).SerializeToString(),
        pb.Batch(
            frames=[pb.Frame(heartbeat=pb.Heartbeat()), pb.Frame(register_request=pb.RegisterRequest(node_id="n1"))]
        ).SerializeToString(),
    ],
    ids=["garbage", "empty", "heartbeat", "run frame", "empty frame", "not first"],
)
def test_anything_but_a_registration_first_is_refused(world: LinkWorld, message: bytes) -> None:
    assert first_request(message) is None
    peer = world.peer()
    peer.stream.feed(message)
    world.loop.settle()
    responses = peer.take("register_response")
    assert [refusal(frame.register_response) for frame in responses] == ["BAD_REQUEST"]
    assert peer.serving.done()


def test_the_transport_is_told_of_a_registration_that_was_accepted_and_of_no_other(world: LinkWorld) -> None:
    peer = world.peer()
    assert refusal(peer.register(token="wrong")) == "BAD_TOKEN"
    assert (peer.serving.done(), peer.registered) == (True, 0)
    peer = world.peer()
    world.loop.settle()
    assert peer.registered == 0
    assert peer.register().generation == 1
    assert peer.registered == 1


def test_a_draining_edge_refuses(world: LinkWorld) -> None:
    world.edge.start_draining()
    assert refusal(world.peer().register()) == "EDGE_DRAINING"


def test_a_stream_that_says_nothing_is_given_up(world: LinkWorld) -> None:
    peer = world.peer()
    world.loop.run_for(9.9)
    assert not peer.stream.is_abandoned
    world.loop.run_for(0.2)
    assert peer.stream.is_abandoned
    peer.stream.end()
    world.loop.settle()
    assert peer.serving.done()
    assert peer.stream.sent == []


def test_the_limit_covers_a_refusal_that_nobody_reads(world: LinkWorld) -> None:
    peer = world.peer()
    peer.stream.is_held = True
    peer.register(token="wrong")
    world.loop.run_for(11)
    assert peer.stream.is_abandoned
    peer.stream.end()
    world.loop.settle()
    assert peer.serving.done()


def test_the_limit_ends_with_the_registration(world: LinkWorld) -> None:
    peer = world.ready()
    for _ in range(6):
        world.loop.run_for(5)
        peer.beat()
    assert not peer.stream.is_abandoned


def test_a_stream_that_leaves_at_once_costs_nothing(world: LinkWorld) -> None:
    peer = world.peer()
    peer.stream.end()
    world.loop.settle()
    assert peer.serving.done()
    assert world.links.counters.refused == 0


def test_streams_without_a_registration_are_bounded(world: LinkWorld) -> None:
    silent = [world.peer() for _ in range(UNREGISTERED_MAX)]
    extra = world.peer()
    assert extra.stream.is_abandoned
    assert extra.serving.done()
    silent[0].stream.end()
    world.loop.settle()
    assert world.peer().register().refusal == 0


# Who holds a node id


def test_the_same_instance_supersedes_at_accept(world: LinkWorld) -> None:
    """B10: the old session's runs fail once, in the step that accepts the new one."""
    first = world.ready(instance_id="i1")
    old = first.link
    request = world.submit()
    second = world.peer(instance_id="i1")
    second.register()
    assert second.response.generation == 2
    assert request.log[-1] == ("lost", False)
    assert old is not None
    assert old.state is LinkState.CLOSED
    assert first.stream.is_abandoned
    assert world.row().link == "offline"
    assert world.links.counters.superseded == 1
    second.ack()
    assert world.row().link == "ready"
    assert world.links.for_lease("n1", 1) is None
    assert world.links.for_lease("n1", 2) is second.link


def test_the_old_sessions_end_never_touches_the_new_one(world: LinkWorld) -> None:
    """B10: the old socket closes late, after its late frames and its late ack."""
    first = world.ready(instance_id="i1")
    lost = world.submit()
    second = world.ready(instance_id="i1")
    request = world.submit()
    first.stream.feed(
        pb.Batch(
            frames=[
                pb.Frame(run_id=lost.run_id, head=pb.ResponseHead(status=200)),
                pb.Frame(run_id=lost.run_id, end=pb.RunEnd()),
                pb.Frame(run_id=request.run_id, end=pb.RunEnd()),
                pb.Frame(ready_ack=pb.ReadyAck(generation=2, payload_revision=1)),
                pb.Frame(draining=pb.Draining()),
            ]
        ).SerializeToString()
    )
    world.loop.settle()
    first.stream.end()
    world.loop.run_for(14)
    assert lost.kinds == ["sent", "lost"]
    assert request.kinds == ["sent"]
    assert (world.row().link, world.row().in_flight) == ("ready", 1)
    second.send(pb.Frame(run_id=request.run_id, end=pb.RunEnd()))
    assert request.end is not None
    assert world.row().in_flight == 0


def test_an_old_silence_timer_never_touches_the_new_session(world: LinkWorld) -> None:
    """B10: no timer of the superseded session fires into the new one."""
    world.ready(instance_id="i1")
    world.loop.run_for(10)
    second = world.ready(instance_id="i1")
    for _ in range(3):
        world.loop.run_for(5)
        second.beat()
    assert world.row().link == "ready"
    assert world.links.counters.silent == 0


def test_another_instance_is_refused_while_the_holder_is_heard(world: LinkWorld) -> None:
    holder = world.ready(instance_id="i1")
    request = world.submit()
    world.loop.run_for(14)
    response = world.peer(instance_id="i2").register()
    assert refusal(response) == "NODE_ID_IN_USE"
    assert "10.0.0.1:40000" in response.detail
    assert request.kinds == ["sent"]
    assert holder.link is not None


def test_another_instance_is_refused_while_the_holder_is_only_accepted(world: LinkWorld) -> None:
    world.peer(instance_id="i1").register()
    assert refusal(world.peer(instance_id="i2").register()) == "NODE_ID_IN_USE"


def test_another_instance_takes_over_when_the_holder_is_silent(world: LinkWorld) -> None:
    """The holder's own timer may be late: whoever asks decides by when it was heard."""
    world.ready(instance_id="i1")
    request = world.submit()
    world.loop.jump(16)
    second = world.ready(instance_id="i2")
    assert second.response.generation == 2
    assert request.kinds == ["sent", "lost"]
    assert world.row().link == "ready"


def test_a_node_that_beats_slowly_is_not_called_silent(world: LinkWorld, caplog: pytest.LogCaptureFixture) -> None:
    node = world.peer()
    assert node.register(heartbeat_ms=20_000).heartbeat_ms == 5_000
    node.ack()
    assert "silence_stretched" in caplog.text
    world.loop.run_for(59.9)
    assert not node.stream.is_abandoned
    world.loop.run_for(0.2)
    assert node.stream.is_abandoned


def test_another_instance_takes_over_when_the_holder_closes(world: LinkWorld) -> None:
    holder = world.ready(instance_id="i1")
    holder.stream.end()
    world.loop.settle()
    assert world.ready(instance_id="i2").response.generation == 2


def test_a_draining_holder_keeps_its_runs_and_gives_way_when_it_has_none(world: LinkWorld) -> None:
    holder = world.ready(instance_id="i1")
    request = world.submit()
    holder.send(pb.Frame(draining=pb.Draining()))
    assert refusal(world.peer(instance_id="i2").register()) == "NODE_ID_IN_USE"
    holder.send(pb.Frame(run_id=request.run_id, end=pb.RunEnd()))
    assert world.ready(instance_id="i2").response.generation == 2
    assert world.row().link == "ready"


def test_nodes_do_not_disturb_each_other(world: LinkWorld) -> None:
    world.ready("n1", "i1")
    second = world.ready("n2", "i2")
    request = world.submit()
    other = world.submit()
    assert {request.provider_id, other.provider_id} == {"p1", "p2"}
    second.stream.end()
    world.loop.settle()
    lost = request if request.provider_id == "p2" else other
    kept = other if lost is request else request
    assert (lost.kinds[-1], kept.kinds[-1]) == ("lost", "sent")
    assert world.row("p1").link == "ready"


def test_a_fleet_registers_again_and_again(world: LinkWorld) -> None:
    """Generations rise, nothing of an old session is left."""
    for number in range(1, 31):
        peer = world.ready(instance_id="i1")
        assert peer.response.generation == number
        world.submit()
        world.submit()
    assert world.links.counters.runs_lost == 58
    assert world.row().in_flight == 2
    assert world.links.run_count == 2


def test_what_a_peer_says_about_itself_is_cut_to_size(world: LinkWorld) -> None:
    peer = world.peer()
    peer.register(software="s" * 10_000, host="h" * 10_000)
    assert peer.link is not None
    assert len(peer.link.session.software) == len(peer.link.session.host) == FIELD_CHARS_MAX


def test_the_test_stream_holds_its_own_contract(loop: VirtualLoop) -> None:
    stream = TestStream()
    stream.feed(b"a")
    stream.end()
    assert loop.run_until_complete(stream.read()) == b"a"
    assert loop.run_until_complete(stream.read()) is None
    with pytest.raises(ConnectionError):
        loop.run_until_complete(stream.write(b"x"))
