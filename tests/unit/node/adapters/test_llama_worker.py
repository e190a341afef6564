"""A worker in this process: it loads, serves in threads, keeps to its credit, frees slots. The library is a fake."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import threading
import types
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from iop_fast.config.schema.native import LlamaCppOptions
from iop_fast.node.adapters.llama_channel import HEADER, WINDOW_BYTES, Frame, Unpacker, pack
from iop_fast.node.adapters.llama_cpp_talk import request_of
from iop_fast.node.adapters.llama_worker import Worker
from iop_fast.seams import RunTask
from iop_fast.wire import runtime_pb2 as pb
from tests.integration.node_bench import until
from tests.unit.node.adapters.run_sink import chat, completion, embedding

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


class Node(asyncio.Protocol):
    """The other end of the channel: notes what the worker says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.unpacker = Unpacker()
        self.steps: list[str] = []
        self.loaded = False
        self.broken = ""
        self.frames: dict[int, list[Frame]] = {}
        self.left: list[int] = []
        self.transport: Any = None

    def data_received(self, data: bytes) -> None:
        for frame in self.unpacker.feed(data):
            head = frame.head
            if "run" in head:
                self.frames.setdefault(head["run"], []).append(frame)
            elif "loading" in head:
                self.steps.append(head["loading"])
            elif "loaded" in head:
                self.loaded = True
            else:
                self.broken = head["broken"]

    def send(self, head: dict[str, Any], tail: bytes = b"") -> None:
        self.transport.write(pack(head, tail))

    def load(self, path: Path, **options: Any) -> None:
        read = LlamaCppOptions.model_validate({"path": str(path)} | options)
        self.send({"load": read.model_dump(), "folder": str(self.folder)})

    def start(self, number: int, task: RunTask) -> None:
        self.send({"start": number, "kind": task.kind}, request_of(task))

    def said(self, number: int) -> list[Any]:
        return [event for frame in self.frames.get(number, ()) for event in frame.head.get("said", ())]

    def text(self, number: int) -> str:
        return "".join(event[1] for event in self.said(number) if event[0] == "text")

    def size(self, number: int) -> int:
        return sum(frame.size for frame in self.frames.get(number, ()))

    def end(self, number: int) -> Any:
        frames = self.frames.get(number)
        return frames[-1].head.get("end") if frames else None

    async def end_of(self, number: int) -> Any:
        await until(lambda: self.end(number) is not None, f"the end of {number}")
        return self.end(number)


@asynccontextmanager
async def worker(folder: Path) -> AsyncIterator[Node]:
    """A worker that has not been told to load; at the end it wants to leave."""
    loop = asyncio.get_running_loop()
    near, far = socket.socketpair()
    node = Node(folder)
    made = Worker(loop, node.left.append)
    await loop.create_unix_connection(lambda: made, sock=far)
    node.transport, _ = await loop.create_unix_connection(lambda: node, sock=near)
    try:
        yield node
    finally:
        node.transport.close()
        await until(lambda: node.left == [0], "it leaves")
        if made._executor is not None:
            await asyncio.to_thread(made._executor.shutdown)


@asynccontextmanager
async def loaded(path: Path, **options: Any) -> AsyncIterator[Node]:
    async with worker(path.parent) as node:
        node.load(path, **options)
        await until(lambda: node.loaded, "the model")
        yield node


def test_a_model_loads_with_its_options_and_answers(library: FakeLibrary, model: Path) -> None:
    async def run() -> None:
        async with loaded(model, slots=2, context_tokens=100, threads=3, gpu_layers=5, batch_tokens=64) as node:
            assert node.steps == ["setting up", "warming up"]
            node.start(1, chat("hello there"))
            assert await node.end_of(1) == [pb.RunEnd.OK, "", [1, 2, 0], 0]
            assert node.said(1) == [["taken"], ["text", "hello", 0], ["text", "there", 0], ["finish", "stop", 0]]
            node.start(2, completion("once"))
            await node.end_of(2)
            assert node.text(2) == "once"
            node.start(3, embedding("a"))
            assert await node.end_of(3) == [pb.RunEnd.OK, "", [1, 0, 0], 0]
            (told,) = [frame for frame in node.frames[3] if "embedding" in frame.head]
            assert (told.head, array("f", told.tail).tolist()) == ({"run": 3, "embedding": 0}, [0.5])
            given = library.parameters
            assert (given.n_parallel, given.n_ctx, given.n_batch, given.n_ubatch) == (2, 200, 64, 64)
            assert (given.n_gpu_layers, given.cpuparams.n_threads, given.embedding) == (5, 3, False)
            assert given.hostnames == [f"{model.parent}/model.sock"]

    asyncio.run(run())


