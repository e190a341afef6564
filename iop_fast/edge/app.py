"""The Edge's program: builds its parts, binds its listeners, and takes them down again.

`Edge` is one running Edge and may stand in any process, tests included. `run_edge` is the program around it: the
configuration file, signals, garbage collection, exit codes.

Start. Listeners are bound in this order, so that clients can connect only when everything behind the front is there:
link, admin, observe, front. What is bound is taken down again when a later one fails.

Stop. `drain` first: readiness false, then, after the delay that load balancers may need, new requests refused and
waiting ones ended with 503 `draining`, the Nodes told; running answers get their limit. Then `stop`, which takes
everything down in the reverse order of the start and waits for nothing that another side decides.
"""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from random import Random, SystemRandom
from typing import Any, TypeVar

from iop_fast import logs, metrics
from iop_fast._core.clock import MonotonicClock
from iop_fast.config.catalog import build_catalog
from iop_fast.config.loader import Loaded, load_edge
from iop_fast.config.payload import compile_payloads
from iop_fast.config.schema import EdgeConfig, ServerTls
from iop_fast.config.schema.fields import parse_address
from iop_fast.edge.admin import Readiness, add_document, admin_app, observe_app
from iop_fast.edge.admin_openapi import admin_document
from iop_fast.edge.ages import Ticker
from iop_fast.edge.dashboard_http import add_dashboard
from iop_fast.edge.disk import DiskFile
from iop_fast.edge.feed import Feed, Parts, add_feed
from iop_fast.edge.front.listener import Front
from iop_fast.edge.gate import Gate
from iop_fast.edge.lines import open_books
from iop_fast.edge.links import LinkLimits, Links
from iop_fast.edge.log_levels_http import add_logs
from iop_fast.edge.metric_rows import MetricSources, read
from iop_fast.edge.open_files import OpenFiles
from iop_fast.edge.openapi import document
from iop_fast.edge.refresh import Refresher
from iop_fast.edge.refresh_http import add_refresh
from iop_fast.edge.registration import Registrar
from iop_fast.edge.runtime import Runtime
from iop_fast.edge.service import EdgeService
from iop_fast.edge.sites import UNIX, Site
from iop_fast.edge.state import EdgeState
from iop_fast.edge.status import Sources, edge_status
from iop_fast.edge.status_line import status_line
from iop_fast.edge.tls import CertificateWatch, check_pair, http_context
from iop_fast.edge.traces import RequestTraces
from iop_fast.edge.views_http import add_views
from iop_fast.errors import ConfigError
from iop_fast.heap import keep_freed_memory
from iop_fast.notify import ServiceManager
from iop_fast.tracing.context import Sampler
from iop_fast.tracing.program import open_export, unix_ns
from iop_fast.wire import transport
from iop_fast.wire.credentials import ServerIdentity
from iop_fast.wire.ends import CROWDED

T = TypeVar("T")

log = logs.get(__name__)

EXIT_OK, EXIT_FAILED, EXIT_REFUSED = 0, 1, 2

# How often a drain looks whether the last run has ended.
DRAIN_LOOK_S = 0.05
# What calls of Nodes get to end when the Edge stops; they have been told and closed before.
LINK_GRACE_S = 0.2
# Stopping waits for nothing that another side decides, so it takes no time; past this the process ends all the same.
STOP_LIMIT_S = 10.0
# What the service manager is told that the way from the end of a drain to the end of the process may take at most.
LEAVING_S = 2 * STOP_LIMIT_S

# Thresholds of the garbage collector (allocations per young collection; collections per older one): requests leave no
# cycles, so a rare collection finds nothing, and a full one must not walk what start-up made.
GC_THRESHOLDS = (50_000, 20, 100)


class StartError(Exception):
    """The Edge cannot start. The message says why, for whoever started it."""


