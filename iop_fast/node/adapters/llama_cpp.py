"""`llama_cpp`: a GGUF model on llama.cpp in the Node's own process, by the wheel `xllamacpp` (the extra `llm`).

The adapter is LOADING at first, UP when the model serves, BROKEN with the reason when it cannot be loaded. Loading
has three steps, all in a thread of their own:

    read      the file is read once, so that it is in the system's memory; the reason says how much of it is
    set up    llama.cpp maps the file and allocates. xllamacpp holds Python's lock meanwhile, so the whole Node waits
              for this step, and for no other
    warm up   one token is made

A run is done by `ThreadRun` in one of as many threads as the model has slots; more runs wait for a thread. The model's
own OpenAI-like API is asked for a stream (`llama_cpp_talk`), whatever the client wants, and its callback returns True
when the run is cancelled: llama.cpp frees the slot behind the step it is in, a token or `batch_tokens` of a prompt.

The wheel's server listens on a socket whatever it is told; it gets one in a directory that only this user may enter.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any, Protocol

from iop_fast import logs
from iop_fast.config.payload import ProviderPayload
from iop_fast.config.schema.native import LlamaCppOptions
from iop_fast.node.adapters import BrokenAdapter, NormalizedAdapter, Surroundings
from iop_fast.node.adapters.llama_cpp_talk import Answer, Refused, request_of
from iop_fast.node.adapters.threads import Cancelled, Teller, ThreadRun
from iop_fast.node.health import Health
from iop_fast.seams import End, RunAdapter, RunHandle, RunSink, RunTask
from iop_fast.wire import runtime_pb2 as pb

log = logs.get(__name__)

MIB = 1024 * 1024
READ_BYTES = 8 * MIB
# How often the reason of LOADING is told anew; each goes to the log and to the Edge.
PROGRESS_S = 2.0
SET_UP_WARN_S = 5.0
# What `close` waits for a model that is being loaded: it cannot be stopped.
CLOSE_LIMIT_S = 10.0
GGUF = b"GGUF"

INSTALL_HINT = "it needs the package xllamacpp: pip install 'iop_fast[llm]'"


class Server(Protocol):
    """What is used of xllamacpp's Server. Calls block and give Python's lock up; a callback that returns True stops."""

    def handle_chat_completions(self, prompt: bytes, callback: Any) -> None: ...

    def handle_completions(self, prompt: bytes, callback: Any) -> None: ...

    def handle_embeddings(self, prompt: bytes) -> bytes: ...


class LoadError(Exception):
    """The model cannot be loaded; the text is for operators."""


class LoadStopped(Exception):
    """The adapter was closed while it loaded."""


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
    return LlamaCppAdapter(read, surroundings.loop)


class LlamaCppAdapter:
    """One model."""

    def __init__(self, options: LlamaCppOptions, loop: asyncio.AbstractEventLoop) -> None:
        self._options = options
        self._loop = loop
        self._health = Health(loop)
        self._executor = ThreadPoolExecutor(options.slots, thread_name_prefix="llama_cpp")
        self._runs: dict[ThreadRun, None] = {}
        self._server: Server | None = None
        self._is_closing = Event()
        self._loaded = loop.create_future()
        self._name = Path(options.path).name
        self._health.loading(f"loading {self._name}")
        # A daemon: a program that must end does not wait for a model that loads.
        Thread(target=self._load, name="llama_cpp loader", daemon=True).start()

    @property
    def health(self) -> Health:
        """See Adapter."""
        return self._health

    def run_adapter(self, provider: ProviderPayload) -> RunAdapter:
        """The model answers to any name."""
        return self

    def start(self, task: RunTask, sink: RunSink) -> RunHandle:
        """See RunAdapter. A model that is not there has not seen the request."""
        server = self._server
        if server is None:
            return NotLoaded(self._loop, sink, self._health.reason)
        run = ThreadRun(self._loop, self._executor, partial(do_task, server, task), sink, self._runs.pop)
        self._runs[run] = None
        return run

    async def close(self) -> None:
        """See Adapter. Threads have left when it returns, but for one that loads and does not come to an end."""
        self._health.close()
        self._is_closing.set()
        for run in list(self._runs):
            run.cancel()
        await asyncio.wait([self._loaded], timeout=CLOSE_LIMIT_S)
        held, self._server = [self._server], None
        await asyncio.to_thread(self._let_go, held)

    def _let_go(self, held: list[Server | None]) -> None:
        """End the threads and then the model (in a thread: both take time)."""
        self._executor.shutdown()
        held.clear()

    # Loading. Everything below but `_on_loaded` and `_on_broken` is the loader's thread.

    def _load(self) -> None:
        begin_s = time.monotonic()
        try:
            self._read_file()
            server = self._set_up()
            self._tell("warming up", "")
            warm_up(server, self._options.embeddings)
        except LoadStopped:
            self._call(self._on_broken, "")
        except LoadError as error:
            self._call(self._on_broken, str(error))
        except Exception as error:  # noqa: BLE001 - whatever a library raises, the provider must be said to be broken
            log.failure("model_failed", error, model=self._name)
            self._call(self._on_broken, f"{type(error).__name__}: {error}")
        else:
            self._call(self._on_loaded, server, time.monotonic() - begin_s)

    def _read_file(self) -> None:
        """Read the file once, and say how far it is."""
        path = Path(self._options.path)
        told_s = time.monotonic()
        try:
            size = path.stat().st_size
            done = 0
            with path.open("rb", buffering=0) as file:
                buffer = memoryview(bytearray(READ_BYTES))
                while (count := file.readinto(buffer)) > 0:
                    done += count
                    self._stop_if_closing()
                    if time.monotonic() - told_s >= PROGRESS_S:
                        told_s = time.monotonic()
                        self._tell("reading", f"{done * 100 // max(size, 1)} % of {size / 1e6:.0f} MB")
        except OSError as error:
            raise LoadError(f"{self._name}: {(error.strerror or str(error)).lower()}") from None

    def _set_up(self) -> Server:
        self._stop_if_closing()
        try:
            import xllamacpp
        except ImportError as error:
            raise LoadError(f"{INSTALL_HINT} ({error})") from None
        self._tell("setting up", "")
        begin_s = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="iop-llama-") as folder:
            parameters = parameters_of(xllamacpp.CommonParams(), self._options, f"{folder}/model.sock")
            try:
                server: Server = xllamacpp.Server(parameters)
            except RuntimeError as error:
                raise LoadError(f"{self._name}: llama.cpp cannot load it: {error}") from None
        took_s = time.monotonic() - begin_s
        if took_s > SET_UP_WARN_S:
            log.warning("model_set_up_slowly", model=self._name, seconds=round(took_s, 1))
        return server

    def _stop_if_closing(self) -> None:
        if self._is_closing.is_set():
            raise LoadStopped

    def _tell(self, step: str, how_far: str) -> None:
        reason = f"loading {self._name}: {step} {how_far}".rstrip()
        self._call(self._health.loading, reason)

    def _call(self, callback: Any, *arguments: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed: the program is about to end
            self._loop.call_soon_threadsafe(callback, *arguments)

    # The event loop's.

    def _on_loaded(self, server: Server, took_s: float) -> None:
        self._server = server
        self._loaded.set_result(None)
        log.info("model_loaded", model=self._name, seconds=round(took_s, 1))
        self._health.up()

    def _on_broken(self, reason: str) -> None:
        self._loaded.set_result(None)
        if reason:
            self._health.broken(reason)


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


def parameters_of(parameters: Any, options: LlamaCppOptions, socket: str) -> Any:
    """Fill xllamacpp's CommonParams."""
    parameters.model.path = options.path
    parameters.n_parallel = options.slots
    parameters.n_ctx = options.slots * options.context_tokens
    parameters.n_batch = options.batch_tokens
    parameters.n_ubatch = min(options.batch_tokens, parameters.n_ubatch)
    parameters.n_gpu_layers = options.gpu_layers
    if options.threads:
        parameters.cpuparams.n_threads = options.threads
        parameters.cpuparams_batch.n_threads = options.threads
    parameters.embedding = options.embeddings
    parameters.warmup = False  # done by `warm_up`, which gives Python's lock up
    parameters.verbosity = 0
    parameters.hostnames = [socket]
    return parameters


