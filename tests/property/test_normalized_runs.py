"""Whatever an adapter says, in whatever turns and with whatever credit, arrives at the Edge as it was said."""

from __future__ import annotations

import struct
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from iop_fast._hot.dispatch import dispatch_edge
from iop_fast._hot.frames import EVENT_BYTES
from iop_fast.seams import (
    End,
    Head,
    RunEmbedding,
    RunFinish,
    RunReasoning,
    RunSaid,
    RunSink,
    RunText,
    RunToolCall,
    Usage,
)
from iop_fast.wire import runtime_pb2 as pb
from tests.unit.edge.worlds import VirtualLoop
from tests.unit.node.worlds import RelayWorld

WINDOW_BYTES = 500

texts = st.one_of(st.text(st.characters(exclude_categories=["Cs"]), max_size=12), st.just("x" * 300), st.just("한" * 9))
choices = st.integers(0, 2)
said = st.one_of(
    st.builds(RunText, texts, choices),
    st.builds(RunText, texts, st.just(0)),
    st.builds(RunReasoning, texts, choices),
    st.builds(RunToolCall, st.integers(0, 2), st.sampled_from(["", "c1"]), st.sampled_from(["", "f"]), texts, choices),
    st.lists(st.floats(width=32, allow_nan=False), max_size=200).map(
        lambda values: RunEmbedding(struct.pack(f"<{len(values)}f", *values), 0)
    ),
    st.builds(RunFinish, st.sampled_from(["stop", "length"]), choices),
)
steps = st.lists(st.one_of(said, said, st.just("turn"), st.integers(1, 700)), max_size=30)


class Edge:
    """The Edge's side of one run: what its messages brought, and what its window says."""

    def __init__(self, world: RelayWorld) -> None:
        self.world = world
        self.seen = 0
        self.said: list[RunSaid] = []
        self.end: End | None = None
        self.owed = -WINDOW_BYTES
        self.runs: dict[int, Any] = {1: self}

    def on_answer(self, taken: bool, head: Head | None, data: list[bytes], end: End | None) -> None:
        assert (head, data) == (None, [])
        self.end = end

    def on_events(self, taken: bool, said: list[RunSaid], byte_count: int, end: End | None) -> None:
        self.said += said
        self.owed += byte_count
        self.end = end

    def read(self) -> None:
        """Take every message that came, one at a time."""
        self.world.loop.settle()
        for message in self.world.stream.sent[self.seen :]:
            dispatch_edge(message, self.runs, self)  # type: ignore[arg-type]
        self.seen = len(self.world.stream.sent)
        largest = max(map(len, self.world.stream.sent), default=0) + EVENT_BYTES
        assert self.owed <= largest, "more than one event overdrew the window"

    def grant(self, byte_count: int) -> None:
        self.owed -= byte_count
        self.world.grant(1, byte_count)


def say(sink: RunSink, event: RunSaid) -> None:
    match event:
        case RunText(text, choice):
            sink.on_text(text, choice)
        case RunReasoning(text, choice):
            sink.on_reasoning(text, choice)
        case RunToolCall():
            sink.on_tool_call(*event)
        case RunEmbedding(values, choice):
            sink.on_embedding(struct.unpack(f"<{len(values) // 4}f", values), choice)
        case RunFinish(reason, choice):
            sink.on_finish(reason, choice)


def joined(events: list[RunSaid]) -> list[RunSaid]:
    """The same with what belongs together as one: neighbours of one kind and place; what says nothing is left out."""
    found: list[RunSaid] = []
    for event in events:
        last = found[-1] if found else None
        match event, last:
            case (RunText("") | RunReasoning("") | RunToolCall(_, "", "", ""), _):
                continue
            case (RunText() | RunReasoning(), RunText() | RunReasoning()) if (
                type(event) is type(last) and event.choice == last.choice
            ):
                found[-1] = last._replace(text=last.text + event.text)
            case RunToolCall(index, "", "", more, choice), RunToolCall(at, _, _, before, of) if (index, choice) == (
                at,
                of,
            ):
                found[-1] = last._replace(arguments=before + more)
            case _:
                found.append(event)
    return found


@given(steps, st.booleans())
@settings(max_examples=150, deadline=None)
def test_what_an_adapter_says_arrives_in_order_within_the_window_and_once(taken: list[Any], is_late: bool) -> None:
    with VirtualLoop() as loop:
        world = RelayWorld(loop, window_bytes=WINDOW_BYTES)
        task = world.open_run(1)
        edge = Edge(world)
        told: list[RunSaid] = []
        for step in taken:
            if isinstance(step, int):
                edge.read()
                edge.grant(step)
            elif step == "turn":
                edge.read()
            else:
                told.append(step)
                say(task.sink, step)
        end = End(pb.RunEnd.OK, "", Usage(1, 2, 0))
        if not is_late:
            task.sink.on_end(end)
        while True:
            edge.read()
            if edge.owed < 0 and len(world.stream.sent) == edge.seen and (is_late or edge.end is not None):
                break
            edge.grant(WINDOW_BYTES)
        assert joined(edge.said) == joined(told)
        assert not task.is_paused or not is_late
        if is_late:
            task.sink.on_end(end)
            edge.read()
        assert edge.end == end
        assert (edge.runs, world.relay.runs) == ({}, {})