class Edge:
    """One Edge. `start` and `stop` are called once each, on the loop that it runs on."""

    def __init__(self, loaded: Loaded[EdgeConfig], random: Random | None = None) -> None:
        config = loaded.config
        self._loaded = loaded
        self._loop = asyncio.get_running_loop()
        self._clock = MonotonicClock()
        runtime = Runtime.build(config, build_catalog(config), compile_payloads(config), file_sha256=loaded.sha256)
        self.links = Links(LinkLimits.of(config.edge.link))
        self.gate = Gate(runtime.plan(self.links.is_reported_up), self._clock, self._loop)
        seeded = Random(SystemRandom().getrandbits(128)) if random is None else random
        self._random = seeded
        self.state = EdgeState(runtime, self.gate, self.links, self._clock, seeded)
        self.readiness = Readiness(self.state, self.links, self._clock)
        self._registrar = Registrar(self.state, self.links, self._loop)
        self._ticker = Ticker(self._clock, self._loop)
        self._ticker.register(self.state.cancelling.sweep)
        self._ticker.register(OpenFiles().look)
        if self.state.quiet is not None:
            self._ticker.register(self.state.quiet.sweep)
        service = EdgeService(self.state)
        self.front = Front(
            service,
            config.openai.limits,
            self._clock,
            self._loop,
            render=service.render,
            ticker=self._ticker,
        )
        self.refresher = Refresher(self.state, self.links, loaded.path, self._loop)
        self._lag = metrics.LoopLag(self._loop)
        measured = MetricSources(self.state, self.links, self.front, self.refresher, self.readiness)
        self._exposition = metrics.Exposition("edge", self._lag, partial(read, measured))
        self._feed = Feed(Parts(measured, loaded.path), self._loop)
        self._disk = DiskFile(loaded.path)
        self._disk_turn = asyncio.Lock()
        self._sources = Sources(self.state, self.links, self.front, loaded.path, self._clock.now_ns())
        self._admin: Site | None = None
        self._link_server: transport.LinkServer | None = None
        self._was_crowded = False
        self._stack = AsyncExitStack()

    # Where it listens.

    @property
    def http_port(self) -> int:
        """Port of the OpenAI-compatible listener."""
        return self.front.port

    @property
    def link_port(self) -> int:
        """Port that Nodes dial."""
        assert self._link_server is not None
        return self._link_server.port

    @property
    def admin_port(self) -> int:
        """Port of the admin listener, 0 when it is a unix socket."""
        assert self._admin is not None
        return self._admin.port

    @property
    def admin_paths(self) -> set[tuple[str, str]]:
        """Method and path of everything that the admin listener serves."""
        assert self._admin is not None
        return self._admin.paths

    def status(self) -> dict[str, Any]:
        """Return the snapshot for operators; see `status`."""
        assert self._link_server is not None
        server = self._link_server
        calls = {
            "abandoned": server.abandoned,
            "abandoned_pending": server.abandoned_pending,
            "strangers_cut": server.strangers_cut,
        }
        return {**edge_status(self._sources), "link_calls": calls, "tasks": len(asyncio.all_tasks())}

    def status_line(self) -> str:
        """Return one line for the service manager."""
        return status_line(self.state, self.links, self.refresher)

    async def _status_with_disk(self) -> dict[str, Any]:
        """Return the snapshot, and whether the file on disk is still the one that runs."""
        async with self._disk_turn:
            sha256, error = await asyncio.to_thread(self._disk.look)
        status = self.status()
        differs = None if error else sha256 != status["config"]["file_sha256"]
        status["config"]["disk"] = {"differs": differs, "file_sha256": sha256, "error": error}
        return status

    # Start.

    async def start(self) -> None:
        """Bind every listener; raise StartError, with nothing left running, when one cannot be had."""
        config = self._loaded.config
        async with AsyncExitStack() as stack:
            stack.callback(self.gate.close)
            self._ticker.start()
            stack.callback(self._ticker.stop)
            self._lag.start()
            stack.callback(self._lag.stop)
            try:
                open_books(self.state.books, config, self._ticker, stack)
                self._start_tracing(config, stack)
                await self._start_link(config, stack)
                await self._start_sites(config, stack)
                await self._start_front(config, stack)
            except OSError as error:
                raise StartError(error.strerror or str(error)) from None
            self._stack = stack.pop_all()
        self.readiness.note_listening()
        log.info(
            "edge_started",
            edge=config.edge.id,
            http=config.openai.listen,
            http_port=self.http_port,
            link=config.edge.listen,
            link_port=self.link_port,
            admin=config.admin.listen,
            revision=self.state.runtime.revision,
            file_sha256=self._loaded.sha256,
        )

    def _start_tracing(self, config: EdgeConfig, stack: AsyncExitStack) -> None:
        export = open_export(config.tracing, "iop-edge", config.edge.id, stack)
        if export is not None:
            scheme = "http" if config.openai.tls is None else "https"
            sampler = Sampler(config.tracing.sample_ratio, self._random)
            self.state.books.traces = RequestTraces(export, sampler, scheme, unix_ns)

    async def _start_link(self, config: EdgeConfig, stack: AsyncExitStack) -> None:
        identity = None
        if config.edge.tls is not None:
            identity = self._use_certificate("edge.tls", config.edge.tls, server_identity)
            watch = CertificateWatch("edge.tls", config.edge.tls, identity.reload)
            self._ticker.register(watch.look)
        self._link_server = await transport.serve(
            config.edge.listen,
            self._serve_node,
            transport=config.edge.link.transport,
            identity=identity,
            window_bytes=config.edge.link.window_bytes,
            on_refused=self._note_refused,
        )
        stack.push_async_callback(self._link_server.stop, LINK_GRACE_S)
        stack.callback(self.links.close_all, "the Edge stops")

    def _note_refused(self, peer: str, reason: str) -> None:
        """Log a connection to the link's listener that came to nothing. Anybody can make one, so it is no warning; that
        they crowd each other out is, once: `link_calls.strangers_cut` in the status counts on."""
        if reason == CROWDED and not self._was_crowded:
            self._was_crowded = True
            log.warning("link_crowded", peer=peer, reason=reason)
        else:
            log.debug("link_connection_refused", peer=peer, reason=reason)

    async def _serve_node(self, stream: transport.EdgeStream, address: str) -> None:
        await self._registrar.serve(stream, address, stream.peer_names, stream.on_registered)

    async def _start_sites(self, config: EdgeConfig, stack: AsyncExitStack) -> None:
        listen = config.admin.listen
        own_hosts = frozenset() if listen.startswith(UNIX) else frozenset({parse_address(listen)[0].lower()})
        app = admin_app(self.readiness, self._status_with_disk, own_hosts)
        metrics.add_metrics(app, self._exposition)
        add_refresh(app, self.refresher)
        add_views(app, self.state, self.links)
        add_feed(app, self._feed)
        add_dashboard(app)
        add_logs(app)
        add_document(app, "/openapi.json", partial(document, config.openai.listen))
        add_document(app, "/openapi-admin.json", admin_document)
        stack.push_async_callback(self.refresher.stop)
        self._admin = Site(app)
        await self._admin.start(listen)
        stack.push_async_callback(self._admin.stop)
        stack.push_async_callback(self._feed.stop)
        if config.observe is not None:
            public = observe_app(self.readiness)
            metrics.add_metrics(public, self._exposition)
            observe = Site(public)
            await observe.start(config.observe.listen)
            stack.push_async_callback(observe.stop)

    async def _start_front(self, config: EdgeConfig, stack: AsyncExitStack) -> None:
        context, tls = None, config.openai.tls
        if tls is not None:
            context = self._use_certificate("openai.tls", tls, http_context)
            watch = CertificateWatch("openai.tls", tls, lambda: self.front.renew_tls(http_context(tls)))
            self._ticker.register(watch.look)
        await self.front.start(*parse_address(config.openai.listen), tls=context)
        stack.callback(self.front.close)

    @staticmethod
    def _use_certificate(section: str, tls: ServerTls, read: Callable[[ServerTls], T]) -> T:
        """Read a listener's certificate, or say why it cannot be used."""
        try:
            check_pair(tls)
            return read(tls)
        except OSError as error:
            raise StartError(f"{section}: cannot use {tls.cert_file} and {tls.key_file}: {error}") from None

    # Stop.

    async def drain(self) -> None:
        """Say for `openai.limits.drain_delay_ms` that this Edge is not ready, then stop taking requests and let running
        answers end, within `drain_ms`."""
        config = self._loaded.config
        limit_ms, delay_ms = config.openai.limits.drain_ms, config.openai.limits.drain_delay_ms
        if delay_ms:
            self.readiness.note_leaving()
            log.info("edge_leaving", delay_ms=delay_ms)
            await asyncio.sleep(delay_ms / 1000)
        log.info("edge_draining", runs=self.links.run_count, waiting=self.gate.waiting, limit_ms=limit_ms)
        deadline = self._loop.time() + limit_ms / 1000
        self.state.start_draining()
        if self._link_server is not None:
            self._link_server.health.set_serving(False)
        self.front.drain()
        self.front.close_idle()
        self.links.say_draining(config.edge.link.reconnect_after_ms, limit_ms)
        while self.links.run_count and self._loop.time() < deadline:  # noqa: ASYNC110 - see the next line
            await asyncio.sleep(DRAIN_LOOK_S)  # the dispatch takes ended runs out of their table without a word
        self.front.stop_accepting()
        self.front.close_idle()
        try:
            async with asyncio.timeout_at(deadline):
                await self.front.wait_empty()
        except TimeoutError:
            log.warning("drain_limit_reached", runs=self.links.run_count, connections=self.front.connections)

    async def stop(self) -> None:
        """Take everything down at once; what still runs is cut."""
        await self._stack.aclose()
        await transport.settle(LINK_GRACE_S)
        log.info("edge_stopped", edge=self._loaded.config.edge.id)


