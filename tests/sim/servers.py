"""The providers' side: servers that answer by script, and the adapter by which a Node reaches them.

A `Server` is one provider's machine. It outlives Nodes, sees every run that reaches it and judges what it sees. A
`SimRun` is the Node's connection to it and lives in the Node's process: it stops when that does. It keeps the contract
of UpstreamRun and calls the sink as the HTTP adapter does.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from iop_fast.config.payload import AdapterSettings, ProviderPayload
from iop_fast.node.adapters import BrokenAdapter, Surroundings
from iop_fast.node.health import Health
from iop_fast.seams import End, Head, TunnelRequest, UpstreamSink
from iop_fast.wire import runtime_pb2 as pb
from tests.sim.script import Behaviour

if TYPE_CHECKING:
    from tests.sim.clients import Client
    from tests.sim.machines import NodeProgram
    from tests.sim.world import World

# What a connect attempt takes.
PROBE_S = 0.005

Fields = list[tuple[bytes, bytes]]

ERROR_EVENT = re.compile(rb'\n{0,2}data: \{"error":\{[^\n]*\}\}\n\n')
ERROR_BODY = b'{"error":{"message":"as the provider says it","type":"odd_error"}}'


class Server:
    """A provider's machine: what runs on it now, and what its provider may run by the configuration."""

    def __init__(self, world: World, key: tuple[str, str], capacity: int) -> None:
        self.key = key
        self.is_down = False
        self.active: dict[SimRun, None] = {}
        self._world = world
        self._capacities: list[tuple[int, int]] = [(0, capacity)]  # (since_ns, capacity)

    def configure(self, capacity: int) -> None:
        """The Edge has taken over a configuration."""
        if capacity != self._capacities[-1][1]:
            self._capacities.append((self._world.now_ns, capacity))

    def open(self, run: SimRun) -> None:
        """A request has reached the provider."""
        self.active[run] = None
        self._world.note(f"server {self.key[1]} has run {run.run_id} of client {run.client.number}")
        run.client.on_seen(run)
        self._check_capacity(run)

    def close(self, run: SimRun) -> None:
        """A connection to the provider is closed."""
        if self.active.pop(run, self) is None:
            self._world.note(f"server {self.key[1]} is rid of run {run.run_id}")

    def go_down(self) -> None:
        """Refuse connections and break off those there are."""
        self.is_down = True
        for run in list(self.active):
            run.break_off()

    def come_back(self) -> None:
        """Take connections again."""
        self.is_down = False

    def _check_capacity(self, run: SimRun) -> None:
        """No more runs than the provider's capacity, but for those whose slot was given up without confirmation."""
        gate = self._world.edge.gate
        counted = [other for other in self.active if not gate.is_excused(other.run_id)]
        if not counted:
            return
        since_ns = min(gate.granted_at_ns(other.run_id) for other in counted)
        ceiling = self._highest_since(since_ns)
        if len(counted) > ceiling:
            runs = [other.run_id for other in counted]
            self._world.fail(f"provider {self.key} runs {runs}, its capacity was {ceiling} at most")

    def _highest_since(self, since_ns: int) -> int:
        highest = self._capacities[-1][1]
        for (begin_ns, capacity), (end_ns, _) in zip(self._capacities, [*self._capacities[1:], (None, 0)], strict=True):
            if end_ns is None or end_ns >= since_ns:
                highest = max(highest, capacity)
            assert begin_ns is not None
        return highest


class SimAdapter:
    """The adapter of one server in one Node's process."""

    def __init__(self, world: World, program: NodeProgram, server: Server, surroundings: Surroundings) -> None:
        self.world = world
        self.program = program
        self.server = server
        self.loop = surroundings.loop
        limits = surroundings.limits
        self._health = Health(self.loop, self._probe, first_ms=limits.probe_ms_min, most_ms=limits.probe_ms_max)

    @property
    def health(self) -> Health:
        return self._health

    def upstream(self, provider: ProviderPayload) -> SimUpstream:
        return SimUpstream(self)

    async def close(self) -> None:
        self._health.close()

    async def _probe(self) -> str | None:
        waited = self.loop.create_future()
        timer = self.loop.call_later(PROBE_S, waited.set_result, None)
        try:
            await waited
        finally:
            timer.cancel()
        return "connection refused" if self.server.is_down else None


class SimUpstream:
    """Starts runs."""

    def __init__(self, adapter: SimAdapter) -> None:
        self._adapter = adapter

    def start(self, request: TunnelRequest, sink: UpstreamSink) -> SimRun:
        return SimRun(self._adapter, request, sink)


