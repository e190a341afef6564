"""The machines of a simulated world: an Edge and Nodes, built of production parts as their programs build them.

What `edge/app.py` and `node/app.py` do with sockets, files and signals is done here with processes and pipes; every
part between those is the production one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from hashlib import sha256
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from iop_fast._core.admission import Outcome, Owner
from iop_fast._core.ledger import Lease
from iop_fast._core.wait_queue import Waiter
from iop_fast.config.catalog import build_catalog
from iop_fast.config.loader import load_edge_text
from iop_fast.config.payload import compile_payloads
from iop_fast.config.schema.node import NodeLimits
from iop_fast.edge.ages import Ticker
from iop_fast.edge.gate import Gate
from iop_fast.edge.link import LinkState
from iop_fast.edge.links import LinkLimits, Links
from iop_fast.edge.refresh import impact_of
from iop_fast.edge.refresh_plan import StepTimes, plan_refresh
from iop_fast.edge.refresh_report import Impact, Status
from iop_fast.edge.registration import Registrar
from iop_fast.edge.runtime import Runtime
from iop_fast.edge.service import EdgeService
from iop_fast.edge.state import EdgeState
from iop_fast.node.adapters import Surroundings
from iop_fast.node.dial import Backoff, Dialer
from iop_fast.node.registry import Router
from iop_fast.node.relay import Relay
from iop_fast.node.session import Identity, Session, SessionLimits, SessionState
from iop_fast.seams import MessageStream
from tests.sim.network import Network
from tests.sim.process import Process
from tests.sim.script import Script
from tests.sim.servers import make_adapter
from tests.sim.tasks import make_tasked

if TYPE_CHECKING:
    from tests.sim.world import World

NS_PER_MS = 1_000_000

# What running answers get when the Edge shuts down.
DRAIN_MS = 10_000


class Grant(NamedTuple):
    """A lease that a request was dispatched with."""

    key: tuple[str, str]
    generation: int
    at_ns: int


class WatchedGate(Gate):
    """The gate, with an eye on when a slot comes back.

    A slot given back while its provider still works is a fault, except when the Node's session was lost or nothing
    confirmed the end in time: those runs are *excused* from then on.
    """

    def __init__(self, world: World, runtime: Runtime, links: Links, process: Process) -> None:
        super().__init__(runtime.plan(links.is_reported_up), world.clock, process, verify=True)
        self._world = world
        self._grants: dict[int, Grant] = {}
        self._excused: dict[int, None] = {}
        self._unconfirmed = 0

    def is_excused(self, run_id: int) -> bool:
        """True when the Edge has given up this run's slot without knowing that the run is over."""
        return run_id in self._excused

    def granted_at_ns(self, run_id: int) -> int:
        """When a run's lease was granted."""
        return self._grants[run_id].at_ns

    def submit(self, owner: Owner, model: str, long: bool, needs: int) -> Lease | Waiter | Outcome:
        decision = super().submit(owner, model, long, needs)
        if isinstance(decision, Waiter):
            self._world.count("queued")
        return decision

    def provider_key(self, lease: Lease) -> tuple[str, str]:
        key = super().provider_key(lease)
        link = self._world.edge.links.current(key[0])
        if link is not None and link.generation == lease.generation and link.state is LinkState.DRAINING:
            self._world.fail(f"run {lease.lease_id} is for {key[0]}, which drains")
        self._grants[lease.lease_id] = Grant(key, lease.generation, lease.granted_at_ns)
        return key

    def release(self, lease: Lease) -> bool:
        unconfirmed = self._world.edge.state.counters["released_unconfirmed"]
        if unconfirmed != self._unconfirmed:
            self._unconfirmed = unconfirmed
            self._excused[lease.lease_id] = None
            self._world.count("released_unconfirmed")
        elif self._world.is_at_provider(lease.lease_id) and lease.is_held:
            self._world.fail(f"the slot of run {lease.lease_id} came back while its provider works")
        return super().release(lease)

    def node_ready(self, node_id: str, generation: int, healthy: Mapping[str, bool]) -> bool:
        self._world.inspector.check_ready(node_id, generation)
        return super().node_ready(node_id, generation, healthy)

    def node_down(self, node_id: str, generation: int) -> bool:
        for run_id, grant in self._grants.items():
            if grant.generation == generation and grant.key[0] == node_id:
                self._excused[run_id] = None
        return super().node_down(node_id, generation)


