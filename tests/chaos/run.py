"""Chaos with real processes: `python -m tests.chaos.run --seconds 300 [--seed N] [--keep]`.

One Edge, three Nodes, four loopback providers. Every Node reaches the Edge, and every provider, through a fault proxy.
Clients ask all the time, some leave, some read slowly; meanwhile faults strike one after the other by a plan drawn from
the seed: processes are killed and stopped, lines are delayed, cut, stalled and lost, the configuration is refreshed.
Then the faults end, and everything must be as it was:

- every request ended in one way that is allowed, and every byte that came was true (`clients`);
- no provider has seen a request twice, nor more requests at once than its capacity, but by as many as the Edge counts
  as released without confirmation (`providers`);
- every counter of what runs or waits is 0, nothing that counts a bug has counted, no log holds an error;
- Edge and Nodes hold the files and tasks that they held when they were idle at first;
- every kind of fault has struck.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from copy import deepcopy
from pathlib import Path
from random import Random, SystemRandom
from typing import Any

import aiohttp

from tests.chaos.clients import Clients
from tests.chaos.providers import Provider
from tests.chaos.proxy import FaultProxy
from tests.integration.edge_harness import provider, run, until
from tests.integration.fleet import Fleet, fleet, free_ports

LINK = {"heartbeat_ms": 300, "silence_ms": 2000, "cancel_confirm_ms": 2000}
TIMEOUTS = {"connect_ms": 1000, "first_byte_ms": 3000, "idle_ms": 2000}
CAPACITY = 3
CLIENTS = 16
# Nodes by their providers.
NODES = {"n1": ("p1", "p2"), "n2": ("p3",), "n3": ("p4",)}
MODELS = {"all": ("p1", "p2", "p3", "p4"), "one": ("p1",), "two": ("p3", "p4")}

SETTLE_S = 60.0
# Files that a program may hold beyond those of its first idle moment: kept connections that are about to be closed.
FILES_SLACK = 3
TASKS_SLACK = 3
# Errors that a log may hold: a Node whose provider's connection hangs says that it waited in vain.
EXPECTED_ERRORS = ("old_runs_left",)


class Chaos:
    """One run."""

    def __init__(self, seed: int, seconds: float) -> None:
        self.random = Random(seed)
        self.seconds = seconds
        self.struck: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.providers = {name: Provider(name, CAPACITY) for names in NODES.values() for name in names}
        self.links: dict[str, FaultProxy] = {}
        self.observe_ports = dict(zip(NODES, free_ports(len(NODES)), strict=True))
        self.fleet: Fleet
        self.first_settings: dict[str, Any] = {}
        self.faults: dict[str, Callable[[float], Awaitable[None]]] = {
            "node_killed": self._kill,
            "node_stopped": self._stop,
            "link_delayed": self._delay_link,
            "link_cut": self._cut_link,
            "link_stalled": self._stall_link,
            "link_lost": self._lose_link,
            "provider_delayed": self._delay_provider,
            "provider_cut": self._cut_provider,
            "provider_stalled": self._stall_provider,
            "provider_lost": self._lose_provider,
            "refreshed": self._refresh,
            "refresh_refused": self._refuse_refresh,
        }

    async def live(self, folder: Path) -> None:
        """Start everything, let it suffer, and look at what is left."""
        for one in self.providers.values():
            await one.start()
        nodes = {
            node_id: [provider(name, CAPACITY, endpoint=self.providers[name].url, timeouts=TIMEOUTS) for name in names]
            for node_id, names in NODES.items()
        }
        models = [{"id": model, "providers": dict.fromkeys(names, "served")} for model, names in MODELS.items()]
        pool = {"max_queue": 8, "queue_timeout_ms": 3000}
        async with fleet(folder, nodes, edge={"link": LINK}, provider_pool=pool, models=models) as made:
            self.fleet = made
            self.first_settings = deepcopy(made.settings)
            for node_id in NODES:
                proxy = self.links[node_id] = FaultProxy(made.link_port)
                await proxy.start()
            await asyncio.gather(*(self._start_node(node_id) for node_id in NODES))
            for node_id in NODES:
                await until(lambda node_id=node_id: made.has_link(node_id, "ready"), f"{node_id} is ready")
            before = await self._held()
            clients = Clients(made.base_url, Random(self.random.getrandbits(64)), CLIENTS)
            clients.start()
            await self._suffer()
            await self._end_faults()
            await clients.stop()
            self.wrong += clients.wrong
            await self._settle(before)
            await self._judge(folder)
            self._report(clients, before, await self._held())
        for proxy in self.links.values():
            await proxy.stop()
        for one in self.providers.values():
            await one.stop()

    async def _start_node(self, node_id: str) -> None:
        await self.fleet.start_node(
            node_id,
            ready=False,
            edge={"address": f"127.0.0.1:{self.links[node_id].port}"},
            limits={"heartbeat_ms": 300, "silence_ms": 2000, "old_runs_ms": 3000},
            observe={"listen": f"127.0.0.1:{self.observe_ports[node_id]}"},
        )

    # Faults.

    async def _suffer(self) -> None:
        """Strike until the time is up: every kind in a row of its own order, and again; several may be in force."""
        ends_at = time.monotonic() + self.seconds
        under_way: list[asyncio.Task[None]] = []
        pause_s = min(2.0, self.seconds / (len(self.faults) + 3))
        while time.monotonic() < ends_at:
            kinds = list(self.faults)
            self.random.shuffle(kinds)
            for kind in kinds:
                under_way.append(asyncio.create_task(self._strike(kind, self.random.choice((0.2, 1.0, 3.0, 5.0)))))
                await asyncio.sleep(pause_s * self.random.uniform(0.5, 1.5))
                if time.monotonic() >= ends_at and all(self.struck[name] for name in self.faults):
                    break
        await asyncio.gather(*under_way)

    async def _strike(self, kind: str, duration_s: float) -> None:
        self.struck[kind] += 1
        await self.faults[kind](duration_s)

    def _any_node(self) -> str:
        return self.random.choice(list(NODES))

    def _any_link(self) -> FaultProxy:
        return self.links[self._any_node()]

    def _any_provider(self) -> FaultProxy:
        return self.random.choice(list(self.providers.values())).proxy

    async def _kill(self, duration_s: float) -> None:
        node_id = self._any_node()
        process = self.fleet.nodes.pop(node_id, None)
        if process is None:  # another one that is killed is not back yet
            return
        await process.kill()
        await asyncio.sleep(duration_s / 3)
        await self._start_node(node_id)

    async def _stop(self, duration_s: float) -> None:
        process = self.fleet.nodes.get(self._any_node())
        if process is None or process.running.returncode is not None:
            return
        process.signal(signal.SIGSTOP)
        await asyncio.sleep(duration_s)
        if process.running.returncode is None:
            process.signal(signal.SIGCONT)

    async def _delay(self, proxy: FaultProxy, duration_s: float) -> None:
        proxy.delay_s = self.random.choice((0.01, 0.1, 0.4))
        await asyncio.sleep(duration_s)
        proxy.delay_s = 0.0

    async def _stall(self, proxy: FaultProxy, duration_s: float) -> None:
        proxy.stall()
        await asyncio.sleep(duration_s)
        proxy.resume()

    async def _lose(self, proxy: FaultProxy, duration_s: float) -> None:
        proxy.lose()
        await asyncio.sleep(duration_s)
        proxy.find()

    async def _delay_link(self, duration_s: float) -> None:
        await self._delay(self._any_link(), duration_s)

    async def _cut_link(self, duration_s: float) -> None:
        self._any_link().cut()

    async def _stall_link(self, duration_s: float) -> None:
        await self._stall(self._any_link(), duration_s)

    async def _lose_link(self, duration_s: float) -> None:
        await self._lose(self._any_link(), duration_s)

    async def _delay_provider(self, duration_s: float) -> None:
        await self._delay(self._any_provider(), duration_s)

    async def _cut_provider(self, duration_s: float) -> None:
        self._any_provider().cut()

    async def _stall_provider(self, duration_s: float) -> None:
        await self._stall(self._any_provider(), duration_s)

    async def _lose_provider(self, duration_s: float) -> None:
        await self._lose(self._any_provider(), duration_s)

    # Refreshes.

    async def _refresh(self, duration_s: float) -> None:
        """Change what may change while the Edge runs."""
        settings = deepcopy(self.fleet.settings)
        entry = self.random.choice([entry for node in settings["nodes"] for entry in node["providers"]])
        key = self.random.choice(("capacity", "priority", "enabled", "pool"))
        if key == "capacity":
            entry["capacity"] = self.random.randint(1, 2 * CAPACITY)
        elif key == "priority":
            entry["priority"] = self.random.randint(-1, 1)
        elif key == "enabled":
            entry["enabled"] = not entry.get("enabled", True)
        else:
            settings["provider_pool"]["max_queue"] = self.random.randint(1, 16)
        await self._apply(settings, 200)

    async def _refuse_refresh(self, duration_s: float) -> None:
        """Ask for what takes a restart."""
        settings = deepcopy(self.fleet.settings)
        settings["edge"]["link"]["pace_ms"] = self.random.randint(3, 1000)
        running = self.fleet.settings
        await self._apply(settings, 409)
        self.fleet.settings = running
        self.fleet.write_settings()

    async def _apply(self, settings: dict[str, Any], expected: int) -> None:
        self.fleet.settings = settings
        self.fleet.write_settings()
        self._note_capacities(settings)
        url = f"http://127.0.0.1:{self.fleet.admin_port}/refresh"
        async with self.fleet.client.post(url, json={"mode": "apply"}) as answer:
            text = await answer.text()
            if answer.status != expected:
                self.wrong.append(f"a refresh was answered by {answer.status}, expected {expected}: {text[:500]}")
        self._note_capacities(settings)

    def _note_capacities(self, settings: dict[str, Any]) -> None:
        for node in settings["nodes"]:
            for entry in node["providers"]:
                self.providers[entry["id"]].configure(entry["capacity"])

    # The end.

    async def _end_faults(self) -> None:
        for proxy in [*self.links.values(), *(one.proxy for one in self.providers.values())]:
            proxy.delay_s = 0.0
            proxy.find()
            proxy.resume()
        for process in self.fleet.nodes.values():
            process.signal(signal.SIGCONT)
        await self._apply(deepcopy(self.first_settings), 200)

    async def _held(self) -> dict[str, tuple[int, int]]:
        """Files and tasks of each program."""
        assert self.fleet.edge is not None
        held = {"edge": (self.fleet.edge.open_files, (await self.fleet.status())["tasks"])}
        for node_id, port in self.observe_ports.items():
            async with self.fleet.client.get(f"http://127.0.0.1:{port}/metrics") as answer:
                lines = (await answer.text()).splitlines()
            tasks = next(int(float(line.split()[1])) for line in lines if line.startswith("iop_node_tasks "))
            held[node_id] = (self.fleet.nodes[node_id].open_files, tasks)
        return held

    async def _settle(self, before: dict[str, tuple[int, int]]) -> None:
        """Wait for the first state to be back; what is not back in time is a fault."""
        waiting_for = "everything"

        async def is_back() -> bool:
            nonlocal waiting_for
            status = await self.fleet.status()
            away = [
                node["node_id"] for node in status["nodes"] if node["link"] != "ready" or node["payload"]["pending"]
            ]
            busy = [row["provider_id"] for row in status["providers"] if any(list(row["effective"].values())[2:])]
            ill = [row["provider_id"] for row in status["providers"] if not row["health"]["healthy"]]
            working = [one.id for one in self.providers.values() if one.running]
            buffered = status["http"]["buffered_bytes"]
            waiting_for = f"away {away}, busy {busy}, ill {ill}, at work {working}, buffered {buffered}"
            if away or busy or ill or working or buffered or status["queue"]["waiting"]:
                return False
            held = await self._held()
            waiting_for = f"held {held}, at first {before}"
            return all(
                held[name][0] <= before[name][0] + FILES_SLACK and held[name][1] <= before[name][1] + TASKS_SLACK
                for name in before
            )

        ends_at = time.monotonic() + SETTLE_S
        while True:
            try:
                if await is_back():
                    return
            except aiohttp.ClientError as error:
                waiting_for = f"{type(error).__name__} {error}"
            if time.monotonic() > ends_at:
                self.wrong.append(f"not as it was within {SETTLE_S:g} s: {waiting_for}")
                return
            await asyncio.sleep(0.2)

    async def _judge(self, folder: Path) -> None:
        status = await self.fleet.status()
        counters = status["counters"]
        bugs = {
            **{name: counters["admission"][name] for name in ("double_release", "reclaimed", "callback_failed")},
            **{name: counters["requests"].get(name, 0) for name in ("broken", "internal")},
            **{name: counters["links"][name] for name in ("malformed", "runs_reclaimed", "runs_failed")},
            "http internal errors": counters["http"]["internal_errors"],
        }
        self.wrong += [f"{name} counts {count}" for name, count in bugs.items() if count]
        unconfirmed = counters["requests"].get("released_unconfirmed", 0)
        for one in self.providers.values():
            if one.worst_excess > unconfirmed:
                self.wrong.append(f"{one.id} ran {one.worst_excess} above its capacity, {unconfirmed} are excused")
        seen = sum((one.seen for one in self.providers.values()), Counter())
        self.wrong += [f"{name} was seen {count} times" for name, count in seen.items() if count > 1]
        self.wrong += [f"{kind} has never struck" for kind in self.faults if not self.struck[kind]]
        for process in self.fleet.started:
            self.wrong += [f"{process.log.name}: {line}" for line in errors_in(process.log)]

    def _report(self, clients: Clients, before: dict[str, Any], after: dict[str, Any]) -> None:
        assert self.fleet.edge is not None
        print("faults  ", ", ".join(f"{name} {count}" for name, count in sorted(self.struck.items())))
        print("requests", ", ".join(f"{name} {count}" for name, count in clients.outcomes.most_common()))
        excess = ", ".join(f"{one.id} {max(one.worst_excess, 0)}" for one in self.providers.values())
        print(f"at once above capacity: {excess}")
        print(f"files and tasks at first {before}, at the end {after}; Edge {self.fleet.edge.resident_kib // 1024} MiB")


def errors_in(log: Path) -> list[str]:
    """Lines of a log that say that something is broken."""
    found = []
    for line in log.read_text(errors="replace").splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            found.append(line[:300])  # programs write JSON lines alone: a traceback, or a library that complains
            continue
        if entry.get("level") == "error" and entry.get("event") not in EXPECTED_ERRORS:
            found.append(line[:1000])
    return found


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Chaos with real processes.")
    parser.add_argument("--seconds", type=float, default=300, help="how long faults strike")
    parser.add_argument("--seed", type=int, help="of the plan; drawn without it")
    parser.add_argument("--keep", action="store_true", help="keep files and logs")
    options = parser.parse_args()
    seed = SystemRandom().getrandbits(32) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    chaos = Chaos(seed, options.seconds)
    run(chaos.live(folder))
    is_kept = options.keep or bool(chaos.wrong)
    if not is_kept:
        shutil.rmtree(folder)
    for what in chaos.wrong[:50]:
        print(f"WRONG {what}", file=sys.stderr)
    if is_kept:
        print(f"logs in {folder}")
    print(f"{len(chaos.wrong)} wrong" if chaos.wrong else "all in order")
    return bool(chaos.wrong)


if __name__ == "__main__":
    sys.exit(main())