class SimRun:
    """One request of a Node to its provider."""

    is_normalized = False

    def __init__(self, adapter: SimAdapter, request: TunnelRequest, sink: Any) -> None:
        world = adapter.world
        self.run_id: int = sink.run_id
        self.program = adapter.program
        if self.program.refuses_runs:
            world.fail(f"{self.program.name} shuts down and takes run {self.run_id}")
        self.client: Client = world.client_of(request.headers)
        self.behaviour: Behaviour = self.client.next_behaviour()
        self.request = request
        self.head: Head | None = None
        self.sent = bytearray()
        self.is_completed = False
        self.is_over = False
        self._world = world
        self._adapter = adapter
        self._server = adapter.server
        self._loop = adapter.loop
        self._sink = sink
        self._body = bytearray(request.body)
        self._is_whole = request.body_complete
        self._consumed = 0
        self._is_connected = False
        self._is_answering = False
        self._is_cancelling = False
        self._is_paused = False
        self._is_due = False  # a chunk's time has come while paused
        self._left = 0  # chunks to come
        self._timers: list[asyncio.TimerHandle] = []
        self._after(self.behaviour.connect_s, self._on_connected)

    # What the relay calls.

    def feed(self, piece: bytes, complete: bool) -> None:
        self._body += piece
        self._is_whole = self._is_whole or complete
        if self._is_connected and not self.is_over:
            self._after(0.001, self._consume)

    def pause(self) -> None:
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False
        if self._is_due:
            self._is_due = False
            self._loop.call_soon(self._go_on)

    def cancel(self) -> None:
        if not self._is_cancelling and not self.is_over:
            self._is_cancelling = True
            if self.behaviour.cancel_s:
                self._world.count("slow_cancel")
            self._after(self.behaviour.cancel_s, self._end, pb.RunEnd.CANCELLED, "cancelled")

    def _after(self, delay_s: float, callback: Callable[..., object], *args: Any) -> None:
        if len(self._timers) > 8:
            self._timers = [timer for timer in self._timers if timer.when() > self._loop.time()]
        self._timers.append(self._loop.call_later(delay_s, callback, *args))

    # What the server does.

    def break_off(self) -> None:
        """The server is gone: the Node notices when it next runs."""
        self._server.close(self)
        self._loop.call_soon(self._end, pb.RunEnd.UPSTREAM_ERROR, "connection reset")

    def _on_connected(self) -> None:
        if self.is_over:
            return
        health = self._adapter.health
        if self._server.is_down or self.behaviour.kind == "connect_failed":
            self._world.count("connect_failed")
            health.unreachable("connection refused")
            self._end(pb.RunEnd.CONNECT_FAILED, "connection refused")
            return
        health.reachable()
        self._is_connected = True
        self._server.open(self)
        self._sink.on_taken()
        if self.behaviour.kind == "early_answer" and not self._is_whole:
            self._world.count("early_answer")
            self._begin_answer()
        self._consume()

    def _consume(self) -> None:
        if self.is_over:
            return
        fresh = len(self._body) - self._consumed
        if fresh:
            self._consumed = len(self._body)
            self._sink.on_consumed(fresh)
        if self._is_whole and not self._is_answering:
            self._check_request()
            self._begin_answer()

    def _check_request(self) -> None:
        """The whole request is here."""
        self.client.check_body(self, bytes(self._body))

    def _begin_answer(self) -> None:
        self._is_answering = True
        kind = self.behaviour.kind
        if kind == "first_byte_timeout":
            self._after(10.0, self._fail, pb.RunEnd.UPSTREAM_TIMEOUT)
        else:
            self._after(self.behaviour.first_byte_s, self._on_first_byte)

    def _on_first_byte(self) -> None:
        if self.is_over:
            return
        kind = self.behaviour.kind
        if kind == "hangs_up":
            self._fail(pb.RunEnd.UPSTREAM_ERROR)
            return
        self._answer(kind)

    def _answer(self, kind: str) -> None:
        """Say the head of the answer, and begin with its body."""
        self.head = self._make_head(kind)
        self._sink.on_head(self.head)
        if kind in ("error_answer", "early_answer"):
            self._say(ERROR_BODY)
            self._complete()
        else:
            if kind in ("bad_status", "bad_field"):
                self._world.count(kind)
            self._left = self.behaviour.chunks
            self._next_chunk()

    def judge_whole(self, head: Head, body: bytes) -> str:
        """Say what is wrong with an answer that looks whole to its client; "" for nothing."""
        if body != self.sent:
            return f"got {len(body)} bytes, run {self.run_id} sent {len(self.sent)}"
        return self._judge_head(head)

    def judge_cut(self, head: Head, body: bytes) -> str:
        """Say what is wrong with an answer that was cut: it holds what was sent, up to a point, and then at most an
        error event."""
        fault = self._judge_head(head)
        if fault or bytes(self.sent[: len(body)]) == body:
            return fault
        event = body.rfind(b'data: {"error"')
        own = max(event, 0)
        while own and not self.sent.startswith(body[:own]):
            own -= 1
        if event < 0 or event - own > 2 or ERROR_EVENT.fullmatch(body[own:]) is None:
            return f"a cut answer of {len(body)} bytes is not what run {self.run_id} sent"
        return ""

    def _judge_head(self, head: Head) -> str:
        assert self.head is not None
        fields = self.head.headers
        if head[:2] != self.head[:2] or head.headers[: len(fields)] != fields:
            return f"the head {head} is not that of run {self.run_id}"
        asked = next((value for name, value in self.request.headers if name == b"x-request-id"), b"")
        told = next((value for name, value in head.headers if name == b"x-request-id"), b"")
        return "" if asked == told else f"x-request-id is {told!r}, the provider was told {asked!r}"

    def _make_head(self, kind: str) -> Head:
        if kind in ("error_answer", "early_answer"):
            self._world.count("error_answer")
            fields: Fields = [
                (b"Content-Type", b"application/json"),
                (b"Content-Length", b"%d" % len(ERROR_BODY)),
                (b"Retry-After", b"7"),
            ]
            return Head(429, b"Slow Down", fields)
        is_stream = self.request.stream
        fields = [(b"Content-Type", b"text/event-stream" if is_stream else b"application/json"), (b"X-Odd", b"\xe9")]
        if kind == "bad_field":
            fields.append((b"X-Bad", b"one\r\nX-Two: 2"))
        return Head(199 if kind == "bad_status" else 200, b"OK", fields)

    def _next_chunk(self) -> None:
        gap_s = self.behaviour.chunk_gap_s
        if gap_s:
            self._after(gap_s, self._on_chunk)
        else:
            self._loop.call_soon(self._on_chunk)

    def _on_chunk(self) -> None:
        if self.is_over:
            return
        if self._is_paused:
            self._world.count("upstream_paused")
            self._is_due = True
        else:
            self._go_on()

    def _go_on(self) -> None:
        if self.is_over:
            return
        kind, total = self.behaviour.kind, self.behaviour.chunks
        if kind == "breaks_off" and self._left <= total // 2:
            self._fail(pb.RunEnd.UPSTREAM_ERROR)
        elif kind == "idle_timeout" and self._left <= total // 2:
            self._after(10.0, self._fail, pb.RunEnd.UPSTREAM_TIMEOUT)
        elif self._left:
            self._left -= 1
            self._say(self._chunk(total - self._left))
            if not self._left and self.behaviour.ends_at_once:
                if self._is_paused:
                    self._world.count("ended_while_paused")
                self._complete()
            else:
                self._next_chunk()
        else:
            self._complete()

    def _chunk(self, number: int) -> bytes:
        size = self.behaviour.chunk_bytes
        text = b"%d.%d." % (self.run_id, number) * (size // 4 + 1)
        return b"data: " + text[:size] + b"\n\n" if self.request.stream else text[:size]

    def _say(self, data: bytes) -> None:
        if self._is_cancelling:
            return
        self.sent += data
        self._sink.on_data(data)

    def _complete(self) -> None:
        self.is_completed = not self._is_cancelling
        self._end(pb.RunEnd.OK, "")

    def _fail(self, status: int) -> None:
        if not self.is_over:
            self._world.count(self.behaviour.kind)
            self._end(status, "as scripted")

    def _end(self, status: int, detail: str, refusal_status: int = 0) -> None:
        if self.is_over:
            return
        self.is_over = True
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        self._server.close(self)
        self._sink.on_end(End(status, detail, None, refusal_status))


def make_adapter(world: World, program: NodeProgram, settings: AdapterSettings, around: Surroundings) -> SimAdapter:
    """Be a Node's maker of adapters: endpoints name servers."""
    node_id, _, provider_id = settings.endpoint.removeprefix("http://").partition("/")
    server = world.servers.get((node_id, provider_id))
    if server is None:
        raise BrokenAdapter("no such server")
    return SimAdapter(world, program, server, around)
