"""What must be so in a simulated world, looked at from outside: now and then, when a Node comes, at rest, at the end.

The production parts check themselves where they can. Here they are compared with each other: what admission counts with
what the requests hold, what the links hold with what the requests wait for, what a Node says with its providers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from iop_fast.edge.exchange import Exchange, State

if TYPE_CHECKING:
    from tests.sim.machines import NodeProgram
    from tests.sim.world import World

WATCH_S = 0.25
NS_PER_MS = 1_000_000
# A Node waits so long for the runs of its earlier sessions (limits.old_runs_ms), and not longer.
OLD_RUNS_NS = 5_000_000_000


class Inspector:
    """Looks at one world and tells it what is wrong."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._late: list[Exchange] = []
        self._cancelling: dict[Exchange, int] = {}  # how often each was seen to wait for a confirmation
        self._silent: dict[int, int] = {}  # sessions by generation: how often each was seen to be silent past its limit
        self._looked_ns = 0
        self._is_stopped = False

    def watch(self) -> None:
        """Look at the requests under way, from now on and until `stop`."""
        if self._is_stopped:
            return
        self._world.loop.call_later(WATCH_S, self.watch)
        exchanges = [client.exchange for client in self._world.clients if client.exchange is not None]
        self._compare([exchange for exchange in exchanges if not exchange.is_done])

    def stop(self) -> None:
        """Look no more."""
        self._is_stopped = True

    def _compare(self, exchanges: list[Exchange]) -> None:
        edge = self._world.edge
        leases = [exchange._lease for exchange in exchanges if exchange._lease is not None]
        bodies = [exchange._body for exchange in exchanges if exchange._body is not None]
        waiting = [exchange for exchange in exchanges if exchange.state is State.QUEUED]
        for what, counted, held in (
            ("requests wait", edge.gate.waiting, len(waiting)),
            ("slots are taken", sum(row.in_flight for row in edge.gate.snapshot()), sum(x.is_held for x in leases)),
            ("runs are on links", edge.links.run_count, sum(x._link is not None for x in exchanges)),
            ("bytes are buffered", edge.state.budget.used, sum(body._charged for body in bodies)),
        ):
            if counted != held:
                self._world.fail(f"{counted} {what}, by the requests themselves {held}")
        if edge.process.is_frozen:
            self._late = []
            self._silent = {}
        else:
            self._look_at_deadlines(waiting)
            self._look_at_silence()
            self._look_at_cancels([exchange for exchange in exchanges if exchange.state is State.CANCELLING])

    def _look_at_deadlines(self, waiting: list[Exchange]) -> None:
        """A request whose time in the queue is up is out of it soon, unless the Edge itself stands still."""
        edge = self._world.edge
        timeout_ns = edge.state.runtime.config.provider_pool.queue_timeout_ms * NS_PER_MS
        before, self._late = self._late, []
        if not timeout_ns:
            return
        latest_ns = self._world.now_ns - timeout_ns
        self._late = [x for x in waiting if x._waiter is not None and x._waiter.enqueued_at_ns < latest_ns]
        for exchange in self._late:
            if exchange in before:
                self._world.fail(f"{exchange!r} waits past its deadline")

    def _look_at_silence(self) -> None:
        """A session that brings nothing ends; a timer that is late gives it one more interval, each time."""
        before, self._looked_ns = self._looked_ns, self._world.now_ns
        if self._looked_ns - before > 2 * WATCH_S * 1e9:
            self._silent = {}  # the clock has jumped
        links = [self._world.edge.links.current(host.node_id) for host in self._world.hosts]
        silent = [link for link in links if link is not None and not link.silence.is_within_limit]
        self._silent = {link.generation: self._silent.get(link.generation, 0) + 1 for link in silent}
        for generation, count in self._silent.items():
            if (count - 4) * WATCH_S * 1000 > self._world.script.silence_ms:
                self._world.fail(f"session {generation} is silent for twice its limit and goes on")

    def _look_at_cancels(self, cancelling: list[Exchange]) -> None:
        """A slot is not held for ever for a Node that does not confirm."""
        limit_ms = self._world.edge.state.runtime.config.edge.link.cancel_confirm_ms
        self._cancelling = {exchange: self._cancelling.get(exchange, 0) + 1 for exchange in cancelling}
        for exchange, count in self._cancelling.items():
            if (count - 3) * WATCH_S * 1000 > limit_ms:  # the Edge looks as often as this does
                self._world.fail(f"{exchange!r} waits for its confirmation past the limit")

    def check_ready(self, node_id: str, generation: int) -> None:
        """A Node becomes a candidate: it has said so, and its process has ended the runs of its earlier sessions, or
        has waited for them as long as it may."""
        if generation not in self._world.acks:
            self._world.fail(f"{node_id} is a candidate and has not said that it is ready")
        link = self._world.edge.links.current(node_id)
        assert link is not None
        if self._world.now_ns - link.accepted_at_ns >= OLD_RUNS_NS:
            return
        for server in self._world.servers.values():
            for run in server.active:
                if run.program.instance_id == link.session.instance_id:
                    self._world.fail(f"{node_id} is ready again and run {run.run_id} of its earlier session goes on")

    def check_idle(self) -> None:
        """Nothing is held, waits or is remembered."""
        edge = self._world.edge
        state = edge.state
        held = {
            "in flight": sum(row.in_flight for row in edge.gate.snapshot()),
            "long in flight": sum(row.long_in_flight for row in edge.gate.snapshot()),
            "queued": sum(row.queued for row in edge.gate.snapshot()),
            "waiting": edge.gate.waiting,
            "bytes of bodies": state.budget.used,
            "cancelling": len(state.cancelling),
            "runs of links": edge.links.run_count,
            "runs of Nodes": sum(
                len(relay.runs)
                for host in self._world.hosts
                for program in host.programs
                for relay in program.dialer.relays
            ),
        }
        for what, count in held.items():
            if count:
                self._world.fail(f"nothing goes on, and {what}: {count}")
        counters = edge.gate.counters()
        for name in ("double_release", "reclaimed", "callback_failed"):
            if counters[name]:
                self._world.fail(f"admission counts {name}: {counters[name]}")
        for name in ("broken", "internal"):
            if state.counters.get(name):
                self._world.fail(f"the Edge counts {name}: {state.counters[name]}")
        for name in ("malformed", "runs_reclaimed", "runs_failed"):
            if getattr(edge.links.counters, name):
                self._world.fail(f"the links count {name}: {getattr(edge.links.counters, name)}")
        ended = sum(counters[name] for name in counters if name.startswith(("granted", "rejected_", "evicted_")))
        if counters["submitted"] + counters["readmitted"] != ended:
            self._world.fail(f"requests were submitted and have not left admission, or left twice: {counters}")
        self._world.counts["readmitted"] = counters["readmitted"]

    def check_program(self, program: NodeProgram) -> None:
        """A Node's process that has stopped has left nothing."""
        left = program.process.unfinished
        if left:
            self._world.fail(f"{program.name} has stopped and left {left}")
        if program.process.failures:
            self._world.fail(f"unhandled in {program.name}: {program.process.failures}")
        if program.router.retired_count or program.router.current.backends:
            self._world.fail(f"{program.name} has stopped and keeps backends")

    def check_end(self) -> None:
        """Nothing is left of anything."""
        self.check_idle()
        for client in self._world.clients:
            if not client.is_over:
                self._world.fail(f"client {client.number} is not over: {client.state}")
        if self._world.edge.process.unfinished:
            self._world.fail(f"the Edge has stopped and left {self._world.edge.process.unfinished}")
        if self._world.edge.process.failures:
            self._world.fail(f"unhandled in the Edge: {self._world.edge.process.failures}")
        for program in self._world.dead:
            if program.process.failures:
                self._world.fail(f"unhandled in {program.name}: {program.process.failures}")
        for pipe in self._world.pipes:
            for misuse in pipe.misuses:
                self._world.fail(misuse)
        if not self._world.are_providers_idle():
            self._world.fail("a provider works for nobody")
