"""The bench: subjects that are alive at once, and one slot of load on one of them.

Subjects take turns in short slots (A B C, A B C, ...), so that a machine that slows down slows all of them; the figure
of a subject is the median of its slots. Connections are opened, and the load begun, before a slot is measured.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks.load import proc
from benchmarks.load.clients import ClosedLoad, FreshLoad, Load, OfferedLoad, StreamLoad
from benchmarks.load.figures import Slot, histogram_of, lateness_share, medians, percentile, spreads
from benchmarks.load.fleet import Fleet, start_edge
from benchmarks.load.pacing import now_ns
from benchmarks.load.peers import start_litellm, start_portkey
from benchmarks.load.proxies import start_haproxy, start_nginx
from benchmarks.load.subjects import CORES, OTHER_CORES, SUBJECT_CORE, Absent, Subject, Target, start_upstream

NAMES = ("direct", "haproxy-bare", "haproxy-same-work", "nginx", "litellm", "portkey", "edge")
SETTLE_S = 0.3
# How long a slot is where a scenario has no reason for another length.
SLOT_S = 1.2
WARM_SHARE = 0.4
LAG = "iop_loop_lag_seconds"

Starter = Callable[[Path, int], Subject]
STARTERS: dict[str, Starter] = {
    "haproxy-bare": partial(start_haproxy, same_work=False),
    "haproxy-same-work": partial(start_haproxy, same_work=True),
    "nginx": start_nginx,
    "litellm": start_litellm,
    "portkey": start_portkey,
    "edge": start_edge,
    "edge-library-node": partial(start_edge, name="edge-library-node", node_module="benchmarks.load.library_node"),
    "edge-grpcio": partial(start_edge, name="edge-grpcio", transport="grpcio"),
}

Slots = dict[str, list[Slot]]


@dataclass
class Result:
    """What one scenario came to: figures by subject, and why some have none."""

    title: str
    unit: str
    subjects: dict[str, Slot] = field(default_factory=dict)
    ranges: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    def take(self, slots: Slots) -> None:
        """Reduce slots to medians and ranges."""
        for name, rows in slots.items():
            if rows:
                self.subjects[name], self.ranges[name] = medians(rows), spreads(rows)


@dataclass(frozen=True)
class Plan:
    """How long and how often; None is what each scenario has of its own."""

    rounds: int | None
    seconds: float | None
    soak_minutes: float


class Bench:
    """The subjects that are up, and the upstream behind them."""

    def __init__(self, folder: Path, plan: Plan, spinning: list[int]) -> None:
        self.folder = folder
        self.plan = plan
        self.spinning = spinning
        self.rounds = 1
        self.warming = False
        self.is_together = False
        self.subjects: dict[str, Subject] = {}
        self.absent: dict[str, str] = {}
        self.upstream = start_upstream(folder)

    @property
    def fleet(self) -> Fleet:
        """Edge and Node."""
        edge = self.subjects["edge"]
        assert isinstance(edge, Fleet)
        return edge

    async def start(self, names: list[str]) -> None:
        """Start what was asked for; what cannot be had is noted."""
        for name in names:
            await asyncio.sleep(0)  # a run that is to end does so here
            if name == "direct":
                self.subjects[name] = self.upstream
                continue
            try:
                self.subjects[name] = STARTERS[name](self.folder, self.upstream.wide.port)
            except Absent as why:
                self.absent[name] = str(why)
                print(f"{name}: absent: {why}", flush=True)

    @contextmanager
    def calm(self) -> Iterator[None]:
        """Let the spinners rest: right for latency, wrong for CPU."""
        for pid in self.spinning:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in self.spinning:
                os.kill(pid, signal.SIGCONT)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Let Edge and Node share the measured core: what both carry on one, and room for the client on the other."""
        self.is_together = True
        try:
            self._move_nodes(SUBJECT_CORE)
            yield
        finally:
            self.is_together = False
            self._move_nodes(OTHER_CORES)

    def _move_nodes(self, cores: set[int]) -> None:
        for subject in self.subjects.values():
            for pid in subject.pids("node"):
                proc.move(pid, cores)

    def dead(self) -> list[str]:
        """What has ended by itself."""
        return [line for subject in self.subjects.values() for line in subject.dead()]

    def stop(self) -> None:
        """End everything."""
        for subject in (*self.subjects.values(), self.upstream):
            subject.stop()

    def length(self, seconds: float) -> float:
        """How long a slot of `seconds` is to be: what the plan says, if anything; a turn that warms up is short."""
        planned = self.plan.seconds or seconds
        return planned * WARM_SHARE if self.warming else planned

    async def turns(self, names: list[str], slot: Callable[[Subject], Awaitable[Slot]], result: Result) -> None:
        """Let the subjects of these names take turns; one turn before the rounds warms up and does not count."""
        chosen = [self.subjects[name] for name in names if name in self.subjects]
        slots: Slots = {subject.name: [] for subject in chosen}
        for number in range(self.rounds + 1):
            self.warming = number == 0
            for subject in chosen:
                if subject.name in result.missing:
                    continue
                try:
                    figures = await slot(subject)
                except (OSError, TimeoutError, Unmeasured) as why:
                    if not (self.warming and isinstance(why, Unmeasured)):
                        result.missing[subject.name] = f"{type(why).__name__}: {why}"
                    continue
                if not self.warming:
                    slots[subject.name].append(figures)
        result.take(slots)


