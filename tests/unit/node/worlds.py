"""A Node on virtual time: real router, relay and sessions over in-memory streams, adapters driven by the test."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import Any

from iop_fast._hot.dispatch import dispatch_node
from iop_fast._hot.frames import EVENT_BYTES
from iop_fast.config.payload import AdapterSettings, NodePayload, ProviderPayload, RuntimeSettings, TimeoutSettings
from iop_fast.config.schema import NativeModel, NodeLimits
from iop_fast.node.adapters import Adapter, BrokenAdapter, Surroundings
from iop_fast.node.health import Health
from iop_fast.node.registry import Router
from iop_fast.node.relay import INPUT_BYTES_MAX, Relay
from iop_fast.node.session import Identity, Session, SessionEnd, SessionLimits
from iop_fast.node.traces import RunTraces
from iop_fast.seams import (
    End,
    Head,
    RunAdapter,
    RunHandle,
    RunOpening,
    RunSink,
    RunTask,
    TunnelRequest,
    Upstream,
    UpstreamRun,
    UpstreamSink,
    Usage,
)
from iop_fast.wire import runtime_pb2 as pb
from iop_fast.wire.outbox import Outbox
from iop_fast.wire.payload import message_from_payload
from tests.unit.edge.worlds import TestStream, VirtualLoop

RunEnd = pb.RunEnd
JSON_HEAD = Head(200, b"OK", [(b"content-type", b"application/json")])


class ScriptedRun:
    """An UpstreamRun that notes what it is told; the test speaks through `sink`."""

    def __init__(self, request: TunnelRequest, sink: UpstreamSink) -> None:
        self.request = request
        self.sink = sink
        self.body = bytearray(request.body)
        self.is_complete = request.body_complete
        self.is_paused = False
        self.cancels = 0
        self.clings = False  # a cancel is noted and not followed

    def feed(self, piece: bytes, complete: bool) -> None:
        self.body += piece
        self.is_complete = complete

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False

    def cancel(self) -> None:
        self.cancels += 1
        if not self.clings:
            self.sink.on_end(End(RunEnd.CANCELLED, "by the adapter", None))

    def end(self, status: int = RunEnd.OK, detail: str = "") -> None:
        self.sink.on_end(End(status, detail, None))


class ScriptedAdapter:
    """An adapter whose runs the test drives. `probe` answers connect attempts; None: it cannot be looked at."""

    def __init__(self, settings: AdapterSettings, surroundings: Surroundings, probe: Any = None) -> None:
        self.settings = settings
        self.health = Health(surroundings.loop, probe)
        self.runs: list[ScriptedRun] = []
        self.is_closed = False
        self.on_start: Callable[[TunnelRequest, UpstreamSink], UpstreamRun | None] = lambda request, sink: None

    def upstream(self, provider: ProviderPayload) -> Upstream:
        return ScriptedUpstream(self)

    async def close(self) -> None:
        assert not self.is_closed, "closed twice"
        self.is_closed = True


class ScriptedUpstream:
    def __init__(self, adapter: ScriptedAdapter) -> None:
        self.adapter = adapter

    def start(self, request: TunnelRequest, sink: UpstreamSink) -> UpstreamRun:
        made = self.adapter.on_start(request, sink)
        if made is not None:
            return made
        self.adapter.runs.append(ScriptedRun(request, sink))
        return self.adapter.runs[-1]


class ScriptedTask:
    """A RunHandle that notes what it is told; the test speaks through `sink`."""

    def __init__(self, task: RunTask, sink: RunSink) -> None:
        self.task = task
        self.sink = sink
        self.is_paused = False
        self.cancels = 0
        self.clings = False  # a cancel is noted and not followed

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False

    def cancel(self) -> None:
        self.cancels += 1
        if not self.clings:
            self.sink.on_end(End(RunEnd.CANCELLED, "by the adapter", None))

    def end(self, status: int = RunEnd.OK, detail: str = "", usage: Usage | None = None) -> None:
        self.sink.on_end(End(status, detail, usage))


class ScriptedRunAdapter:
    """An adapter of normalized runs that the test drives."""

    def __init__(self, made: AdapterSettings, surroundings: Surroundings) -> None:
        self.settings = made
        self.health = Health(surroundings.loop)
        self.tasks: list[ScriptedTask] = []
        self.is_closed = False
        self.on_start: Callable[[RunTask, RunSink], None] = lambda task, sink: None

    def run_adapter(self, provider: ProviderPayload) -> RunAdapter:
        return self

    def start(self, task: RunTask, sink: RunSink) -> RunHandle:
        self.tasks.append(ScriptedTask(task, sink))
        self.on_start(task, sink)
        return self.tasks[-1]

    async def close(self) -> None:
        assert not self.is_closed, "closed twice"
        self.is_closed = True


def settings(endpoint: str = "http://a", **changes: Any) -> AdapterSettings:
    values = {"name": "", "type": "x", "endpoint": endpoint, "endpoint_env": "", "api_key_env": "", "profile": ""}
    return AdapterSettings(**(values | {"options": ()} | changes))


def provider(provider_id: str = "p1", endpoint: str = "http://a", **changes: Any) -> ProviderPayload:
    values: dict[str, Any] = {
        "id": provider_id,
        "type": "vllm",
        "label": "",
        "adapter_type": "openai_compat",
        "adapter": "",
        "settings": settings(endpoint),
        "models": ("served",),
        "timeouts": TimeoutSettings(5_000, 60_000, 60_000),
        "enabled": True,
        "health": "auto",
        "capacity": 4,
        "long_context_capacity": 0,
        "priority": 0,
    }
    return ProviderPayload(**(values | changes))


def payload(
    *providers: ProviderPayload, drain_limit_ms: int = 0, adapters: Sequence[AdapterSettings] = ()
) -> NodePayload:
    return NodePayload(RuntimeSettings(drain_limit_ms, 0), tuple(adapters), tuple(providers))


def request(body: bytes = b"{}", provider_id: str = "p1", **changes: Any) -> TunnelRequest:
    values: dict[str, Any] = {
        "provider_id": provider_id,
        "method": b"POST",
        "path": b"/v1/chat/completions",
        "headers": [],
        "body": body,
        "body_complete": True,
        "body_length": len(body),
        "model": "served",
        "stream": False,
    }
    return TunnelRequest(**(values | changes))


def run_input(text: str = "hello", **parameters: Any) -> bytes:
    """A serialized RunInput: a chat of one user message."""
    asked = pb.RunMessage(role="user", parts=[pb.RunPart(text=text)])
    return pb.RunInput(messages=[asked], parameters_json=json.dumps(parameters).encode()).SerializeToString()


def run_frame(run_id: int, data: bytes, first_bytes: int | None = None, **changes: Any) -> pb.Frame:
    """The frame that opens a normalized run, with so much of its input."""
    first = data if first_bytes is None else data[:first_bytes]
    values: dict[str, Any] = {"provider_id": "n1", "model": "served", "input": first, "input_length": len(data)}
    return pb.Frame(
        run_id=run_id, run_request=pb.RunRequest(**(values | {"input_complete": first_bytes is None} | changes))
    )


def tunnel_frame(run_id: int, opened: TunnelRequest) -> pb.Frame:
    """The frame that opens a run."""
    return pb.Frame(
        run_id=run_id,
        tunnel_request=pb.ProviderTunnelRequest(
            provider_id=opened.provider_id,
            method=opened.method,
            path=opened.path,
            headers=[pb.Header(name=name, value=value) for name, value in opened.headers],
            body=opened.body,
            body_complete=opened.body_complete,
            body_length=opened.body_length,
            model=opened.model,
            stream=opened.stream,
        ),
    )


class NodeWorld:
    """The Node's parts around one loop. `adapters` are those made, in order; an endpoint in `broken` makes none."""

    def __init__(self, loop: VirtualLoop, models: Sequence[NativeModel] = ()) -> None:
        self.loop = loop
        self.adapters: list[ScriptedAdapter] = []
        self.broken: dict[str, str] = {}
        self.probe: Any = None
        self.random = Random(1)
        self.surroundings = Surroundings(loop, {}, {model.id: model for model in models}, NodeLimits())
        self.run_adapters: list[ScriptedRunAdapter] = []
        self.router = Router(self.surroundings, {"openai_compat": self._make, "native": self._make_runs})

    def _make(self, made: AdapterSettings, surroundings: Surroundings) -> Adapter:
        if made.endpoint in self.broken:
            raise BrokenAdapter(self.broken[made.endpoint])
        self.adapters.append(ScriptedAdapter(made, surroundings, self.probe))
        return self.adapters[-1]

    def _make_runs(self, made: AdapterSettings, surroundings: Surroundings) -> Adapter:
        self.run_adapters.append(ScriptedRunAdapter(made, surroundings))
        return self.run_adapters[-1]

    def apply(self, new: NodePayload) -> bool:
        """Apply a payload to the end."""
        task = self.loop.create_task(self.router.apply(new))
        self.loop.settle()
        assert task.done(), "the apply waits"
        return task.result()

    def adapter(self, endpoint: str = "http://a") -> ScriptedAdapter:
        """The newest adapter of an endpoint."""
        return next(made for made in reversed(self.adapters) if made.settings.endpoint == endpoint)

    def session(self, *earlier: Relay, **limits: Any) -> Talk:
        """Start a session; returns the Edge's end of it."""
        return Talk(self, earlier, SessionLimits(pace_ns=0, **limits))


