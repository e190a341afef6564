"""One session after the other, with pauses of our own and each reason said once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

import pytest

from iop_fast.node.dial import Backoff, Dialer
from iop_fast.node.relay import Relay
from iop_fast.node.session import Identity, Session, SessionLimits, SessionState
from iop_fast.seams import MessageStream
from iop_fast.wire import runtime_pb2 as pb
from iop_fast.wire.payload import message_from_payload
from tests.unit.edge.worlds import TestStream, VirtualLoop
from tests.unit.node.worlds import NodeWorld, payload, provider, request, tunnel_frame


class Edge:
    """What the dialer dials. `away` says why it cannot be reached."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.world = NodeWorld(loop)
        self.away = ""
        self.attempts: list[float] = []
        self.streams: list[TestStream] = []
        self.earlier: list[Sequence[Relay]] = []
        self.dialer = Dialer(self.open, self.make, Backoff(Random(5), 100, 10_000), loop)

    async def open(self) -> MessageStream:
        self.attempts.append(self.loop.time())
        if self.away:
            raise ConnectionError(self.away)
        self.streams.append(TestStream())
        self.streams[-1].end_reason = ""  # type: ignore[attr-defined]
        return self.streams[-1]

    def make(self, stream: MessageStream, earlier: Sequence[Relay]) -> Session:
        self.earlier.append(earlier)
        identity = Identity("n1", "t", "i", "s", "h")
        return Session(
            stream, identity, self.world.router, self.loop.clock, self.loop, SessionLimits(pace_ns=0), earlier
        )

    def start(self) -> None:
        self.dialer.start()
        self.loop.settle()

    def say(self, *frames: pb.Frame) -> None:
        self.streams[-1].feed(pb.Batch(frames=frames).SerializeToString())
        self.loop.settle()

    def accept(self) -> None:
        self.say(
            pb.Frame(
                register_response=pb.RegisterResponse(
                    generation=1,
                    payload_revision=1,
                    protocol="1.0",
                    payload=message_from_payload(payload(provider())),
                )
            )
        )
        assert self.dialer.is_ready

    def refuse(self, refusal: pb.Refusal.ValueType, detail: str = "") -> None:
        self.say(pb.Frame(register_response=pb.RegisterResponse(refusal=refusal, detail=detail)))

    def lose(self, reason: str = "") -> None:
        self.streams[-1].end_reason = reason  # type: ignore[attr-defined]
        self.streams[-1].end()
        self.loop.settle()

    def pause_to_next(self) -> float:
        """Time until the next attempt, in seconds."""
        started, count = self.loop.time(), len(self.attempts)
        for _ in range(20_000):
            self.loop.run_for(0.001)
            if len(self.attempts) > count:
                return self.attempts[-1] - started
        raise AssertionError("no further attempt")


@pytest.fixture
def edge() -> Iterator[Edge]:
    with VirtualLoop() as loop:
        yield Edge(loop)


def test_pauses_double_from_a_fifth_of_a_second_to_ten(edge: Edge) -> None:
    edge.away = "connection refused"
    edge.start()
    tops = [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10]
    for top in tops:
        assert top / 2 <= edge.pause_to_next() <= top + 0.002


def test_a_session_that_was_ready_starts_the_doubling_anew(edge: Edge) -> None:
    edge.away = "connection refused"
    edge.start()
    edge.loop.run_for(8)
    edge.away = ""
    edge.pause_to_next()
    edge.accept()
    edge.lose("connection reset")
    assert 0.1 <= edge.pause_to_next() <= 0.202


def test_an_edge_that_ended_the_stream_properly_is_dialled_soon(edge: Edge) -> None:
    edge.start()
    edge.accept()
    for _ in range(5):
        edge.lose()
        assert 0.1 <= edge.pause_to_next() <= 0.502
        edge.accept()


def test_a_drained_edge_is_dialled_when_it_said(edge: Edge) -> None:
    edge.start()
    edge.accept()
    edge.say(pb.Frame(draining=pb.Draining(reconnect_after_ms=2_000)))
    edge.lose("the Edge closed the session")
    assert 2.1 <= edge.pause_to_next() <= 2.502


def test_a_refusal_is_retried_and_said_once(edge: Edge, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "iop_fast")
    edge.start()
    for _ in range(4):
        edge.refuse(pb.BAD_TOKEN, "the token is not the configured one")
        edge.pause_to_next()
    edge.refuse(pb.NODE_ID_IN_USE, "another instance")
    edge.pause_to_next()
    edge.refuse(pb.BAD_TOKEN, "the token is not the configured one")
    said = [record.fields for record in caplog.records if record.getMessage() == "registration_refused"]  # type: ignore[attr-defined]
    assert [fields["reason"] for fields in said] == ["bad_token", "node_id_in_use", "bad_token"]
    assert said[0]["detail"] == "the token is not the configured one"
    assert not [record for record in caplog.records if record.exc_info]


def test_an_edge_that_is_away_is_one_line(edge: Edge, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "iop_fast")
    edge.away = "connection refused"
    edge.start()
    edge.loop.run_for(3600)
    assert len(edge.attempts) > 300
    assert [record.getMessage() for record in caplog.records] == ["edge_unreachable"]


def test_a_bug_in_one_attempt_is_logged_and_the_next_one_made(edge: Edge, caplog: pytest.LogCaptureFixture) -> None:
    make, edge.make = edge.make, None  # type: ignore[method-assign, assignment]
    edge.dialer._make_session = None  # type: ignore[assignment]
    edge.start()
    assert "attempt_failed" in caplog.text
    edge.dialer._make_session = make
    edge.pause_to_next()
    edge.accept()


def test_each_session_gets_the_relays_whose_runs_are_still_ending(edge: Edge) -> None:
    """B10: also when the session in between ended before it had waited for them."""
    edge.start()
    edge.accept()
    (first,) = edge.dialer.relays
    edge.say(tunnel_frame(1, request()))
    (run,) = edge.world.adapter().runs
    run.clings = True
    for _ in range(2):
        edge.lose()
        edge.pause_to_next()
        edge.loop.settle()
    assert edge.earlier == [(), (first,), (first,)]
    run.end()
    edge.lose()
    edge.pause_to_next()
    edge.loop.settle()
    assert edge.earlier[-1] == ()
    assert len(edge.dialer.relays) == 1


def test_stopping_ends_a_pause_an_attempt_and_a_session(edge: Edge) -> None:
    edge.away = "connection refused"
    edge.start()
    edge.loop.run_until_complete(edge.dialer.stop())
    edge.loop.run_for(60)
    assert len(edge.attempts) == 1


def test_stopping_closes_the_session_at_once(edge: Edge) -> None:
    edge.start()
    edge.accept()
    session = edge.dialer.session
    assert session is not None
    edge.say(tunnel_frame(1, request()))
    edge.loop.run_until_complete(edge.dialer.stop())
    assert session.state is SessionState.CLOSED
    assert edge.world.adapters[0].runs[0].cancels == 1
    edge.loop.run_for(60)
    assert len(edge.attempts) == 1


def test_draining_waits_for_the_session_and_dials_no_more(edge: Edge) -> None:
    edge.start()
    edge.accept()
    edge.say(tunnel_frame(1, request()))
    draining = edge.loop.create_task(edge.dialer.drain(30_000))
    edge.loop.run_for(3)
    assert not draining.done()
    assert not edge.dialer.is_ready
    edge.world.adapters[0].runs[0].end()
    edge.loop.run_for(0.1)
    assert draining.done()
    edge.loop.run_for(60)
    assert len(edge.attempts) == 1
