"""What dispatch promises beyond the wire format: gathering, order, isolation, and what encoding refuses."""

from __future__ import annotations

import struct
from array import array
from typing import Any

import pytest

from iop_fast._hot import frames
from iop_fast._hot.dispatch import dispatch_edge, dispatch_node
from iop_fast.seams import (
    End,
    Head,
    RunEmbedding,
    RunFinish,
    RunOpening,
    RunReasoning,
    RunSaid,
    RunText,
    RunToolCall,
    TunnelRequest,
    Usage,
)
from iop_fast.wire import runtime_pb2 as pb

OK = End(pb.RunEnd.OK, "", None)
HEAD = Head(200, b"OK", [(b"content-type", b"text/event-stream")])
REQUEST = TunnelRequest("p1", b"POST", b"/v1/chat/completions", [(b"a", b"b")], b"{}", True, 2, "m", False)
OPENING = RunOpening("p1", "m", pb.RunRequest.CHAT, True, b"xy", False, 9, b"00-1-2-01")


class Side:
    """Both sides' callbacks and all runs' answers, in one list."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.raises: dict[str, BaseException] = {}

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("on_"):
            raise AttributeError(name)

        def call(*given: Any) -> None:
            self.calls.append((name, *given))
            if name in self.raises:
                raise self.raises[name]

        return call


class Run:
    """A run whose answers go to the Side; `then` is done with each."""

    def __init__(self, side: Side, run_id: int, then: Any = None) -> None:
        self.side = side
        self.run_id = run_id
        self.then = then

    def on_answer(self, taken: bool, head: Head | None, data: list[bytes], end: End | None) -> None:
        self.side.calls.append(("answer", self.run_id, taken, head, data, end))
        if self.then is not None:
            self.then()

    def on_events(self, taken: bool, said: list[RunSaid], byte_count: int, end: End | None) -> None:
        self.side.calls.append(("events", self.run_id, taken, said, byte_count, end))
        if self.then is not None:
            self.then()

    def on_window(self, byte_count: int) -> None:
        self.side.calls.append(("window", self.run_id, byte_count))


def fail() -> None:
    raise RuntimeError("a run of ours failed")


def event(run_id: int, text: str) -> pb.Frame:
    return pb.Frame(run_id=run_id, run_event=pb.RunEvent(text=text))


def encode(frame: pb.Frame) -> bytes:
    return frames.encode_frame(frame.SerializeToString())


def test_frames_of_one_run_are_gathered_in_order_of_first_appearance() -> None:
    side = Side()
    runs: dict[int, Any] = {1: Run(side, 1), 2: Run(side, 2)}
    message = b"".join(
        [
            frames.encode_window(2, 10),
            frames.encode_taken(1),
            frames.encode_head(1, HEAD),
            frames.encode_data(2, b"x"),
            frames.encode_data(1, b"a"),
            frames.encode_data(1, b""),
            frames.encode_window(2, 5),
            frames.encode_data(1, b"b"),
            frames.encode_end(1, OK),
        ]
    )
    assert dispatch_edge(message, runs, side) == 9
    assert side.calls == [
        ("window", 2, 15),
        ("answer", 2, False, None, [b"x"], None),
        ("answer", 1, True, HEAD, [b"a", b"b"], OK),
    ]
    assert list(runs) == [2]


def test_windows_of_one_message_add_up_without_wrapping() -> None:
    side = Side()
    dispatch_edge(frames.encode_window(1, 2**64 - 1) * 2, {1: Run(side, 1)}, side)
    assert side.calls == [("window", 1, 2**64 - 1)]


def test_frames_of_an_unknown_run_and_of_the_other_direction_are_dropped() -> None:
    side = Side()
    message = (
        frames.encode_data(9, b"x")
        + encode(event(9, "x"))
        + frames.encode_tunnel_request(1, REQUEST)
        + frames.encode_cancel(1)
        + encode(pb.Frame(run_id=1, run_request=pb.RunRequest()))
    )
    assert dispatch_edge(message, {1: Run(side, 1)}, side) == 5
    assert side.calls == []
    answer = frames.encode_data(1, b"x") + frames.encode_end(1, OK) + frames.encode_taken(1) + encode(event(1, "x"))
    assert dispatch_node(answer, side) == 4
    assert side.calls == []


def test_frames_behind_a_run_s_end_are_dropped() -> None:
    side = Side()
    runs: dict[int, Any] = {1: Run(side, 1)}
    message = frames.encode_end(1, OK) + frames.encode_data(1, b"late") + encode(event(1, "late"))
    dispatch_edge(message, runs, side)
    assert side.calls == [("answer", 1, False, None, [], OK)]
    assert runs == {}


def test_a_run_that_raises_does_not_disturb_the_others() -> None:
    """One client's abort must never end a session."""
    side = Side()
    runs: dict[int, Any] = {1: Run(side, 1), 2: Run(side, 2, fail), 3: Run(side, 3)}
    message = b"".join(frames.encode_data(run_id, b"x") + frames.encode_end(run_id, OK) for run_id in (1, 2, 3))
    dispatch_edge(message, runs, side)
    assert [call[:2] for call in side.calls] == [
        ("answer", 1),
        ("answer", 2),
        ("on_frame_failed", 2),
        ("answer", 3),
    ]
    assert isinstance(side.calls[2][2], RuntimeError)
    assert runs == {}


