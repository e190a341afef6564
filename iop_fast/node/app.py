"""The Node's program: builds its parts, keeps it registered, and takes it down again.

`Node` is one running Node and may stand in any process, tests included. `run_node` is the program around it: the
configuration file, the token, signals, garbage collection, exit codes.

Stop. `drain` tells the Edge, takes no new runs and gives those there are `limits.drain_ms`; `stop` ends everything at
once. Either way adapters are closed last, when no run needs them.
"""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import signal
import socket
import stat
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from random import Random, SystemRandom

import iop_fast
from iop_fast import logs, metrics
from iop_fast._core.clock import MonotonicClock
from iop_fast.config.loader import load_node
from iop_fast.config.schema import NodeConfig
from iop_fast.config.schema.fields import parse_address
from iop_fast.errors import ConfigError
from iop_fast.heap import keep_freed_memory
from iop_fast.node.adapters import Surroundings
from iop_fast.node.dial import Backoff, Dialer, OpenStream
from iop_fast.node.metric_rows import read
from iop_fast.node.observe import start_observe
from iop_fast.node.registry import Router
from iop_fast.node.relay import Relay
from iop_fast.node.session import Identity, Session, SessionLimits
from iop_fast.node.traces import RunTraces
from iop_fast.notify import ServiceManager
from iop_fast.seams import MessageStream
from iop_fast.tracing.context import Sampler
from iop_fast.tracing.program import open_export, unix_ns
from iop_fast.wire import transport
from iop_fast.wire.credentials import Trust
from iop_fast.wire.traffic import Traffic

log = logs.get(__name__)

EXIT_OK, EXIT_FAILED, EXIT_REFUSED = 0, 1, 2

NS_PER_MS = 1_000_000
TOKEN_BYTES_MAX = 4096

# What the stream's proper end may take when the Node stops; past the second limit the process ends all the same.
STREAM_END_LIMIT_S = 2.0
STOP_LIMIT_S = 10.0
# What the service manager is told that the way from the end of a drain to the end of the process may take at most.
LEAVING_S = 2 * STOP_LIMIT_S

# Thresholds of the garbage collector (allocations per young collection; collections per older one): runs leave no
# cycles, so a rare collection finds nothing, and a full one must not walk what start-up made.
GC_THRESHOLDS = (50_000, 20, 100)


class StartError(Exception):
    """The Node cannot start. The message says why, for whoever started it, and holds no secret."""


