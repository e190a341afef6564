"""Command line tools: a provider that is a program, run once for each request.

What may run stands in the Node's own file (`cli_profiles`) and nowhere else; a provider of the Edge's file names a
profile. The rooms: `cli_prompt` (a task becomes arguments and input), `cli_spawner` and its program (processes),
`cli_run` (one of them, from start to end), `cli_output` (what it prints).

An adapter is one profile. It is up while its program can be executed: found and executable when the adapter is made,
else broken; lost later, for a package is being replaced perhaps, it is unreachable until a look finds it again.

What a program gets. No shell. Its environment is PATH, HOME and LANG of the Node (LANG is C.UTF-8 where the Node has
none), the variables that the profile sets or names, TMPDIR, IOP_RUN, which marks what belongs to a run, and TRACEPARENT
where spans are made; nothing else of the Node's, above all no token. It runs in a directory of its own, TMPDIR too,
removed with the run; a profile may name a fixed one, and then TMPDIR is the Node's.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from iop_fast import logs
from iop_fast.config.payload import AdapterSettings, ProviderPayload, TimeoutSettings
from iop_fast.config.schema.cli_profile import CliProfile
from iop_fast.node.adapters import BrokenAdapter, Surroundings
from iop_fast.node.adapters.cli_prompt import TaskRefusal, Words, check_size
from iop_fast.node.adapters.cli_run import CliRun, Setting
from iop_fast.node.adapters.cli_spawner import Order, SpawnerLink
from iop_fast.node.health import Health
from iop_fast.seams import End, RunAdapter, RunHandle, RunSink, RunTask
from iop_fast.wire import runtime_pb2 as pb

log = logs.get(__name__)

PASSED_ALWAYS = ("PATH", "HOME", "LANG")
LANG = "C.UTF-8"
DIRECTORY_PREFIX = "iop-run-"


def make_cli(settings: AdapterSettings, surroundings: Surroundings) -> CliAdapter:
    """Make the adapter of a cli_profiles entry; raise BrokenAdapter."""
    if settings.options:
        raise BrokenAdapter(f"options: expected none, got {', '.join(name for name, _ in settings.options)}")
    profile = surroundings.cli_profiles.get(settings.profile)
    if profile is None:
        raise BrokenAdapter(f"cli_profiles of the Node's file has no entry {settings.profile!r}")
    if profile.memory_bytes_max is not None and sys.platform == "darwin":
        raise BrokenAdapter("memory_bytes_max: macOS keeps no such limit")
    return CliAdapter(profile, surroundings)


class CliAdapter:
    """The program of one profile, and its spawner."""

    def __init__(self, profile: CliProfile, surroundings: Surroundings) -> None:
        self.profile = profile
        self.loop = surroundings.loop
        self.words = Words(profile)
        self.environment = environment_of(profile, surroundings.environ)
        self.secrets = {
            name: surroundings.environ[name] for name in profile.pass_environment if name not in PASSED_ALWAYS
        }
        self.limits = limits_of(profile)
        self.path = self.find()
        self.spawner = SpawnerLink(surroundings.loop)
        limits = surroundings.limits
        self._health = Health(surroundings.loop, self._probe, first_ms=limits.probe_ms_min, most_ms=limits.probe_ms_max)
        self._removals: dict[asyncio.Future[None], None] = {}

    @property
    def health(self) -> Health:
        """Up while the program can be executed."""
        return self._health

    def run_adapter(self, provider: ProviderPayload) -> RunAdapter:
        """Return what starts runs for this provider."""
        return CliRunAdapter(self, provider.timeouts)

    async def close(self) -> None:
        """End the spawner, and with it everything it has started; wait for directories to be removed."""
        self._health.close()
        await self.spawner.close()
        if self._removals:
            await asyncio.wait(list(self._removals))

    def find(self) -> str:
        """Return the program's path; raise BrokenAdapter where there is none that can be executed."""
        name = self.profile.command[0]
        path = shutil.which(name, path=self.environment["PATH"])
        if path is None:
            what = "no such executable file" if "/" in name else "no such program on PATH"
            raise BrokenAdapter(f"command: {what}: {name}")
        directory = self.profile.working_directory
        if directory is not None and not os.access(directory, os.X_OK):
            raise BrokenAdapter(f"working_directory: no such directory, or not one of the Node's: {directory}")
        return os.path.abspath(path)

    async def _probe(self) -> str | None:
        try:
            self.path = self.find()
        except BrokenAdapter as reason:
            return str(reason)
        return None

    def make_directory(self) -> tuple[str, str]:
        """Return the directory of a run and its TMPDIR; raise OSError."""
        if self.profile.working_directory is not None:
            return self.profile.working_directory, tempfile.gettempdir()
        directory = tempfile.mkdtemp(prefix=DIRECTORY_PREFIX)
        return directory, directory

    def remove_directory(self, directory: str) -> None:
        """Remove the directory of a run that has ended; beside the loop when there is something in it."""
        if directory == self.profile.working_directory:
            return
        try:
            os.rmdir(directory)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                log.warning("cli_directory_left", profile=self.profile.id, error=error.strerror)
                return
            removal = self.loop.run_in_executor(None, remove_tree, directory)
            self._removals[removal] = None
            removal.add_done_callback(self._on_removed)

    def _on_removed(self, removal: asyncio.Future[None]) -> None:
        del self._removals[removal]
        error = removal.exception()
        if error is not None:
            log.warning("cli_directory_left", profile=self.profile.id, error=getattr(error, "strerror", error))