def test_a_run_that_raised_is_in_the_table_when_that_is_told() -> None:
    side = Side()
    runs: dict[int, Any] = {2: Run(side, 2, fail)}
    seen = []
    side.on_frame_failed = lambda run_id, error: seen.append(list(runs))  # type: ignore[attr-defined]
    dispatch_edge(frames.encode_end(2, OK), runs, side)
    assert seen == [[2]]
    assert runs == {}


def test_what_only_stops_the_program_is_not_caught() -> None:
    side = Side()

    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dispatch_edge(frames.encode_data(1, b"x"), {1: Run(side, 1, stop)}, side)


def test_a_run_that_another_s_answer_removed_gets_nothing() -> None:
    side = Side()
    runs: dict[int, Any] = {}
    runs[1] = Run(side, 1, runs.clear)
    runs[2] = Run(side, 2)
    dispatch_edge(frames.encode_data(1, b"x") + frames.encode_data(2, b"x"), runs, side)
    assert [call[:2] for call in side.calls] == [("answer", 1)]


@pytest.mark.parametrize(
    "order",
    [
        [frames.encode_head(1, HEAD), frames.encode_head(1, HEAD)],
        [frames.encode_data(1, b"x"), frames.encode_head(1, HEAD)],
    ],
    ids=["two heads", "head behind data"],
)
def test_an_answer_out_of_order_fails_its_run_alone(order: list[bytes]) -> None:
    side = Side()
    runs: dict[int, Any] = {1: Run(side, 1), 2: Run(side, 2)}
    dispatch_edge(b"".join(order) + frames.encode_data(2, b"x"), runs, side)
    assert [call[:2] for call in side.calls] == [("on_frame_failed", 1), ("answer", 2)]
    assert isinstance(side.calls[0][2], frames.FrameError)


def test_nothing_of_a_malformed_message_is_delivered() -> None:
    side = Side()
    good = frames.encode_data(1, b"x") + encode(pb.Frame(heartbeat=pb.Heartbeat()))
    with pytest.raises(frames.FrameError, match="malformed"):
        dispatch_edge(good + b"\x0a\x02\x08", {1: Run(side, 1)}, side)
    with pytest.raises(frames.FrameError, match="malformed"):
        dispatch_node(frames.encode_cancel(1) + b"\x0a\x02\x08", side)
    assert side.calls == []


def test_a_frame_with_two_bodies_is_refused() -> None:
    frame = pb.Frame(run_id=1, taken=pb.Taken()).SerializeToString()
    frame += pb.Frame(cancel=pb.CancelRequest()).SerializeToString()
    with pytest.raises(frames.FrameError):
        dispatch_edge(frames.encode_frame(frame), {}, Side())


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (b"\xba\x01\x04\x12\x02\xff\xfe", "detail is not UTF-8"),
        (b"\xba\x01\x02\x1a\x05", "RunEnd"),
        (b"\xba\x01\x04\x1a\x02\x08\x80", "Usage"),
        (b"\xa2\x01\x03\x1a\x02\x0a", "ResponseHead"),
        (b"\xa2\x01\x04\x1a\x02\x0a\x05", "Header"),
        (b"\xc2\x01\x01\x08", "WindowUpdate"),
        (b"\x9a\x01\x01\x08", "Taken"),
        (b"\xb2\x01\x02\x0a\x05", "RunEvent"),
        (b"\xb2\x01\x04\x1a\x02\x12\x05", "ToolCallDelta"),
        (b"\xb2\x01\x03\x0a\x01\xff", "text is not UTF-8"),
    ],
)
def test_a_malformed_body_says_which(body: bytes, what: str) -> None:
    with pytest.raises(frames.FrameError, match=what):
        dispatch_edge(frames.encode_frame(b"\x08\x01" + body), {1: Run(Side(), 1)}, Side())