class Unmeasured(Exception):
    """A slot gave nothing to count."""


@contextmanager
def quiet_collector() -> Iterator[None]:
    """No collection of the client's garbage while it measures."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def measured(bench: Bench, subject: Subject, load: Load, seconds: float, unit: str) -> Slot:
    """Put one load on a subject for `bench.length(seconds)` and read what it cost (benchmarks/README.md)."""
    with quiet_collector():
        await asyncio.wait_for(load.open(), 30)
        try:
            await load.start()
            await asyncio.sleep(SETTLE_S)
            load.tally.reset()
            gauge = Gauge(bench, subject)
            await asyncio.sleep(bench.length(seconds))
            slot = gauge.read(load, unit)
        finally:
            await load.close()
    return slot


class Gauge:
    """Reads clocks and CPU times at the begin and the end of a window."""

    def __init__(self, bench: Bench, subject: Subject) -> None:
        self._subject = subject
        self._upstream = bench.upstream
        self._lag = lag_of(subject)
        self._cpu = subject.cpu_ns()
        self._upstream_cpu = self._upstream.cpu_ns()["upstream"]
        self._own = time.process_time_ns()
        self._spinning = bench.spinning
        self._is_together = bench.is_together
        self._spun = self._spun_ns()
        self._machine = proc.machine_ns()
        self._at = now_ns()

    def _spun_ns(self) -> int:
        return sum(map(proc.cpu_ns, self._spinning))

    def read(self, load: Load, unit: str) -> Slot:
        """End the window."""
        tally = load.tally
        wall = now_ns() - self._at
        own = time.process_time_ns() - self._own
        spun = self._spun_ns() - self._spun
        busy, stolen = (after - before for after, before in zip(proc.machine_ns(), self._machine, strict=True))
        cpu = {role: value - self._cpu[role] for role, value in self._subject.cpu_ns().items()}
        upstream = self._upstream.cpu_ns()["upstream"] - self._upstream_cpu
        slot: Slot = {"unfinished": float(load.settle())} if isinstance(load, OfferedLoad) else {}
        units = tally.chunks if unit == "chunk" else tally.statuses.total()
        if not units:
            raise Unmeasured(f"no {unit} in {wall / 1e9:.1f} s, {tally.lost} connections lost")
        gateway, node = cpu.get("gateway", 0), cpu.get("node", 0)
        slot |= {"cpu_us_client": own / units / 1000, "cpu_us_upstream": upstream / units / 1000}
        if gateway:
            beside = node if self._is_together else 0
            slot |= {"cpu_us_gateway": gateway / units / 1000, "busy_gateway": (gateway + beside) / wall}
        if node:
            slot |= {"cpu_us_node": node / units / 1000, "cpu_us_sum": (gateway + node) / units / 1000}
        ours = gateway + node + own + upstream + spun
        slot |= {"others": max(0, busy - ours) / wall, "stolen": stolen / wall}
        elsewhere = 0 if self._is_together else node
        slot |= {"busy_rest": (own + upstream + elsewhere) / wall, "per_s": units / wall * 1e9}
        slot |= {"errors": float(tally.errors), "answers_per_s": tally.answers / wall * 1e9}
        slot |= times("", tally.gaps if unit == "chunk" else tally.latencies)
        if unit == "chunk":
            slot |= times("delay_", tally.delays)
        after = lag_of(self._subject)
        if after:
            slot["lag_max_ms"] = lateness_share(self._lag, after, 1.0) * 1000
        return slot


def times(prefix: str, values: object) -> Slot:
    """Percentiles of times in ms."""
    taken = list(values)  # type: ignore[call-overload]
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    return {f"{prefix}{name}_ms": percentile(taken, share) / 1e6 for name, share in shares.items()}


def lag_of(subject: Subject) -> dict[float, float]:
    """The histogram of the Edge's loop lag; nothing for others."""
    return histogram_of(subject.metrics(), LAG) if isinstance(subject, Fleet) else {}