def warm_up(server: Server, makes_embeddings: bool) -> None:
    """Have one token made, or one embedding."""
    if makes_embeddings:
        server.handle_embeddings(b'{"input":"a"}')
    else:
        server.handle_completions(b'{"prompt":"a","max_tokens":1,"stream":true}', lambda chunk: None)


def do_task(server: Server, task: RunTask, teller: Teller) -> End:
    """Do one task, in a worker's thread."""
    answer = Answer(task, teller)
    failures: list[Exception] = []

    def take(chunk: bytes) -> bool:
        """Take a chunk; True stops the model. Nothing is raised into it."""
        try:
            answer.take(chunk)
        except (Cancelled, Refused):
            return True
        except Exception as error:  # noqa: BLE001 - raised again when the model has stopped
            failures.append(error)
            return True
        return teller.is_cancelled

    request = request_of(task)
    try:
        if task.kind == pb.RunRequest.EMBEDDING:
            answer.take_embeddings(server.handle_embeddings(request))
        elif task.kind == pb.RunRequest.COMPLETION:
            server.handle_completions(request, take)
        else:
            server.handle_chat_completions(request, take)
    except Refused:
        pass  # said by the answer's end
    except ValueError as error:
        answer.refuse(400, str(error))
    except RuntimeError as error:
        answer.refuse(500, str(error))
    if failures:
        raise failures[0]
    return answer.end()
