"""One session: its states, its ready ack, its runs, its pushes. Real core, virtual time."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256

import pytest

from iop_fast._core.admission import Outcome
from iop_fast.edge.link import MOVES, LinkEvent, LinkState
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


# States


def test_the_table_knows_every_state_and_nothing_leaves_closed() -> None:
    assert {state for state, _ in MOVES} == set(LinkState) - {LinkState.CLOSED}
    assert all(
        MOVES[state, LinkEvent.CLOSES] is LinkState.CLOSED for state in LinkState if state is not LinkState.CLOSED
    )


def test_an_illegal_move_names_state_and_event(world: LinkWorld) -> None:
    peer = world.ready()
    link = peer.link
    assert link is not None
    with pytest.raises(RuntimeError, match=r"n1 #1 ready, 0 runs>: no move on ready ack"):
        link._move(LinkEvent.ACKED)
    link.close("test")
    with pytest.raises(RuntimeError, match="not ready"):
        link.push([], 2)


# Accepted is not ready


def test_accepted_is_no_candidate_and_not_connected(world: LinkWorld) -> None:
    """B11: nothing is dispatched before the ack."""
    peer = world.peer()
    response = peer.register()
    assert (response.refusal, response.generation, response.payload_revision) == (0, 1, 1)
    assert [entry.id for entry in response.payload.providers] == ["p1"]
    assert peer.link is not None
    assert peer.link.state is LinkState.ACCEPTED
    assert not peer.link.is_up
    assert not world.links.was_ready
    assert world.links.for_lease("n1", 1) is None
    assert world.row().link == "offline"
    assert world.submit().outcome is Outcome.REJECTED_UNAVAILABLE
    assert world.links.push_changed() == {}


def test_a_held_ack_readies_the_node_when_it_comes(world: LinkWorld) -> None:
    """B11: the ack may be held for long; the queue is re-evaluated in the step that it comes in."""
    other = world.ready("n1", "i0")
    running = [world.submit() for _ in range(4)]
    waiting = world.submit()
    assert waiting.waiter is not None
    other.stream.end()
    world.loop.settle()
    assert waiting.outcome is Outcome.EVICTED_UNAVAILABLE
    assert all(request.kinds[-1] == "lost" for request in running)

    peer = world.peer()
    peer.register()
    for _ in range(6):
        world.loop.run_for(4)
        peer.beat()
    assert world.row().link == "offline"
    peer.ack()
    assert world.row().link == "ready"
    assert world.links.was_ready
    assert world.submit().kinds == ["sent"]


@pytest.mark.parametrize(
    ("generation", "revision"), [(1, 2), (2, 1), (99, 99), (1, 99)], ids=["revision", "generation", "both", "future"]
)
def test_an_ack_of_anything_else_changes_nothing(world: LinkWorld, generation: int, revision: int) -> None:
    """B11: an ack for a revision that this session was never sent, or for another session."""
    peer = world.peer()
    peer.register()
    peer.ack(generation=generation, revision=revision)
    assert peer.link is not None
    assert peer.link.state is LinkState.ACCEPTED
    assert peer.link.pushes.observed_revision == 0
    assert world.row().link == "offline"
    assert world.links.counters.ready_acks_ignored == 1
    peer.ack()
    assert peer.link.state is LinkState.READY


def test_a_second_ack_changes_nothing(world: LinkWorld) -> None:
    """B11: acks twice."""
    peer = world.ready()
    request = world.submit()
    peer.ack({"p1": UNREACHABLE})
    assert world.row().healthy
    assert (world.row().link, world.row().in_flight) == ("ready", 1)
    assert world.links.counters.ready_acks_ignored == 1
    assert request.kinds == ["sent"]


def test_a_drop_before_the_ack_leaves_nothing(world: LinkWorld) -> None:
    """B11: drops before the ack."""
    peer = world.peer()
    peer.register()
    link = peer.link
    assert link is not None
    peer.stream.end()
    world.loop.settle()
    assert link.state is LinkState.CLOSED
    assert world.links.current("n1") is None
    assert world.row().link == "offline"
    again = world.ready("n1", "i2")
    assert again.response.generation == 2
    assert world.row().link == "ready"


def test_the_ack_is_valid_whatever_the_revision_is_by_then_and_the_change_is_pushed(world: LinkWorld) -> None:
    peer = world.peer()
    peer.register()
    world.refresh([provider("p1", capacity=7)])
    assert peer.take("refresh_request") == []
    peer.ack()
    assert world.row().link == "ready"
    pushed = peer.take("refresh_request")
    assert len(pushed) == 1
    assert pushed[0].refresh_request.payload_revision == 2
    assert pushed[0].refresh_request.payload.providers[0].capacity == 7
    assert peer.link is not None
    assert (peer.link.pushes.sent_revision, peer.link.pushes.observed_revision) == (2, 1)


def test_ready_takes_health_from_the_ack(world: LinkWorld) -> None:
    world.refresh([provider("p1"), provider("p2"), provider("p3", health="down"), provider("p4", health="up")])
    world.ready(states={"p1": UP, "p2": LOADING, "p3": UP, "p4": UNREACHABLE})
    assert [world.row(name).healthy for name in ("p1", "p2", "p3", "p4")] == [True, False, False, True]


def test_a_provider_that_the_ack_does_not_name_is_not_up(world: LinkWorld) -> None:
    world.ready(states={})
    assert not world.row().healthy
    assert world.submit().outcome is Outcome.REJECTED_UNAVAILABLE


# Health


def test_down_evicts_at_once_and_up_counts_after_holding(world: LinkWorld) -> None:
    peer = world.ready()
    running = [world.submit() for _ in range(4)]
    waiting = world.submit()
    peer.report(p1=UNREACHABLE)
    assert waiting.outcome is Outcome.EVICTED_UNAVAILABLE
    assert all(request.kinds == ["sent"] for request in running)
    peer.report(p1=UP)
    world.loop.run_for(1.9)
    assert not world.row().healthy
    world.loop.run_for(0.2)
    assert world.row().healthy


def test_health_of_a_closed_session_never_changes_a_newer_one(world: LinkWorld) -> None:
    """B10: no timer of an old generation touches the new one."""
    first = world.ready(states={"p1": UNREACHABLE})
    first.report(p1=UP)
    world.loop.run_for(1)
    world.ready(states={"p1": UNREACHABLE})
    world.loop.run_for(10)
    assert not world.row().healthy


def test_reports_before_the_ack_mean_nothing(world: LinkWorld) -> None:
    peer = world.peer()
    peer.register()
    peer.report(p1=UP)
    peer.ack({"p1": LOADING})
    world.loop.run_for(5)
    assert not world.row().healthy


def test_a_heartbeats_states_count_too(world: LinkWorld) -> None:
    peer = world.ready()
    state = pb.ProviderState(provider_id="p1", state=UNREACHABLE, reason="connection refused")
    peer.send(pb.Frame(heartbeat=pb.Heartbeat(providers=[state])))
    assert not world.row().healthy
    assert peer.link is not None
    assert peer.link.health.last_report("p1").reason == "connection refused"


# Runs


def test_a_run_goes_out_and_its_answer_comes_back(world: LinkWorld) -> None:
    peer = world.ready()
    request = world.submit()
    opened = peer.take("tunnel_request")
    assert [(frame.run_id, frame.tunnel_request.provider_id) for frame in opened] == [(request.run_id, "p1")]
    run_id = request.run_id
    peer.send(
        pb.Frame(run_id=run_id, taken=pb.Taken()),
        pb.Frame(run_id=run_id, head=pb.ResponseHead(status=200)),
        pb.Frame(run_id=run_id, data=b"he"),
        pb.Frame(run_id=run_id, data=b"llo"),
    )
    peer.send(pb.Frame(run_id=run_id, end=pb.RunEnd(usage=pb.Usage(prompt_tokens=3))))
    assert request.kinds == ["sent", "answer", "answer"]
    taken, head, data, end = request.log[1][1]
    assert (taken, head.status, data, end) == (True, 200, b"hello", None)
    assert request.end is not None
    assert request.end.usage is not None
    assert request.end.usage.prompt_tokens == 3
    assert peer.link is not None
    assert peer.link.run_count == 0
    assert world.row().in_flight == 0


def test_late_frames_of_an_ended_run_are_dropped(world: LinkWorld) -> None:
    peer = world.ready()
    request = world.submit()
    peer.send(pb.Frame(run_id=request.run_id, end=pb.RunEnd()))
    before = list(request.log)
    peer.send(pb.Frame(run_id=request.run_id, data=b"late"), pb.Frame(run_id=request.run_id, end=pb.RunEnd()))
    assert request.log == before
    assert world.row().in_flight == 0


def test_body_window_and_cancel_travel(world: LinkWorld) -> None:
    peer = world.ready()
    request = world.submit()
    assert request.link is not None
    request.link.send_body(request.run_id, b"piece", False)
    request.link.grant(request.run_id, 4096)
    world.loop.settle()
    assert [frame.request_body.piece for frame in peer.take("request_body")] == [b"piece"]
    assert [frame.window.bytes for frame in peer.take("window")] == [4096]
    peer.send(pb.Frame(run_id=request.run_id, window=pb.WindowUpdate(bytes=77)))
    assert request.log[-1] == ("window", 77)
    request.link.cancel(request.run_id)
    world.loop.settle()
    assert [frame.run_id for frame in peer.take("cancel")] == [request.run_id]
    assert peer.link is not None
    assert peer.link.run_count == 1
    peer.send(pb.Frame(run_id=request.run_id, end=pb.RunEnd(status=pb.RunEnd.CANCELLED)))
    assert request.end is not None
    assert peer.link.run_count == 0


def test_nothing_is_sent_for_a_run_that_is_not_there(world: LinkWorld) -> None:
    peer = world.ready()
    link = peer.link
    assert link is not None
    peer.take("heartbeat")
    link.send_body(7, b"x", True)
    link.grant(7, 1)
    link.cancel(7)
    link.forget(7)
    assert link.withdraw(7) is False
    world.loop.settle()
    assert [frame.WhichOneof("body") for frame in peer.read()] == []


def test_a_run_is_withdrawn_before_it_is_sent_and_not_after(world: LinkWorld) -> None:
    peer = world.ready()
    early = world.submit(opens=False)
    early.open()
    assert early.link is not None
    assert early.link.withdraw(early.run_id) is True
    assert early.link.withdraw(early.run_id) is False
    world.loop.settle()
    assert peer.take("tunnel_request") == []
    assert early.log == []
    late = world.submit()
    assert late.link is not None
    assert late.link.withdraw(late.run_id) is False
    assert len(peer.take("tunnel_request")) == 1
    assert peer.link is not None
    assert peer.link.run_count == 1


def test_a_forgotten_run_hears_nothing_more(world: LinkWorld) -> None:
    peer = world.ready()
    request = world.submit()
    assert request.link is not None
    request.link.forget(request.run_id)
    request.release()
    peer.send(pb.Frame(run_id=request.run_id, end=pb.RunEnd()))
    assert request.kinds == ["sent"]


def test_the_same_run_cannot_be_opened_twice(world: LinkWorld) -> None:
    world.ready()
    request = world.submit()
    with pytest.raises(AssertionError, match="is open already"):
        request.open()


@pytest.mark.parametrize("fails_on", ["answer", "window"])
def test_a_run_that_raises_ends_alone(world: LinkWorld, fails_on: str) -> None:
    """One client's abort never ends a Node's session."""
    peer = world.ready()
    bad, good = world.submit(), world.submit()
    bad.fails_on = fails_on
    peer.send(
        pb.Frame(run_id=bad.run_id, window=pb.WindowUpdate(bytes=1)),
        pb.Frame(run_id=bad.run_id, head=pb.ResponseHead(status=200)),
        pb.Frame(run_id=good.run_id, head=pb.ResponseHead(status=200)),
    )
    assert good.kinds == ["sent", "answer"]
    assert bad.end is not None
    assert bad.end.status == pb.RunEnd.INTERNAL
    assert [frame.run_id for frame in peer.take("cancel")] == [bad.run_id]
    assert peer.link is not None
    assert peer.link.run_count == 1
    assert world.links.counters.runs_failed >= 1


def test_a_run_that_raises_when_sent_ends_alone(world: LinkWorld) -> None:
    peer = world.ready()
    bad = world.submit(opens=False)
    bad.fails_on = "sent"
    bad.open()
    good = world.submit()
    assert bad.end is not None
    assert bad.end.status == pb.RunEnd.INTERNAL
    assert good.kinds == ["sent"]
    assert [frame.run_id for frame in peer.take("cancel")] == [bad.run_id]


def test_frames_that_make_no_answer_end_the_run_as_the_providers_fault(world: LinkWorld) -> None:
    peer = world.ready()
    request = world.submit()
    peer.send(
        pb.Frame(run_id=request.run_id, data=b"x"), pb.Frame(run_id=request.run_id, head=pb.ResponseHead(status=200))
    )
    assert request.end is not None
    assert request.end.status == pb.RunEnd.UPSTREAM_ERROR
    assert peer.link is not None
    assert peer.link.run_count == 0
    assert world.row().in_flight == 0


# Reconciliation


def test_a_run_that_the_node_does_not_know_is_given_back(world: LinkWorld) -> None:
    peer = world.ready()
    lost, kept = world.submit(), world.submit()
    peer.beat(kept.run_id)
    assert lost.end is None
    world.loop.run_for(5)
    peer.beat(kept.run_id)
    assert lost.end is not None
    assert (lost.end.status, lost.end.detail) == (pb.RunEnd.INTERNAL, "the node does not know this run")
    assert kept.end is None
    assert world.row().in_flight == 1
    assert world.links.counters.runs_reclaimed == 1


def test_a_run_in_a_message_that_the_node_has_not_read_is_kept(world: LinkWorld) -> None:
    peer = world.ready()
    read_before = len(peer.stream.sent)
    request = world.submit()
    for _ in range(4):
        world.loop.run_for(4)
        peer.beat(messages_read=read_before)
    assert request.end is None
    assert world.links.counters.runs_reclaimed == 0


def test_an_end_beside_the_heartbeat_is_not_a_lost_run(world: LinkWorld) -> None:
    peer = world.ready()
    request = world.submit()
    peer.beat()
    beat = pb.Frame(heartbeat=pb.Heartbeat(messages_read=100))
    peer.send(beat, pb.Frame(run_id=request.run_id, end=pb.RunEnd()))
    assert request.end is not None
    assert request.end.status == pb.RunEnd.OK
    assert world.links.counters.runs_reclaimed == 0


def test_the_table_of_message_numbers_is_swept(loop: VirtualLoop) -> None:
    world = LinkWorld(loop, [provider("p1", capacity=10)])
    peer = world.ready()
    for _ in range(1500):
        request = world.submit()
        peer.stream.feed(pb.Batch(frames=[pb.Frame(run_id=request.run_id, end=pb.RunEnd())]).SerializeToString())
        loop.settle()
    assert peer.link is not None
    assert peer.link.run_count == 0
    assert len(peer.link._sent_in) <= 1100
    world.close()


# Pushes


def test_a_push_is_acked_refused_or_lost(world: LinkWorld) -> None:
    peer = world.ready()
    link = peer.link
    assert link is not None
    world.refresh([provider("p1", capacity=5)])
    acked = world.links.push_changed()["n1"]
    assert world.links.push_changed() == {}
    peer.send(pb.Frame(refresh_response=pb.NodeConfigRefreshResponse(payload_revision=2, applied=True)))
    assert (acked.status.value, link.pushes.observed_revision) == ("acked", 2)
    world.refresh([provider("p1", capacity=6)])
    refused = world.links.push_changed()["n1"]
    answer = pb.NodeConfigRefreshResponse(payload_revision=3, applied=False, error="no such profile")
    peer.send(pb.Frame(refresh_response=answer))
    assert (refused.status.value, refused.error, link.pushes.observed_revision) == ("refused", "no such profile", 2)
    world.refresh([provider("p1", capacity=7)])
    lost = world.links.push_changed()["n1"]
    world.loop.settle()
    peer.stream.end()
    world.loop.settle()
    assert lost.status.value == "lost"
    assert [frame.refresh_request.payload.providers[0].capacity for frame in peer.take("refresh_request")] == [5, 6, 7]


def test_a_refresh_that_does_not_concern_a_node_is_not_pushed_to_it(loop: VirtualLoop) -> None:
    world = LinkWorld(loop, [provider("p1"), provider("p2", "n2")])
    first, second = world.ready("n1"), world.ready("n2", "i2")
    world.refresh([provider("p1"), provider("p2", "n2", capacity=9)])
    assert list(world.links.push_changed()) == ["n2"]
    loop.settle()
    assert first.take("refresh_request") == []
    assert len(second.take("refresh_request")) == 1
    world.close()


def test_a_large_payload_travels_in_pieces(loop: VirtualLoop) -> None:
    """B13: a payload that is too large for one frame comes whole, in order, with its hash."""
    providers = [provider(f"p{number}", label="x" * 200) for number in range(6000)]
    world = LinkWorld(loop, providers)
    peer = world.peer()
    response = peer.register()
    assert not response.HasField("payload")
    pieces = [frame.config_piece for frame in peer.take("config_piece")]
    whole = b""
    for piece in pieces:
        assert (piece.payload_revision, piece.offset) == (1, len(whole))
        whole += piece.piece
    assert (len(whole), sha256(whole).digest()) == (response.payload_bytes, response.payload_sha256)
    assert len(pb.NodeConfigPayload.FromString(whole).providers) == 6000
    peer.ack({entry.provider_id: UP for entry in providers})
    world.refresh([provider("p0", capacity=9), *providers[1:]])
    world.links.push_changed()
    loop.settle()
    request = peer.take("refresh_request")[0].refresh_request
    pieces = [frame.config_piece for frame in peer.take("config_piece")]
    assert not request.HasField("payload")
    whole = b"".join(piece.piece for piece in pieces)
    assert (len(whole), sha256(whole).digest()) == (request.payload_bytes, request.payload_sha256)
    assert {piece.payload_revision for piece in pieces} == {2}
    world.close()
