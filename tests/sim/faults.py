"""What can go wrong in a simulated world, by name. Each fault is counted when it has really hit something."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from iop_fast.edge.refresh_report import Status
from tests.sim.script import FaultScript

if TYPE_CHECKING:
    from tests.sim.machines import NodeHost, NodeProgram
    from tests.sim.world import World

QUEUE_TIMEOUTS_MS = (0, 500, 3_000, 30_000)


class Faults:
    """Carries faults out. `end` undoes whatever is still in force."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._kinds: dict[str, Callable[[FaultScript], bool]] = {
            "kill": self._kill,
            "host_gone": self._host_gone,
            "hang": self._hang,
            "half_open": self._half_open,
            "flap": self._flap,
            "duplicate": self._duplicate,
            "ack_lost": self._ack,
            "ack_late": self._ack,
            "ack_twice": self._ack,
            "ack_stale": self._ack,
            "slow_link": self._slow_link,
            "stalled_to_edge": self._stall,
            "stalled_to_node": self._stall,
            "node_drain": self._node_drain,
            "edge_hang": self._edge_hang,
            "clock_jump": self._clock_jump,
            "provider_down": self._provider_down,
        }

    def strike(self, fault: FaultScript) -> None:
        """Carry a fault out, now."""
        if fault.kind.startswith("config_"):
            self._world.edge.process.call_soon(self._reconfigure, fault)
            return
        is_hit = self._kinds[fault.kind](fault)
        if is_hit and not fault.kind.startswith("ack_"):  # those count when the ack comes by
            self._world.count(fault.kind)
        if is_hit:
            self._world.note(f"fault {fault.kind} {fault.target} for {fault.duration_s:.3f} s")

    def end(self) -> None:
        """Put the world in order: programs run, ways are free, providers are up, the first configuration holds."""
        world = self._world
        world.edge.process.thaw()
        for host in world.hosts:
            host.network.is_cut_off = False
            host.network.next_ack = ""
            for lane in host.network.lanes():
                lane.bytes_per_s = 0.0
                lane.resume()
            for program in host.programs:
                program.process.thaw()
            for program in host.programs[1:]:
                host.kill(program, is_host_gone=False)
        for server in world.servers.values():
            server.come_back()
        world.edge.process.call_soon(self._restore)

    # The target of a fault.

    def _host(self, fault: FaultScript) -> NodeHost:
        return self._world.hosts[fault.target % len(self._world.hosts)]

    def _program(self, fault: FaultScript) -> NodeProgram | None:
        programs = self._host(fault).programs
        return programs[0] if programs else None

    def _later(self, fault: FaultScript, action: Callable[..., object], *args: Any) -> None:
        self._world.loop.call_later(fault.duration_s, action, *args)

    # Programs and hosts.

    def _kill(self, fault: FaultScript) -> bool:
        host, program = self._host(fault), self._program(fault)
        if program is None:
            return False
        host.kill(program, is_host_gone=False)
        self._later(fault, host.ensure_started)
        return True

    def _host_gone(self, fault: FaultScript) -> bool:
        host, program = self._host(fault), self._program(fault)
        if program is None:
            return False
        host.kill(program, is_host_gone=True)
        self._later(fault, host.ensure_started)
        return True

    def _hang(self, fault: FaultScript) -> bool:
        program = self._program(fault)
        if program is None or program.process.is_frozen:
            return False
        program.process.freeze()
        self._later(fault, program.process.thaw)
        return True

    def _duplicate(self, fault: FaultScript) -> bool:
        """A second process with the same id; in the end one of the two goes."""
        host = self._host(fault)
        if len(host.programs) != 1:
            return False
        host.start()
        self._later(fault, self._end_duplicate, host, fault.amount % 2)
        return True

    def _end_duplicate(self, host: NodeHost, which: int) -> None:
        if len(host.programs) == 2:
            host.kill(host.programs[which], is_host_gone=False)

    def _node_drain(self, fault: FaultScript) -> bool:
        host, program = self._host(fault), self._program(fault)
        if program is None or program.is_draining:
            return False
        host.shut_down(program, limit_ms=(50, 1_000, 10_000)[fault.amount % 3])
        self._later(fault, host.ensure_started)
        return True

    def _edge_hang(self, fault: FaultScript) -> bool:
        process = self._world.edge.process
        if process.is_frozen:
            return False
        process.freeze()
        self._later(fault, process.thaw)
        return True

    def _clock_jump(self, fault: FaultScript) -> bool:
        """Every program stands still for a while, and every timer that was due in it is late."""
        clock = self._world.loop.clock
        clock.advance_to(clock.now_ns() + int(fault.duration_s * 1e9))
        return True

    # The network.

    def _half_open(self, fault: FaultScript) -> bool:
        network = self._host(fault).network
        pipes = network.open_pipes()
        network.is_cut_off = True
        for pipe in pipes:
            pipe.silence()
        self._later(fault, self._connect_again, network)
        return bool(pipes)

    def _connect_again(self, network: Any) -> None:
        network.is_cut_off = False

    def _flap(self, fault: FaultScript) -> bool:
        """The connection breaks, and breaks again soon after it is back; the sides may learn of it apart."""
        network = self._host(fault).network
        apart_s = (0.0, 0.0, 0.3, 3.0)[fault.amount % 4]
        pipes = network.open_pipes()
        for pipe in pipes:
            if fault.amount % 8 < 4:
                pipe.lose(edge_after_s=apart_s)
            else:
                pipe.lose(node_after_s=apart_s)
        if fault.amount >= 300:
            again = FaultScript(0.0, "flap", fault.target, fault.duration_s, fault.amount - 300)
            self._world.loop.call_later(fault.duration_s / 5, self._flap, again)
        return bool(pipes)

    def _ack(self, fault: FaultScript) -> bool:
        """The next session's ready ack goes astray; there is a next session at once."""
        network = self._host(fault).network
        network.next_ack = fault.kind.removeprefix("ack_")
        for pipe in network.open_pipes():
            pipe.lose()
        return True

    def _slow_link(self, fault: FaultScript) -> bool:
        network = self._host(fault).network
        lanes = network.lanes()
        for lane in lanes:
            lane.bytes_per_s = (2_000.0, 20_000.0, 200_000.0)[fault.amount % 3]
            self._later(fault, self._full_speed, lane)
        return bool(lanes)

    def _full_speed(self, lane: Any) -> None:
        lane.bytes_per_s = 0.0

    def _stall(self, fault: FaultScript) -> bool:
        """One side does not read."""
        pipes = self._host(fault).network.open_pipes()
        for pipe in pipes:
            lane = pipe.to_edge if fault.kind == "stalled_to_edge" else pipe.to_node
            lane.stall()
            self._later(fault, lane.resume)
        return bool(pipes)

    # Providers.

    def _provider_down(self, fault: FaultScript) -> bool:
        servers = list(self._world.servers.values())
        server = servers[fault.target % len(servers)]
        server.go_down()
        self._later(fault, server.come_back)
        return True

    # The configuration, in the Edge's process.

    def _restore(self) -> None:
        world = self._world
        world.config = deepcopy(world.first_config)
        if world.edge.reconfigure(world.config) not in (Status.APPLIED, Status.NO_CHANGE):
            world.fail("the first configuration is refused")

    def _reconfigure(self, fault: FaultScript) -> None:
        world = self._world
        config = deepcopy(world.config)
        providers = [provider for node in config["nodes"] for provider in node["providers"]]
        provider = providers[fault.target % len(providers)]
        amount = fault.amount
        if fault.kind == "config_capacity":
            provider["capacity"] = amount % 5
        elif fault.kind == "config_long_capacity":
            provider["long_context_capacity"] = amount % (provider["capacity"] + 1)
        elif fault.kind == "config_enabled":
            provider["enabled"] = not provider.get("enabled", True)
        elif fault.kind == "config_priority":
            provider["priority"] = amount % 7 - 3
        elif fault.kind == "config_health":
            provider["health"] = ("auto", "up", "down")[amount % 3]
        elif fault.kind == "config_queue":
            config["provider_pool"] = {
                "max_queue": (1, 2, 16)[amount % 3],
                "queue_timeout_ms": QUEUE_TIMEOUTS_MS[amount % len(QUEUE_TIMEOUTS_MS)],
            }
        elif fault.kind == "config_model_removed":
            if len(config["models"]) == 1:
                return
            del config["models"][fault.target % len(config["models"])]
        elif fault.kind == "config_restored":
            config = deepcopy(world.first_config)
        elif fault.kind == "config_refused":
            provider["label"] = f"label {amount}"  # a structural change, which takes a restart
        world.note(f"fault {fault.kind} at {provider['id']}")
        status = world.edge.reconfigure(config)
        is_refused = fault.kind == "config_refused"
        if status not in ((Status.RESTART_REQUIRED,) if is_refused else (Status.APPLIED, Status.NO_CHANGE)):
            world.fail(f"{fault.kind} ends {status.value}")
        if not is_refused:
            world.config = config
        world.count(fault.kind)
