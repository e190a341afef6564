"""The frame codec against protobuf's own: what we write it reads, what it writes we read, and damaged bytes."""

from __future__ import annotations

import struct
from array import array
from typing import Any

from google.protobuf.message import DecodeError
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

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

uint64 = st.one_of(st.integers(0, 300), st.integers(0, 2**64 - 1))
run_ids = st.one_of(st.integers(0, 5), uint64)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
octets = st.binary(max_size=200)
pairs = st.lists(st.tuples(octets, octets), max_size=6)
usages = st.none() | st.builds(Usage, uint64, uint64, uint64)
ends = st.builds(End, st.integers(-(2**31), 2**31 - 1), texts, usages, st.integers(0, 2**32 - 1))
heads = st.builds(Head, st.integers(0, 2**32 - 1), octets, pairs)
requests = st.builds(
    TunnelRequest, texts, octets, octets, pairs, octets, st.booleans(), uint64, texts, st.booleans(), st.booleans()
)
openings = st.builds(
    RunOpening, texts, texts, st.integers(-(2**31), 2**31 - 1), st.booleans(), octets, st.booleans(), uint64, octets
)
uint32 = st.one_of(st.integers(0, 2), st.integers(0, 2**32 - 1))
floats = st.lists(st.floats(width=32), max_size=8).map(lambda values: struct.pack(f"<{len(values)}f", *values))
events = st.one_of(
    st.builds(RunText, texts, uint32),
    st.builds(RunReasoning, texts, uint32),
    st.builds(RunToolCall, uint32, texts, texts, texts, uint32),
    st.builds(RunEmbedding, floats, uint32),
    st.builds(RunFinish, texts, uint32),
)


def opening_message(opening: RunOpening) -> pb.RunRequest:
    return pb.RunRequest(
        provider_id=opening.provider_id,
        model=opening.model,
        kind=opening.kind,  # type: ignore[arg-type]
        stream=opening.stream,
        input=opening.body,
        input_complete=opening.body_complete,
        input_length=opening.body_length,
        traceparent=opening.traceparent,
    )


def event_message(event: RunSaid) -> pb.RunEvent:
    match event:
        case RunText(text, choice):
            return pb.RunEvent(text=text, index=choice)
        case RunReasoning(text, choice):
            return pb.RunEvent(reasoning=text, index=choice)
        case RunToolCall(call_index, call_id, name, arguments, choice):
            call = pb.ToolCallDelta(index=call_index, id=call_id, name=name, arguments=arguments)
            return pb.RunEvent(tool_call=call, index=choice)
        case RunEmbedding(values, choice):
            embedding = pb.Embedding(values=struct.unpack(f"<{len(values) // 4}f", values))
            return pb.RunEvent(embedding=embedding, index=choice)
        case RunFinish(reason, choice):
            return pb.RunEvent(finish_reason=reason, index=choice)


def encode_event(run_id: int, event: RunSaid) -> bytes:
    match event:
        case RunText(text, choice):
            return frames.encode_text(run_id, text, choice)
        case RunReasoning(text, choice):
            return frames.encode_reasoning(run_id, text, choice)
        case RunToolCall():
            return frames.encode_tool_call(run_id, *event)
        case RunEmbedding(values, choice):
            return frames.encode_embedding(run_id, array("f", values), choice)
        case RunFinish(reason, choice):
            return frames.encode_finish(run_id, reason, choice)


def headers_message(headers: Any) -> list[pb.Header]:
    return [pb.Header(name=name, value=value) for name, value in headers]


def end_message(end: End) -> pb.RunEnd:
    usage = None if end.usage is None else pb.Usage(**end.usage._asdict())
    return pb.RunEnd(
        status=end.status,  # type: ignore[arg-type]
        detail=end.detail,
        usage=usage,
        refusal_status=end.refusal_status,
    )


def head_message(head: Head) -> pb.ResponseHead:
    return pb.ResponseHead(status=head.status, reason=head.reason, headers=headers_message(head.headers))


def request_message(request: TunnelRequest) -> pb.ProviderTunnelRequest:
    fields = {**request._asdict(), "headers": headers_message(request.headers)}
    return pb.ProviderTunnelRequest(**fields)


