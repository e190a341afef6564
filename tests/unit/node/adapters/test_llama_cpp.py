"""The life of a model in the Node: loading, serving in threads, freeing slots, ending. The library is a fake."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import types
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from iop_fast.config.schema.node import NodeLimits
from iop_fast.node.adapters import BrokenAdapter, Surroundings
from iop_fast.node.adapters.llama_cpp import LlamaCppAdapter, make_llama_cpp
from iop_fast.node.health import State
from iop_fast.seams import End, RunHandle, RunTask, Usage
from iop_fast.wire import runtime_pb2 as pb
from tests.integration.node_bench import until
from tests.unit.node.adapters.run_sink import RecordingRunSink, chat, completion, embedding
from tests.unit.node.worlds import provider

LIMIT_S = 10.0


def chunk(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


class FakeLibrary:
    """Stands for xllamacpp: a Server whose calls block in the caller's thread and call back from there.

    A chat is answered word by word with its last message; before each word the fake waits for `may_speak`.
    """

    def __init__(self) -> None:
        self.may_load = Event()
        self.may_load.set()
        self.may_speak = Event()
        self.may_speak.set()
        self.load_error = ""
        self.speaking = 0
        self.most_speaking = 0
        self.parameters: Any = None
        self.socket_folder_mode = 0
        self.servers = 0
        self.fails: Exception | None = None
        self.lock = threading.Lock()
        fake = self

        class CommonParams:
            def __init__(self) -> None:
                self.model = types.SimpleNamespace(path="")
                self.cpuparams = types.SimpleNamespace(n_threads=-1)
                self.cpuparams_batch = types.SimpleNamespace(n_threads=-1)
                self.n_ubatch = 512

        class Server:
            def __init__(self, parameters: Any) -> None:
                assert fake.may_load.wait(LIMIT_S)
                if fake.load_error:
                    raise RuntimeError(fake.load_error)
                fake.parameters = parameters
                fake.socket_folder_mode = os.stat(os.path.dirname(parameters.hostnames[0])).st_mode & 0o777
                fake.servers += 1

            def __del__(self) -> None:
                if fake.parameters is not None:
                    fake.servers -= 1

            def handle_chat_completions(self, prompt: bytes, callback: Any) -> None:
                asked = json.loads(prompt)
                fake.speak(asked["messages"][-1]["content"].split(), callback, "delta")

            def handle_completions(self, prompt: bytes, callback: Any) -> None:
                fake.speak(json.loads(prompt)["prompt"].split(), callback, "text")

            def handle_embeddings(self, prompt: bytes) -> bytes:
                return chunk(data=[{"index": 0, "embedding": [0.5]}], usage={"prompt_tokens": 1})

        self.module = types.ModuleType("xllamacpp")
        self.module.CommonParams = CommonParams  # type: ignore[attr-defined]
        self.module.Server = Server  # type: ignore[attr-defined]

    def speak(self, words: list[str], callback: Any, kind: str) -> None:
        with self.lock:
            self.speaking += 1
            self.most_speaking = max(self.most_speaking, self.speaking)
        try:
            if self.fails is not None:
                raise self.fails
            for word in [*words, None]:
                assert self.may_speak.wait(LIMIT_S)
                said: Any = "" if word is None else word
                choice: dict[str, Any] = {"index": 0, "finish_reason": None if word else "stop"}
                choice |= {"delta": {"content": said}} if kind == "delta" else {"text": said}
                if callback(chunk(choices=[choice])):
                    return
            callback(chunk(choices=[], usage={"prompt_tokens": 1, "completion_tokens": len(words)}))
        finally:
            with self.lock:
                self.speaking -= 1


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> FakeLibrary:
    fake = FakeLibrary()
    monkeypatch.setitem(sys.modules, "xllamacpp", fake.module)
    return fake


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "small.gguf"
    path.write_bytes(b"GGUF" + bytes(1000))
    return path


def make(path: Path, **options: Any) -> LlamaCppAdapter:
    around = Surroundings(asyncio.get_running_loop(), {}, {}, NodeLimits())
    made = make_llama_cpp({"path": str(path)} | options, around)
    assert isinstance(made, LlamaCppAdapter)
    return made


@asynccontextmanager
async def loaded(path: Path, **options: Any) -> AsyncIterator[LlamaCppAdapter]:
    made = make(path, **options)
    try:
        await until(lambda: made.health.state is State.UP, "it")
        yield made
    finally:
        await made.close()


def start(made: LlamaCppAdapter, task: RunTask) -> tuple[RunHandle, RecordingRunSink]:
    sink = RecordingRunSink()
    return made.run_adapter(provider()).start(task, sink), sink


async def end_of(sink: RecordingRunSink) -> End:
    await until(lambda: sink.end is not None, "it")
    assert sink.end is not None
    return sink.end


def test_a_model_loads_serves_and_ends(library: FakeLibrary, model: Path) -> None:
    async def run() -> None:
        async with loaded(model, slots=2, context_tokens=100, threads=3, gpu_layers=5, batch_tokens=64) as made:
            _, sink = start(made, chat("hello there"))
            assert await end_of(sink) == End(pb.RunEnd.OK, "", Usage(1, 2, 0))
            assert (sink.text(), sink.finished) == ("hellothere", {0: "stop"})
            _, sink = start(made, completion("once"))
            assert (await end_of(sink)).status == pb.RunEnd.OK
            assert sink.text() == "once"
            _, sink = start(made, embedding("a"))
            assert await end_of(sink) == End(pb.RunEnd.OK, "", Usage(1, 0, 0))
            assert sink.embeddings == {0: [0.5]}
            given = library.parameters
            assert (given.n_parallel, given.n_ctx, given.n_batch, given.n_ubatch) == (2, 200, 64, 64)
            assert (given.n_gpu_layers, given.cpuparams.n_threads, given.embedding) == (5, 3, False)
            assert library.socket_folder_mode == 0o700
            assert not Path(given.hostnames[0]).parent.exists()
        assert library.servers == 0
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("llama_cpp")]

    asyncio.run(run())


def test_it_is_loading_until_the_model_serves(library: FakeLibrary, model: Path) -> None:
    async def run() -> None:
        library.may_load.clear()
        made = make(model)
        reasons: list[str] = []
        made.health.on_change = lambda: reasons.append(made.health.reason)
        assert made.health.state is State.LOADING
        _, sink = start(made, chat("x"))
        end = await end_of(sink)
        assert (end.status, end.detail.startswith("loading small.gguf")) == (pb.RunEnd.CONNECT_FAILED, True)
        await until(lambda: "loading small.gguf: setting up" in reasons, "it")
        library.may_load.set()
        await until(lambda: made.health.state is State.UP, "it")
        assert reasons[-2:] == ["loading small.gguf: warming up", ""]
        await made.close()

    asyncio.run(run())


def test_the_reason_says_how_much_of_the_file_is_read(
    library: FakeLibrary, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("iop_fast.node.adapters.llama_cpp.PROGRESS_S", 0)
    monkeypatch.setattr("iop_fast.node.adapters.llama_cpp.READ_BYTES", 251)

    async def run() -> None:
        made = make(model)
        reasons: list[str] = []
        made.health.on_change = lambda: reasons.append(made.health.reason)
        await until(lambda: made.health.state is State.UP, "it")
        read = [reason for reason in reasons if "reading" in reason]
        assert read == [f"loading small.gguf: reading {percent} % of 0 MB" for percent in (25, 50, 75, 100)]
        await made.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("content", "expected"),
    [(None, "absent.gguf: no such file or directory"), (b"PK\x03\x04", "absent.gguf: expected a GGUF file")],
)
def test_a_file_that_cannot_be_a_model_is_broken_at_once(tmp_path: Path, content: bytes | None, expected: str) -> None:
    path = tmp_path / "absent.gguf"
    if content is not None:
        path.write_bytes(content)

    async def run() -> None:
        with pytest.raises(BrokenAdapter) as caught:
            make(path)
        assert str(caught.value) == expected

    asyncio.run(run())


def test_a_model_that_does_not_load_is_broken_with_the_reason(library: FakeLibrary, model: Path) -> None:
    async def run() -> None:
        library.load_error = "unknown architecture"
        made = make(model)
        await until(lambda: made.health.state is State.BROKEN, "it")
        assert made.health.reason == "small.gguf: llama.cpp cannot load it: unknown architecture"
        _, sink = start(made, chat("x"))
        assert (await end_of(sink)).status == pb.RunEnd.CONNECT_FAILED
        await made.close()

    asyncio.run(run())


def test_without_the_package_it_is_broken_and_says_what_to_install(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)

    async def run() -> None:
        made = make(model)
        await until(lambda: made.health.state is State.BROKEN, "it")
        assert "pip install 'iop_fast[llm]'" in made.health.reason
        await made.close()

    asyncio.run(run())


def test_more_runs_than_slots_wait_and_a_waiting_one_is_cancelled_at_once(library: FakeLibrary, model: Path) -> None:
    async def run() -> None:
        async with loaded(model, slots=2) as made:
            library.may_speak.clear()
            started = [start(made, chat("a b")) for _ in range(4)]
            await until(lambda: library.speaking == 2, "it")
            started[3][0].cancel()
            assert (await end_of(started[3][1])).status == pb.RunEnd.CANCELLED
            library.may_speak.set()
            for _, sink in started[:3]:
                assert (await end_of(sink)).status == pb.RunEnd.OK
            assert library.most_speaking == 2

    asyncio.run(run())


def test_a_cancelled_run_stops_the_model_and_frees_its_slot(library: FakeLibrary, model: Path) -> None:
    async def run() -> None:
        async with loaded(model, slots=1) as made:
            library.may_speak.clear()
            handle, sink = start(made, chat("word " * 1000))
            await until(lambda: library.speaking == 1, "it")
            handle.cancel()
            library.may_speak.set()
            assert (await end_of(sink)).status == pb.RunEnd.CANCELLED
            assert len(sink.said) < 1000
            assert library.speaking == 0, "the end is told when the slot is free"
            _, sink = start(made, chat("next"))
            assert (await end_of(sink)).status == pb.RunEnd.OK

    asyncio.run(run())


@pytest.mark.parametrize(("error", "status"), [(ValueError("no such grammar"), 400), (RuntimeError("no images"), 500)])
def test_what_the_library_raises_refuses_the_task(
    library: FakeLibrary, model: Path, error: Exception, status: int
) -> None:
    async def run() -> None:
        async with loaded(model) as made:
            library.fails = error
            _, sink = start(made, chat("x"))
            assert await end_of(sink) == End(pb.RunEnd.REFUSED, str(error), None, status)

    asyncio.run(run())


def test_a_chunk_that_nobody_understands_ends_its_run_alone(library: FakeLibrary, model: Path) -> None:
    async def run() -> None:
        async with loaded(model) as made:
            library.module.Server.handle_chat_completions = lambda self, prompt, callback: (
                callback(b"{") and callback(b"{}")
            )
            _, sink = start(made, chat("x"))
            assert (await end_of(sink)).status == pb.RunEnd.INTERNAL

    asyncio.run(run())


def test_closing_stops_what_runs_and_what_loads(library: FakeLibrary, model: Path) -> None:
    async def run() -> None:
        async with loaded(model) as made:
            library.may_speak.clear()
            _, sink = start(made, chat("a b c"))
            await until(lambda: library.speaking == 1, "it")
            closing = asyncio.create_task(made.close())
            await asyncio.sleep(0)
            library.may_speak.set()
            await closing
            assert sink.end is None or sink.end.status == pb.RunEnd.CANCELLED
            assert library.servers == 0

        library.may_load.clear()
        made = make(model)
        await until(lambda: made.health.reason.endswith("setting up"), "it")
        closing = asyncio.create_task(made.close())
        await asyncio.sleep(0)
        library.may_load.set()
        await closing
        assert library.servers == 0

    asyncio.run(run())


def test_a_model_that_loads_for_ever_does_not_hold_its_adapter(
    library: FakeLibrary, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("iop_fast.node.adapters.llama_cpp.CLOSE_LIMIT_S", 0.01)

    async def run() -> None:
        library.may_load.clear()
        made = make(model)
        await made.close()
        library.may_load.set()

    asyncio.run(run())