class EdgeHost:
    """The one Edge."""

    def __init__(self, world: World, config: dict[str, Any]) -> None:
        self.process = Process(world.loop, "edge")
        self.is_listening = True
        self._world = world
        runtime = first_runtime(config)
        self.links = Links(LinkLimits.of(runtime.config.edge.link))
        self.gate = WatchedGate(world, runtime, self.links, self.process)
        random = Random(f"edge {world.script.seed}")
        self.state = EdgeState(runtime, self.gate, self.links, world.clock, random, lambda: 1_700_000_000)
        self.registrar = Registrar(self.state, self.links, self.process)
        self.service = EdgeService(self.state)
        self._ticker = Ticker(world.clock, self.process)
        self._ticker.register(self.state.cancelling.sweep)
        self._ticker.start()

    def accept(self, stream: Any, address: str) -> None:
        """Serve a Node's stream."""
        self.process.create_task(self._serve(stream, address))

    async def _serve(self, stream: Any, address: str) -> None:
        await self.registrar.serve(stream, address)
        stream.abandon()  # as gRPC ends a call well when its handler returns

    def reconfigure(self, config: dict[str, Any]) -> Status:
        """Apply another configuration as a refresh does: plan, rehearse, commit, push; without its thread."""
        planned = plan_refresh(self.state.runtime, "edge.yaml", text_of(config), None, StepTimes())
        runtime = planned.runtime
        if runtime is None:
            self._world.note(f"edge refuses a configuration: {planned.status.value}")
            return planned.status
        plan = runtime.plan(self.links.is_reported_up)
        impact, before = impact_of(self.gate, plan), self.gate.counters()
        self.state.commit(runtime, plan)
        self._check_rehearsal(impact, before, self.gate.counters())
        pushes = self.links.push_changed()
        self._world.note(f"edge has revision {runtime.revision}, pushed to {list(pushes)}; {impact}")
        self._world.on_configured(runtime)
        return planned.status

    def _check_rehearsal(self, impact: Impact, before: Mapping[str, int], after: Mapping[str, int]) -> None:
        """What a refresh says beforehand is what it does, unless what it sets off sets off more."""
        if after["readmitted"] != before["readmitted"]:
            return
        foretold = (impact.waiters_granted, impact.waiters_evicted_timeout, impact.waiters_evicted_unavailable)
        names = ("granted", "evicted_timeout", "evicted_unavailable")
        found = tuple(after[name] - before[name] for name in names)
        if foretold != found:
            self._world.fail(f"a refresh said that of {names} it makes {foretold}, and made {found}")
        if any(found):
            self._world.count("refresh_moved_waiters")

    def start_draining(self) -> None:
        """Begin to shut down: no new requests, waiting ones end, Nodes are told."""
        self.state.start_draining()
        self.links.say_draining(1_000, DRAIN_MS)
        if self.gate.waiting:
            self._world.fail(f"the Edge shuts down and {self.gate.waiting} requests wait")

    def stop(self) -> None:
        """Take everything down."""
        self.is_listening = False
        self.links.close_all("the Edge stops")
        self._ticker.stop()
        self.gate.close()


class NodeProgram:
    """One process that serves as a Node."""

    def __init__(self, world: World, host: NodeHost, number: int) -> None:
        script = world.script
        self.name = f"{host.node_id}#{number}"
        self.host = host
        self.process = Process(world.loop, self.name)
        random = Random(f"node {self.name} {script.seed}")
        limits = NodeLimits(heartbeat_ms=script.heartbeat_ms, silence_ms=script.silence_ms)
        surroundings = Surroundings(loop=self.process, environ={}, native_models={}, limits=limits)
        makers = {"openai_compat": partial(make_adapter, world, self), "ollama": partial(make_tasked, world, self)}
        self.router = Router(surroundings, makers)
        self._identity = Identity(
            host.node_id, token_of(host.node_id), f"{random.getrandbits(128):032x}", "iop sim", self.name
        )
        self._limits = SessionLimits(
            heartbeat_ns=limits.heartbeat_ms * NS_PER_MS,
            silence_ns=limits.silence_ms * NS_PER_MS,
            old_runs_ms=limits.old_runs_ms,
            pace_ns=limits.pace_ms * NS_PER_MS,
        )
        self._world = world
        self.is_draining = False
        backoff = Backoff(random, limits.reconnect_ms_min, limits.reconnect_ms_max)
        self.dialer = Dialer(partial(host.network.dial, self), self._make_session, backoff, self.process)
        self.dialer.start()

    def __repr__(self) -> str:
        return f"<NodeProgram {self.name}>"

    @property
    def refuses_runs(self) -> bool:
        """True once the process has begun to shut down in order."""
        session = self.dialer.session
        return self.is_draining and session is not None and session.state is SessionState.DRAINING

    @property
    def instance_id(self) -> str:
        return self._identity.instance_id

    def _make_session(self, stream: MessageStream, earlier: Sequence[Relay]) -> Session:
        return Session(stream, self._identity, self.router, self._world.clock, self.process, self._limits, earlier)

    async def drain(self, limit_ms: int) -> None:
        """Shut down in order."""
        await self.dialer.drain(limit_ms)
        await self._close()

    async def stop(self) -> None:
        """Shut down at once."""
        await self.dialer.stop()
        await self._close()

    async def _close(self) -> None:
        for relay in self.dialer.relays:
            idle = self.process.create_future()
            relay.when_idle(partial(idle.set_result, None))
            await idle
        await self.router.close()