class Node:
    """One Node. `start` once, then `drain` or `stop`, on the loop that it was made on. Raises StartError."""

    def __init__(
        self,
        config: NodeConfig,
        token: str,
        *,
        environ: Mapping[str, str] | None = None,
        random: Random | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        limits = config.limits
        seeded = Random(SystemRandom().getrandbits(128)) if random is None else random
        self._config = config
        self._random = seeded
        self._loop = loop
        self._clock = MonotonicClock()
        self._identity = Identity(
            node_id=config.id,
            token=token,
            instance_id=f"{seeded.getrandbits(128):032x}",
            software=f"iop {iop_fast.__version__}",
            host=socket.gethostname(),
        )
        self._limits = SessionLimits(
            heartbeat_ns=limits.heartbeat_ms * NS_PER_MS,
            silence_ns=limits.silence_ms * NS_PER_MS,
            old_runs_ms=limits.old_runs_ms,
            pace_ns=limits.pace_ms * NS_PER_MS,
            input_bytes_max=limits.run_input_bytes_max,
        )
        self.router = Router(
            Surroundings(
                loop=loop,
                environ=os.environ if environ is None else environ,
                native_models={model.id: model for model in config.native_models},
                limits=limits,
                cli_profiles={profile.id: profile for profile in config.cli_profiles},
            )
        )
        backoff = Backoff(seeded, limits.reconnect_ms_min, limits.reconnect_ms_max)
        self.dialer = Dialer(stream_opener(config), self._make_session, backoff, loop)
        self.traffic = Traffic()
        self.traces: RunTraces | None = None
        self._lag = metrics.LoopLag(loop)
        self._exposition = metrics.Exposition("node", self._lag, partial(read, self))
        self._stack = AsyncExitStack()
        self.observe_port = 0

    @property
    def is_ready(self) -> bool:
        """True while the Edge may send runs."""
        return self.dialer.is_ready

    def checks(self) -> dict[str, bool]:
        """What readiness asks for, each with whether it is so."""
        session = self.dialer.session
        return {"session": session is not None, "session_ready": self.is_ready}

    def status_line(self) -> str:
        """Return one line for the service manager."""
        runs = sum(len(relay.runs) for relay in self.dialer.relays)
        address = self._config.edge.address
        link = f"ready at the Edge {address}" if self.is_ready else f"no session with the Edge {address} takes requests"
        return f"{link}, {runs} running"

    async def start(self) -> None:
        """Bind the listener for probes, if there is one, and begin to dial; raise StartError."""
        config = self._config
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.router.close)
            self._start_tracing(stack)
            self._lag.start()
            stack.callback(self._lag.stop)
            if config.observe is not None:
                try:
                    host, port = parse_address(config.observe.listen)
                    stop, self.observe_port = await start_observe(host, port, self, self._exposition)
                except OSError as error:
                    raise StartError(f"observe.listen: {error.strerror or error}") from None
                stack.push_async_callback(stop)
            self._stack = stack.pop_all()
        self.dialer.start()
        log.info("node_started", node=config.id, edge=config.edge.address, instance=self._identity.instance_id)

    def _start_tracing(self, stack: AsyncExitStack) -> None:
        setting = self._config.tracing
        export = open_export(setting, "iop-node", self._config.id, stack)
        if export is not None:
            sampler = Sampler(setting.sample_ratio, self._random)
            self.traces = RunTraces(export, sampler, self._config.id, self._clock, unix_ns)

    async def drain(self) -> None:
        """Tell the Edge, let runs end within `limits.drain_ms`, then stop."""
        await self.dialer.drain(self._config.limits.drain_ms)
        await self._close()

    async def stop(self) -> None:
        """End everything at once."""
        await self.dialer.stop()
        await self._close()

    async def _close(self) -> None:
        relays = self.dialer.relays
        try:
            # Stopped runs end when their adapters have let go, which takes a turn or two of the loop.
            async with asyncio.timeout(self._config.limits.old_runs_ms / 1000):
                for relay in relays:
                    idle = asyncio.Event()
                    relay.when_idle(idle.set)
                    await idle.wait()
        except TimeoutError:
            log.error("runs_left", runs=sum(len(relay.runs) for relay in relays))
        await self._stack.aclose()
        await transport.settle(STREAM_END_LIMIT_S)
        log.info("node_stopped", node=self._config.id)

    def _make_session(self, stream: MessageStream, earlier: Sequence[Relay]) -> Session:
        return Session(
            stream,
            self._identity,
            self.router,
            self._clock,
            self._loop,
            self._limits,
            earlier,
            self.traffic,
            self.traces,
        )


def stream_opener(config: NodeConfig) -> OpenStream:
    """Return what opens a stream to the Edge; raise StartError when it cannot be secured as configured.

    The files of edge.tls are read at each attempt: a certificate that was replaced is shown from the next one on.
    """
    tls, by = config.edge.tls, config.link.transport
    if tls is None:
        return partial(transport.dial, config.edge.address, transport=by, window_bytes=config.limits.window_bytes)

    read = partial(Trust, tls.ca_file, tls.cert_file, tls.key_file)
    try:
        read()
    except OSError as error:
        raise StartError(f"edge.tls: {error}") from None

    async def dial() -> MessageStream:
        try:
            trust = read()
        except OSError as error:
            raise ConnectionError(f"edge.tls: {error}") from None
        return await transport.dial(
            config.edge.address,
            trust,
            transport=by,
            server_name=tls.server_name,
            window_bytes=config.limits.window_bytes,
        )

    return dial