def test_header_fields_have_a_limit_in_both_directions() -> None:
    many = Head(200, b"", [(b"", b"")] * (frames.MAX_HEADERS + 1))
    with pytest.raises(ValueError, match="at most 4096, got 4097"):
        frames.encode_head(1, many)
    message = pb.ResponseHead(headers=[pb.Header()] * (frames.MAX_HEADERS + 1))
    with pytest.raises(frames.FrameError, match="at most 4096"):
        dispatch_edge(encode(pb.Frame(run_id=1, head=message)), {1: Run(Side(), 1)}, Side())
    most = Head(200, b"", many.headers[:-1])
    side = Side()
    dispatch_edge(frames.encode_head(1, most), {1: Run(side, 1)}, side)
    assert side.calls == [("answer", 1, False, most, [], None)]


def test_session_frames_go_to_control_as_they_stand() -> None:
    side = Side()
    runs: dict[int, Any] = {1: Run(side, 1)}
    beat = pb.Frame(heartbeat=pb.Heartbeat(messages_read=3))
    dispatch_edge(frames.encode_taken(1) + encode(beat) + frames.encode_end(1, OK), runs, side)
    assert side.calls == [("answer", 1, True, None, [], OK), ("on_control", beat.SerializeToString())]


def test_events_of_one_message_come_at_once_in_their_order() -> None:
    side = Side()
    runs: dict[int, Any] = {1: Run(side, 1), 2: Run(side, 2)}
    said = [
        frames.encode_reasoning(1, "hm"),
        frames.encode_text(1, "a"),
        frames.encode_text(1, "", 3),
        frames.encode_tool_call(1, 0, "c1", "look", "{", 3),
        frames.encode_embedding(1, [0.5, -2.0], 1),
        frames.encode_finish(1, "stop"),
    ]
    message = b"".join(
        [
            frames.encode_window(1, 7),
            said[0],
            frames.encode_text(2, "of another"),
            *said[1:4],
            frames.encode_taken(1),
            *said[4:],
            frames.encode_end(1, OK),
        ]
    )
    assert dispatch_edge(message, runs, side) == 10
    assert side.calls == [
        ("window", 1, 7),
        (
            "events",
            1,
            True,
            [
                RunReasoning("hm", 0),
                RunText("a", 0),
                RunText("", 3),
                RunToolCall(0, "c1", "look", "{", 3),
                RunEmbedding(struct.pack("<2f", 0.5, -2.0), 1),
                RunFinish("stop", 0),
            ],
            sum(map(len, said)) + len(said) * frames.EVENT_BYTES,
            OK,
        ),
        (
            "events",
            2,
            False,
            [RunText("of another", 0)],
            len(frames.encode_text(2, "of another")) + frames.EVENT_BYTES,
            None,
        ),
    ]
    assert list(runs) == [2]


def test_an_event_of_a_later_version_is_counted_and_left_out() -> None:
    side = Side()
    later = frames.encode_frame(b"\x08\x01\xb2\x01\x04" + b"\x72\x02hi")  # field 14
    dispatch_edge(later, {1: Run(side, 1)}, side)
    assert side.calls == [("events", 1, False, [], len(later) + frames.EVENT_BYTES, None)]


@pytest.mark.parametrize("other", [frames.encode_data(1, b"x"), frames.encode_head(1, HEAD)])
@pytest.mark.parametrize("is_first", [True, False])
def test_an_event_beside_a_tunnel_s_answer_ends_that_run_alone(other: bytes, is_first: bool) -> None:
    side = Side()
    runs: dict[int, Any] = {1: Run(side, 1), 2: Run(side, 2)}
    said = frames.encode_text(1, "a")
    message = (said + other if is_first else other + said) + frames.encode_data(2, b"x")
    dispatch_edge(message, runs, side)
    assert [call[:2] for call in side.calls] == [("on_frame_failed", 1), ("answer", 2)]
    assert isinstance(side.calls[0][2], frames.FrameError)