class NodeHost:
    """A machine with a Node on it, now and then with two, or none."""

    def __init__(self, world: World, node_id: str) -> None:
        self.node_id = node_id
        self.network = Network(world, node_id)
        self.programs: list[NodeProgram] = []
        self._world = world
        self._started = 0
        self.start()

    def start(self) -> NodeProgram:
        """Start a process."""
        self._started += 1
        program = NodeProgram(self._world, self, self._started)
        self.programs.append(program)
        self._world.note(f"{program.name} starts")
        return program

    def ensure_started(self) -> None:
        """Start a process unless one is there."""
        if not self.programs:
            self.start()

    def kill(self, program: NodeProgram, is_host_gone: bool) -> None:
        """End a process; the Edge hears of it from the system, or from nobody when the whole host is gone."""
        self._world.note(f"{program.name} is killed{', host and all' if is_host_gone else ''}")
        program.process.kill()
        self.programs.remove(program)
        self.network.lose(program, is_host_gone)
        self._world.on_program_gone(program)

    def shut_down(self, program: NodeProgram, limit_ms: int) -> None:
        """Let a process end in order."""
        self._world.note(f"{program.name} shuts down")
        program.is_draining = True
        program.process.create_task(self._drain(program, limit_ms))

    async def _drain(self, program: NodeProgram, limit_ms: int) -> None:
        await program.drain(limit_ms)
        if program in self.programs:
            self.programs.remove(program)
            self._world.on_program_stopped(program)


def token_of(node_id: str) -> str:
    """A Node's token."""
    return f"token of {node_id}"


def text_of(config: dict[str, Any]) -> str:
    """A configuration as its file has it: JSON is YAML."""
    return json.dumps(config)


def first_runtime(config: dict[str, Any]) -> Runtime:
    """Compile a configuration as the Edge's program does when it starts."""
    loaded = load_edge_text(text_of(config), "edge.yaml")
    parsed = loaded.config
    return Runtime.build(parsed, build_catalog(parsed), compile_payloads(parsed), file_sha256=loaded.sha256)


def first_config(script: Script) -> dict[str, Any]:
    """The configuration that a world starts and ends with."""
    return {
        "edge": {
            "link": {
                "heartbeat_ms": script.heartbeat_ms,
                "silence_ms": script.silence_ms,
                "run_window_bytes": script.run_window_bytes,
                "buffered_bytes_max": script.link_buffered_bytes,
            }
        },
        "openai": {
            "long_context_threshold_tokens": 1_000,
            "limits": {"buffered_bytes": script.buffered_bytes},
        },
        "provider_pool": {"max_queue": script.max_queue, "queue_timeout_ms": script.queue_timeout_ms},
        "models": [
            {"id": model, "providers": {name: f"{model}@{name}" for name in names}} for model, names in script.models
        ],
        "nodes": [
            {
                "id": node_id,
                "token_hash_sha256": sha256(token_of(node_id).encode()).hexdigest(),
                "providers": [
                    {
                        "id": provider.id,
                        "type": provider.type,
                        "endpoint": f"http://{node_id}/{provider.id}",
                        "models": [f"{model}@{provider.id}" for model, names in script.models if provider.id in names]
                        or ["none"],
                        "capacity": provider.capacity,
                        "long_context_capacity": provider.long_capacity,
                        "priority": provider.priority,
                        "health": provider.health,
                    }
                    for provider in script.providers
                    if provider.node_id == node_id
                ],
            }
            for node_id in script.nodes
        ],
    }
