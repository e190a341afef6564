"""What waits in memory for one session has a bound, and what happens there; no body delays anybody else's frames."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random

import pytest

from iop_fast._hot.dispatch import dispatch_node
from iop_fast._hot.frames import encode_request_body
from iop_fast.edge.exchange_states import State
from iop_fast.seams import TunnelRequest
from iop_fast.wire.options import BATCH_BYTES, LINK_WINDOW_BYTES, PIECE_BYTES, RUN_WINDOW_BYTES
from iop_fast.wire.outbox import Outbox
from tests.sim.loop import VirtualLoop as PlainVirtualLoop
from tests.sim.loop import run_virtual
from tests.sim.pipes import Pipe
from tests.unit.edge.exchange_world import OK, SSE_HEAD, ExchangeWorld, provider_spec
from tests.unit.edge.link_world import LinkWorld, Peer, Request, provider
from tests.unit.edge.worlds import VirtualLoop

LIMIT = 200_000
PIECE = bytes(50_000)


@pytest.fixture
def world() -> Iterator[LinkWorld]:
    with VirtualLoop() as loop:
        made = LinkWorld(loop, [provider("p1", capacity=100)])
        made.links.limits = made.links.limits._replace(buffered_bytes_max=LIMIT)
        yield made
        made.close()


def block(world: LinkWorld, peer: Peer) -> Request:
    """Open a run and let the write of its opening hang: the Node does not read."""
    peer.stream.is_held = True
    request = world.submit()
    world.loop.settle()
    return request


def test_bodies_wait_at_half_the_bound_and_go_on_when_half_of_that_has_left(world: LinkWorld) -> None:
    peer = world.ready()
    request = block(world, peer)
    link = request.link
    assert link is not None
    while link.takes_body:
        link.send_body(request.run_id, PIECE, False)
    assert LIMIT // 2 <= link.buffered_bytes < LIMIT
    assert link.has_room  # a backlog of bodies keeps no new run out
    link.send_body(request.run_id, PIECE, False)
    link.send_body(request.run_id, PIECE, False)
    assert not link.has_room
    link.wait_to_send(request.run_id)
    world.loop.settle()
    assert "window" not in request.kinds
    peer.stream.release()
    world.loop.settle()
    assert request.log[-1] == ("window", 0)
    assert link.takes_body
    assert link.buffered_bytes == 0
    request.release()


def test_bodies_go_on_when_what_was_queued_is_dropped(world: LinkWorld) -> None:
    """A cancel empties the queue though the Node still does not read."""
    peer = world.ready()
    request = block(world, peer)
    other = world.submit()
    link = request.link
    assert link is not None
    while link.takes_body:
        link.send_body(request.run_id, PIECE, False)
    link.wait_to_send(other.run_id)
    link.wait_to_send(request.run_id)
    link.cancel(request.run_id)
    world.loop.settle()
    assert other.log[-1] == ("window", 0)
    assert request.log[-1] == ("window", 0)
    peer.stream.release()
    for one in (request, other):
        one.release()


def test_one_run_that_fails_keeps_nobody_waiting(world: LinkWorld) -> None:
    peer = world.ready()
    first = block(world, peer)
    second = world.submit()
    link = first.link
    assert link is not None
    first.fails_on = "window"
    while link.takes_body:
        link.send_body(first.run_id, PIECE, False)
    link.wait_to_send(first.run_id)
    link.wait_to_send(second.run_id)
    peer.stream.release()
    world.loop.settle()
    assert ("window", 0) in second.log
    assert first.end is not None
    assert world.links.counters.runs_failed == 1
    second.release()


def test_a_session_that_ends_forgets_who_waited(world: LinkWorld) -> None:
    peer = world.ready()
    request = block(world, peer)
    link = request.link
    assert link is not None
    while link.takes_body:
        link.send_body(request.run_id, PIECE, False)
    link.wait_to_send(request.run_id)
    link.close("the test ends it")
    peer.stream.release()
    world.loop.settle()
    assert request.kinds[-1] == "lost"
    assert "window" not in request.kinds


def test_unread_answers_count_until_they_are_read_or_over(world: LinkWorld) -> None:
    world.ready()
    requests = [world.submit() for _ in range(4)]
    link = requests[0].link
    assert link is not None
    for request in requests[:3]:
        link.hold(request.run_id, 10_000)
        link.hold(request.run_id, 70_000)
    assert link.buffered_bytes == 210_000
    assert not link.has_room
    assert link.takes_body  # what clients do not read keeps no body back
    link.grant(requests[0].run_id, 70_000)
    assert link.has_room
    world.loop.settle()
    assert link.buffered_bytes == 140_000
    link.hold(requests[0].run_id, 70_000)
    assert not link.has_room
    link.forget(requests[1].run_id)
    assert link.has_room
    link.hold(requests[1].run_id, 1_000_000)  # it is over
    assert link.buffered_bytes == 140_000
    for request in requests:
        request.release()


# What a request meets there.


def test_a_request_for_a_full_session_goes_elsewhere_once() -> None:
    with ExchangeWorld([provider_spec("n1", "p1"), provider_spec("n2", "p2", priority=1)]) as world:
        world.links["n1"].has_room = False
        call = world.post()
        assert world.links["n1"].openings == {}
        run = world.links["n2"].last
        world.links["n2"].answer(run, SSE_HEAD, b"data: 1\n\n", end=OK)
        assert call.downstream.status == 200
        assert world.edge.counters["readmitted"] == 1
        world.assert_idle()


def test_a_request_for_a_full_session_is_refused_where_nobody_else_serves() -> None:
    with ExchangeWorld() as world:
        world.link.has_room = False
        call = world.post()
        assert call.downstream.status == 503
        assert call.downstream.error["code"] == "overloaded"
        assert world.link.openings == {}
        world.assert_idle()
        world.link.has_room = True
        assert world.post().exchange.state is State.DISPATCHED
        world.link.answer(world.link.last, SSE_HEAD, end=OK)
        world.assert_idle()


def test_a_body_is_handed_on_when_the_session_has_room_again() -> None:
    with ExchangeWorld() as world:
        content = json.dumps({"model": "m", "image": Random(5).randbytes(100_000).hex()}).encode()
        world.link.takes_body = False
        world.post(content)
        run = world.link.last
        assert len(world.link.bodies[run]) == PIECE_BYTES
        assert world.link.waiting == [run]
        world.link.runs[run].on_window(100)
        assert len(world.link.bodies[run]) == PIECE_BYTES
        world.link.takes_body = True
        world.link.runs[run].on_window(0)
        assert bytes(world.link.bodies[run]) == content.replace(b'"m"', b'"served-m"', 1)
        assert run in world.link.complete
        world.link.answer(run, SSE_HEAD, end=OK)
        world.assert_idle()


# A client that does not read.


def test_an_unread_answer_is_held_to_its_window() -> None:
    with ExchangeWorld() as world:
        call = world.post()
        run, link = world.link.last, world.link
        link.answer(run, SSE_HEAD, bytes(RUN_WINDOW_BYTES // 2 - 1))
        call.downstream.is_writable = False
        link.answer(run, None, bytes(1000))
        assert link.held == {run: RUN_WINDOW_BYTES // 2 + 999}
        link.answer(run, None, bytes(RUN_WINDOW_BYTES // 2 - 999))
        assert link.held == {run: RUN_WINDOW_BYTES}
        assert link.grants == {}
        call.downstream.is_writable = True
        call.receiver.on_writable()
        assert link.grants == {run: [RUN_WINDOW_BYTES]}
        link.answer(run, None, b"x", end=OK)
        assert len(call.downstream.body) == RUN_WINDOW_BYTES + 1
        world.assert_idle()


def test_a_node_that_overruns_a_window_loses_that_run() -> None:
    """Memory is bounded whatever a Node does: beyond its window it ends the answer, not the Edge."""
    with ExchangeWorld() as world:
        call = world.post()
        run, link = world.link.last, world.link
        call.downstream.is_writable = False
        link.answer(run, SSE_HEAD, bytes(RUN_WINDOW_BYTES))
        assert not call.downstream.is_aborted
        link.answer(run, None, b"x")
        assert call.downstream.is_aborted
        assert link.cancelled == [run]
        link.answer(run, end=OK)
        world.assert_idle()


# A body beside others' frames.


class _Arrivals:
    """Counts what a Node reads, with the time."""

    def __init__(self, loop: PlainVirtualLoop) -> None:
        self.loop = loop
        self.whole = loop.create_future()
        self.arrived: dict[int, float] = {}

    def on_open(self, run_id: int, request: TunnelRequest) -> None:
        raise AssertionError("nothing is opened")

    def on_body(self, run_id: int, piece: bytes, complete: bool) -> None:
        if run_id != 1:
            self.arrived[run_id] = self.loop.time()
        elif complete:
            self.whole.set_result(None)

    def on_window(self, run_id: int, byte_count: int) -> None:
        self.arrived[run_id] = self.loop.time()

    def on_cancel(self, run_id: int) -> None:
        raise AssertionError("nothing is cancelled")

    def on_control(self, frame: bytes) -> None:
        raise AssertionError("no session frames")

    def on_frame_failed(self, run_id: int, error: Exception) -> None:
        raise error


def test_an_upload_of_20_mb_delays_nobody_elses_frames() -> None:
    """On a line of 5 MB/s it takes 4 s; another run waits for what is in flight and for its own turn, no longer."""
    bytes_per_s = 5_000_000.0
    total = 20_000_000
    loop = PlainVirtualLoop()
    queued: dict[int, float] = {}

    async def main() -> None:
        pipe = Pipe(loop, window_bytes=LINK_WINDOW_BYTES, bytes_per_s=bytes_per_s)
        outbox = Outbox(pipe.edge, loop.clock, loop)
        outbox.start()
        arrivals = _Arrivals(loop)
        left = total

        def upload() -> None:
            """Keep a window's worth queued, as an exchange does while the Node grants."""
            nonlocal left
            while left and outbox.queued_bytes < RUN_WINDOW_BYTES:
                piece = bytes(min(PIECE_BYTES, left))
                left -= len(piece)
                outbox.send_run(1, encode_request_body(1, piece, not left))

        async def read() -> None:
            while (message := await pipe.node.read()) is not None:
                dispatch_node(message, arrivals)
                upload()

        def speak(run_id: int) -> None:
            """Another run says something: small frames, and now and then a body of its own."""
            queued[run_id] = loop.time()
            outbox.send_run(
                run_id, encode_request_body(run_id, bytes(100 if run_id % 3 else 30_000), True), run_id % 3 == 0
            )

        reader = loop.create_task(read())
        upload()
        for number in range(200):
            loop.call_at(loop.time() + 0.015 * (number + 1), speak, number + 2)
        await arrivals.whole
        waits = [arrivals.arrived[run_id] - at for run_id, at in queued.items()]
        assert len(waits) == 200
        # What is in flight, the message that is being written, and the one that it is in.
        assert max(waits) < (LINK_WINDOW_BYTES + 2 * BATCH_BYTES) / bytes_per_s
        outbox.close()
        pipe.lose()
        await reader
        assert not pipe.misuses

    run_virtual(main(), loop)