def server_identity(tls: ServerTls) -> ServerIdentity:
    """Read the link's certificate."""
    return ServerIdentity(tls.cert_file, tls.key_file, tls.client_ca_file)


# The program.


async def run_edge(config_path: Path) -> int:
    """Run an Edge until a signal ends it; return the exit code.

    0 after a stop, 1 when it cannot start or a second signal cut the drain, 2 when the configuration is refused.
    """
    try:
        loaded = load_edge(config_path)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return EXIT_REFUSED
    logs.setup(loaded.config.edge.log.level)
    for warning in loaded.warnings:
        log.warning("config_warning", finding=warning)
    raise_file_limit()
    loop = asyncio.get_running_loop()
    signals, manager = Signals(loop), ServiceManager(os.environ, loop)
    edge = Edge(loaded)
    try:
        await edge.start()
    except StartError as error:
        print(f"iop edge: {error}", file=sys.stderr)
        return EXIT_FAILED
    tune_collector()
    keep_freed_memory()
    manager.ready(edge.status_line)
    follow_reloads(edge, signals, manager)
    await signals.first.wait()
    limits = loaded.config.openai.limits
    manager.stopping((limits.drain_delay_ms + limits.drain_ms) / 1000 + LEAVING_S)
    code = await drain_until_cut(edge, signals)
    watchdog = threading.Timer(STOP_LIMIT_S, os._exit, (code,))
    watchdog.daemon = True
    watchdog.start()
    await edge.stop()
    manager.close()
    watchdog.cancel()
    return code