class Talk:
    """The Edge's end of one session, driven by the test."""

    def __init__(self, world: NodeWorld, earlier: Sequence[Relay], limits: SessionLimits) -> None:
        self.world = world
        self.loop = world.loop
        self.stream = TestStream()
        identity = Identity("n1", "secret-token", "instance-1", "iop test", "host-1")
        self.session = Session(self.stream, identity, world.router, self.loop.clock, self.loop, limits, earlier)
        self.running = self.loop.create_task(self.session.run())
        self._seen = 0
        self.loop.settle()

    def say(self, *frames: pb.Frame) -> None:
        """Send one message and let the Node take it."""
        self.stream.feed(pb.Batch(frames=frames).SerializeToString())
        self.loop.settle()

    def heard(self, kind: str = "") -> list[pb.Frame]:
        """Frames that came since the last call; of one kind, if given (the others are dropped)."""
        messages, self._seen = self.stream.sent[self._seen :], len(self.stream.sent)
        frames = [frame for message in messages for frame in pb.Batch.FromString(message).frames]
        return [frame for frame in frames if not kind or frame.WhichOneof("body") == kind]

    def accept(self, new: NodePayload, revision: int = 7, generation: int = 3, **fields: int) -> None:
        """Answer the registration."""
        response = pb.RegisterResponse(
            generation=generation,
            payload_revision=revision,
            payload=message_from_payload(new),
            protocol="1.3",
            **fields,
        )
        self.say(pb.Frame(register_response=response))

    def push(self, new: NodePayload, revision: int) -> None:
        """Push a payload."""
        refresh = pb.NodeConfigRefreshRequest(payload_revision=revision, payload=message_from_payload(new))
        self.say(pb.Frame(refresh_request=refresh))

    def make_ready(self, *providers: ProviderPayload) -> None:
        """Get to READY and drop what was said so far."""
        self.accept(payload(*(providers or (provider(),))))
        assert self.heard("ready_ack"), self.session
        assert self.world.loop.failures == []

    def open(self, run_id: int, opened: TunnelRequest | None = None) -> None:
        """Open a run."""
        self.say(tunnel_frame(run_id, opened or request()))