class CliRunAdapter:
    """Starts runs of a program with the limits of one provider."""

    def __init__(self, adapter: CliAdapter, timeouts: TimeoutSettings) -> None:
        self._adapter = adapter
        self._timeouts = timeouts

    def start(self, task: RunTask, sink: RunSink) -> RunHandle:
        """See seams.RunAdapter."""
        adapter = self._adapter
        try:
            arguments, text = adapter.words.render(task)
            check_size(arguments, adapter.environment)
        except TaskRefusal as refusal:
            return refuse(sink, End(pb.RunEnd.REFUSED, str(refusal), None, refusal.status))
        directory = ""
        try:
            directory, temporary = adapter.make_directory()
            order = Order(
                path=adapter.path,
                argv=arguments,
                environment={"TMPDIR": temporary, **adapter.environment, **trace_of(task)},
                directory=directory,
                is_scratch=directory != adapter.profile.working_directory,
                limits=adapter.limits,
            )
            setting = Setting(
                loop=adapter.loop,
                profile=adapter.profile,
                timeouts=self._timeouts,
                secrets=adapter.secrets,
                on_unstartable=adapter.health.unreachable,
                on_ended=adapter.remove_directory,
            )
            return CliRun(setting, order, text, adapter.spawner, sink)
        except OSError as error:
            log.error("cli_start_failed", profile=adapter.profile.id, error=error)
            if directory:
                adapter.remove_directory(directory)
            detail = f"the program cannot be started: {(error.strerror or 'failed').lower()}"
            return refuse(sink, End(pb.RunEnd.CONNECT_FAILED, detail, None))


class NoRun:
    """The handle of a run that was refused: it has ended already."""

    def pause(self) -> None:
        """See seams.RunHandle."""

    def resume(self) -> None:
        """See seams.RunHandle."""

    def cancel(self) -> None:
        """See seams.RunHandle."""


def refuse(sink: RunSink, end: End) -> NoRun:
    """End a run before anything was started for it."""
    sink.on_end(end)
    return NoRun()


def trace_of(task: RunTask) -> dict[str, str]:
    """Return what tells a program whose span it is below (OpenTelemetry's environment variables as carriers)."""
    return {"TRACEPARENT": task.traceparent} if task.traceparent else {}


def environment_of(profile: CliProfile, environ: Mapping[str, str]) -> dict[str, str]:
    """Return a program's environment, without what each run adds; raise BrokenAdapter for a variable that is unset."""
    environment = {"PATH": os.defpath, "LANG": LANG}
    environment |= {name: environ[name] for name in PASSED_ALWAYS if environ.get(name)}
    for name in profile.pass_environment:
        if name not in environ:
            raise BrokenAdapter(f"pass_environment: variable {name} is not set")
        environment[name] = environ[name]
    return environment | profile.environment


def limits_of(profile: CliProfile) -> list[tuple[str, int]]:
    """Return the resource limits of each process of a profile: no core files, and what the profile says."""
    wanted = {
        "RLIMIT_CORE": 0,
        "RLIMIT_AS": profile.memory_bytes_max,
        "RLIMIT_CPU": profile.cpu_seconds_max,
        "RLIMIT_NOFILE": profile.open_files_max,
        "RLIMIT_NPROC": profile.processes_max,
        "RLIMIT_FSIZE": profile.file_bytes_max,
    }
    return [(name, value) for name, value in wanted.items() if value is not None]


def remove_tree(directory: str) -> None:
    """Remove a directory and what is in it, also below directories that cannot be written to; raise OSError."""
    try:
        shutil.rmtree(directory)
    except OSError:
        for parent, names, _ in os.walk(directory):
            for path in (Path(parent, name) for name in names):
                if not path.is_symlink():
                    path.chmod(0o700)
        shutil.rmtree(directory)
