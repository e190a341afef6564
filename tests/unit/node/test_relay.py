"""A run between the link and its adapter: windows, order, and exactly one end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iop_fast.node.runs import MOVES, RunEvent, RunState
from iop_fast.seams import End, Head, Usage
from iop_fast.wire import runtime_pb2 as pb
from iop_fast.wire.options import PIECE_BYTES
from tests.unit.edge.worlds import VirtualLoop
from tests.unit.node.worlds import JSON_HEAD, RelayWorld, RunEnd, payload, provider, request, tunnel_frame

CANCEL = pb.CancelRequest()


@pytest.fixture
def world() -> Iterator[RelayWorld]:
    with VirtualLoop() as loop:
        yield RelayWorld(loop)


def test_an_answer_is_passed_on_in_order_and_ended_once(world: RelayWorld) -> None:
    run = world.open(1)
    assert bytes(run.body) == b"{}"
    run.sink.on_taken()
    run.sink.on_head(Head(201, b"Made", [(b"X-A", b"1"), (b"x-a", b"2")]))
    run.sink.on_data(b"hello ")
    run.sink.on_data(b"world")
    run.end()
    assert world.sent_of(1) == ["taken", "head", "data 6", "data 5", "end OK"]
    head = next(frame.head for frame in world.sent() if frame.HasField("head"))
    assert (head.status, head.reason) == (201, b"Made")
    assert [(field.name, field.value) for field in head.headers] == [(b"X-A", b"1"), (b"x-a", b"2")]
    assert world.data_of(1) == b"hello world"
    assert not world.relay.runs
    assert not world.router.current.providers["p1"].backend.runs


def test_usage_is_read_from_what_passes(world: RelayWorld) -> None:
    run = world.open(1)
    run.sink.on_head(JSON_HEAD)
    run.sink.on_data(b'{"usage":{"prompt_tokens":3,')
    run.sink.on_data(b'"completion_tokens":4}}')
    run.end()
    assert world.end_of(1).usage == pb.Usage(prompt_tokens=3, completion_tokens=4)
    assert world.data_of(1) == b'{"usage":{"prompt_tokens":3,"completion_tokens":4}}'


def test_an_adapters_own_usage_counts_before_what_was_read(world: RelayWorld) -> None:
    run = world.open(1)
    run.sink.on_head(JSON_HEAD)
    run.sink.on_data(b'{"usage":{"prompt_tokens":3}}')
    run.sink.on_end(End(RunEnd.OK, "", Usage(9, 8, 7)))
    assert world.end_of(1).usage == pb.Usage(prompt_tokens=9, completion_tokens=8, cached_tokens=7)


def test_unknown_usage_is_absent_and_not_zero(world: RelayWorld) -> None:
    run = world.open(1)
    run.sink.on_head(JSON_HEAD)
    run.sink.on_data(b'{"choices":[]}')
    run.end()
    assert not world.end_of(1).HasField("usage")


def test_a_cut_answer_reports_the_usage_it_had(world: RelayWorld) -> None:
    run = world.open(1)
    run.sink.on_head(Head(200, b"", [(b"content-type", b"text/event-stream")]))
    run.sink.on_data(b'data: {"usage":{"prompt_tokens":3}}\n\ndata: {"x"')
    run.end(RunEnd.UPSTREAM_ERROR, "the answer was cut short")
    end = world.end_of(1)
    assert (end.status, end.detail) == (RunEnd.UPSTREAM_ERROR, "the answer was cut short")
    assert end.usage.prompt_tokens == 3


# The window of the answer.


def test_the_answer_never_exceeds_its_window_and_the_rest_waits(world: RelayWorld) -> None:
    run = world.open(1)
    run.sink.on_data(b"a" * 999)
    assert not run.is_paused
    run.sink.on_data(b"b" * 500)
    assert run.is_paused
    assert len(world.data_of(1)) == 1000
    run.sink.on_data(b"c" * 300)  # what the adapter had read already
    assert len(world.data_of(1)) == 1000
    world.grant(1, 600)
    assert run.is_paused
    assert len(world.data_of(1)) == 1600
    world.grant(1, 600)
    assert not run.is_paused
    assert world.data_of(1) == b"a" * 999 + b"b" * 500 + b"c" * 300


def test_the_end_waits_behind_what_is_held(world: RelayWorld) -> None:
    run = world.open(1)
    run.sink.on_data(b"a" * 2500)
    run.end()
    assert world.sent_of(1) == ["data 1000"]
    assert list(world.relay.runs) == [1]
    world.grant(1, 1000)
    assert world.sent_of(1) == ["data 1000", "data 1000"]
    world.grant(1, 1000)
    assert world.sent_of(1) == ["data 1000", "data 1000", "data 500", "end OK"]
    assert not world.relay.runs


def test_a_cancelled_run_that_only_waits_for_window_ends_at_once(world: RelayWorld) -> None:
    run = world.open(1)
    run.sink.on_data(b"a" * 2500)
    run.end()
    assert world.sent_of(1) == ["data 1000"]
    world.take(pb.Frame(run_id=1, cancel=CANCEL))
    assert world.sent_of(1) == ["data 1000", "end CANCELLED"]
    assert run.cancels == 0


def test_pieces_fit_the_protocols_limit() -> None:
    with VirtualLoop() as loop:
        world = RelayWorld(loop, window_bytes=1_000_000)
        run = world.open(1)
        run.sink.on_data(bytes(200_000))
        run.end()
        sizes = [len(frame.data) for frame in world.sent() if frame.HasField("data")]
        assert sum(sizes) == 200_000
        assert max(sizes) <= PIECE_BYTES


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.one_of(st.integers(0, 700).map(lambda n: ("data", n)), st.integers(1, 900).map(lambda n: ("grant", n))))
)
def test_for_any_order_of_data_and_credit_the_bytes_pass_in_order_within_the_window(
    steps: list[tuple[str, int]],
) -> None:
    with VirtualLoop() as loop:
        world = RelayWorld(loop)
        run = world.open(1)
        said, credit = bytearray(), 1000
        for number, (step, count) in enumerate(steps):
            if step == "data":
                piece = bytes([number % 251]) * count
                said += piece
                run.sink.on_data(piece)
            else:
                credit += count
                world.grant(1, count)
            sent = world.data_of(1)
            assert sent == said[: min(len(said), credit)]
            assert run.is_paused == (len(said) >= credit)
        run.end()
        world.grant(1, 10**6)
        assert world.data_of(1) == said
        assert world.end_of(1).status == RunEnd.OK


# The window of the request.


def test_the_requests_window_is_renewed_at_half_and_only_while_more_is_to_come(world: RelayWorld) -> None:
    run = world.open(1, request(b"a" * 300, body_complete=False, body_length=5000))
    run.sink.on_consumed(300)
    assert world.sent_of(1) == []
    world.take(pb.Frame(run_id=1, request_body=pb.RequestBody(piece=b"b" * 400)))
    run.sink.on_consumed(200)
    assert world.sent_of(1) == ["window 500"]
    run.sink.on_consumed(200)
    world.take(pb.Frame(run_id=1, request_body=pb.RequestBody(piece=b"c" * 500, complete=True)))
    run.sink.on_consumed(500)
    assert world.sent_of(1) == ["window 500"]
    assert bytes(run.body) == b"a" * 300 + b"b" * 400 + b"c" * 500
    assert run.is_complete


def test_a_body_that_overruns_its_window_ends_its_run_alone(world: RelayWorld) -> None:
    first = world.open(1, request(b"a" * 600, body_complete=False, body_length=5000))
    second = world.open(2)
    overrun = pb.Frame(run_id=1, request_body=pb.RequestBody(piece=b"b" * 500))
    world.take(overrun, pb.Frame(run_id=2, window=pb.WindowUpdate(bytes=1)))
    assert first.cancels == 1
    assert world.end_of(1).status == RunEnd.INTERNAL
    assert list(world.relay.runs) == [2]
    second.end()
    assert world.end_of(2).status == RunEnd.OK


# Cancelling.


def test_a_cancel_is_confirmed_when_the_adapter_has_let_go_and_not_before(world: RelayWorld) -> None:
    run = world.open(1)
    run.clings = True
    run.sink.on_data(b"x")
    assert world.sent_of(1) == ["data 1"]
    world.take(pb.Frame(run_id=1, cancel=CANCEL), pb.Frame(run_id=1, cancel=CANCEL))
    assert run.cancels == 1
    run.sink.on_taken()
    run.sink.on_head(JSON_HEAD)
    run.sink.on_data(b"late")
    run.sink.on_consumed(900)
    assert world.sent_of(1) == ["data 1"]
    assert list(world.relay.runs) == [1]
    run.end()
    assert world.sent_of(1) == ["data 1", "end CANCELLED"]


def test_double_late_and_unknown_cancels_touch_nobody(world: RelayWorld) -> None:
    run, other = world.open(1), world.open(2)
    world.take(*(pb.Frame(run_id=run_id, cancel=CANCEL) for run_id in (7, 1, 1)))
    assert world.sent_of(1) == ["end CANCELLED"]
    assert run.cancels == 1
    world.take(pb.Frame(run_id=1, cancel=CANCEL))
    other.sink.on_head(JSON_HEAD)
    other.sink.on_data(b"x")
    other.end()
    world.take(pb.Frame(run_id=2, cancel=CANCEL))
    assert other.cancels == 0
    assert world.sent_of(1) == ["end CANCELLED"]
    assert world.sent_of(2) == ["head", "data 1", "end OK"]
    assert world.sent_of(7) == []


def test_a_cancel_drops_what_is_still_queued(world: RelayWorld) -> None:
    world.stream.is_held = True  # a message on its way that does not get through
    world.open(9).sink.on_data(b"in flight")
    world.loop.settle()
    run = world.open(1)
    run.sink.on_head(JSON_HEAD)
    run.sink.on_data(b"x" * 900)
    world.take(pb.Frame(run_id=1, cancel=CANCEL))
    world.stream.release()
    assert world.sent_of(1) == ["end CANCELLED"]


def test_frames_of_unknown_runs_are_dropped(world: RelayWorld) -> None:
    world.take(
        pb.Frame(run_id=5, cancel=CANCEL),
        pb.Frame(run_id=5, window=pb.WindowUpdate(bytes=5)),
        pb.Frame(run_id=5, request_body=pb.RequestBody(piece=b"x", complete=True)),
    )
    assert world.sent() == []


# Refusals.


def test_runs_that_cannot_be_opened_are_ended_with_the_reason(world: RelayWorld) -> None:
    world.broken["http://b"] = "variable KEY is not set"
    world.apply(payload(provider("p1"), provider("p2", "http://b")))
    world.take(tunnel_frame(1, request(provider_id="nobody")), tunnel_frame(2, request(provider_id="p2")))
    world.relay.refuse("the Node shuts down")
    world.take(tunnel_frame(3, request()))
    ends = [world.end_of(run_id) for run_id in (1, 2, 3)]
    assert [(end.status, end.detail) for end in ends] == [
        (RunEnd.UNKNOWN_PROVIDER, "this Node has no such provider"),
        (RunEnd.UNKNOWN_PROVIDER, "the provider is broken: variable KEY is not set"),
        (RunEnd.NODE_DRAINING, "the Node shuts down"),
    ]
    assert not world.relay.runs


def test_a_run_id_that_is_open_is_not_opened_again(world: RelayWorld) -> None:
    run = world.open(1)
    world.take(tunnel_frame(1, request()))
    assert len(world.adapter().runs) == 1
    run.end()
    assert world.sent_of(1) == ["end OK"]


# Bugs on the other side of the seam.


def test_an_adapter_that_raises_at_the_start_ends_its_run_alone(world: RelayWorld) -> None:
    def unusable(*_: object) -> None:
        raise ValueError("expected a request target in origin form")

    def broken(*_: object) -> None:
        raise KeyError("bug")

    for run_id, start in ((1, unusable), (2, broken)):
        world.adapter().on_start = start
        world.take(tunnel_frame(run_id, request()))
    assert world.end_of(1).status == RunEnd.INTERNAL
    assert "origin form" in world.end_of(1).detail
    assert (world.end_of(2).status, world.end_of(2).detail) == (RunEnd.INTERNAL, "the Node failed")
    assert not world.relay.runs
    assert not world.router.current.providers["p1"].backend.runs


def test_an_adapter_that_raises_at_a_frame_ends_its_run_alone(world: RelayWorld) -> None:
    run, other = world.open(1), world.open(2)

    def bug(*_: object) -> None:
        raise RuntimeError("bug")

    run.cancel = bug  # type: ignore[method-assign]
    world.take(pb.Frame(run_id=1, cancel=CANCEL), pb.Frame(run_id=2, cancel=CANCEL))
    assert world.end_of(1).status == RunEnd.CANCELLED
    assert other.cancels == 1
    assert not world.relay.runs


def test_a_second_end_of_an_adapter_changes_nothing(world: RelayWorld) -> None:
    run = world.open(1)
    run.end()
    run.end(RunEnd.INTERNAL)
    run.sink.on_data(b"late")
    assert world.sent_of(1) == ["end OK"]


# Ends of all.


def test_all_runs_are_stopped_and_the_last_end_is_told(world: RelayWorld) -> None:
    runs = [world.open(number) for number in (1, 2, 3)]
    runs[1].clings = True
    idle: list[str] = []
    world.relay.when_idle(lambda: idle.append("idle"))
    world.relay.stop_all("the Node shut down")
    assert world.end_of(1).detail == "the Node shut down"
    assert idle == []
    runs[1].end()
    assert idle == ["idle"]
    world.relay.when_idle(lambda: idle.append("at once"))
    assert idle == ["idle", "at once"]


def test_every_state_has_a_way_out_and_the_end_has_none() -> None:
    for state in RunState:
        ways = [event for event in RunEvent if (state, event) in MOVES]
        assert bool(ways) == (state is not RunState.ENDED)


def test_a_move_that_the_table_lacks_names_event_and_state(world: RelayWorld) -> None:
    run = world.open(1)
    relay_run = world.relay.runs[1]
    run.end()
    with pytest.raises(RuntimeError, match=r"ended.*no move on stop"):
        relay_run._move(RunEvent.STOPS)
