"""One session with one Node: a generation, its state, its session frames. Its runs are in `link_runs`.

States. `MOVES` is the whole table and `_move` the one function that changes the state.

    ACCEPTED   registered and answered; no candidate, not connected in the snapshot, no push target
    READY      its ready ack was valid; it gets runs and pushes
    DRAINING   the Node says that it shuts down; it gets nothing new and finishes what it has
    CLOSED     for ever; nothing that the old stream still brings is looked at

Generations. A NodeLink *is* one generation. Runs, timers and pushes hold the link they belong to and never look a Node
up by its id, so what is left of an older session cannot touch a newer one: it finds a CLOSED link and stops.

Closing is an act of ours and one synchronous step, whatever the reason: state CLOSED; timers and queues stopped;
`gate.node_down`, so that the core loses the leases in one step of its own; `on_link_lost` to every run; the stream
abandoned. Nothing here awaits the end of a stream, and the reader, who may be waiting for a message that never comes,
is neither cancelled nor needed: it ends when the stream's last read returns.

Who may call. Everything runs on the event loop's thread. The reader task does nothing but read and dispatch; the
outbox's writer task is the only one that writes. A session frame that makes us raise ends the session.

Never done here: a read of the wall clock, a wait, a lookup by node id, a second `node_down`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from google.protobuf.message import DecodeError

from iop_fast import logs
from iop_fast._hot.dispatch import dispatch_edge
from iop_fast._hot.frames import FrameError, encode_frame
from iop_fast.edge.health import ProviderHealth, is_healthy
from iop_fast.edge.link_runs import LinkRuns
from iop_fast.edge.pushes import Push, PushBook
from iop_fast.seams import MessageStream
from iop_fast.wire import runtime_pb2 as pb
from iop_fast.wire.liveness import Beat, Silence
from iop_fast.wire.outbox import Outbox

if TYPE_CHECKING:
    from iop_fast.edge.links import Links
    from iop_fast.edge.state import EdgeState

# A message is dispatched in one turn of the loop. A Node says a few things about itself in one; a message of 4 MiB has
# room for a million, which hold up every other Node's runs for a second.
SESSION_FRAMES_MAX = 1024

log = logs.get(__name__)


# The outbox queues by run id; no run has this one.
PUSH_QUEUE = 0


class LinkState(Enum):
    """Where a session stands; the module's head says what each state means."""

    ACCEPTED = "accepted"
    READY = "ready"
    DRAINING = "draining"
    CLOSED = "closed"


class LinkEvent(Enum):
    """What moves a session on."""

    ACKED = "ready ack"
    DRAINS = "draining"
    CLOSES = "close"


MOVES: Mapping[tuple[LinkState, LinkEvent], LinkState] = {
    (LinkState.ACCEPTED, LinkEvent.ACKED): LinkState.READY,
    (LinkState.ACCEPTED, LinkEvent.DRAINS): LinkState.DRAINING,
    (LinkState.ACCEPTED, LinkEvent.CLOSES): LinkState.CLOSED,
    (LinkState.READY, LinkEvent.DRAINS): LinkState.DRAINING,
    (LinkState.READY, LinkEvent.CLOSES): LinkState.CLOSED,
    (LinkState.DRAINING, LinkEvent.CLOSES): LinkState.CLOSED,
}


class Session(NamedTuple):
    """What a registration settled. `payload_revision` is the one of its answer; `address` is the peer's, for people."""

    node_id: str
    instance_id: str
    generation: int
    payload_revision: int
    address: str
    software: str
    host: str
    protocol: str


