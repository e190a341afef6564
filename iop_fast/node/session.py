"""One session with the Edge on one MessageStream, from its registration to its end. The Node's side.

States. `MOVES` is the whole table and `_move` the one function that changes the state.

    REGISTERING   the registration is sent; nothing but its answer is taken
    ACCEPTED      the payload comes, or is being applied
    READY         the ready ack is sent: runs and refreshes come
    DRAINING      the Edge or this Node shuts down: what runs goes on
    CLOSED        for ever; nothing that the stream still brings is looked at

Becoming ready. The runs of an earlier session are ended first, for at most `old_runs_ms`: only then may the Edge count
on this Node's capacity again. Then the payload is applied, runs are let in, and the ack says which revision is served
and how every provider is. Applying takes time, so it happens in one task of its own (`_work`) that takes payload after
payload in the order they came; the reader goes on reading. A payload that cannot be applied ends a session that is not
ready, and is answered by a refusal in one that is: the registry before it goes on serving.

Liveness. Heartbeats go out from the acceptance on. Nothing heard for the silence limit closes the session, at every
state; `wire.liveness` has the rule for timers that are late themselves.

Closing is one synchronous step, whatever the reason: state CLOSED; timers, outbox and jobs stopped; every run stopped;
the stream abandoned. Nothing awaits the end of the stream, and the reader is never cancelled: it ends when its last
read returns. The runs end when their adapters have let go; the next session waits for that (`relay`).

A Node that drains closes the session itself, when its last run has ended and the end is handed to the transport.

Who may call: everything runs on the event loop's thread. Never done here: a wait of the reader for anything but the
next message, a read of the wall clock, a second session's work.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import NamedTuple

from google.protobuf.message import DecodeError

from iop_fast import logs
from iop_fast._hot.dispatch import dispatch_node
from iop_fast._hot.frames import FrameError, encode_frame
from iop_fast.config.payload import NodePayload
from iop_fast.node.registry import RegistryError, Router
from iop_fast.node.relay import INPUT_BYTES_MAX, Relay
from iop_fast.node.traces import RunTraces
from iop_fast.seams import Clock, MessageStream
from iop_fast.wire import runtime_pb2 as pb
from iop_fast.wire.liveness import HEARTBEAT_NS, NS_PER_MS, SILENCE_LIMIT_NS, Beat, Silence
from iop_fast.wire.options import RUN_WINDOW_BYTES
from iop_fast.wire.outbox import Outbox
from iop_fast.wire.payload import PayloadAssembler, PayloadError, payload_from_message
from iop_fast.wire.traffic import Traffic

log = logs.get(__name__)

PROTOCOL = "1.0"

# How long a drained session may take to hand its last message to the transport, and how often it looks.
FLUSH_LIMIT_MS = 2_000
FLUSH_LOOK_MS = 10

# Readers of closed sessions, until their last read returns; the event loop itself holds tasks weakly.
_readers: dict[asyncio.Task[None], None] = {}


class SessionState(Enum):
    """Where a session stands; the module's head says what each state means."""

    REGISTERING = "registering"
    ACCEPTED = "accepted"
    READY = "ready"
    DRAINING = "draining"
    CLOSED = "closed"


class SessionEvent(Enum):
    """What moves a session on."""

    ACCEPTED = "acceptance"
    READY = "ready ack"
    DRAINS = "draining"
    CLOSES = "close"


MOVES: Mapping[tuple[SessionState, SessionEvent], SessionState] = {
    (SessionState.REGISTERING, SessionEvent.ACCEPTED): SessionState.ACCEPTED,
    (SessionState.REGISTERING, SessionEvent.CLOSES): SessionState.CLOSED,
    (SessionState.ACCEPTED, SessionEvent.READY): SessionState.READY,
    (SessionState.ACCEPTED, SessionEvent.DRAINS): SessionState.DRAINING,
    (SessionState.ACCEPTED, SessionEvent.CLOSES): SessionState.CLOSED,
    (SessionState.READY, SessionEvent.DRAINS): SessionState.DRAINING,
    (SessionState.READY, SessionEvent.CLOSES): SessionState.CLOSED,
    (SessionState.DRAINING, SessionEvent.CLOSES): SessionState.CLOSED,
}


