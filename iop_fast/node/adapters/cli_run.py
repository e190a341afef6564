"""One run of a program: three pipes, its exit, and what they mean for the request.

States and moves are MOVES, `_move` is the one function that changes the state:

    STARTING   the spawner was told; nothing has seen the task
    RUNNING    the program was executed; it is fed and read
    STOPPING   it got SIGTERM; what it still prints is thrown away; SIGKILL follows after `kill_after_ms`
    DRAINING   it has exited; what is in the pipes is read, and what its children still print for DRAIN_MS
    FINISHING  the spawner kills what is left of the group; its word that all is gone is awaited
    ENDED      everything is closed and the sink has its end

Why a run never hangs. The end of output is no condition for the end of a run: a child that the program leaves behind
may hold the pipes for ever. The exit is: DRAINING is bounded, and FINISHING by the spawner, which gives up after a
second and says so. Standard input is written when the program reads it, and a program that reads none of it ends as it
likes: a broken pipe there means nothing.

Why it never stalls a program by neglect. Standard error is always read, whoever waits for whom; standard output is
read unless the sink has paused the run, then the pipe fills and the program waits. A pause holds the limits of silence,
not `run_ms_max`.

Limits of silence. `first_byte_ms` counts until the first byte on either pipe, `idle_ms` between later ones: a program
that reports its progress on standard error is not silent.

Ends, of a run that nobody stopped. Exit code 0: OK, finish reason stop or what the output says. Any other exit, or an
error in the output: REFUSED with 502 as long as nothing was said, UPSTREAM_ERROR after that. CONNECT_FAILED when the
program could not be executed, for then nothing has seen the task.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import NamedTuple

from iop_fast import logs
from iop_fast.config.payload import TimeoutSettings
from iop_fast.config.schema.cli_profile import CliProfile
from iop_fast.node.adapters.cli_output import Complaint, OutputError, Piece, clean, exit_words, output_of
from iop_fast.node.adapters.cli_spawner import Order, Program, SpawnerLink
from iop_fast.node.adapters.watchdog import Watchdog
from iop_fast.seams import End, RunSink
from iop_fast.wire import runtime_pb2 as pb

log = logs.get(__name__)

READ_BYTES = 65_536
# What children of a program that has exited may still print.
DRAIN_MS = 250
SIGTERM = 15

CANCELLED = End(pb.RunEnd.CANCELLED, "cancelled", None)
LOST = End(pb.RunEnd.UPSTREAM_ERROR, "the process that runs programs ended", None)


class RunState(Enum):
    """Where a run stands; the module's head says what each state means."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    DRAINING = "draining"
    FINISHING = "finishing"
    ENDED = "ended"


MOVES: Mapping[RunState, frozenset[RunState]] = {
    RunState.STARTING: frozenset((RunState.RUNNING, RunState.FINISHING, RunState.ENDED)),
    RunState.RUNNING: frozenset((RunState.STOPPING, RunState.DRAINING, RunState.ENDED)),
    RunState.STOPPING: frozenset((RunState.FINISHING, RunState.ENDED)),
    RunState.DRAINING: frozenset((RunState.FINISHING, RunState.ENDED)),
    RunState.FINISHING: frozenset((RunState.ENDED,)),
    RunState.ENDED: frozenset(),
}


class Setting(NamedTuple):
    """What a run is made with."""

    loop: asyncio.AbstractEventLoop
    profile: CliProfile
    timeouts: TimeoutSettings
    secrets: Mapping[str, str]  # by name; their values never reach a client
    on_unstartable: Callable[[str], None]  # the program itself cannot be executed: why
    on_ended: Callable[[str], None]  # the run has ended: its directory