def test_it_says_how_much_of_the_file_is_read(
    library: FakeLibrary, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("iop_fast.node.adapters.llama_model.PROGRESS_S", 0)
    monkeypatch.setattr("iop_fast.node.adapters.llama_model.READ_BYTES", 251)

    async def run() -> None:
        async with loaded(model) as node:
            assert node.steps[:-2] == [f"reading {percent} % of 0 MB" for percent in (25, 50, 75, 100)]

    asyncio.run(run())


def test_a_model_of_embeddings_is_warmed_up_by_one(library: FakeLibrary, model: Path) -> None:
    async def run() -> None:
        library.fails = AssertionError("a completion")
        async with loaded(model, embeddings=True) as node:
            assert node.broken == ""

    asyncio.run(run())


def test_what_cannot_be_loaded_is_said(library: FakeLibrary, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(path: Path) -> str:
        async with worker(path.parent) as node:
            node.load(path)
            await until(lambda: node.broken != "", "the reason")
            assert not node.loaded
            return node.broken

    library.load_error = "unknown architecture"
    assert asyncio.run(broken(model)) == "small.gguf: llama.cpp cannot load it: unknown architecture"
    library.load_error = ""
    library.fails = MemoryError("\ud800")
    assert asyncio.run(broken(model)) == "MemoryError: ?"
    assert asyncio.run(broken(model.with_name("absent.gguf"))) == "absent.gguf: no such file or directory"
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    assert "pip install 'iop_fast[llm]'" in asyncio.run(broken(model))


def test_more_runs_than_slots_wait_and_a_waiting_one_is_cancelled_at_once(library: FakeLibrary, model: Path) -> None:
    async def run() -> None:
        async with loaded(model, slots=2) as node:
            library.may_speak.clear()
            for number in range(4):
                node.start(number, chat("a b"))
            await until(lambda: library.speaking == 2, "both")
            node.send({"cancel": 3})
            node.send({"cancel": 99})
            assert (await node.end_of(3))[0] == pb.RunEnd.CANCELLED
            library.may_speak.set()
            for number in range(3):
                assert (await node.end_of(number))[0] == pb.RunEnd.OK
            assert library.most_speaking == 2

    asyncio.run(run())


def test_a_cancelled_run_stops_the_model_and_frees_its_slot(library: FakeLibrary, model: Path) -> None:
    async def run() -> None:
        async with loaded(model, slots=1) as node:
            library.may_speak.clear()
            node.start(1, chat("word " * 1000))
            await until(lambda: library.speaking == 1, "it")
            node.send({"cancel": 1})
            node.start(2, chat("next"))  # it is read behind the cancel
            library.may_speak.set()
            assert (await node.end_of(1))[0] == pb.RunEnd.CANCELLED
            assert (await node.end_of(2))[0] == pb.RunEnd.OK

    asyncio.run(run())


def test_a_run_keeps_to_its_credit_and_others_go_on(library: FakeLibrary, model: Path) -> None:
    words = [f"word-{number}" for number in range(20_000)]

    async def run() -> None:
        async with loaded(model, slots=2) as node:
            node.start(1, chat(" ".join(words)))
            await until(lambda: node.size(1) >= WINDOW_BYTES, "it uses its credit up")
            node.start(2, chat("other"))
            assert (await node.end_of(2))[0] == pb.RunEnd.OK
            size = node.size(1)
            assert WINDOW_BYTES <= size < WINDOW_BYTES + node.frames[1][-1].size
            used = 0
            while node.end(1) is None:
                if node.size(1) > used:
                    assert node.size(1) - used < 2 * WINDOW_BYTES
                    size, used = node.size(1) - used, node.size(1)
                    node.send({"used": 1, "bytes": size})
                await asyncio.sleep(0.001)
            assert node.text(1) == "".join(words)
            assert max(len(frame.head.get("said", ())) for frame in node.frames[1]) <= 64

    asyncio.run(run())


def test_a_cancelled_run_without_credit_is_confirmed(library: FakeLibrary, model: Path) -> None:
    async def run() -> None:
        async with loaded(model, slots=2) as node:
            node.start(1, chat("word " * 20_000))
            node.start(2, embedding("a"))
            await until(lambda: node.size(1) >= WINDOW_BYTES, "it uses its credit up")
            node.send({"cancel": 1})
            assert (await node.end_of(1))[0] == pb.RunEnd.CANCELLED

    asyncio.run(run())


@pytest.mark.parametrize(("error", "status"), [(ValueError("no such grammar"), 400), (RuntimeError("no images"), 500)])
def test_what_the_library_raises_refuses_the_task(
    library: FakeLibrary, model: Path, error: Exception, status: int
) -> None:
    async def run() -> None:
        async with loaded(model) as node:
            library.fails = error
            node.start(1, chat("x"))
            assert await node.end_of(1) == [pb.RunEnd.REFUSED, str(error), None, status]

    asyncio.run(run())


def test_a_chunk_that_nobody_understands_ends_its_run_alone(library: FakeLibrary, model: Path) -> None:
    async def run() -> None:
        async with loaded(model) as node:
            library.module.Server.handle_chat_completions = lambda self, prompt, callback: (
                callback(b"{") and callback(b"{}")
            )
            node.start(1, chat("x"))
            assert (await node.end_of(1))[0] == pb.RunEnd.INTERNAL

    asyncio.run(run())


def test_frames_arrive_whole_however_they_are_cut() -> None:
    data = pack({"a": "é"}, b"\0tail") + pack({}) + pack({"b": [1]})
    expected = [({"a": "é"}, b"\0tail"), ({}, b""), ({"b": [1]}, b"")]
    for size in (1, 3, HEADER.size + 1, len(data)):
        unpacker = Unpacker()
        pieces = [data[at : at + size] for at in range(0, len(data), size)]
        frames = [frame for piece in pieces for frame in unpacker.feed(piece)]
        assert [(frame.head, frame.tail) for frame in frames] == expected
        assert sum(frame.size for frame in frames) == len(data)
