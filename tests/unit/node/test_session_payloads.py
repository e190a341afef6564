"""What a session does with payloads: pushed whole or in pieces, applied, refused."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest

from iop_fast.node.session import SessionState
from iop_fast.wire import runtime_pb2 as pb
from iop_fast.wire.options import INLINE_PAYLOAD_BYTES
from iop_fast.wire.payload import encode_payload, refresh_entries, registration_entries
from tests.unit.edge.worlds import VirtualLoop
from tests.unit.node.worlds import NodeWorld, ended, names, payload, provider


@pytest.fixture
def world() -> Iterator[NodeWorld]:
    with VirtualLoop() as loop:
        yield NodeWorld(loop)


def test_a_push_is_applied_and_answered(world: NodeWorld) -> None:
    talk = world.session()
    talk.make_ready(provider("p1", capacity=4))
    made = world.adapters[0]
    talk.push(payload(provider("p1", capacity=2)), revision=8)
    (frame,) = talk.heard("refresh_response")
    answer = frame.refresh_response
    assert (answer.payload_revision, answer.applied, answer.error) == (8, True, "")
    assert names(answer.providers) == {"p1": ("UP", "")}
    assert world.router.current.providers["p1"].payload.capacity == 2
    assert world.adapters == [made]


def test_a_push_that_cannot_be_applied_keeps_what_runs_and_says_why(world: NodeWorld) -> None:
    """B14: nothing is applied in part."""
    talk = world.session()
    talk.make_ready()
    before = world.router.current
    talk.push(payload(provider("p1"), provider("p2", settings=None, adapter="nowhere")), revision=8)
    (frame,) = talk.heard("refresh_response")
    assert frame.refresh_response.applied is False
    assert "names adapter 'nowhere'" in frame.refresh_response.error
    assert world.router.current is before
    talk.open(1)
    assert len(world.adapter().runs) == 1


def test_a_bug_while_applying_a_push_keeps_what_runs(world: NodeWorld) -> None:
    talk = world.session()
    talk.make_ready()
    before = world.router.current

    def bug(*_: object) -> object:
        raise ZeroDivisionError

    world.router._makers = {"openai_compat": bug}  # type: ignore[dict-item]
    talk.push(payload(provider("p1", "http://new")), revision=8)
    (frame,) = talk.heard("refresh_response")
    assert frame.refresh_response.applied is False
    assert world.router.current is before
    assert talk.session.state is SessionState.READY


def test_pushes_are_applied_in_order_and_the_reader_goes_on(world: NodeWorld) -> None:
    talk = world.session()
    talk.make_ready()
    talk.open(1)
    for number, revision in enumerate((8, 9, 10)):
        talk.push(payload(provider("p1", f"http://new{number}")), revision)
        if number < 2:
            talk.open(revision)
    # Two replaced sets have runs, so the third push waits, and the session does not.
    answers = [frame.refresh_response.payload_revision for frame in talk.heard("refresh_response")]
    assert answers == [8, 9]
    talk.say(pb.Frame(run_id=1, cancel=pb.CancelRequest()))
    assert [frame.refresh_response.payload_revision for frame in talk.heard("refresh_response")] == [10]


def test_a_large_payload_comes_in_pieces(world: NodeWorld) -> None:
    """B13: a payload over the limit of one frame."""
    many = payload(*(provider(f"p{number}", models=("m" * 200, "n" * 200)) for number in range(2_000)))
    entries = registration_entries(
        pb.RegisterResponse(generation=3, payload_revision=7, protocol="1.0"), encode_payload(many)
    )
    assert sum(map(len, entries)) > INLINE_PAYLOAD_BYTES
    talk = world.session()
    for entry in entries:
        assert talk.heard("ready_ack") == []
        talk.stream.feed(entry)
        talk.loop.settle()
    (frame,) = talk.heard("ready_ack")
    assert len(frame.ready_ack.providers) == 2_000
    assert world.router.current.payload == many
    for entry in refresh_entries(8, encode_payload(payload(*many.providers[1:]))):
        talk.stream.feed(entry)
    talk.loop.settle()
    (frame,) = talk.heard("refresh_response")
    assert frame.refresh_response.applied
    assert "p0" not in world.router.current.providers


@pytest.mark.parametrize("fault", ["hash", "gap", "revision", "overlap", "unannounced"])
def test_pieces_that_do_not_fit_end_the_session(world: NodeWorld, fault: str) -> None:
    talk = world.session()
    if fault == "unannounced":
        talk.make_ready()
        talk.say(pb.Frame(config_piece=pb.ConfigPiece(payload_revision=7, offset=0, piece=b"x")))
    else:
        digest = hashlib.sha256(b"" if fault == "hash" else b"ab").digest()
        announced = pb.RegisterResponse(
            generation=3, payload_revision=7, payload_bytes=2, payload_sha256=digest, protocol="1.0"
        )
        talk.say(pb.Frame(register_response=announced))
        if fault == "overlap":
            refresh = pb.NodeConfigRefreshRequest(payload_revision=8, payload=pb.NodeConfigPayload())
            talk.say(pb.Frame(refresh_request=refresh))
        else:
            revision = 6 if fault == "revision" else 7
            pieces = [(0, b"a"), (2 if fault == "gap" else 1, b"b")]
            talk.say(*(piece_frame(revision, offset, piece) for offset, piece in pieces))
    assert ended(talk).reason.startswith("malformed message")
    assert world.router.current.payload is None or fault == "unannounced"


def piece_frame(revision: int, offset: int, piece: bytes) -> pb.Frame:
    return pb.Frame(config_piece=pb.ConfigPiece(payload_revision=revision, offset=offset, piece=piece))


def test_a_first_payload_that_cannot_be_applied_ends_the_session(world: NodeWorld) -> None:
    talk = world.session()
    talk.accept(payload(provider("p1"), provider("p1")))
    end = ended(talk)
    assert "p1 stands in the payload twice" in end.reason
    assert not end.was_ready


def test_the_same_payload_in_the_next_session_replaces_nothing(world: NodeWorld) -> None:
    first = world.session()
    first.make_ready()
    registry = world.router.current
    first.stream.end()
    ended(first)
    second = world.session(first.session.relay)
    second.accept(payload(provider()), revision=9, generation=4)
    (frame,) = second.heard("ready_ack")
    assert (frame.ready_ack.generation, frame.ready_ack.payload_revision) == (4, 9)
    assert world.router.current is registry