class CliRun:
    """A RunHandle for the relay and a Listener for the spawner."""

    __slots__ = (
        "_complaint",
        "_directory",
        "_drain",
        "_end",
        "_exit_code",
        "_has_said",
        "_input",
        "_is_paused",
        "_kill_timer",
        "_limit_timer",
        "_output",
        "_program",
        "_room_bytes",
        "_setting",
        "_silence",
        "_sink",
        "_state",
        "_stderr",
        "_stdin",
        "_stdout",
    )

    def __init__(self, setting: Setting, order: Order, text: bytes, spawner: SpawnerLink, sink: RunSink) -> None:
        self._setting = setting
        self._sink = sink
        self._state = RunState.STARTING
        self._directory = order.directory
        self._input = memoryview(text)
        self._output = output_of(setting.profile)
        self._complaint = Complaint(setting.profile.stderr_bytes_max, setting.secrets)
        self._room_bytes = setting.profile.output_bytes_max
        self._has_said = False
        self._is_paused = False
        self._exit_code: int | None = None
        self._end = LOST  # unless it is known better
        self._kill_timer: asyncio.TimerHandle | None = None
        self._drain: asyncio.TimerHandle | None = None
        self._silence = Watchdog(setting.loop, self._on_silent)
        self._stdin: int | None
        self._stdout: int | None
        self._stderr: int | None
        self._stdin, self._stdout, self._stderr, theirs = open_pipes(has_input=bool(text))
        try:
            self._program: Program = spawner.start(order, theirs, self)
        except OSError:
            for fd in (self._stdin, self._stdout, self._stderr):
                if fd is not None:
                    os.close(fd)
            raise
        self._limit_timer = setting.loop.call_later(setting.profile.run_ms_max / 1000, self._on_limit)

    def __repr__(self) -> str:
        return f"<CliRun {self._setting.profile.id} {self._state.value}, pid {self._program.pid}>"

    @property
    def state(self) -> RunState:
        """Where the run stands."""
        return self._state

    def _move(self, state: RunState) -> None:
        """Change the state as the table says; a move that it does not have is a bug of ours."""
        if state not in MOVES[self._state]:
            raise RuntimeError(f"{self!r}: no move to {state.value}")
        self._state = state

    # From the relay.

    def pause(self) -> None:
        """See RunHandle."""
        if not self._is_paused:
            self._is_paused = True
            self._silence.hold()
            if self._stdout is not None and self._state in (RunState.RUNNING, RunState.DRAINING):
                self._setting.loop.remove_reader(self._stdout)

    def resume(self) -> None:
        """See RunHandle."""
        if not self._is_paused:
            return
        self._is_paused = False
        if self._state in (RunState.RUNNING, RunState.DRAINING):
            if self._stdout is not None:
                self._setting.loop.add_reader(self._stdout, self._read_stdout)
            if self._state is RunState.RUNNING:
                self._silence.go_on()
            else:
                self._set_drain()

    def cancel(self) -> None:
        """See RunHandle."""
        self._stop(CANCELLED)

    def _stop(self, end: End) -> None:
        """Have the program end; the run ends with `end` then."""
        if self._state is RunState.STARTING:
            self._end = end
            self._finish()  # nothing has seen the task, so there is nothing to be said goodbye to
        elif self._state is RunState.RUNNING:
            self._end = end
            self._move(RunState.STOPPING)
            self._silence.close()
            self._close_stdin()
            if self._is_paused and self._stdout is not None:
                self._setting.loop.add_reader(self._stdout, self._read_stdout)
            self._program.signal(SIGTERM)
            self._kill_timer = self._setting.loop.call_later(
                self._setting.profile.kill_after_ms / 1000, self._on_kill_timer
            )
        elif self._state is RunState.DRAINING:
            self._end = end
            self._finish()

    # From the spawner.

    def on_started(self) -> None:
        """See Listener."""
        if self._state is not RunState.STARTING:
            return
        self._move(RunState.RUNNING)
        loop = self._setting.loop
        assert self._stdout is not None, "a program without pipes"
        assert self._stderr is not None, "a program without pipes"
        if not self._is_paused:
            loop.add_reader(self._stdout, self._read_stdout)
        loop.add_reader(self._stderr, self._read_stderr)
        if self._stdin is not None:
            loop.add_writer(self._stdin, self._write_stdin)
        self._silence.watch(self._setting.timeouts.first_byte_ms)
        if self._is_paused:
            self._silence.hold()
        self._sink.on_taken()

    def on_failed(self, step: str, number: int) -> None:
        """See Listener."""
        reason = f"{FAILED_STEPS.get(step, step)}: {os.strerror(number).lower() if number else 'failed'}"
        if self._state is RunState.STARTING:
            self._end = End(pb.RunEnd.CONNECT_FAILED, f"the program cannot be started: {reason}", None)
        if number not in PASSING_ERRORS:
            self._setting.on_unstartable(reason)
        self._end_run()

    def on_exited(self, code: int) -> None:
        """See Listener."""
        if self._state is RunState.STOPPING:
            self._finish()
        elif self._state is RunState.RUNNING:
            self._exit_code = code
            self._move(RunState.DRAINING)
            self._silence.close()
            self._close_stdin()
            self._set_drain()

    def on_gone(self, left: int) -> None:
        """See Listener."""
        if left:
            log.error("cli_processes_left", profile=self._setting.profile.id, processes=left)
        self._end_run()

    # Pipes.

    def _write_stdin(self) -> None:
        assert self._stdin is not None, "a writer without a pipe"
        try:
            written = os.write(self._stdin, self._input[:READ_BYTES])
        except BlockingIOError:
            return
        except OSError:  # it does not read, or has exited
            written = len(self._input)
        self._input = self._input[written:]
        if not self._input:
            self._close_stdin()

    def _read_stdout(self) -> None:
        assert self._stdout is not None, "a reader without a pipe"
        data = read(self._stdout)
        if data is None:
            return
        if not data:
            self._close_stdout()
            if self._state is RunState.DRAINING:
                self._finish_if_drained()
            return
        if self._state is RunState.STOPPING:
            return
        self._note_progress()
        is_full = len(data) >= self._room_bytes
        if is_full:
            data = data[: self._room_bytes]
        self._room_bytes -= len(data)
        try:
            self._say_all(self._output.feed(data))
        except OutputError as error:
            self._stop(End(pb.RunEnd.UPSTREAM_ERROR, str(error), self._output.usage))
            return
        if is_full and self._state in (RunState.RUNNING, RunState.DRAINING):
            log.debug("cli_output_full", profile=self._setting.profile.id)
            self._sink.on_finish("length")
            self._stop(End(pb.RunEnd.OK, "", self._output.usage))

    def _read_stderr(self) -> None:
        assert self._stderr is not None, "a reader without a pipe"
        data = read(self._stderr)
        if data:
            self._complaint.feed(data)
            self._note_progress()
        elif data is not None:
            self._close_stderr()
            if self._state is RunState.DRAINING:
                self._finish_if_drained()

    def _say_all(self, pieces: Iterable[Piece]) -> None:
        for piece in pieces:
            if self._state not in (RunState.RUNNING, RunState.DRAINING):
                return  # what was said last had it stopped
            self._has_said = True
            if piece.is_reasoning:
                self._sink.on_reasoning(piece.text)
            else:
                self._sink.on_text(piece.text)

    def _note_progress(self) -> None:
        """The program is alive."""
        if self._state is RunState.RUNNING and not self._is_paused:
            self._silence.watch(self._setting.timeouts.idle_ms)

    # Limits.

    def _on_silent(self, limit_ms: int) -> None:
        self._stop(End(pb.RunEnd.UPSTREAM_TIMEOUT, f"the program printed nothing for {limit_ms} ms", None))

    def _on_limit(self) -> None:
        limit_ms = self._setting.profile.run_ms_max
        self._stop(End(pb.RunEnd.UPSTREAM_TIMEOUT, f"the program ran for {limit_ms} ms", self._output.usage))

    def _on_kill_timer(self) -> None:
        self._kill_timer = None
        log.debug("cli_killed", profile=self._setting.profile.id, pid=self._program.pid)
        self._finish()

    # The end.

    def _set_drain(self) -> None:
        """Give what is left in the pipes its time; a paused run has all of it."""
        if self._drain is None and not self._is_paused:
            self._drain = self._setting.loop.call_later(DRAIN_MS / 1000, self._on_drain)
        self._finish_if_drained()

    def _on_drain(self) -> None:
        self._drain = None
        if not self._is_paused:
            self._conclude()

    def _finish_if_drained(self) -> None:
        if self._stdout is None and self._stderr is None:
            self._conclude()

    def _conclude(self) -> None:
        """The program has exited by itself and everything was read: what is its end?"""
        code = self._exit_code
        assert code is not None, "a conclusion without an exit"
        try:
            self._say_all(self._output.finish())
        except OutputError as error:
            self._end = End(pb.RunEnd.UPSTREAM_ERROR, str(error), self._output.usage)
        else:
            usage = self._output.usage
            if code == 0 and not self._output.error:
                if self._output.line_count and not self._has_said:
                    # An empty answer, or a path that leads nowhere: only the log can tell its owner.
                    log.warning("cli_no_text", profile=self._setting.profile.id, lines=self._output.line_count)
                self._sink.on_finish(self._output.finish_reason)
                self._end = End(pb.RunEnd.OK, "", usage)
            else:
                self._end = self._failure(code)
        if self._state is RunState.DRAINING:
            self._finish()

    def _failure(self, code: int) -> End:
        """Return the end of a program that failed."""
        profile = self._setting.profile
        log.debug("cli_failed", profile=profile.id, exit=code, has_output=self._has_said)
        if self._output.error:
            detail = f"the program said: {clean(self._output.error, self._setting.secrets)}"
        else:
            said = self._complaint.text()
            detail = f"{exit_words(code)}: {said}" if said else exit_words(code)
        if self._has_said:
            return End(pb.RunEnd.UPSTREAM_ERROR, detail, self._output.usage)
        return End(pb.RunEnd.REFUSED, detail, self._output.usage, 502)

    def _finish(self) -> None:
        """Have everything killed that is left."""
        self._move(RunState.FINISHING)
        self._close_all()
        self._program.finish()

    def _end_run(self) -> None:
        self._move(RunState.ENDED)
        self._close_all()
        self._setting.on_ended(self._directory)
        self._sink.on_end(self._end)

    def _close_all(self) -> None:
        """Let go of pipes and timers. Idempotent."""
        self._silence.close()
        for timer in (self._kill_timer, self._limit_timer, self._drain):
            if timer is not None:
                timer.cancel()
        self._close_stdin()
        self._close_stdout()
        self._close_stderr()

    def _close_stdin(self) -> None:
        if self._stdin is not None:
            self._setting.loop.remove_writer(self._stdin)
            os.close(self._stdin)
            self._stdin = None
            self._input = memoryview(b"")

    def _close_stdout(self) -> None:
        if self._stdout is not None:
            self._setting.loop.remove_reader(self._stdout)
            os.close(self._stdout)
            self._stdout = None

    def _close_stderr(self) -> None:
        if self._stderr is not None:
            self._setting.loop.remove_reader(self._stderr)
            os.close(self._stderr)
            self._stderr = None


