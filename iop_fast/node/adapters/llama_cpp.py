"""`llama_cpp`: a GGUF model on llama.cpp, in a worker process of the Node's (the extra `llm`).

The adapter owns one worker (`llama_link`), which loads the model and does the runs (`llama_worker`, `llama_model`). It
is LOADING until the model serves, UP then, and BROKEN with the reason when the model cannot be loaded. A worker that
dies by itself takes its own runs along and nobody else's: they end with UPSTREAM_ERROR, the adapter is LOADING with how
it died, and another worker is started after a while that doubles from RESTART_FIRST_S to RESTART_MOST_S. One that had
served for STEADY_S begins at the first again.

A run here is a number and a sink. What the worker says of it is passed on while the run is not paused, and kept
otherwise: no more than a window, since only what was passed on is said to be used. `cancel` is confirmed by the
worker's end, or its death.
"""

from __future__ import annotations

import asyncio
import tempfile
from array import array
from collections import deque
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path

from iop_fast import logs
from iop_fast.config.payload import ProviderPayload
from iop_fast.config.schema.native import LlamaCppOptions
from iop_fast.node.adapters import BrokenAdapter, NormalizedAdapter, Surroundings
from iop_fast.node.adapters.llama_channel import WINDOW_BYTES, Frame
from iop_fast.node.adapters.llama_cpp_talk import request_of
from iop_fast.node.adapters.llama_link import WorkerLink
from iop_fast.node.health import Health
from iop_fast.seams import End, RunAdapter, RunHandle, RunSink, RunTask, Usage
from iop_fast.wire import runtime_pb2 as pb

log = logs.get(__name__)

GGUF = b"GGUF"
RESTART_FIRST_S = 1.0
RESTART_MOST_S = 30.0
STEADY_S = 60.0

CANCELLED = End(pb.RunEnd.CANCELLED, "cancelled", None)


def make_llama_cpp(options: Mapping[str, object], surroundings: Surroundings) -> NormalizedAdapter:
    """Make a model of a GGUF file (see iop_fast.node.adapters.native.MakeNative)."""
    read = LlamaCppOptions.model_validate(options)
    path = Path(read.path)
    try:
        with path.open("rb") as file:
            begins = file.read(len(GGUF))
    except OSError as error:
        raise BrokenAdapter(f"{path.name}: {(error.strerror or str(error)).lower()}") from None
    if begins != GGUF:
        raise BrokenAdapter(f"{path.name}: expected a GGUF file")
    return LlamaCppAdapter(read, surroundings)


class LlamaCppAdapter:
    """One model, and its worker. `_link` is the worker while there is one."""

    def __init__(self, options: LlamaCppOptions, surroundings: Surroundings) -> None:
        self._options = options
        self._environ = surroundings.environ
        self._loop = surroundings.loop
        self._name = Path(options.path).name
        self._health = Health(self._loop)
        self._health.loading(f"loading {self._name}")
        self._numbers = count(1)
        self._runs: dict[int, WorkerRun] = {}
        self._link: WorkerLink | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._is_serving = False
        self._serving_since_s = 0.0
        self._restart_s = RESTART_FIRST_S
        self._restart: asyncio.TimerHandle | None = None
        self._is_over = False  # closed, or broken for ever
        self._start_worker()

    @property
    def health(self) -> Health:
        """See Adapter."""
        return self._health

    @property
    def worker_pid(self) -> int | None:
        """The worker's process; None while there is none."""
        return None if self._link is None else self._link.pid

    def run_adapter(self, provider: ProviderPayload) -> RunAdapter:
        """The model answers to any name."""
        return self

    def start(self, task: RunTask, sink: RunSink) -> RunHandle:
        """See RunAdapter. A model that is not there has not seen the request."""
        link = self._link
        if link is None or not self._is_serving:
            return NotLoaded(self._loop, sink, self._health.reason)
        number, request = next(self._numbers), request_of(task)
        run = self._runs[number] = WorkerRun(link, number, sink, self._runs.pop)
        link.send({"start": number, "kind": task.kind}, request)
        return run

    async def close(self) -> None:
        """See Adapter. The worker has ended when it returns, within the limits of `llama_link`."""
        self._health.close()
        self._is_over = True
        if self._restart is not None:
            self._restart.cancel()
        if self._link is not None:
            self._link.end()
            await self._link.ended()

    # The worker.

    def _start_worker(self) -> None:
        self._restart = None
        try:
            self._folder = tempfile.TemporaryDirectory(prefix="iop-llama-", ignore_cleanup_errors=True)
            self._link = WorkerLink(self._loop, self, self._environ, self._name)
        except OSError as error:
            self._drop_folder()
            self._start_later(f"it cannot be started: {(error.strerror or str(error)).lower()}")
            return
        self._link.send({"load": self._options.model_dump(), "folder": self._folder.name})
        log.info("worker_started", model=self._name, pid=self._link.pid)

    def on_frame(self, frame: Frame) -> None:
        """See llama_link.Listener."""
        head = frame.head
        if "run" in head:
            if (run := self._runs.get(head["run"])) is not None:
                run.take(frame)
        elif "loading" in head:
            self._health.loading(f"loading {self._name}: {head['loading']}")
        elif "loaded" in head:
            self._is_serving = True
            self._serving_since_s = self._loop.time()
            self._drop_folder()
            log.info("model_loaded", model=self._name, seconds=head["loaded"])
            self._health.up()
        else:
            self._is_over = True
            self._health.broken(head["broken"])
            if self._link is not None:
                self._link.end()

    def on_gone(self, how: str) -> None:
        """See llama_link.Listener."""
        if self._is_serving and self._loop.time() - self._serving_since_s >= STEADY_S:
            self._restart_s = RESTART_FIRST_S
        self._link = None
        self._is_serving = False
        self._drop_folder()
        if self._is_over:
            log.info("worker_ended", model=self._name)
        else:
            self._start_later(f"its process {how}")
        # Last: whoever hears of its run's end finds the adapter as it is.
        end = CANCELLED if self._is_over else End(pb.RunEnd.UPSTREAM_ERROR, f"the model's process {how}", None)
        for run in list(self._runs.values()):
            run.lose(end)

    def _start_later(self, why: str) -> None:
        delay_s, self._restart_s = self._restart_s, min(self._restart_s * 2, RESTART_MOST_S)
        log.error("worker_lost", model=self._name, reason=why, runs=len(self._runs), again_s=delay_s)
        self._health.loading(f"loading {self._name} again in {delay_s:g} s: {why}")
        self._restart = self._loop.call_later(delay_s, self._start_worker)

    def _drop_folder(self) -> None:
        """Remove the directory of the library's socket: nobody is to find it."""
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