class NodeLink(LinkRuns):
    """One session, from its acceptance to its end. Made by registration, held by `Links` while it is current."""

    __slots__ = (
        "_beat",
        "_edge",
        "_frames_left",
        "_handlers",
        "_heartbeat",
        "_links",
        "_messages_read",
        "_state",
        "_stream",
        "_traffic",
        "_was_candidate",
        "accepted_at_ns",
        "health",
        "pushes",
        "ready_at_ns",
        "session",
        "silence",
    )

    def __init__(
        self,
        edge: EdgeState,
        links: Links,
        session: Session,
        stream: MessageStream,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        limits = links.limits
        self._traffic = links.traffic(session.node_id)
        outbox = Outbox(stream, edge.clock, loop, on_closed=self._on_unwritable, traffic=self._traffic)
        super().__init__(session.node_id, session.generation, outbox, links.counters, limits.buffered_bytes_max)
        self.session = session
        providers = edge.runtime.payloads[session.node_id].providers
        known = frozenset(provider.id for provider in providers)
        self.health = ProviderHealth(edge.clock, loop, known, self._on_health, limits.health_hold_ns)
        self.silence = Silence(edge.clock, loop, self._on_silent, limits.silence_ns)
        self.pushes = PushBook(session.payload_revision, loop)
        self.accepted_at_ns = edge.clock.now_ns()
        self.ready_at_ns = 0
        self._edge = edge
        self._links = links
        self._stream = stream
        self._state = LinkState.ACCEPTED
        self._was_candidate = False
        self._beat = Beat(loop, self._send_heartbeat, limits.heartbeat_ns)
        self._messages_read = 0
        self._frames_left = 0  # session frames that the message being dispatched may still bring
        self._heartbeat: pb.Heartbeat | None = None
        self._handlers: Mapping[str, Callable[[pb.Frame], None]] = {
            "ready_ack": self._on_ready_ack,
            "refresh_response": self._on_refresh_response,
            "heartbeat": self._on_heartbeat,
            "provider_states": self._on_provider_states,
            "draining": self._on_draining,
        }

    def __repr__(self) -> str:
        return f"<NodeLink {self.node_id} #{self.generation} {self._state.value}, {len(self._runs)} runs>"

    # What it is.

    @property
    def state(self) -> LinkState:
        """Where the session stands."""
        return self._state

    @property
    def is_up(self) -> bool:
        """True while runs may be opened: their leases were granted for this very session."""
        return self._was_candidate and self._state is not LinkState.CLOSED

    @property
    def is_closed(self) -> bool:
        """True once the session is over."""
        return self._state is LinkState.CLOSED

    # Life.

    def start(self, answer: Sequence[bytes]) -> None:
        """Send the answer to the registration (entries of a Batch), begin to beat and to listen for silence."""
        for entry in answer:
            self._outbox.send_control(entry)
        self._outbox.start()
        self.silence.start()
        self._beat.start()

    async def read_until_closed(self) -> None:
        """Be the session's reader: read and dispatch, nothing else. Returns when the stream or the session is over."""
        try:
            while not self.is_closed:
                message = await self._stream.read()
                if message is None:
                    # Nothing to abandon: who serves the stream ends it well when we return.
                    self._close("stream ended")
                elif not self.is_closed:
                    self._take(message)
        finally:
            self.close("reader ended")  # nothing after the above

    def close(self, reason: str) -> None:
        """End the session at once, whatever its stream does. Idempotent; the order is the module head's."""
        if not self.is_closed:
            self._close(reason)
            self._stream.abandon()

    def _close(self, reason: str) -> None:
        if self.is_closed:
            return
        self._move(LinkEvent.CLOSES)
        self._links.forget(self)
        self.silence.stop()
        self._beat.stop()
        self.health.stop()
        self._outbox.close()
        log.info(
            "link_closed",
            node=self.node_id,
            generation=self.generation,
            reason=reason,
            runs=self.run_count,
            address=self.session.address,
        )
        try:
            if self._was_candidate:
                self._edge.gate.node_down(self.node_id, self.generation)
        finally:
            self._lose_runs()
            self.pushes.stop()

    def _move(self, event: LinkEvent) -> None:
        """Change the state as the table says; a move that it does not have is a bug of ours."""
        try:
            self._state = MOVES[self._state, event]
        except KeyError:
            raise RuntimeError(f"{self!r}: no move on {event.value}") from None

    def _on_unwritable(self) -> None:
        self.close("stream ended")

    def _on_silent(self) -> None:
        self._counters.silent += 1
        self.close("silent")

    # Pushes.

    def push(self, frames: Sequence[bytes], revision: int) -> Push:
        """Send a newer payload (entries of a Batch) to a ready Node; the push settles with the Node's answer."""
        if self._state is not LinkState.READY:
            raise RuntimeError(f"{self!r}: push of revision {revision} to a session that is not ready")
        push = self.pushes.start(revision)
        # In a queue of their own: pushes stay in order, and a payload in pieces takes turns with the runs' bodies.
        for entry in frames:
            self._outbox.send_run(PUSH_QUEUE, entry, bulk=len(frames) > 1)
        log.info("payload_pushed", node=self.node_id, generation=self.generation, payload_revision=revision)
        return push

    def push_if_changed(self) -> Push | None:
        """Push the payload of the Runtime of now, unless it is the one that was sent last."""
        runtime = self._edge.runtime
        revision = runtime.payload_revisions[self.node_id]
        if revision == self.pushes.sent_revision:
            return None
        return self.push(runtime.pushes[self.node_id], revision)

    def say_draining(self, reconnect_after_ms: int, limit_ms: int) -> None:
        """Tell the Node that this Edge shuts down."""
        if not self.is_closed:
            draining = pb.Draining(reconnect_after_ms=reconnect_after_ms, limit_ms=limit_ms)
            self._send(pb.Frame(draining=draining))

    # Incoming.

    def _take(self, message: bytes) -> None:
        self._messages_read += 1
        self._frames_left = SESSION_FRAMES_MAX
        self.silence.heard()
        try:
            self._traffic.note_received(len(message), dispatch_edge(message, self._runs, self))
            heartbeat, self._heartbeat = self._heartbeat, None
            if heartbeat is not None:
                self._reconcile(heartbeat)
        except (FrameError, DecodeError) as error:
            self._counters.malformed += 1
            log.warning("link_malformed", node=self.node_id, generation=self.generation, error=error)
            self.close("malformed message")
        except Exception as error:  # noqa: BLE001 - whatever a session frame breaks is this session's end, not the Edge's
            log.failure("link_failed", error, node=self.node_id, generation=self.generation)
            self.close("internal error")

    def on_control(self, frame: bytes) -> None:
        """Take a session frame (called by the dispatch). Frames that this version does not know are ignored."""
        self._frames_left -= 1
        if self._frames_left < 0:
            raise FrameError(f"more than {SESSION_FRAMES_MAX} session frames in a message")
        parsed = pb.Frame.FromString(frame)
        kind = parsed.WhichOneof("body")
        handler = self._handlers.get(kind or "")
        if handler is None:
            log.debug("frame_ignored", node=self.node_id, generation=self.generation, frame=kind)
        elif not self.is_closed:
            handler(parsed)

    def _on_ready_ack(self, frame: pb.Frame) -> None:
        ack = frame.ready_ack
        expected = (self.generation, self.session.payload_revision)
        if self._state is not LinkState.ACCEPTED or (ack.generation, ack.payload_revision) != expected:
            self._counters.ready_acks_ignored += 1
            log.warning(
                "ready_ack_ignored",
                node=self.node_id,
                generation=self.generation,
                state=self._state.value,
                payload_revision=self.session.payload_revision,
                acked_generation=ack.generation,
                acked_revision=ack.payload_revision,
            )
            return
        self._move(LinkEvent.ACKED)
        self._was_candidate = True
        self.ready_at_ns = self._edge.clock.now_ns()
        self.pushes.on_ready()
        self.health.start(ack.providers)
        verdicts = self._verdicts(None)
        log.info(
            "node_ready",
            node=self.node_id,
            generation=self.generation,
            payload_revision=ack.payload_revision,
            providers=len(verdicts),
            healthy=sum(verdicts.values()),
            address=self.session.address,
            software=self.session.software,
        )
        self._links.note_ready()
        if not self._edge.gate.node_ready(self.node_id, self.generation, verdicts):
            raise RuntimeError(f"{self!r}: admission knows a newer generation")
        self.push_if_changed()

    def _on_refresh_response(self, frame: pb.Frame) -> None:
        answer = frame.refresh_response
        push = self.pushes.on_answer(answer)
        if push is None:
            log.warning(
                "push_answer_ignored",
                node=self.node_id,
                generation=self.generation,
                payload_revision=answer.payload_revision,
            )
            return
        log.info(
            "push_answered",
            node=self.node_id,
            generation=self.generation,
            payload_revision=push.revision,
            status=push.status.value,
            error=push.error,
        )
        self._report(answer.providers)

    def _on_heartbeat(self, frame: pb.Frame) -> None:
        # Compared when the whole message is delivered: an end in it is not a run that the Node forgot.
        self._heartbeat = frame.heartbeat
        self._report(frame.heartbeat.providers)

    def _on_provider_states(self, frame: pb.Frame) -> None:
        self._report(frame.provider_states.providers)

    def _on_draining(self, frame: pb.Frame) -> None:
        if self._state is LinkState.DRAINING:
            return
        self._move(LinkEvent.DRAINS)
        log.info(
            "node_draining",
            node=self.node_id,
            generation=self.generation,
            runs=len(self._runs),
            limit_ms=frame.draining.limit_ms,
        )
        if self._was_candidate:
            self._edge.gate.node_draining(self.node_id, self.generation)

    # Health and heartbeats.

    def _report(self, states: Sequence[pb.ProviderState]) -> None:
        """Take provider states; before the ready ack they mean nothing, it brings them all."""
        if self._was_candidate:
            self.health.report(states)

    def _on_health(self, change: Mapping[str, bool]) -> None:
        verdicts = self._verdicts(change)
        for provider_id, is_up in change.items():
            state, reason = self.health.last_report(provider_id)
            log.info("provider_health", node=self.node_id, provider=provider_id, up=is_up, state=state, reason=reason)
        if verdicts:
            self._edge.gate.health(self.node_id, self.generation, verdicts)

    def _verdicts(self, only: Mapping[str, bool] | None) -> dict[str, bool]:
        """Health of this Node's providers (those in `only`, or all) by the file's word of the Runtime of now."""
        return {
            provider.provider_id: is_healthy(provider.health, self.health.is_up(provider.provider_id))
            for provider in self._edge.runtime.catalog.providers
            if provider.node_id == self.node_id and (only is None or provider.provider_id in only)
        }

    def _send_heartbeat(self) -> None:
        self._send(pb.Frame(heartbeat=pb.Heartbeat(messages_read=self._messages_read)))

    def _send(self, frame: pb.Frame) -> None:
        self._outbox.send_control(encode_frame(frame.SerializeToString()))