def follow_reloads(edge: Edge, signals: Signals, manager: ServiceManager) -> None:
    """Refresh at each SIGHUP; the service manager hears of the beginning and, when the last one is done, of the end."""

    def reload() -> None:
        manager.reloading()
        edge.refresher.apply_by_signal()

    edge.refresher.on_signals_answered = manager.reloaded
    signals.on_reload(reload)


class Signals:
    """SIGTERM and SIGINT as two events: the first asks to drain, the second to stop at once. SIGHUP asks to reload.

    A SIGHUP that comes while the Edge starts is taken up by `on_reload`.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        self._reload: Callable[[], None] | None = None
        self._was_hung_up = False
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        loop.add_signal_handler(signal.SIGHUP, self._on_hang_up)

    def on_reload(self, reload: Callable[[], None]) -> None:
        """Call `reload` at each SIGHUP from now on."""
        self._reload = reload
        if self._was_hung_up:
            reload()

    def _on_hang_up(self) -> None:
        log.info("signal", name="SIGHUP", again=False)
        self._was_hung_up = True
        if self._reload is not None:
            self._reload()

    def _on_signal(self, number: signal.Signals) -> None:
        log.info("signal", name=signal.Signals(number).name, again=self.first.is_set())
        (self.second if self.first.is_set() else self.first).set()


async def drain_until_cut(edge: Edge, signals: Signals) -> int:
    """Drain, unless a second signal comes first."""
    draining = asyncio.create_task(edge.drain())
    cut = asyncio.create_task(signals.second.wait())
    await asyncio.wait((draining, cut), return_when=asyncio.FIRST_COMPLETED)
    is_drained = draining.done()
    for task in (draining, cut):
        task.cancel()
    await asyncio.gather(draining, cut, return_exceptions=True)
    if is_drained:
        draining.result()
    return EXIT_OK if is_drained else EXIT_FAILED


def tune_collector() -> None:
    """Keep what start-up made out of every later collection."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def raise_file_limit() -> None:
    """Allow as many open files as the system lets this process have: each client's connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError) as error:
            log.warning("file_limit_kept", soft=soft, hard=hard, error=error)