class RelayWorld(NodeWorld):
    """A relay with its outbox alone, fed with encoded messages as a session's reader does."""

    def __init__(
        self,
        loop: VirtualLoop,
        window_bytes: int = 1000,
        input_bytes_max: int = INPUT_BYTES_MAX,
        traces: RunTraces | None = None,
    ) -> None:
        super().__init__(loop)
        self.stream = TestStream()
        self.outbox = Outbox(self.stream, loop.clock, loop)
        self.outbox.start()
        self.relay = Relay(self.router, self.outbox, loop, window_bytes, input_bytes_max, traces)
        self.apply(payload(provider(), provider("n1", "", adapter_type="native")))
        self.relay.accept()
        self.controls: list[bytes] = []

    # The rest of NodeSide.
    def on_open(self, run_id: int, opened: TunnelRequest) -> None:
        self.relay.on_open(run_id, opened)

    def on_open_run(self, run_id: int, opening: RunOpening) -> None:
        self.relay.on_open_run(run_id, opening)

    def on_body(self, run_id: int, piece: bytes, complete: bool) -> None:
        self.relay.on_body(run_id, piece, complete)

    def on_window(self, run_id: int, byte_count: int) -> None:
        self.relay.on_window(run_id, byte_count)

    def on_cancel(self, run_id: int) -> None:
        self.relay.on_cancel(run_id)

    def on_frame_failed(self, run_id: int, error: Exception) -> None:
        self.relay.on_frame_failed(run_id, error)

    def on_control(self, frame: bytes) -> None:
        self.controls.append(frame)

    def take(self, *frames: pb.Frame) -> None:
        """Take one message from the Edge."""
        dispatch_node(pb.Batch(frames=frames).SerializeToString(), self)
        self.loop.settle()

    def open(self, run_id: int, opened: TunnelRequest | None = None) -> ScriptedRun:
        """Open a run and return the adapter's side of it."""
        adapter = self.adapter()
        before = len(adapter.runs)
        self.take(tunnel_frame(run_id, opened or request()))
        assert len(adapter.runs) == before + 1
        return adapter.runs[-1]

    def apply_nothing(self) -> bool:
        """Take over a payload without providers."""
        return self.apply(payload())

    def open_run(self, run_id: int, data: bytes | None = None, **changes: Any) -> ScriptedTask:
        """Open a normalized run whose input comes at once, and return the adapter's side of it."""
        (adapter,) = self.run_adapters
        before = len(adapter.tasks)
        self.take(run_frame(run_id, run_input() if data is None else data, **changes))
        assert len(adapter.tasks) == before + 1
        return adapter.tasks[-1]

    def grant(self, run_id: int, byte_count: int) -> None:
        self.take(pb.Frame(run_id=run_id, window=pb.WindowUpdate(bytes=byte_count)))

    def sent(self) -> list[pb.Frame]:
        """Everything said so far."""
        self.loop.settle()
        return [frame for message in self.stream.sent for frame in pb.Batch.FromString(message).frames]

    def sent_of(self, run_id: int) -> list[str]:
        """What was said of a run, in short."""
        return [short(frame) for frame in self.sent() if frame.run_id == run_id]

    def data_of(self, run_id: int) -> bytes:
        """The answer's bytes that were said of a run."""
        return b"".join(frame.data for frame in self.sent() if frame.run_id == run_id)

    def events_of(self, run_id: int) -> list[pb.RunEvent]:
        """The events that were said of a run."""
        return [frame.run_event for frame in self.sent() if frame.run_id == run_id and frame.HasField("run_event")]

    def event_bytes_of(self, run_id: int) -> list[int]:
        """What each of its events counted of the window."""
        said = (frame for frame in self.sent() if frame.run_id == run_id and frame.HasField("run_event"))
        return [len(pb.Batch(frames=[frame]).SerializeToString()) + EVENT_BYTES for frame in said]

    def end_of(self, run_id: int) -> pb.RunEnd:
        """The one end that was said of a run."""
        ends = [frame.end for frame in self.sent() if frame.run_id == run_id and frame.HasField("end")]
        assert len(ends) == 1, ends
        return ends[0]


def short(frame: pb.Frame) -> str:
    """A frame in a word."""
    kind = frame.WhichOneof("body") or ""
    if kind == "data":
        return f"data {len(frame.data)}"
    if kind == "run_event":
        return short_event(frame.run_event)
    if kind == "end":
        return f"end {pb.RunEnd.Status.Name(frame.end.status)}"
    if kind == "window":
        return f"window {frame.window.bytes}"
    return kind


def short_event(event: pb.RunEvent) -> str:
    """An event in a word."""
    kind = event.WhichOneof("event") or "nothing"
    if kind in ("text", "reasoning", "finish_reason"):
        return f"{kind} {getattr(event, kind)}"
    if kind == "tool_call":
        call = event.tool_call
        return f"call {call.index} {call.id} {call.name} {call.arguments}"
    return f"{kind} {list(event.embedding.values)}"


def names(states: Iterable[pb.ProviderState]) -> Mapping[str, tuple[str, str]]:
    """Provider states by id."""
    return {state.provider_id: (pb.ProviderState.State.Name(state.state), state.reason) for state in states}


def ended(talk: Talk) -> SessionEnd:
    """How a session ended; it must have."""
    talk.loop.settle()
    assert talk.running.done(), talk.session
    return talk.running.result()