def closed(target: Target, connections: int, **how: int | bool) -> Load:
    """A closed loop."""
    return ClosedLoad(target.port, connections, target.requests(**how))


def fresh(target: Target, connections: int) -> Load:
    """A connection for each request."""
    return FreshLoad(target.port, connections, target.requests(keep_alive=False))


def offered(target: Target, connections: int, per_s: float, **how: int | bool) -> OfferedLoad:
    """Requests by a schedule."""
    return OfferedLoad(target.port, connections, target.requests(**how), per_s)


def streams(target: Target, connections: int, **how: int | bool) -> Load:
    """Streams without end."""
    return StreamLoad(target.port, connections, target.requests(streamed=True, **how))


@contextmanager
def spinners() -> Iterator[list[int]]:
    """Keep every core awake at idle priority: else a halted virtual CPU's wake-ups are billed to the subject."""
    code = "import os\nos.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\nwhile True: pass"
    running: list[subprocess.Popen[bytes]] = []
    try:
        for core in CORES:
            running.append(proc.start([sys.executable, "-c", code], {core}, ends_by=signal.SIGKILL))
        yield [process.pid for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()


@contextmanager
def log_sink(folder: Path) -> Iterator[None]:
    """A datagram socket that takes HAProxy's log lines and throws them away."""
    sink = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sink.bind(str(folder / "log.sock"))
    sink.setblocking(False)
    loop = asyncio.get_running_loop()
    loop.add_reader(sink, sink.recv, 65536)
    try:
        yield
    finally:
        loop.remove_reader(sink)
        sink.close()


@asynccontextmanager
async def opened(names: list[str], plan: Plan) -> AsyncIterator[Bench]:
    """A bench with these subjects up, ended with everything it has started."""
    with ExitStack() as stack:
        spinning = stack.enter_context(spinners())
        os.sched_setaffinity(0, OTHER_CORES)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="iop-bench-")))
        stack.enter_context(log_sink(folder))
        bench = Bench(folder, plan, spinning)
        stack.callback(bench.stop)
        await bench.start(names)
        yield bench


def machine() -> dict[str, object]:
    """What the figures were taken on."""
    pretty = [line for line in Path("/etc/os-release").read_text().splitlines() if line.startswith("PRETTY_NAME=")]
    uname = os.uname()
    return {
        "processor": proc.cpu_model(),
        "cores": len(CORES),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": pretty[0].partition("=")[2].strip('"') if pretty else uname.sysname,
        "kernel": uname.release,
        "load_before": [round(value, 1) for value in os.getloadavg()],
    }