def test_two_events_in_one_frame_are_malformed() -> None:
    two = pb.RunEvent(text="a").SerializeToString() + pb.RunEvent(finish_reason="stop").SerializeToString()
    entry = frames.encode_frame(b"\x08\x01\xb2\x01" + bytes([len(two)]) + two)
    with pytest.raises(frames.FrameError, match="two events"):
        dispatch_edge(entry, {1: Run(Side(), 1)}, Side())


@pytest.mark.parametrize(
    "values",
    [b"\x0a\x03abc", b"\x0d\x00\x00", b"\x0a\x04ab"],
)
def test_an_embedding_of_half_a_number_is_malformed(values: bytes) -> None:
    body = b"\x22" + bytes([len(values)]) + values
    entry = frames.encode_frame(b"\x08\x01\xb2\x01" + bytes([len(body)]) + body)
    with pytest.raises(frames.FrameError, match="Embedding"):
        dispatch_edge(entry, {1: Run(Side(), 1)}, Side())


def test_an_embedding_reads_back_however_protobuf_may_pack_it() -> None:
    side = Side()
    one, two = struct.pack("<f", 1.5), struct.pack("<2f", 2.5, -0.25)
    values = b"\x0d" + one + b"\x0a\x08" + two + b"\x0a\x00"
    body = b"\x22" + bytes([len(values)]) + values
    dispatch_edge(frames.encode_frame(b"\x08\x01\xb2\x01" + bytes([len(body)]) + body), {1: Run(side, 1)}, side)
    assert side.calls[0][3] == [RunEmbedding(one + two, 0)]


def test_characters_without_utf8_travel_as_question_marks() -> None:
    side = Side()
    dispatch_edge(
        frames.encode_text(1, "a\ud800b") + frames.encode_tool_call(1, 0, "\udfff", "\ud800", "\ud800{"),
        {1: Run(side, 1)},
        side,
    )
    assert side.calls[0][3] == [RunText("a?b", 0), RunToolCall(0, "?", "?", "?{", 0)]


def test_an_embedding_may_be_any_numbers() -> None:
    entry = frames.encode_embedding(1, array("f", [1, 2]), 2)
    assert entry == frames.encode_embedding(1, (1, 2.0), 2)
    assert entry == frames.encode_embedding(1, array("d", [1, 2]), 2)
    large = pb.Batch.FromString(frames.encode_embedding(1, [1e300, -1e300])).frames[0]
    assert list(large.run_event.embedding.values) == [float("inf"), float("-inf")]


def test_a_frame_of_a_later_version_is_counted_and_ignored() -> None:
    side = Side()
    later = frames.encode_frame(b"\x08\x01\xfa\x01\x03abc")  # field 31
    assert dispatch_edge(later, {1: Run(side, 1)}, side) == 1
    assert dispatch_node(later, side) == 1
    assert side.calls == []


def test_a_failing_session_frame_is_the_session_s_failure() -> None:
    side = Side()
    side.raises["on_control"] = RuntimeError("no such state")
    message = encode(pb.Frame(heartbeat=pb.Heartbeat())) + frames.encode_data(1, b"x")
    with pytest.raises(RuntimeError, match="no such state"):
        dispatch_edge(message, {1: Run(side, 1)}, side)
    with pytest.raises(RuntimeError, match="no such state"):
        dispatch_node(message, side)


@pytest.mark.parametrize("name", ["on_open", "on_open_run", "on_body", "on_window", "on_cancel"])
def test_a_failing_run_on_the_node_does_not_disturb_the_others(name: str) -> None:
    side = Side()
    side.raises[name] = RuntimeError("a run of ours failed")
    message = b"".join(
        [
            frames.encode_tunnel_request(1, REQUEST),
            frames.encode_request_body(1, b"x", True),
            frames.encode_window(1, 5),
            frames.encode_cancel(1),
            frames.encode_run_request(1, OPENING),
            encode(pb.Frame(heartbeat=pb.Heartbeat())),
        ]
    )
    assert dispatch_node(message, side) == 6
    names = [call[0] for call in side.calls]
    failed = names.index("on_frame_failed")
    assert names[failed - 1] == name
    assert side.calls[failed][1] == 1
    del names[failed]
    assert names == ["on_open", "on_body", "on_window", "on_cancel", "on_open_run", "on_control"]


