"""SSE comments between a provider's bytes: only when asked for, only between events."""

from __future__ import annotations

from iop_fast.edge.reply import COMMENT
from tests.unit.edge.exchange_world import JSON_HEAD, OK, SSE_HEAD, ExchangeWorld

EVERY = {"openai": {"sse_keep_alive_ms": 1000}}


def quiet(world: ExchangeWorld, seconds: float) -> None:
    for _ in range(int(seconds * 4)):
        world.loop.run_for(0.25)
        assert world.edge.quiet is not None
        world.edge.quiet.sweep(world.loop.clock.now_ns())


def test_a_silent_stream_gets_a_comment_between_two_events() -> None:
    with ExchangeWorld(**EVERY) as world:
        call = world.post()
        quiet(world, 5)
        assert call.downstream.sends == []  # never before the provider's own head
        world.link.answer(1, SSE_HEAD, b"data: 1\n\n")
        quiet(world, 2)
        assert call.downstream.body == b"data: 1\n\n" + COMMENT
        world.link.answer(1, None, b"data: 2")
        quiet(world, 5)
        assert call.downstream.body.endswith(COMMENT + b"data: 2")  # the event is not torn
        world.link.answer(1, None, b"\n\n", end=OK)
        quiet(world, 5)
        assert call.downstream.is_ended
        assert call.exchange.reply.bytes_out == len(b"data: 1\n\ndata: 2\n\n")
        world.assert_idle()
        assert world.edge.quiet is not None
        assert len(world.edge.quiet) == 0


def test_a_busy_stream_and_other_answers_get_none() -> None:
    with ExchangeWorld(**EVERY) as world:
        call = world.post()
        world.link.answer(1, SSE_HEAD)
        for _ in range(8):
            world.link.answer(1, None, b"data: 1\n\n")
            quiet(world, 0.5)
        assert COMMENT not in call.downstream.body
        call.downstream.is_writable = False
        quiet(world, 3)
        assert COMMENT not in call.downstream.body
        call.leave()
        assert world.edge.quiet is not None
        assert len(world.edge.quiet) == 0
        world.link.answer(1, status=0, end=OK)
        plain = world.post()
        world.link.answer(world.link.last, JSON_HEAD, b"{")
        quiet(world, 5)
        assert plain.downstream.body == b"{"


def test_off_unless_asked_for() -> None:
    with ExchangeWorld() as world:
        call = world.post()
        world.link.answer(1, SSE_HEAD, b"data: 1\n\n")
        assert world.edge.quiet is None
        world.link.answer(1, None, end=OK)
        assert call.downstream.body == b"data: 1\n\n"
