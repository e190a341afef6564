"""A normalized run: its input gathered and read, what the adapter says as events within the window, exactly one end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from iop_fast.node.normalized import pieces_of
from iop_fast.seams import End, TaskMessage, TaskPart, Usage
from iop_fast.wire import runtime_pb2 as pb
from iop_fast.wire.options import PIECE_BYTES
from tests.unit.edge.worlds import VirtualLoop
from tests.unit.node.worlds import RelayWorld, RunEnd, request, run_frame, run_input

CANCEL = pb.CancelRequest()


@pytest.fixture
def world() -> Iterator[RelayWorld]:
    with VirtualLoop() as loop:
        yield RelayWorld(loop)


@pytest.fixture
def roomy() -> Iterator[RelayWorld]:
    with VirtualLoop() as loop:
        yield RelayWorld(loop, window_bytes=1_000_000)


def body_frame(run_id: int, piece: bytes, complete: bool) -> pb.Frame:
    return pb.Frame(run_id=run_id, request_body=pb.RequestBody(piece=piece, complete=complete))


# The input.


def test_a_task_reaches_the_adapter_as_it_was_meant(world: RelayWorld) -> None:
    calls = [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}]
    data = pb.RunInput(
        messages=[
            pb.RunMessage(
                role="user",
                name="ann",
                parts=[
                    pb.RunPart(text="what is this?"),
                    pb.RunPart(image=b"\x89PNG", media_type="image/png"),
                    pb.RunPart(audio=b"RIFF", media_type="audio/wav"),
                    pb.RunPart(image=b"", media_type="image/gif"),
                ],
            ),
            pb.RunMessage(role="assistant", tool_calls_json=json.dumps(calls).encode()),
            pb.RunMessage(role="tool", tool_call_id="c1", parts=[pb.RunPart(text="a cat")]),
        ],
        parameters_json=b'{"temperature": 0.5, "tools": []}',
    ).SerializeToString()
    task = world.open_run(1, data, kind=pb.RunRequest.CHAT, stream=True).task
    assert (task.model, task.kind, task.stream) == ("served", pb.RunRequest.CHAT, True)
    assert task.messages == [
        TaskMessage(
            "user",
            [
                TaskPart("text", "what is this?"),
                TaskPart("image", data=b"\x89PNG", media_type="image/png"),
                TaskPart("audio", data=b"RIFF", media_type="audio/wav"),
                TaskPart("image", media_type="image/gif"),
            ],
            name="ann",
        ),
        TaskMessage("assistant", [], tool_calls=calls),
        TaskMessage("tool", [TaskPart("text", "a cat")], tool_call_id="c1"),
    ]
    assert task.parameters == {"temperature": 0.5, "tools": []}
    inputs = pb.RunInput(inputs=["a", "b"]).SerializeToString()
    task = world.open_run(2, inputs, kind=pb.RunRequest.EMBEDDING).task
    assert (task.kind, task.inputs, task.parameters, task.messages) == (pb.RunRequest.EMBEDDING, ["a", "b"], {}, [])


def test_an_input_in_pieces_is_gathered_and_its_window_renewed(world: RelayWorld) -> None:
    data = run_input("word " * 500)
    world.take(run_frame(1, data, first_bytes=400))
    assert world.sent_of(1) == []
    world.take(body_frame(1, data[400:600], False))
    assert world.sent_of(1) == ["window 600"]
    world.take(body_frame(1, data[600:1600], False))
    assert world.sent_of(1) == ["window 600", "window 1000"]
    (adapter,) = world.run_adapters
    assert adapter.tasks == []
    world.take(body_frame(1, data[1600:], True))
    assert adapter.tasks[0].task.messages[0].parts == [TaskPart("text", "word " * 500)]
    assert world.sent_of(1) == ["window 600", "window 1000"], "there is nothing more to grant for"


@pytest.mark.parametrize(
    ("data", "changes", "reason"),
    [
        (b"\xff\xff", {}, "expected a RunInput, got other bytes"),
        (b"", {"kind": 7}, "expected a kind of run that this version knows, got 7"),
        (pb.RunInput(parameters_json=b"{").SerializeToString(), {}, "parameters_json: expected JSON"),
        (
            pb.RunInput(parameters_json=b"[]").SerializeToString(),
            {},
            "parameters_json: expected a JSON object, got list",
        ),
        (
            pb.RunInput(messages=[pb.RunMessage(tool_calls_json=b"{}")]).SerializeToString(),
            {},
            "tool_calls_json: expected a list of objects",
        ),
        (
            pb.RunInput(messages=[pb.RunMessage(parts=[pb.RunPart()])]).SerializeToString(),
            {},
            "expected a part of a message that is text, image or audio",
        ),
        (b"", {"input_length": 5}, "expected 5 bytes, got 0"),
        (run_input(), {"input_length": 5}, "expected 5 bytes, got"),
    ],
)
def test_an_input_that_cannot_be_read_ends_its_run_alone(
    world: RelayWorld, data: bytes, changes: dict[str, Any], reason: str
) -> None:
    other = world.open_run(1)
    world.take(run_frame(2, data, **changes))
    end = world.end_of(2)
    assert end.status == RunEnd.INTERNAL
    assert reason in end.detail
    assert list(world.relay.runs) == [1]
    other.end()
    assert world.end_of(1).status == RunEnd.OK
    assert not world.router.current.providers["n1"].backend.runs


def test_an_input_that_overruns_its_window_or_goes_on_behind_its_end_ends_its_run_alone(world: RelayWorld) -> None:
    data = run_input("word " * 500)
    world.take(run_frame(1, data, first_bytes=400), body_frame(1, data[400:1100], False))
    assert world.end_of(1).status == RunEnd.INTERNAL
    task = world.open_run(2)
    world.take(body_frame(2, b"more", True))
    assert task.cancels == 1
    assert world.end_of(2).status == RunEnd.INTERNAL


def test_an_input_that_is_too_large_is_refused_for_the_client_to_see() -> None:
    with VirtualLoop() as loop:
        world = RelayWorld(loop, input_bytes_max=2_000)
        world.take(run_frame(1, run_input("x" * 3_000), first_bytes=100))
        end = world.end_of(1)
        assert (end.status, end.refusal_status) == (RunEnd.REFUSED, 413)
        assert "2000 bytes" in end.detail
        assert world.relay.runs == {}


def test_runs_of_the_wrong_kind_are_refused(world: RelayWorld) -> None:
    world.take(run_frame(1, run_input(), provider_id="p1"))
    assert world.end_of(1).detail == "the provider takes no normalized runs"
    world.take(pb.Frame(run_id=2, tunnel_request=pb.ProviderTunnelRequest(provider_id="n1")))
    assert world.end_of(2).detail == "the provider takes no tunnels"
    world.take(run_frame(3, run_input(), provider_id="none"))
    assert world.end_of(3).status == RunEnd.UNKNOWN_PROVIDER
    world.relay.refuse("the Node shuts down")
    world.take(run_frame(4, run_input()))
    assert world.end_of(4).status == RunEnd.NODE_DRAINING


# Events.


def test_events_travel_in_their_order_and_the_end_behind_them(roomy: RelayWorld) -> None:
    task = roomy.open_run(1)
    sink = task.sink
    sink.on_taken()
    sink.on_reasoning("hm")
    sink.on_text("a")
    sink.on_tool_call(0, "c1", "look", '{"x":')
    sink.on_embedding([0.5, -2], 1)
    sink.on_finish("stop")
    task.end(usage=Usage(3, 4, 1))
    assert roomy.sent_of(1) == [
        "taken",
        "reasoning hm",
        "text a",
        'call 0 c1 look {"x":',
        "embedding [0.5, -2.0]",
        "finish_reason stop",
        "end OK",
    ]
    assert roomy.end_of(1).usage == pb.Usage(prompt_tokens=3, completion_tokens=4, cached_tokens=1)
    assert not roomy.relay.runs
    assert not roomy.router.current.providers["n1"].backend.runs


def test_what_is_said_in_one_turn_and_belongs_together_is_one_event(roomy: RelayWorld) -> None:
    sink = roomy.open_run(1).sink
    for piece in ("a", "", "b", "c"):
        sink.on_text(piece)
    sink.on_text("other", 1)
    sink.on_text("d")
    sink.on_reasoning("e")
    sink.on_reasoning("f")
    sink.on_tool_call(0, "c1", "look", "")
    sink.on_tool_call(0, "", "", '{"x"')
    sink.on_tool_call(0, "", "", ":1}")
    sink.on_tool_call(0, "", "", "")
    sink.on_tool_call(1, "c2", "look", "{}")
    sink.on_tool_call(1, "c3", "again", "{}")
    assert roomy.sent_of(1) == [
        "text abc",
        "text other",
        "text d",
        "reasoning ef",
        'call 0 c1 look {"x":1}',
        "call 1 c2 look {}",
        "call 1 c3 again {}",
    ]
    sink.on_text("g")
    roomy.loop.settle()
    sink.on_text("h")
    assert roomy.sent_of(1)[7:] == ["text g", "text h"]


def test_runs_do_not_gather_each_other_s_words(world: RelayWorld) -> None:
    one, two = world.open_run(1), world.open_run(2)
    one.sink.on_text("a")
    two.sink.on_text("b")
    one.sink.on_text("c")
    assert (world.sent_of(1), world.sent_of(2)) == (["text ac"], ["text b"])


def test_long_texts_are_cut_between_characters(roomy: RelayWorld) -> None:
    task = roomy.open_run(1)
    text = "aé한🙂" * 20_000
    task.sink.on_text(text)
    task.sink.on_tool_call(2, "c1", "look", text)
    task.end()
    events = roomy.events_of(1)
    said = [event.text for event in events if event.HasField("text")]
    assert "".join(said) == text
    assert max(len(piece.encode()) for piece in said) <= PIECE_BYTES
    calls = [event.tool_call for event in events if event.HasField("tool_call")]
    assert "".join(call.arguments for call in calls) == text
    assert [(call.index, call.id, call.name) for call in calls] == [(2, "c1", "look")] + [(2, "", "")] * (
        len(calls) - 1
    )


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES // 4, PIECE_BYTES // 4 + 1, PIECE_BYTES, 3 * PIECE_BYTES + 1])
@pytest.mark.parametrize("character", ["a", "é", "한", "🙂", "\ud800"])
def test_pieces_are_as_large_as_they_may_be(character: str, size: int) -> None:
    pieces = list(pieces_of(character * size))
    expected = "?" if character == "\ud800" and size > PIECE_BYTES // 4 else character
    assert "".join(pieces) == expected * size
    sizes = [len(piece.encode("utf-8", "replace")) for piece in pieces]
    assert max(sizes) <= PIECE_BYTES
    assert all(size > PIECE_BYTES - 4 for size in sizes[:-1])


# The window of the answer.


def test_events_are_held_without_credit_and_the_adapter_is_paused(world: RelayWorld) -> None:
    task = world.open_run(1)
    for number in range(5):
        task.sink.on_text(str(number) * 400)
        world.loop.settle()
    said = world.event_bytes_of(1)
    assert len(said) == 2, "an event is sent while anything is left, and may overdraw"
    assert sum(said) > 1000
    assert task.is_paused
    world.grant(1, sum(said) - 1000)
    assert len(world.events_of(1)) == 2
    assert task.is_paused
    world.grant(1, 1)
    assert len(world.events_of(1)) == 3
    assert task.is_paused
    world.grant(1, 4000)
    assert not task.is_paused
    assert "".join(event.text for event in world.events_of(1)) == "".join(str(number) * 400 for number in range(5))


def test_an_event_larger_than_the_window_passes(world: RelayWorld) -> None:
    task = world.open_run(1)
    task.sink.on_embedding([0.5] * 2_000)
    task.sink.on_embedding([1.5] * 2_000, 1)
    task.end()
    assert [event.index for event in world.events_of(1)] == [0]
    assert list(world.relay.runs) == [1]
    world.grant(1, sum(world.event_bytes_of(1)))
    assert [event.index for event in world.events_of(1)] == [0, 1]
    assert world.end_of(1).status == RunEnd.OK


def test_a_pause_during_the_start_reaches_the_adapter(world: RelayWorld) -> None:
    world.run_adapters[0].on_start = lambda task, sink: sink.on_embedding([0.5] * 2_000)
    task = world.open_run(1)
    assert task.is_paused


def test_a_cancelled_run_that_only_waits_for_window_ends_at_once(world: RelayWorld) -> None:
    task = world.open_run(1)
    task.sink.on_text("a" * 2_000)
    task.sink.on_finish("stop")
    task.end()
    assert len(world.sent_of(1)) == 1
    world.take(pb.Frame(run_id=1, cancel=CANCEL))
    assert world.end_of(1).status == RunEnd.CANCELLED
    assert task.cancels == 0


# Ends.


def test_a_refusal_of_the_provider_is_passed_on(world: RelayWorld) -> None:
    task = world.open_run(1)
    task.sink.on_taken()
    task.sink.on_end(End(RunEnd.REFUSED, "no such voice", None, 422))
    end = world.end_of(1)
    assert (end.status, end.detail, end.refusal_status) == (RunEnd.REFUSED, "no such voice", 422)


def test_an_end_within_the_start_is_one_end(world: RelayWorld) -> None:
    world.run_adapters[0].on_start = lambda task, sink: sink.on_end(End(RunEnd.CONNECT_FAILED, "loading", None))
    world.open_run(1)
    assert world.end_of(1).status == RunEnd.CONNECT_FAILED
    assert not world.relay.runs


def test_a_cancel_is_confirmed_when_the_adapter_has_let_go_and_not_before(world: RelayWorld) -> None:
    task = world.open_run(1)
    task.clings = True
    task.sink.on_text("a")
    world.take(pb.Frame(run_id=1, cancel=CANCEL))
    assert task.cancels == 1
    task.sink.on_text("late")
    task.sink.on_tool_call(0, "c", "n", "")
    task.sink.on_embedding([1])
    task.sink.on_finish("stop")
    assert "text a" not in world.sent_of(1), "what it had not sent yet is of no use to anyone"
    assert list(world.relay.runs) == [1]
    task.end()
    assert world.sent_of(1) == ["end CANCELLED"]


def test_a_cancel_while_the_input_comes_ends_the_run(world: RelayWorld) -> None:
    data = run_input("word " * 500)
    world.take(run_frame(1, data, first_bytes=400), pb.Frame(run_id=1, cancel=CANCEL), body_frame(1, b"late", False))
    assert world.end_of(1).status == RunEnd.CANCELLED
    assert world.run_adapters[0].tasks == []


def test_an_adapter_that_raises_at_the_start_ends_its_run_alone(world: RelayWorld) -> None:
    def fail(task: Any, sink: Any) -> None:
        raise RuntimeError("an adapter of ours failed")

    other = world.open_run(1)
    world.run_adapters[0].on_start = fail
    world.take(run_frame(2, run_input()))
    assert world.end_of(2).status == RunEnd.INTERNAL
    other.end()
    assert world.end_of(1).status == RunEnd.OK


def test_what_cannot_be_said_ends_its_run_alone(world: RelayWorld) -> None:
    one, two, three = world.open_run(1), world.open_run(2), world.open_run(3)
    one.sink.on_text(7)  # type: ignore[arg-type]
    two.sink.on_text("good")
    three.sink.on_text(b"bytes")  # type: ignore[arg-type]
    three.end()
    assert world.sent_of(2) == ["text good"]
    assert (world.end_of(1).status, one.cancels) == (RunEnd.INTERNAL, 1)
    assert (world.end_of(3).status, three.cancels) == (RunEnd.INTERNAL, 0)


def test_both_kinds_of_runs_are_stopped_together(world: RelayWorld) -> None:
    task, run = world.open_run(1), world.open(2, request())
    told: list[bool] = []
    world.relay.stop_all("the session has ended")
    world.relay.when_idle(lambda: told.append(True))
    assert (world.end_of(1).status, world.end_of(2).status) == (RunEnd.CANCELLED, RunEnd.CANCELLED)
    assert (task.cancels, run.cancels, told) == (1, 1, [True])


def test_a_replaced_adapter_s_runs_go_on_and_it_is_closed_behind_them(world: RelayWorld) -> None:
    task = world.open_run(1)
    assert world.apply_nothing()
    (adapter,) = world.run_adapters
    assert not adapter.is_closed
    task.sink.on_text("still here")
    task.end()
    assert world.sent_of(1) == ["text still here", "end OK"]
    assert adapter.is_closed