# The steps of a start that can fail, for people; a step that is not here is the name of a limit.
FAILED_STEPS = {"chdir": "working_directory", "exec": "command", "fork": "fork"}
# Of the moment, not of the program: too many processes, no memory, the file is being written.
PASSING_ERRORS = frozenset((errno.EAGAIN, errno.ENOMEM, errno.ETXTBSY, errno.EMFILE, errno.ENFILE))


def read(fd: int) -> bytes | None:
    """Read what is there: b"" at the end, None when there is nothing yet."""
    try:
        return os.read(fd, READ_BYTES)
    except BlockingIOError:
        return None


def open_pipes(*, has_input: bool) -> tuple[int | None, int, int, tuple[int, int, int]]:
    """Open a run's pipes: ours for input (None without any), output and error, and the program's three."""
    opened: list[int] = []
    try:
        for _ in range(3 if has_input else 2):
            opened += os.pipe()
        if not has_input:
            opened[:0] = (os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), -1)
    except OSError:
        for fd in opened:
            os.close(fd)
        raise
    stdin_read, stdin_write, stdout_read, stdout_write, stderr_read, stderr_write = opened
    for fd in (stdin_write, stdout_read, stderr_read):
        if fd >= 0:
            os.set_blocking(fd, False)
    theirs = (stdin_read, stdout_write, stderr_write)
    return (None if stdin_write < 0 else stdin_write), stdout_read, stderr_read, theirs