def read_token(config: NodeConfig, environ: Mapping[str, str]) -> str:
    """Return the Node's token from where the file says; raise StartError."""
    if config.token_env is not None:
        place = f"token_env: variable {config.token_env}"
        token = environ.get(config.token_env, "").strip()
        if not token:
            raise StartError(f"{place} is not set, expected the Node's token in it")
    else:
        assert config.token_file is not None, "the loader lets through exactly one of token_env and token_file"
        place = f"token_file: {config.token_file}"
        token = read_token_file(config.token_file)
        if not token:
            raise StartError(f"{place} is empty, expected the Node's token in it")
    if len(token) > TOKEN_BYTES_MAX or not token.isascii() or not token.isprintable() or " " in token:
        raise StartError(f"{place}: expected up to {TOKEN_BYTES_MAX} printable ASCII characters without spaces")
    return token


def read_token_file(name: str) -> str:
    """Return what stands in a token's file; raise StartError."""
    try:
        with Path(name).open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            raw = file.read(TOKEN_BYTES_MAX + 64)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise StartError(f"token_file: cannot read {name}: {reason.lower()}") from None
    if stat.S_IMODE(mode) & 0o077:
        log.warning("token_file_readable_by_others", file=name, mode=f"{stat.S_IMODE(mode):o}")
    return raw.decode("latin-1").strip()


# The program.


async def run_node(config_path: Path) -> int:
    """Run a Node until a signal ends it; return the exit code.

    0 after a stop, 1 when it cannot start or a second signal cut the drain, 2 when the configuration is refused or the
    token is missing.
    """
    try:
        loaded = load_node(config_path)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return EXIT_REFUSED
    logs.setup(loaded.config.log.level)
    for warning in loaded.warnings:
        log.warning("config_warning", finding=warning)
    try:
        token = read_token(loaded.config, os.environ)
    except StartError as error:
        print(f"iop node: {error}", file=sys.stderr)
        return EXIT_REFUSED
    raise_file_limit()
    loop = asyncio.get_running_loop()
    signals, manager = Signals(loop), ServiceManager(os.environ, loop)
    try:
        node = Node(loaded.config, token)
        await node.start()
    except StartError as error:
        print(f"iop node: {error}", file=sys.stderr)
        return EXIT_FAILED
    tune_collector()
    keep_freed_memory()
    manager.ready(node.status_line)
    await signals.first.wait()
    manager.stopping(loaded.config.limits.drain_ms / 1000 + LEAVING_S)
    code = await stop_by_signals(node, signals)
    manager.close()
    return code


class Signals:
    """SIGTERM and SIGINT as two events: the first asks to drain, the second to stop at once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: signal.Signals) -> None:
        log.info("signal", name=signal.Signals(number).name, again=self.first.is_set())
        (self.second if self.first.is_set() else self.first).set()


async def stop_by_signals(node: Node, signals: Signals) -> int:
    """Drain, or stop at once when a second signal comes; return the exit code."""
    draining = asyncio.create_task(node.drain())
    cut = asyncio.create_task(signals.second.wait())
    await asyncio.wait((draining, cut), return_when=asyncio.FIRST_COMPLETED)
    cut.cancel()
    if draining.done():
        draining.result()
        return EXIT_OK
    watchdog = threading.Timer(STOP_LIMIT_S, os._exit, (EXIT_FAILED,))
    watchdog.daemon = True
    watchdog.start()
    await node.dialer.stop()
    await draining
    watchdog.cancel()
    return EXIT_FAILED


def tune_collector() -> None:
    """Keep what start-up made out of every later collection."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def raise_file_limit() -> None:
    """Allow as many open files as the system lets this process have: each connection to a provider is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError) as error:
            log.warning("file_limit_kept", soft=soft, hard=hard, error=error)