def assert_same(entry: bytes, frame: pb.Frame) -> None:
    assert pb.Batch.FromString(entry) == pb.Batch(frames=[frame])
    assert entry == pb.Batch(frames=[frame]).SerializeToString()


class Recorder:
    """A NodeSide and an EdgeSide that writes down what it is called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("on_"):
            raise AttributeError(name)
        return lambda *given: self.calls.append((name, *given))


class Run:
    """A run that writes down what it is called with, under its id, in its Recorder."""

    def __init__(self, side: Recorder, run_id: int) -> None:
        self.side = side
        self.run_id = run_id

    def __getattr__(self, name: str) -> Any:
        return lambda *given: self.side.calls.append((name, self.run_id, *given))


# Ours, read by protobuf.


@given(run_ids, requests)
@settings(deadline=None)
def test_a_tunnel_request_reads_back(run_id: int, request: TunnelRequest) -> None:
    frame = pb.Frame(run_id=run_id, tunnel_request=request_message(request))
    assert_same(frames.encode_tunnel_request(run_id, request), frame)


@given(run_ids, openings)
@settings(deadline=None)
def test_a_run_request_reads_back(run_id: int, opening: RunOpening) -> None:
    frame = pb.Frame(run_id=run_id, run_request=opening_message(opening))
    assert_same(frames.encode_run_request(run_id, opening), frame)


@given(run_ids, events)
@settings(max_examples=300, deadline=None)
def test_an_event_reads_back(run_id: int, event: RunSaid) -> None:
    frame = pb.Frame(run_id=run_id, run_event=event_message(event))
    assert encode_event(run_id, event) == pb.Batch(frames=[frame]).SerializeToString()


@given(run_ids, heads, ends, octets, uint64, st.booleans())
@settings(deadline=None)
def test_the_other_run_frames_read_back(
    run_id: int, head: Head, end: End, data: bytes, number: int, complete: bool
) -> None:
    body = pb.RequestBody(piece=data, complete=complete)
    assert_same(frames.encode_head(run_id, head), pb.Frame(run_id=run_id, head=head_message(head)))
    assert_same(frames.encode_end(run_id, end), pb.Frame(run_id=run_id, end=end_message(end)))
    assert_same(frames.encode_data(run_id, data), pb.Frame(run_id=run_id, data=data))
    assert_same(frames.encode_data(run_id, bytearray(data)), pb.Frame(run_id=run_id, data=data))
    assert_same(frames.encode_data(run_id, memoryview(data)), pb.Frame(run_id=run_id, data=data))
    assert_same(frames.encode_request_body(run_id, data, complete), pb.Frame(run_id=run_id, request_body=body))
    assert_same(
        frames.encode_request_body(run_id, bytearray(data), complete), pb.Frame(run_id=run_id, request_body=body)
    )
    assert_same(frames.encode_window(run_id, number), pb.Frame(run_id=run_id, window=pb.WindowUpdate(bytes=number)))
    assert_same(frames.encode_cancel(run_id), pb.Frame(run_id=run_id, cancel=pb.CancelRequest()))
    assert_same(frames.encode_taken(run_id), pb.Frame(run_id=run_id, taken=pb.Taken()))


@given(texts, st.lists(uint64, max_size=20))
@settings(deadline=None)
def test_a_session_frame_is_wrapped(node_id: str, ids: list[int]) -> None:
    for frame in (
        pb.Frame(register_request=pb.RegisterRequest(node_id=node_id)),
        pb.Frame(heartbeat=pb.Heartbeat(run_ids=ids)),
        pb.Frame(),
    ):
        assert_same(frames.encode_frame(frame.SerializeToString()), frame)


@given(st.integers(0, 2**22))
@settings(max_examples=20, deadline=None)
def test_lengths_of_every_size_read_back(size: int) -> None:
    data = bytes(size)
    assert pb.Batch.FromString(frames.encode_data(1, data)).frames[0].data == data


# Protobuf's, read by us. `extra` are fields of a later version, appended to frames and to the messages in them.


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


@st.composite
def unknown_fields(draw: st.DrawFn) -> bytes:
    """Fields that no message of runtime.proto has, of every wire type, groups among them."""
    out = b""
    for _ in range(draw(st.integers(0, 3))):
        number = draw(st.integers(200, 2**29 - 1))
        kind = draw(st.integers(0, 5).filter(lambda kind: kind != 4))
        value = {
            0: varint(draw(uint64)),
            1: bytes(8),
            2: varint(3) + b"abc",
            3: varint(number << 3 | 3)[:0] + varint(7 << 3) + b"\x05" + varint(number << 3 | 4),
            5: bytes(4),
        }[kind]
        out += varint(number << 3 | kind) + value
    return out


def with_unknown(message: Any, extra: bytes) -> Any:
    """The same message, carrying unknown fields."""
    return type(message).FromString(message.SerializeToString() + extra)


@st.composite
def node_frames(draw: st.DrawFn) -> pb.Frame:
    """A frame that a Node sends for a run."""
    extra = draw(unknown_fields())
    frame = pb.Frame(run_id=draw(st.integers(0, 4)))
    kind = draw(st.sampled_from(["taken", "data", "data", "window", "head", "end", "event", "event", "event"]))
    if kind == "taken":
        frame.taken.CopyFrom(with_unknown(pb.Taken(), extra))
    elif kind == "data":
        frame.data = draw(octets)
    elif kind == "window":
        frame.window.CopyFrom(with_unknown(pb.WindowUpdate(bytes=draw(st.integers(1, 10**9))), extra))
    elif kind == "head":
        head = head_message(draw(heads))
        for header in head.headers:
            header.MergeFromString(extra)
        frame.head.CopyFrom(with_unknown(head, extra))
    elif kind == "event":
        event = event_message(draw(events)) if draw(st.booleans()) else pb.RunEvent(index=draw(uint32))
        if event.HasField("tool_call"):
            event.tool_call.MergeFromString(extra)
        if event.HasField("embedding"):
            event.embedding.MergeFromString(extra)
        frame.run_event.CopyFrom(with_unknown(event, extra))
    else:
        end = end_message(draw(ends))
        if end.HasField("usage"):
            end.usage.MergeFromString(extra)
        frame.end.CopyFrom(with_unknown(end, extra))
    return with_unknown(frame, draw(unknown_fields()))  # type: ignore[no-any-return]


def head_of(message: pb.ResponseHead) -> Head:
    return Head(message.status, message.reason, [(header.name, header.value) for header in message.headers])


def end_of(message: pb.RunEnd) -> End:
    usage = message.usage
    counts = Usage(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens)
    return End(message.status, message.detail, counts if message.HasField("usage") else None, message.refusal_status)


def event_of(message: pb.RunEvent) -> list[RunSaid]:
    """The event as a list, empty for one of a later version."""
    choice = message.index
    match message.WhichOneof("event"):
        case "text":
            return [RunText(message.text, choice)]
        case "reasoning":
            return [RunReasoning(message.reasoning, choice)]
        case "tool_call":
            call = message.tool_call
            return [RunToolCall(call.index, call.id, call.name, call.arguments, choice)]
        case "embedding":
            values = message.embedding.values
            return [RunEmbedding(struct.pack(f"<{len(values)}f", *values), choice)]
        case "finish_reason":
            return [RunFinish(message.finish_reason, choice)]
        case _:
            return []


def expected_calls(batch: pb.Batch, known: dict[int, Any]) -> list[tuple[Any, ...]]:
    """The contract of dispatch_edge, written plainly."""
    answers: dict[int, dict[str, Any]] = {}
    for frame in batch.frames:
        if frame.run_id not in known:
            continue
        answer = answers.setdefault(
            frame.run_id,
            {
                "granted": 0,
                "taken": False,
                "head": None,
                "data": [],
                "said": [],
                "said_bytes": 0,
                "end": None,
                "bad": False,
                "seen": False,
            },
        )
        if answer["end"] is not None:
            continue
        kind = frame.WhichOneof("body")
        if kind == "window":
            answer["granted"] += frame.window.bytes
            continue
        if kind == "data" and not frame.data:
            continue
        answer["seen"] = True
        if kind == "taken":
            answer["taken"] = True
        elif kind == "head":
            answer["bad"] |= answer["head"] is not None or bool(answer["data"])
            answer["head"] = head_of(frame.head)
        elif kind == "data":
            answer["data"].append(frame.data)
        elif kind == "run_event":
            answer["said"] += event_of(frame.run_event)
            answer["said_bytes"] += len(pb.Batch(frames=[frame]).SerializeToString()) + frames.EVENT_BYTES
        else:
            answer["end"] = end_of(frame.end)
    calls: list[tuple[Any, ...]] = []
    for run_id, answer in answers.items():
        if answer["bad"]:
            calls.append(("on_frame_failed", run_id))
            continue
        if answer["granted"]:
            calls.append(("on_window", run_id, answer["granted"]))
        if answer["said_bytes"] and (answer["head"] or answer["data"]):
            calls.append(("on_frame_failed", run_id))
        elif answer["said_bytes"]:
            said = answer["said"]
            calls.append(("on_events", run_id, answer["taken"], said, answer["said_bytes"], answer["end"]))
        elif answer["seen"]:
            calls.append(("on_answer", run_id, answer["taken"], answer["head"], answer["data"], answer["end"]))
    return calls


@given(st.lists(node_frames(), max_size=12), unknown_fields())
@settings(max_examples=300, deadline=None)
def test_a_node_s_message_arrives_gathered(sent: list[pb.Frame], extra: bytes) -> None:
    batch = with_unknown(pb.Batch(frames=sent), extra)
    side = Recorder()
    runs: dict[int, Any] = {run_id: Run(side, run_id) for run_id in (1, 2, 3)}
    expected = expected_calls(batch, runs)
    ended = {frame.run_id for frame in sent if frame.WhichOneof("body") == "end"}
    assert dispatch_edge(batch.SerializeToString(), runs, side) == len(sent)
    assert [call[:2] if call[0] == "on_frame_failed" else call for call in side.calls] == expected
    assert set(runs) == {1, 2, 3} - ended


@given(run_ids, requests, openings, st.lists(st.tuples(octets, st.booleans()), max_size=4), uint64, unknown_fields())
@settings(max_examples=200, deadline=None)
def test_an_edge_s_message_arrives_in_order(
    run_id: int,
    request: TunnelRequest,
    opened: RunOpening,
    pieces: list[tuple[bytes, bool]],
    granted: int,
    extra: bytes,
) -> None:
    opening = with_unknown(request_message(request), extra)
    bodies = [with_unknown(pb.RequestBody(piece=piece, complete=complete), extra) for piece, complete in pieces]
    window = with_unknown(pb.WindowUpdate(bytes=granted), extra)
    batch = pb.Batch(
        frames=[
            pb.Frame(run_id=run_id, tunnel_request=opening),
            pb.Frame(run_id=run_id, run_request=with_unknown(opening_message(opened), extra)),
            *(pb.Frame(run_id=run_id, request_body=body) for body in bodies),
            pb.Frame(run_id=run_id, window=window),
            pb.Frame(run_id=run_id, cancel=with_unknown(pb.CancelRequest(), extra)),
        ]
    )
    side = Recorder()
    assert dispatch_node(with_unknown(batch, extra).SerializeToString(), side) == len(batch.frames)
    assert side.calls == [
        ("on_open", run_id, request),
        ("on_open_run", run_id, opened),
        *(("on_body", run_id, piece, complete) for piece, complete in pieces),
        ("on_window", run_id, granted),
        ("on_cancel", run_id),
    ]


# Bytes that nobody meant.


def fields(data: bytes) -> list[tuple[int, int, bytes]]:
    """Number, wire type and value of the fields of well-formed bytes; what stands inside a group is left out."""
    found, at, depth = [], 0, 0
    while at < len(data):
        tag, at = read_varint(data, at)
        kind, start = tag & 7, at
        if kind == 0:
            _, at = read_varint(data, at)
        elif kind == 2:
            size, start = read_varint(data, at)
            at = start + size
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        else:
            depth += 1 if kind == 3 else -1
        if not depth:
            found.append((tag >> 3, kind, data[start:at]))
    return found


def has_two_bodies(message: bytes) -> bool:
    """True for what protobuf merges and the protocol forbids: a frame with two bodies, or two events in one."""
    bodies = {*range(2, 11), *range(16, 26)}
    for number, kind, frame in fields(message):
        if number == 1 and kind == 2:
            inner = [number for number, kind, _ in fields(frame) if kind == 2 and number in bodies]
            if len(inner) > 1:
                return True
            if inner == [22]:
                (event,) = (value for number, kind, value in fields(frame) if kind == 2 and number == 22)
                if len([number for number, kind, _ in fields(event) if kind == 2 and 1 <= number <= 5]) > 1:
                    return True
    return False


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7


def parses(message: bytes) -> bool:
    try:
        pb.Batch.FromString(message)
    except DecodeError:
        return False
    return True


def dispatch_both(message: bytes) -> tuple[bool, bool]:
    """Dispatch as both sides do; (accepted by the Edge, accepted by the Node)."""
    side = Recorder()
    runs: dict[int, Any] = {run_id: Run(side, run_id) for run_id in range(6)}
    accepted = []
    for dispatch in (lambda: dispatch_edge(message, runs, side), lambda: dispatch_node(message, side)):
        before = len(side.calls)
        try:
            dispatch()
            accepted.append(True)
        except frames.FrameError:
            assert len(side.calls) == before, "something was delivered of a malformed message"
            accepted.append(False)
    return accepted[0], accepted[1]


def is_read_loosely(message: bytes) -> bool:
    """True where protobuf takes what its own rules forbid: in a message without fields it lets field number 0 pass."""
    frames = pb.Batch.FromString(message).frames
    return any(frame.taken.ByteSize() or frame.cancel.ByteSize() for frame in frames)


def check_fuzzed(message: bytes) -> None:
    edge, node = dispatch_both(message)
    if parses(message) and not has_two_bodies(message) and not is_read_loosely(message):
        assert edge, f"the Edge refuses {message!r}, protobuf does not"
        assert node, f"the Node refuses {message!r}, protobuf does not"


@given(st.binary(max_size=80))
@example(b"\x0a")
@example(b"\x0a\xff\xff\xff\xff\x0f")
@example(b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01")
@example(b"\x0a\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x00")
@example(b"\x0a\x04\x08\x01\xaa\x01")
@example(b"\x0b" * 200)
@example(b"\n\x0e\xa2\x01\x00\x1a\x00\xc0\x0c\x00\xc3\x0c8\x05\xc4\x0c")
@example(b"\x07")
@example(b"\x00\x00")
@example(b"\n\x07\x08\x01\x9a\x01\x02\x00\x0c")
@settings(max_examples=500, deadline=None)
def test_any_bytes_are_dispatched_or_refused(message: bytes) -> None:
    check_fuzzed(message)


@given(st.lists(node_frames(), min_size=1, max_size=4), st.data())
@settings(max_examples=500, deadline=None)
def test_a_damaged_message_is_dispatched_or_refused(sent: list[pb.Frame], data: st.DataObject) -> None:
    message = bytearray(pb.Batch(frames=sent).SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        assume(message)
        at = data.draw(st.integers(0, len(message) - 1))
        match data.draw(st.sampled_from(["set", "cut", "drop", "insert"])):
            case "set":
                message[at] = data.draw(st.integers(0, 255))
            case "cut":
                del message[at:]
            case "drop":
                del message[at]
            case _:
                message.insert(at, data.draw(st.integers(0, 255)))
    check_fuzzed(bytes(message))


@given(requests, st.data())
@settings(max_examples=200, deadline=None)
def test_a_damaged_request_is_dispatched_or_refused(request: TunnelRequest, data: st.DataObject) -> None:
    message = bytearray(frames.encode_tunnel_request(1, request))
    message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    check_fuzzed(bytes(message))


@given(st.lists(node_frames().filter(lambda frame: not frame.HasField("end")), min_size=1, max_size=3))
@settings(max_examples=100, deadline=None)
def test_a_truncated_message_is_refused_as_protobuf_refuses_it(sent: list[pb.Frame]) -> None:
    message = pb.Batch(frames=sent).SerializeToString()
    for size in range(len(message)):
        edge, node = dispatch_both(message[:size])
        assert edge == parses(message[:size])
        assert node or not edge  # the Node does not look into frames that are not for it