class WorkerRun:
    """One run. `on_over` is called with its number just before its end is told."""

    def __init__(self, link: WorkerLink, number: int, sink: RunSink, on_over: Callable[[int], object]) -> None:
        self._link = link
        self._number = number
        self._sink = sink
        self._on_over = on_over
        self._kept: deque[Frame] = deque()
        self._used = 0
        self._is_paused = False
        self._is_cancelled = False
        self._has_ended = False
        self._is_passing = False

    def pause(self) -> None:
        """See RunHandle."""
        self._is_paused = True

    def resume(self) -> None:
        """See RunHandle."""
        self._is_paused = False
        self._pass_on()

    def cancel(self) -> None:
        """See RunHandle."""
        if not self._is_cancelled and not self._has_ended:
            self._is_cancelled = True
            self._link.send({"cancel": self._number})
            self.resume()

    def take(self, frame: Frame) -> None:
        """Take what the worker says of this run."""
        self._kept.append(frame)
        self._pass_on()

    def lose(self, end: End) -> None:
        """The worker is gone: what it said is passed on, then the end, its own or this one."""
        self._is_paused = False
        self._pass_on(may_pause=False)
        if not self._has_ended:
            self._end(CANCELLED if self._is_cancelled else end)

    def _pass_on(self, may_pause: bool = True) -> None:
        if self._is_passing:
            return  # the sink resumes or cancels in the middle of it
        self._is_passing = True
        try:
            while self._kept and not (self._is_paused and may_pause) and not self._has_ended:
                frame = self._kept.popleft()
                self._use(frame.size)
                self._say(frame)
        finally:
            self._is_passing = False

    def _use(self, size: int) -> None:
        """Count what is passed on, and say so when it is half a window."""
        self._used += size
        if self._used >= WINDOW_BYTES // 2:
            self._link.send({"used": self._number, "bytes": self._used})
            self._used = 0

    def _say(self, frame: Frame) -> None:
        head = frame.head
        if "end" in head:
            status, detail, usage, refusal_status = head["end"]
            self._end(End(status, detail, None if usage is None else Usage(*usage), refusal_status))
            return
        try:
            if "embedding" in head:
                if not self._is_cancelled:
                    self._sink.on_embedding(array("f", frame.tail), head["embedding"])
                return
            for name, *arguments in head["said"]:
                if self._is_cancelled:
                    return
                getattr(self._sink, f"on_{name}")(*arguments)
        except Exception as error:  # noqa: BLE001 - what cannot be said ends this run alone
            log.failure("run_failed", error)
            self.cancel()

    def _end(self, end: End) -> None:
        self._has_ended = True
        self._kept.clear()
        self._on_over(self._number)
        is_cancelled = self._is_cancelled and end.status == pb.RunEnd.OK
        self._sink.on_end(CANCELLED if is_cancelled else end)


class NotLoaded:
    """A run for a model that is not there."""

    def __init__(self, loop: asyncio.AbstractEventLoop, sink: RunSink, reason: str) -> None:
        end = End(pb.RunEnd.CONNECT_FAILED, reason or "the model is closed", None)
        loop.call_soon(sink.on_end, end)

    def pause(self) -> None:
        """Nothing is said."""

    def resume(self) -> None:
        """Nothing is said."""

    def cancel(self) -> None:
        """The end is on its way."""
