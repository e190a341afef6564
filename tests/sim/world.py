"""One simulated world, from its seed to its verdict.

    world = World(seed)
    world.run()                     # raises Broken, which says how to see it again
    world.counts, world.trace

An Edge, up to three Nodes, their providers and the clients live on one loop of virtual time. Everything between the
clients' HTTP connections and the providers' is production code; see machines.py. The life of a world:

    0 s          all programs start
    to 40 s      clients ask by script, faults strike by script
    then         faults end and are undone; every request ends, every Node is ready, every provider is healthy again
    then         nothing is held anywhere, and one request per model is served well
    then         requests come in, the Edge shuts down under them, then the Nodes do
    at the end   nothing is left: no task, no timer, no run, no byte

What is checked all along: admission's invariants after each step; that a provider never runs more than its capacity
and that no slot comes back while its run works, but for those given up without confirmation; that no request is seen by
two providers; that bodies and answers pass byte for byte; that no answer looks whole unless its provider's was; that
nothing is logged as an error. A fault found does not stop the world at once, so that production code's own guards
cannot hide it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import replace
from random import Random

from iop_fast.edge.link import LinkState
from iop_fast.edge.runtime import Runtime
from iop_fast.logs import ROOT, fields_of
from iop_fast.node import session as node_session
from tests.sim.clients import CLIENT_FIELD, Client
from tests.sim.faults import Faults
from tests.sim.inspector import Inspector
from tests.sim.loop import VirtualLoop
from tests.sim.machines import DRAIN_MS, EdgeHost, NodeHost, NodeProgram, first_config
from tests.sim.pipes import Pipe
from tests.sim.script import (
    QUIET_AT_S,
    Behaviour,
    ClientScript,
    FaultScript,
    Script,
    without_leaving,
    write_clients,
    write_probe,
    write_script,
)
from tests.sim.servers import Server

LOOK_S = 0.05

# Errors that a world may log, each with what it must have met for that.
EXPECTED_ERRORS = {"old_runs_left": "slow_cancel"}
# Warnings that stand for a broken peer, which no program here is.
FORBIDDEN_WARNINGS = frozenset(
    {
        "session_malformed",
        "link_malformed",
        "run_malformed",
        "push_answer_ignored",
        "run_opened_twice",
        "stream_refused",
    }
)


class Broken(AssertionError):
    """A world went wrong. The text says what, and how to see it again."""

    def __init__(self, seed: int, faults: list[str]) -> None:
        lines = [f"seed {seed}: {fault}" for fault in faults[:20]]
        super().__init__("\n".join([*lines, f"replay with: .venv/bin/python -m tests.sim.run --seed {seed} --trace"]))


class World:
    """A world of a seed. `run` it once."""

    def __init__(self, seed: int, script: Script | None = None) -> None:
        self.script = write_script(seed) if script is None else script
        self.loop = VirtualLoop()
        self.clock = self.loop.clock
        self.counts: Counter[str] = Counter()
        self.trace: list[str] = []
        self.broken: list[str] = []
        self.pipes: list[Pipe] = []
        self.hosts: list[NodeHost] = []
        self.clients: list[Client] = []
        self.servers = {entry.key: Server(self, entry.key, entry.capacity) for entry in self.script.providers}
        self.first_config = first_config(self.script)
        self.config = deepcopy(self.first_config)
        self.edge: EdgeHost
        self.inspector = Inspector(self)
        self.acks: dict[int, None] = {}  # generations whose true ready ack is on its way or has come
        self.dead: list[NodeProgram] = []
        self._began_ns = self.now_ns
        self._faults = Faults(self)

    # What everybody calls.

    @property
    def now_ns(self) -> int:
        return self.clock.now_ns()

    @property
    def virtual_s(self) -> float:
        """How long the world has lived."""
        return (self.now_ns - self._began_ns) / 1e9

    def note(self, text: str) -> None:
        """Write a line into the trace."""
        self.trace.append(f"{self.now_ns - self._began_ns:>15,} {text}")

    def count(self, what: str) -> None:
        """Count something that happened."""
        self.counts[what] += 1

    def fail(self, what: str) -> None:
        """Note that something is wrong."""
        self.note(f"WRONG {what}")
        self.broken.append(what)

    @property
    def service(self) -> object:
        return self.edge.service

    def client_of(self, headers: Iterable[tuple[bytes, bytes]]) -> Client:
        """Find the client that a provider's request is for."""
        return self.clients[int(next(value for name, value in headers if name == CLIENT_FIELD))]

    def is_at_provider(self, run_id: int) -> bool:
        """True while a provider works for a run."""
        return any(run.run_id == run_id for server in self.servers.values() for run in server.active)

    def on_configured(self, runtime: Runtime) -> None:
        """The Edge has taken over a configuration."""
        for provider in runtime.catalog.providers:
            self.servers[provider.key].configure(provider.capacity)

    def on_program_gone(self, program: NodeProgram) -> None:
        """A Node's process was killed: its connections to providers are closed by the system."""
        self.dead.append(program)
        for server in self.servers.values():
            for run in [run for run in server.active if run.program is program]:
                server.close(run)

    def on_program_stopped(self, program: NodeProgram) -> None:
        """A Node's process has ended in order."""
        self.loop.call_later(0.001, self.inspector.check_program, program)

    @property
    def must_keep_links(self) -> bool:
        """True in a world without faults, until it shuts down."""
        return not self.script.faults and not self.edge.state.is_draining

    # Life.

    def run(self) -> None:
        """Live; raise Broken if anything went wrong."""
        handler = Listener(self)
        logger = logging.getLogger(ROOT)
        before = logger.level, logger.propagate
        logger.setLevel(logging.DEBUG)
        logger.propagate = False
        logger.addHandler(handler)
        try:
            self._live()
        finally:
            logger.removeHandler(handler)
            logger.setLevel(before[0])
            logger.propagate = before[1]
        if self.broken:
            raise Broken(self.script.seed, self.broken)

    def _live(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_until_complete(self._main())
        except Exception as error:  # noqa: BLE001 - whatever it is, the seed must be told
            self.fail(f"{type(error).__name__}: {error}")
        finally:
            asyncio.set_event_loop(None)
            self.loop.close()
        if self.loop.failures:
            self.fail(f"unhandled in the loop: {self.loop.failures}")

    async def _main(self) -> None:
        self.edge = EdgeHost(self, self.config)
        self.hosts = [NodeHost(self, node_id) for node_id in self.script.nodes]
        for client in self.script.clients:
            self._add_client(client)
        for fault in self.script.faults:
            self.loop.call_later(fault.at_s, self._strike, fault)
        self.inspector.watch()
        await asyncio.sleep(QUIET_AT_S)
        self.note("quiet")
        self._faults.end()
        # What was cut off in silence looks sound until the silence is noticed, by a timer that may be late once.
        await asyncio.sleep(2 * self.script.silence_ms / 1000 + 1)
        try:
            await self._settle()
            await self._probe()
            await self._shut_down()
            self.inspector.check_end()
        except Unsettled as error:
            self.fail(str(error))
        self.inspector.stop()
        self._bury()

    def _strike(self, fault: FaultScript) -> None:
        self._faults.strike(fault)

    def _add_client(self, script: ClientScript) -> Client:
        assert script.number == len(self.clients), "clients are numbered in their order"
        client = Client(self, script)
        self.clients.append(client)
        self.loop.call_later(script.at_s, client.begin)
        return client

    async def _until(self, what: str, is_so: Callable[[], bool], limit_s: float) -> None:
        """Wait for something; raise Unsettled when it does not come about."""
        limit = self.loop.time() + limit_s
        while not is_so():
            if self.loop.time() >= limit:
                raise Unsettled(f"not within {limit_s:g} s: {what}")
            await asyncio.sleep(LOOK_S)

    async def _settle(self) -> None:
        """Wait until the world is in order, and look that nothing is held then."""
        await self._until("every Node is ready", self._are_nodes_ready, 90.0)
        await self._until("every request is over", lambda: all(client.is_over for client in self.clients), 300.0)
        await self._until("no provider works", self.are_providers_idle, 60.0)
        await self._until("every provider is healthy", self._are_providers_healthy, 60.0)
        await self._until("every Node runs the current configuration", self._are_nodes_current, 5.0)
        self.inspector.check_idle()

    def _are_nodes_ready(self) -> bool:
        for host in self.hosts:
            host.ensure_started()
        links = [self.edge.links.current(host.node_id) for host in self.hosts]
        for host, link in zip(self.hosts, links, strict=True):
            # An ack that got lost is lost: only another session brings another one.
            if link is not None and link.state is LinkState.ACCEPTED and self.now_ns - link.accepted_at_ns > 10e9:
                for pipe in host.network.open_pipes():
                    pipe.lose()
        return all(link is not None and link.state is LinkState.READY for link in links)

    def _are_nodes_current(self) -> bool:
        """Every Node has its payload of now, and the Edge knows."""
        runtime, links = self.edge.state.runtime, self.edge.links
        for host in self.hosts:
            link = links.current(host.node_id)
            if link is None or link.pushes.is_pending or link.pushes.error:
                return False
            if link.pushes.observed_revision != runtime.payload_revisions[host.node_id]:
                return False
            if host.programs[0].router.current.payload != runtime.payloads[host.node_id]:
                return False
        return True

    def are_providers_idle(self) -> bool:
        return not any(server.active for server in self.servers.values())

    def _are_providers_healthy(self) -> bool:
        return all(row.link == "ready" and row.healthy for row in self.edge.gate.snapshot())

    async def _probe(self) -> None:
        """One request per model is served well and at once."""
        for model, _ in self.script.models:
            client = self._add_client(write_probe(len(self.clients), 0.0, model))
            await self._until(f"model {model} is served", lambda: client.is_over, 5.0)  # noqa: B023 - awaited here
            if client.label != "whole" or client.runs != 1:
                self.fail(f"model {model} is not served in a world in order: {client.label}, {client.runs} runs")
        self.inspector.check_idle()

    async def _shut_down(self) -> None:
        """The Edge shuts down with requests under way, then the Nodes."""
        random = Random(f"last {self.script.seed}")
        patient = Behaviour(chunks=20, chunk_gap_s=random.choice((0.01, 0.2, 2.0)))
        for script in write_clients(
            random, self.script.models, self.script.drains_under_load, 0.0, 0.5, len(self.clients)
        ):
            self._add_client(replace(without_leaving(script), behaviours=(patient, patient)))
        await asyncio.sleep(0.5)
        edge = self.edge
        if edge.links.run_count:
            self.count("edge_drain_with_runs")
        if edge.gate.waiting:
            self.count("edge_drain_with_waiters")
        self.note("the Edge shuts down")
        edge.process.call_soon(edge.start_draining)
        limit = self.loop.time() + DRAIN_MS / 1000
        while edge.links.run_count and self.loop.time() < limit:  # noqa: ASYNC110 - as the Edge's own drain
            await asyncio.sleep(LOOK_S)
        for client in self.clients:
            edge.process.call_soon(client.leave)
        await asyncio.sleep(LOOK_S)
        edge.process.call_soon(edge.stop)
        await asyncio.sleep(LOOK_S)
        programs = [program for host in self.hosts for program in host.programs]
        stopping = [program.process.create_task(program.stop()) for program in programs]
        await self._until("the Nodes stop", lambda: all(task.done() for task in stopping), 30.0)
        await asyncio.sleep(1.0)
        for program in programs:
            self.inspector.check_program(program)

    def _bury(self) -> None:
        """Take apart what was killed, and what a broken world has left running."""
        programs = self.dead + [program for host in self.hosts for program in host.programs]
        for process in [*(program.process for program in programs), self.edge.process]:
            process.kill()
            process.bury()
        for reader in [task for task in node_session._readers if task.get_loop().is_dead]:  # type: ignore[attr-defined]
            del node_session._readers[reader]


class Unsettled(Exception):
    """Something did not come about in time."""


class Listener(logging.Handler):
    """Takes what production code logs into the trace, and an error for what it is."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        event = record.getMessage()
        text = " ".join([event, *(f"{name}={value}" for name, value in fields_of(record).items())])
        self._world.note(f"log {record.levelname.lower()} {text}")
        self._world.count(f"log_{event}")
        if record.levelno >= logging.ERROR and not self._is_expected(event):
            cause = ""
            if record.exc_info:
                cause = "\n" + logging.Formatter().formatException(record.exc_info)
            self._world.fail(f"logged as an error: {text}{cause}")
        elif event in FORBIDDEN_WARNINGS:
            self._world.fail(f"logged: {text}")
        elif event == "link_closed" and self._world.must_keep_links:
            self._world.fail(f"a session ended that nothing has harmed: {text}")

    def _is_expected(self, event: str) -> bool:
        return event in EXPECTED_ERRORS and bool(self._world.counts[EXPECTED_ERRORS[event]])
