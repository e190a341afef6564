"""A GGUF model on llama.cpp, by the wheel `xllamacpp`: how it is loaded, and how it does a task. Of the worker.

Loading has three steps, all in a thread of their own:

    read      the file is read once, so that it is in the system's memory; what is told says how much of it is
    set up    llama.cpp maps the file and allocates. xllamacpp holds Python's lock meanwhile
    warm up   one token is made

The model's own OpenAI-like API is asked for a stream (`llama_cpp_talk`), whatever the client wants, and its callback
returns True when the run is cancelled: llama.cpp frees the slot behind the step it is in, a token or `batch_tokens` of
a prompt. The wheel's server listens on a socket whatever it is told; it gets one in a directory that only this user may
enter, which the Node removes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from iop_fast.config.schema.native import LlamaCppOptions
from iop_fast.node.adapters.llama_cpp_talk import Answer, Refused
from iop_fast.node.adapters.threads import Cancelled, Teller
from iop_fast.seams import End
from iop_fast.wire import runtime_pb2 as pb

MIB = 1024 * 1024
READ_BYTES = 8 * MIB
# How often it is told anew how far the reading is; each goes to the log and to the Edge.
PROGRESS_S = 2.0

INSTALL_HINT = "it needs the package xllamacpp: pip install 'iop_fast[llm]'"


class Server(Protocol):
    """What is used of xllamacpp's Server. Calls block and give Python's lock up; a callback that returns True stops."""

    def handle_chat_completions(self, prompt: bytes, callback: Any) -> None: ...

    def handle_completions(self, prompt: bytes, callback: Any) -> None: ...

    def handle_embeddings(self, prompt: bytes) -> bytes: ...


class LoadError(Exception):
    """The model cannot be loaded; the text is for operators."""


def load(options: LlamaCppOptions, folder: str, tell: Callable[[str], None]) -> Server:
    """Load a model. Takes its time; raises LoadError. `tell` is told how far it is, and returns when that is on its
    way: Python's lock may be held behind it."""
    path = Path(options.path)
    read_file(path, tell)
    server = set_up(options, folder, tell)
    tell("warming up")
    warm_up(server, options.embeddings)
    return server


def read_file(path: Path, tell: Callable[[str], None]) -> None:
    """Read the file once."""
    told_s = time.monotonic()
    try:
        size = path.stat().st_size
        done = 0
        with path.open("rb", buffering=0) as file:
            buffer = memoryview(bytearray(READ_BYTES))
            while (count := file.readinto(buffer)) > 0:
                done += count
                if time.monotonic() - told_s >= PROGRESS_S:
                    told_s = time.monotonic()
                    tell(f"reading {done * 100 // max(size, 1)} % of {size / 1e6:.0f} MB")
    except OSError as error:
        raise LoadError(f"{path.name}: {(error.strerror or str(error)).lower()}") from None


def set_up(options: LlamaCppOptions, folder: str, tell: Callable[[str], None]) -> Server:
    """Have llama.cpp set the model up."""
    try:
        import xllamacpp
    except ImportError as error:
        raise LoadError(f"{INSTALL_HINT} ({error})") from None
    tell("setting up")
    parameters = parameters_of(xllamacpp.CommonParams(), options, f"{folder}/model.sock")
    try:
        server: Server = xllamacpp.Server(parameters)
    except RuntimeError as error:
        raise LoadError(f"{Path(options.path).name}: llama.cpp cannot load it: {error}") from None
    return server


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


def do_task(server: Server, kind: int, request: bytes, teller: Teller) -> End:
    """Do one task, in a thread of its own; `request` is what `request_of` made of it."""
    answer = Answer(kind, teller)
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

    try:
        if kind == pb.RunRequest.EMBEDDING:
            answer.take_embeddings(server.handle_embeddings(request))
        elif kind == pb.RunRequest.COMPLETION:
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