@pytest.mark.parametrize(
    "call",
    [
        lambda: frames.encode_head(1, Head(200, "OK", [])),  # type: ignore[arg-type]
        lambda: frames.encode_head(1, Head(200, b"", [("a", b"")])),  # type: ignore[list-item]
        lambda: frames.encode_head(1, Head(200, b"", [(b"a",)])),  # type: ignore[list-item]
        lambda: frames.encode_head(1, (200, b"", [])),  # type: ignore[arg-type]
        lambda: frames.encode_end(1, (0, "", None)),  # type: ignore[arg-type]
        lambda: frames.encode_end(1, End(0, b"", None)),  # type: ignore[arg-type]
        lambda: frames.encode_end(1, End(0, None, None)),  # type: ignore[arg-type]
        lambda: frames.encode_tunnel_request(1, tuple(REQUEST)),  # type: ignore[arg-type]
        lambda: frames.encode_tunnel_request(1, REQUEST._replace(path="/v1")),  # type: ignore[arg-type]
        lambda: frames.encode_tunnel_request(1, REQUEST._replace(body="{}")),  # type: ignore[arg-type]
        lambda: frames.encode_tunnel_request(1, REQUEST._replace(model=None)),  # type: ignore[arg-type]
        lambda: frames.encode_run_request(1, tuple(OPENING)),  # type: ignore[arg-type]
        lambda: frames.encode_run_request(1, OPENING._replace(body="{}")),  # type: ignore[arg-type]
        lambda: frames.encode_run_request(1, OPENING._replace(model=b"m")),  # type: ignore[arg-type]
        lambda: frames.encode_run_request(1, OPENING._replace(traceparent="00")),  # type: ignore[arg-type]
        lambda: frames.encode_text(1, b"text"),  # type: ignore[arg-type]
        lambda: frames.encode_reasoning(1, None),  # type: ignore[arg-type]
        lambda: frames.encode_tool_call(1, 0, "id", None, ""),  # type: ignore[arg-type]
        lambda: frames.encode_embedding(1, ["1"]),  # type: ignore[list-item]
        lambda: frames.encode_embedding(1, None),  # type: ignore[arg-type]
        lambda: frames.encode_data(1, "text"),  # type: ignore[arg-type]
        lambda: frames.encode_data(1, None),  # type: ignore[arg-type]
        lambda: frames.encode_request_body(1, "text", True),  # type: ignore[arg-type]
        lambda: frames.encode_frame("text"),  # type: ignore[arg-type]
        lambda: dispatch_edge("text", {}, Side()),  # type: ignore[arg-type]
        lambda: dispatch_edge(b"", None, Side()),  # type: ignore[arg-type]
        lambda: dispatch_node(bytearray(), Side()),  # type: ignore[arg-type]
    ],
)
def test_wrong_types_are_refused(call: Any) -> None:
    with pytest.raises(TypeError):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda: frames.encode_taken(-1),
        lambda: frames.encode_run_request(1, OPENING._replace(kind=2**31)),
        lambda: frames.encode_run_request(1, OPENING._replace(body_length=-1)),
        lambda: frames.encode_text(1, "", -1),
        lambda: frames.encode_tool_call(1, 2**32, "", "", ""),
        lambda: frames.encode_taken(2**64),
        lambda: frames.encode_window(1, 2**64),
        lambda: frames.encode_head(1, Head(2**32, b"", [])),
        lambda: frames.encode_end(1, End(2**31, "", None)),
        lambda: frames.encode_end(1, End(0, "", Usage(-1, 0, 0))),
    ],
)
def test_numbers_that_do_not_fit_are_refused(call: Any) -> None:
    with pytest.raises(OverflowError):
        call()


def test_an_end_gets_through_whatever_its_text() -> None:
    entry = frames.encode_end(1, End(3, "no such file: \udcff", None))
    assert pb.Batch.FromString(entry).frames[0].end.detail == "no such file: ?"


def test_headers_may_be_any_sequence() -> None:
    fields = ((b"a", b"b"), (b"c", b""))
    assert frames.encode_head(1, Head(200, b"", fields)) == frames.encode_head(  # type: ignore[arg-type]
        1, Head(200, b"", list(fields))
    )
