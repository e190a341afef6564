"""A session from its registration to its end, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from iop_fast.node.relay import Relay
from iop_fast.node.session import MOVES, SessionEvent, SessionState
from iop_fast.wire import runtime_pb2 as pb
from tests.unit.edge.worlds import NS_PER_S, VirtualLoop
from tests.unit.node.worlds import NodeWorld, RunEnd, ended, names, payload, provider, request


@pytest.fixture
def world() -> Iterator[NodeWorld]:
    with VirtualLoop() as loop:
        yield NodeWorld(loop)


def test_it_registers_first_and_says_nothing_else(world: NodeWorld) -> None:
    talk = world.session()
    (frame,) = talk.heard()
    asked = frame.register_request
    assert (asked.node_id, asked.token, asked.instance_id, asked.protocol) == (
        "n1",
        "secret-token",
        "instance-1",
        "1.0",
    )
    assert (asked.software, asked.host) == ("iop test", "host-1")
    assert talk.session.state is SessionState.REGISTERING
    assert "secret-token" not in repr(talk.session._identity)


def test_it_applies_the_payload_and_only_then_says_ready(world: NodeWorld) -> None:
    world.broken["http://b"] = "unknown profile"
    talk = world.session()
    talk.accept(payload(provider("p1"), provider("p2", "http://b")), revision=7, generation=3)
    kinds = [frame.WhichOneof("body") for frame in talk.heard()]
    assert kinds == ["register_request", "heartbeat", "ready_ack"]
    assert talk.session.state is SessionState.READY
    assert list(world.router.current.providers) == ["p1", "p2"]


def test_the_ack_names_generation_revision_and_every_providers_state(world: NodeWorld) -> None:
    world.broken["http://b"] = "unknown profile"
    talk = world.session()
    talk.accept(payload(provider("p1"), provider("p2", "http://b")), revision=7, generation=3)
    (frame,) = talk.heard("ready_ack")
    assert (frame.ready_ack.generation, frame.ready_ack.payload_revision) == (3, 7)
    assert names(frame.ready_ack.providers) == {"p1": ("UP", ""), "p2": ("BROKEN", "unknown profile")}


def test_providers_are_looked_at_before_the_ack(world: NodeWorld) -> None:
    async def refused() -> str:
        return "connection refused"

    world.probe = refused
    talk = world.session()
    talk.accept(payload(provider()))
    (frame,) = talk.heard("ready_ack")
    assert names(frame.ready_ack.providers) == {"p1": ("UNREACHABLE", "connection refused")}


def test_a_provider_that_does_not_answer_holds_the_ack_back_for_a_second_at_most(world: NodeWorld) -> None:
    async def silent() -> str | None:
        await asyncio.sleep(5)
        return None

    world.probe = silent
    talk = world.session()
    talk.accept(payload(provider()))
    assert talk.heard("ready_ack") == []
    talk.loop.run_for(1.1)
    (frame,) = talk.heard("ready_ack")
    assert names(frame.ready_ack.providers) == {"p1": ("UNREACHABLE", "no connection within 1 s")}
    talk.loop.run_for(5)
    (frame,) = talk.heard("provider_states")
    assert names(frame.provider_states.providers) == {"p1": ("UP", "")}


@pytest.mark.parametrize(("said", "window"), [(0, 262_144), (16_384, 16_384), (1_048_576, 1_048_576)])
def test_the_window_of_runs_is_the_edges(world: NodeWorld, said: int, window: int) -> None:
    talk = world.session()
    talk.accept(payload(provider()), run_window_bytes=said)
    talk.open(1)
    (run,) = world.adapter().runs
    run.sink.on_data(b"x" * (window + 1))
    talk.loop.run_for(1)
    assert sum(len(frame.data) for frame in talk.heard("data")) == window


@pytest.mark.parametrize(
    ("refusal", "name"),
    [
        (pb.BAD_TOKEN, "bad_token"),
        (pb.NODE_ID_IN_USE, "node_id_in_use"),
        (pb.EDGE_DRAINING, "edge_draining"),
        (99, "refusal_99"),
    ],
)
def test_a_refusal_ends_the_session_with_its_reason(world: NodeWorld, refusal: int, name: str) -> None:
    talk = world.session()
    talk.say(pb.Frame(register_response=pb.RegisterResponse(refusal=refusal, detail="why")))  # type: ignore[arg-type]
    end = ended(talk)
    assert (end.refusal, end.reason, end.was_ready) == (name, "why", False)
    assert talk.stream.is_abandoned


def test_another_major_version_is_refused(world: NodeWorld) -> None:
    talk = world.session()
    talk.say(pb.Frame(register_response=pb.RegisterResponse(generation=1, protocol="2.0")))
    assert ended(talk).refusal == "version"


def test_nothing_is_taken_before_the_answer_to_the_registration(world: NodeWorld) -> None:
    talk = world.session()
    talk.say(pb.Frame(heartbeat=pb.Heartbeat()))
    assert "expected the answer to the registration first" in ended(talk).reason


# Runs.


def test_runs_are_taken_when_ready_and_refused_before(world: NodeWorld) -> None:
    gate = asyncio.Event()

    async def slow() -> None:
        await gate.wait()

    world.probe = slow
    talk = world.session()
    talk.accept(payload(provider()))
    talk.open(1)
    assert [frame.end.status for frame in talk.heard("end")] == [RunEnd.NODE_DRAINING]
    gate.set()
    talk.loop.settle()
    talk.open(2)
    assert len(world.adapter().runs) == 1
    world.adapter().runs[0].end()
    talk.loop.settle()
    assert [(frame.run_id, frame.end.status) for frame in talk.heard("end")] == [(2, RunEnd.OK)]


def test_a_normalized_run_is_refused_by_this_build(world: NodeWorld) -> None:
    talk = world.session()
    talk.make_ready()
    talk.say(pb.Frame(run_id=4, run_request=pb.RunRequest(provider_id="p1")))
    (frame,) = talk.heard("end")
    assert (frame.run_id, frame.end.status) == (4, RunEnd.UNKNOWN_PROVIDER)


def test_a_lost_session_cancels_every_run(world: NodeWorld) -> None:
    talk = world.session()
    talk.make_ready()
    talk.open(1)
    talk.open(2)
    talk.stream.end()
    end = ended(talk)
    assert (end.reason, end.has_stream_ended, end.was_ready) == ("the stream ended", True, True)
    assert [run.cancels for run in world.adapter().runs] == [1, 1]
    assert not talk.session.relay.runs


def test_the_next_session_waits_for_the_runs_of_the_one_before(world: NodeWorld) -> None:
    """B10: only when the old runs have let go of their provider may the Edge count on it again."""
    first = world.session()
    first.make_ready()
    first.open(1)
    (run,) = world.adapter().runs
    run.clings = True
    first.stream.end()
    ended(first)
    second = world.session(first.session.relay)
    second.accept(payload(provider()), generation=4)
    second.loop.run_for(2)
    assert second.heard("ready_ack") == []
    run.end()
    second.loop.settle()
    assert len(second.heard("ready_ack")) == 1
    assert len(world.adapters) == 1


def test_the_runs_of_every_earlier_session_are_waited_for(world: NodeWorld) -> None:
    """B10: a session that ended before it had waited leaves that to the next one."""
    first, second = world.session(), world.session()
    for talk, run_id in ((first, 1), (second, 2)):
        talk.make_ready()
        talk.open(run_id)
        world.adapter().runs[-1].clings = True
        talk.session.close("test")
    third = world.session(first.session.relay, second.session.relay)
    third.accept(payload(provider()))
    for run in world.adapter().runs:
        third.loop.run_for(1)
        assert third.heard("ready_ack") == []
        run.end()
    third.loop.settle()
    assert len(third.heard("ready_ack")) == 1


def test_a_session_that_ends_while_it_waits_for_old_runs_keeps_no_timer(world: NodeWorld) -> None:
    first = world.session()
    first.make_ready()
    first.open(1)
    world.adapter().runs[0].clings = True
    first.session.close("test")
    second = world.session(first.session.relay)
    second.accept(payload(provider()))
    second.session.close("test")
    second.loop.settle()
    assert [timer for timer in world.loop._scheduled if not timer.cancelled()] == []  # type: ignore[attr-defined]


def test_old_runs_that_never_end_hold_the_next_session_back_for_a_limit(
    world: NodeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    first = world.session()
    first.make_ready()
    first.open(1)
    world.adapter().runs[0].clings = True
    first.session.close("test")
    second = world.session(first.session.relay)
    second.accept(payload(provider()))
    second.loop.run_for(4.9)
    assert second.heard("ready_ack") == []
    second.loop.run_for(0.2)
    assert len(second.heard("ready_ack")) == 1
    assert "old_runs_left" in caplog.text


# Health.


def test_a_change_of_a_providers_state_is_said_at_once(world: NodeWorld) -> None:
    talk = world.session()
    talk.make_ready(provider("p1"), provider("p2", "http://b"), provider("p3"))
    world.adapter("http://a").health.unreachable("connection refused")
    talk.loop.settle()
    (frame,) = talk.heard("provider_states")
    refused = ("UNREACHABLE", "connection refused")
    assert names(frame.provider_states.providers) == {"p1": refused, "p3": refused}
    world.adapter("http://a").health.unreachable("connection refused")
    talk.loop.settle()
    assert talk.heard("provider_states") == []


# Liveness.


def test_heartbeats_say_what_was_read_what_runs_and_how_providers_are(world: NodeWorld) -> None:
    talk = world.session()
    talk.make_ready()
    for run_id in (9, 2, 5):
        talk.open(run_id)
    talk.heard()
    talk.loop.run_for(5)
    (frame,) = talk.heard("heartbeat")
    assert frame.heartbeat.messages_read == 4
    assert list(frame.heartbeat.run_ids) == [2, 5, 9]
    assert names(frame.heartbeat.providers) == {"p1": ("UP", "")}
    talk.say(pb.Frame(heartbeat=pb.Heartbeat()))
    talk.loop.run_for(5)
    assert [frame.heartbeat.messages_read for frame in talk.heard("heartbeat")] == [5]


def test_a_run_whose_end_is_still_queued_is_one_that_the_node_knows(world: NodeWorld) -> None:
    talk = world.session()
    talk.make_ready()
    talk.open(1)
    talk.heard()
    talk.stream.is_held = True
    talk.session.relay.outbox.send_control(b"")  # a write that stays in flight
    (run,) = world.adapter().runs
    run.sink.on_data(b"x" * 100)
    talk.loop.settle()
    run.sink.on_data(b"y" * 100)
    run.end()
    talk.loop.run_for(5)
    talk.stream.release()
    talk.loop.settle()
    frames = talk.heard()
    beat = next(frame.heartbeat for frame in frames if frame.HasField("heartbeat"))
    assert list(beat.run_ids) == [1]
    assert [frame.end.status for frame in frames if frame.HasField("end")] == [RunEnd.OK]


def test_an_edge_that_beats_slowly_is_not_called_silent(world: NodeWorld, caplog: pytest.LogCaptureFixture) -> None:
    talk = world.session()
    [registration] = talk.heard("register_request")
    assert registration.register_request.heartbeat_ms == 5_000
    talk.accept(payload(provider()), heartbeat_ms=20_000)
    assert talk.heard("ready_ack")
    assert "silence_stretched" in caplog.text
    talk.loop.run_for(59.9)
    assert talk.session.state is SessionState.READY
    talk.loop.run_for(0.2)
    assert ended(talk).reason == "nothing heard for 60000 ms"


def test_silence_closes_the_session(world: NodeWorld) -> None:
    """B12: 15 s without any message, whatever the transport says."""
    talk = world.session()
    talk.make_ready()
    talk.open(1)
    talk.loop.run_for(14.9)
    assert talk.session.state is SessionState.READY
    talk.loop.run_for(0.2)
    end = ended(talk)
    assert (end.reason, end.has_stream_ended) == ("nothing heard for 15000 ms", False)
    assert world.adapter().runs[0].cancels == 1
    assert talk.stream.is_abandoned


def test_any_message_is_a_sign_of_life(world: NodeWorld) -> None:
    talk = world.session()
    talk.make_ready()
    for _ in range(4):
        talk.loop.run_for(10)
        talk.say(pb.Frame(heartbeat=pb.Heartbeat()))
    assert talk.session.state is SessionState.READY


def test_a_node_that_was_itself_stopped_grants_one_more_interval(world: NodeWorld) -> None:
    """B12: after SIGCONT the messages of the time between are there to be read."""
    talk = world.session()
    talk.make_ready()
    talk.loop.jump(60)
    talk.loop.run_for(0.1)
    assert talk.session.state is SessionState.READY
    talk.loop.run_for(16)
    assert ended(talk).reason.startswith("nothing heard")


def test_an_edge_that_never_answers_the_registration_is_given_up(world: NodeWorld) -> None:
    talk = world.session()
    talk.loop.run_for(15.1)
    assert ended(talk).was_ready is False


# What must not harm.


@pytest.mark.parametrize("message", [b"\xff\xff", b"\x0a\x05\x08\x01", b"\x0a\x02\x42\x7f"])
def test_a_malformed_message_ends_the_session_and_its_runs(world: NodeWorld, message: bytes) -> None:
    talk = world.session()
    talk.make_ready()
    talk.open(1)
    talk.stream.feed(message)
    assert ended(talk).reason.startswith("malformed message")
    assert not talk.session.relay.runs


def test_unknown_frames_and_an_empty_message_are_ignored(world: NodeWorld) -> None:
    talk = world.session()
    talk.make_ready()
    talk.stream.feed(b"")
    talk.stream.feed(b"\x0a\x04\xfa\x7f\x01x")  # a frame with field 2047
    talk.say(pb.Frame(ready_ack=pb.ReadyAck()))
    assert talk.session.state is SessionState.READY


def test_a_second_answer_to_the_registration_ends_the_session(world: NodeWorld) -> None:
    talk = world.session()
    talk.make_ready()
    talk.accept(payload(provider()))
    assert "second answer" in ended(talk).reason


def test_a_write_that_fails_closes_the_session(world: NodeWorld) -> None:
    talk = world.session()
    talk.make_ready()
    talk.stream._ended = True  # the transport knows, the pending read not yet
    talk.loop.run_for(5.1)
    assert ended(talk).has_stream_ended


def test_a_session_that_closes_while_a_payload_is_applied_does_not_say_ready(world: NodeWorld) -> None:
    gate = asyncio.Event()

    async def slow() -> None:
        await gate.wait()

    world.probe = slow
    talk = world.session()
    talk.accept(payload(provider()))
    talk.session.close("test")
    gate.set()
    talk.loop.settle()
    assert talk.heard("ready_ack") == []
    assert world.router.current.payload is None
    assert world.adapters[0].is_closed
    second = world.session(talk.session.relay)
    second.make_ready()


def test_a_closed_session_is_closed_once(world: NodeWorld) -> None:
    talk = world.session()
    talk.make_ready()
    talk.session.close("first")
    talk.session.close("second")
    talk.session.drain(1_000)
    talk.stream.end()
    assert ended(talk).reason == "first"
    assert isinstance(talk.session.relay, Relay)
    assert talk.loop.clock.now_ns() > NS_PER_S


def test_every_state_can_close_and_the_end_moves_nowhere() -> None:
    for state in SessionState:
        assert ((state, SessionEvent.CLOSES) in MOVES) == (state is not SessionState.CLOSED)
    assert not [event for event in SessionEvent if (SessionState.CLOSED, event) in MOVES]
    with VirtualLoop() as loop:
        talk = NodeWorld(loop).session()
        with pytest.raises(RuntimeError, match=r"registering.*no move on ready ack"):
            talk.session._move(SessionEvent.READY)
        assert request().body_complete