@dataclass(frozen=True, slots=True)
class Identity:
    """What this Node registers with. `instance_id` is made once per process."""

    node_id: str
    token: str = field(repr=False)
    instance_id: str
    software: str
    host: str


class SessionLimits(NamedTuple):
    """Times and sizes of a session."""

    heartbeat_ns: int = HEARTBEAT_NS
    silence_ns: int = SILENCE_LIMIT_NS
    old_runs_ms: int = 5_000
    pace_ns: int = 2_000_000
    input_bytes_max: int = INPUT_BYTES_MAX


class SessionEnd(NamedTuple):
    """How a session ended. `refusal` is the Edge's reason as a lower-case name, "" when it accepted.

    `has_stream_ended`: the stream ended under it, as opposed to a close of our own.
    """

    reason: str
    refusal: str = ""
    has_stream_ended: bool = False
    was_ready: bool = False
    edge_drained: bool = False
    reconnect_after_ms: int = 0


class Session:
    """One session. `run` it once; `relay` holds its runs, also after its end.

    `earlier` are the relays of sessions before whose runs must end first; `traffic` is where messages are counted,
    `traces` makes the runs' spans where tracing is on.
    """

    def __init__(
        self,
        stream: MessageStream,
        identity: Identity,
        router: Router,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        limits: SessionLimits,
        earlier: Sequence[Relay] = (),
        traffic: Traffic | None = None,
        traces: RunTraces | None = None,
    ) -> None:
        self._stream = stream
        self._identity = identity
        self._router = router
        self._loop = loop
        self._limits = limits
        self._earlier = earlier
        self._traffic = Traffic() if traffic is None else traffic
        self._outbox = Outbox(
            stream, clock, loop, pace_ns=limits.pace_ns, on_closed=self._on_unwritable, traffic=self._traffic
        )
        self.relay = Relay(router, self._outbox, loop, input_bytes_max=limits.input_bytes_max, traces=traces)
        self._silence = Silence(clock, loop, self._on_silent, limits.silence_ns)
        self._beat = Beat(loop, self._send_heartbeat, limits.heartbeat_ns)
        self._state = SessionState.REGISTERING
        self._ended: asyncio.Future[SessionEnd] = loop.create_future()
        self._refusal = ""
        self._was_ready = False
        self._edge_drained = False
        self._reconnect_after_ms = 0
        self._messages_read = 0
        self._assembler: PayloadAssembler | None = None
        self._jobs: deque[Callable[[], Awaitable[None]]] = deque()
        self._worker: asyncio.Task[None] | None = None
        self._drain_timer: asyncio.TimerHandle | None = None
        self.generation = 0
        self.payload_revision: int | None = None
        self._handlers: Mapping[str, Callable[[pb.Frame], None]] = {
            "register_response": self._on_register_response,
            "config_piece": self._on_config_piece,
            "refresh_request": self._on_refresh_request,
            "heartbeat": self._on_heartbeat,
            "draining": self._on_draining,
        }
        # The run half of what `dispatch_node` calls is the relay's.
        self.on_open = self.relay.on_open
        self.on_open_run = self.relay.on_open_run
        self.on_body = self.relay.on_body
        self.on_window = self.relay.on_window
        self.on_cancel = self.relay.on_cancel
        self.on_frame_failed = self.relay.on_frame_failed

    def __repr__(self) -> str:
        return f"<Session #{self.generation} {self._state.value}, {len(self.relay.runs)} runs>"

    # What it is.

    @property
    def state(self) -> SessionState:
        """Where the session stands."""
        return self._state

    # Life.

    async def run(self) -> SessionEnd:
        """Register and serve until the session is closed."""
        identity = self._identity
        request = pb.RegisterRequest(
            node_id=identity.node_id,
            token=identity.token,
            instance_id=identity.instance_id,
            protocol=PROTOCOL,
            software=identity.software,
            host=identity.host,
            heartbeat_ms=self._limits.heartbeat_ns // NS_PER_MS,
        )
        self._send(pb.Frame(register_request=request))
        self._outbox.start()
        self._silence.start()
        reader = self._loop.create_task(self._read_until_closed())
        _readers[reader] = None
        reader.add_done_callback(_readers.pop)
        try:
            return await self._ended
        finally:
            self.close("nobody waits for its end")  # it was cancelled: closed already otherwise

    def drain(self, limit_ms: int) -> None:
        """Shut down in order: take no new runs, let those there are end within the limit, then close."""
        if self._state is SessionState.CLOSED:
            return
        if self._state in (SessionState.REGISTERING, SessionState.ACCEPTED):
            self.close("the Node shuts down")
            return
        if self._state is SessionState.READY:
            self._move(SessionEvent.DRAINS)
        self._send(pb.Frame(draining=pb.Draining(limit_ms=limit_ms)))
        self.relay.refuse("the Node shuts down")
        log.info("draining", runs=len(self.relay.runs), limit_ms=limit_ms)
        self._drain_timer = self._loop.call_later(limit_ms / 1000, self.relay.stop_all, "the Node shut down")
        self.relay.when_idle(partial(self._flush, FLUSH_LIMIT_MS))

    def close(self, reason: str, has_stream_ended: bool = False) -> None:
        """End the session at once. Idempotent; the order is the module head's."""
        if self._state is SessionState.CLOSED:
            return
        self._move(SessionEvent.CLOSES)
        self._silence.stop()
        self._beat.stop()
        self._outbox.close()
        self._jobs.clear()
        if self._worker is not None:
            self._worker.cancel()
        if self._drain_timer is not None:
            self._drain_timer.cancel()
        self.relay.refuse("the session has ended")
        self.relay.stop_all("the session has ended")
        self._stream.abandon()
        if self._ended.done():
            return
        self._ended.set_result(
            SessionEnd(
                reason=reason,
                refusal=self._refusal,
                has_stream_ended=has_stream_ended,
                was_ready=self._was_ready,
                edge_drained=self._edge_drained,
                reconnect_after_ms=self._reconnect_after_ms,
            )
        )

    def _move(self, event: SessionEvent) -> None:
        """Change the state as the table says; a move that it does not have is a bug of ours."""
        try:
            self._state = MOVES[self._state, event]
        except KeyError:
            raise RuntimeError(f"{self!r}: no move on {event.value}") from None

    def _on_unwritable(self) -> None:
        self.close("the stream ended", has_stream_ended=True)

    def _on_silent(self) -> None:
        self.close(f"nothing heard for {self._silence.limit_ms} ms")

    def _flush(self, left_ms: int) -> None:
        """Close once everything is handed over; the last message holds ends that the Edge waits for."""
        if self._state is SessionState.CLOSED:
            return
        if left_ms > 0 and (self._outbox.queued_bytes or self._outbox.is_writing):
            if self._drain_timer is not None:  # no run is left to be stopped when the limit comes
                self._drain_timer.cancel()
            self._drain_timer = self._loop.call_later(FLUSH_LOOK_MS / 1000, self._flush, left_ms - FLUSH_LOOK_MS)
        else:
            self.close("drained")

    # Incoming.

    async def _read_until_closed(self) -> None:
        """Be the reader: read and dispatch, nothing else."""
        try:
            while self._state is not SessionState.CLOSED:
                message = await self._stream.read()
                if message is None:
                    break
                self._take(message)
        finally:
            self.close("the stream ended", has_stream_ended=True)

    def _take(self, message: bytes) -> None:
        if self._state is SessionState.CLOSED:
            return
        self._messages_read += 1
        self._silence.heard()
        try:
            self._traffic.note_received(len(message), dispatch_node(message, self))
        except (FrameError, DecodeError, PayloadError) as error:
            log.warning("session_malformed", generation=self.generation, error=error)
            self.close(f"malformed message: {error}")
        except Exception as error:  # noqa: BLE001 - whatever a session frame breaks is this session's end, not the Node's
            log.failure("session_failed", error, generation=self.generation)
            self.close("internal error")

    def on_control(self, frame: bytes) -> None:
        """Take a session frame (called by the dispatch). Frames that this version does not know are ignored."""
        parsed = pb.Frame.FromString(frame)
        kind = parsed.WhichOneof("body")
        handler = self._handlers.get(kind or "")
        if self._state is SessionState.CLOSED:
            return
        if handler is None:
            log.debug("frame_ignored", generation=self.generation, frame=kind)
        elif self._state is SessionState.REGISTERING and kind != "register_response":
            raise PayloadError(f"expected the answer to the registration first, got {kind}")
        else:
            handler(parsed)

    def _on_register_response(self, frame: pb.Frame) -> None:
        answer = frame.register_response
        if self._state is not SessionState.REGISTERING:
            raise PayloadError("a second answer to the registration")
        if answer.refusal:
            self._refusal = refusal_name(answer.refusal)
            self.close(answer.detail or f"the Edge refused this Node: {self._refusal}")
            return
        if answer.protocol.partition(".")[0] != PROTOCOL.partition(".")[0]:
            self._refusal = "version"
            self.close(f"the Edge speaks protocol {answer.protocol}, this Node {PROTOCOL}")
            return
        self._move(SessionEvent.ACCEPTED)
        self.generation = answer.generation
        self.relay.window_bytes = answer.run_window_bytes or RUN_WINDOW_BYTES  # 0: an Edge that does not say it
        if self._silence.allow_for(answer.heartbeat_ms):
            log.warning("silence_stretched", silence_ms=self._silence.limit_ms)
        log.info("session_accepted", generation=answer.generation, payload_revision=answer.payload_revision)
        self._beat.start()
        payload = answer.payload if answer.HasField("payload") else None
        self._expect_payload(answer.payload_revision, payload, answer.payload_bytes, answer.payload_sha256)

    def _on_refresh_request(self, frame: pb.Frame) -> None:
        request = frame.refresh_request
        payload = request.payload if request.HasField("payload") else None
        self._expect_payload(request.payload_revision, payload, request.payload_bytes, request.payload_sha256)

    def _expect_payload(
        self, revision: int, payload: pb.NodeConfigPayload | None, payload_bytes: int, payload_sha256: bytes
    ) -> None:
        """Take a payload that stands in its frame, or get ready for its pieces."""
        if self._assembler is not None:
            raise PayloadError(f"payload revision {revision} came before the pieces of the one before were complete")
        if payload is not None:
            self._on_payload(revision, payload_from_message(payload))
        else:
            self._assembler = PayloadAssembler(revision, payload_bytes, payload_sha256)

    def _on_config_piece(self, frame: pb.Frame) -> None:
        if self._assembler is None:
            raise PayloadError("a piece of a payload that was not announced")
        payload = self._assembler.feed(frame.config_piece)
        if payload is not None:
            revision, self._assembler = self._assembler.payload_revision, None
            self._on_payload(revision, payload)

    def _on_heartbeat(self, frame: pb.Frame) -> None:
        """That something was heard is noted for every message already."""

    def _on_draining(self, frame: pb.Frame) -> None:
        self._edge_drained = True
        self._reconnect_after_ms = frame.draining.reconnect_after_ms
        log.info("edge_draining", generation=self.generation, limit_ms=frame.draining.limit_ms)
        if self._state is not SessionState.DRAINING:
            self._move(SessionEvent.DRAINS)

    # Payloads, one after the other.

    def _on_payload(self, revision: int, payload: NodePayload) -> None:
        """The first payload makes the Node ready, every later one is a refresh."""
        first = self.payload_revision is None
        self.payload_revision = revision
        self._jobs.append(partial(self._prepare if first else self._refresh, revision, payload))
        if self._worker is None:
            self._worker = self._loop.create_task(self._work())

    async def _work(self) -> None:
        try:
            while self._jobs:
                await self._jobs.popleft()()
        except Exception as error:  # noqa: BLE001 - the task's end is nobody's to look at; the session's is
            log.failure("session_failed", error, generation=self.generation)
            self.close("internal error")
        finally:
            self._worker = None

    async def _prepare(self, revision: int, payload: NodePayload) -> None:
        """Become ready."""
        await self._until_idle(self._earlier)
        self._earlier = ()
        try:
            await self._router.apply(payload)
        except RegistryError as error:
            log.error("payload_refused", payload_revision=revision, error=error)
            self.close(f"the payload cannot be applied: {error}")
            return
        if self._state is not SessionState.ACCEPTED:
            return
        self._move(SessionEvent.READY)
        self._was_ready = True
        self.relay.accept()
        self._router.on_states = self._send_states
        ack = pb.ReadyAck(
            generation=self.generation, payload_revision=revision, providers=self._router.current.states()
        )
        self._send(pb.Frame(ready_ack=ack))
        log.info("session_ready", generation=self.generation, payload_revision=revision)

    async def _until_idle(self, relays: Sequence[Relay]) -> None:
        """Wait for the runs of earlier sessions to end, not for ever."""
        if not any(relay.runs for relay in relays):
            return
        idle: asyncio.Future[None] = self._loop.create_future()

        def on_idle() -> None:
            if not any(relay.runs for relay in relays):
                settle(idle)

        for relay in relays:
            relay.when_idle(on_idle)
        timer = self._loop.call_later(self._limits.old_runs_ms / 1000, settle, idle)
        try:
            await idle
        finally:
            timer.cancel()
        left = sum(len(relay.runs) for relay in relays)
        if left:
            log.error("old_runs_left", runs=left, limit_ms=self._limits.old_runs_ms)

    async def _refresh(self, revision: int, payload: NodePayload) -> None:
        """Apply a later payload and answer."""
        error = ""
        try:
            await self._router.apply(payload)
        except RegistryError as refused:
            error = str(refused)
        except Exception as failed:  # noqa: BLE001 - the registry before it goes on serving, so does the session
            log.failure("refresh_failed", failed, payload_revision=revision)
            error = "the Node failed to build the registry; its log says more"
        log.info("refreshed", payload_revision=revision, applied=not error, error=error)
        answer = pb.NodeConfigRefreshResponse(
            payload_revision=revision, applied=not error, error=error, providers=self._router.current.states()
        )
        self._send(pb.Frame(refresh_response=answer))

    # Outgoing.

    def _send(self, frame: pb.Frame) -> None:
        self._outbox.send_control(encode_frame(frame.SerializeToString()))

    def _send_states(self, states: list[pb.ProviderState]) -> None:
        """Say how providers are whose state has changed (called by the router)."""
        self._send(pb.Frame(provider_states=pb.ProviderStates(providers=states)))

    def _send_heartbeat(self) -> None:
        """Beat. A run whose end is still queued is one that this Node knows."""
        heartbeat = pb.Heartbeat(
            messages_read=self._messages_read,
            run_ids=sorted(self.relay.runs.keys() | self._outbox.queued_runs),
            providers=self._router.current.states() if self._was_ready else (),
        )
        self._send(pb.Frame(heartbeat=heartbeat))


def refusal_name(refusal: int) -> str:
    """Return a refusal as a lower-case name; one that this version does not know keeps its number."""
    try:
        return pb.Refusal.Name(refusal).lower()  # type: ignore[arg-type]
    except ValueError:
        return f"refusal_{refusal}"


def settle(future: asyncio.Future[None]) -> None:
    """Finish a future that may be finished already."""
    if not future.done():
        future.set_result(None)
