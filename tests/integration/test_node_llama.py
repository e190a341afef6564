"""The adapter `llama_cpp` with its worker as a process of its own, on the program's loop. The library is a fake."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import iop_fast
from iop_fast.config.schema import NodeLimits
from iop_fast.node.adapters import Surroundings
from iop_fast.node.adapters.llama_cpp import LlamaCppAdapter, make_llama_cpp
from iop_fast.node.health import State
from iop_fast.seams import End, RunHandle, RunTask, Usage
from iop_fast.wire import runtime_pb2 as pb
from tests.integration.node_bench import on_uvloop, until
from tests.unit.node.adapters.run_sink import RecordingRunSink, chat, completion, embedding
from tests.unit.node.worlds import provider

# Where a worker finds the fake, and this build: a traced one is imported by its path.
MODULES = f"{Path(__file__).resolve().parents[1] / 'fakes' / 'native_library'}:{Path(iop_fast.__file__).parents[1]}"
# A worker starts in a second, and in many on a machine that does much else.
LIMIT_S = 60.0


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model's file, in a folder of its own beside that of temporary files."""
    folder, temporary = tmp_path / "model", tmp_path / "tmp"
    folder.mkdir()
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    path = folder / "small.gguf"
    path.write_bytes(b"GGUF" + bytes(1000))
    return path


class Model:
    """An adapter, and the reasons of its states."""

    def __init__(self, path: Path, **options: Any) -> None:
        environ = {"PYTHONPATH": MODULES, "PATH": os.defpath, "IOP_NODE_TOKEN": "secret"}
        around = Surroundings(asyncio.get_running_loop(), environ, {}, NodeLimits())
        made = make_llama_cpp({"path": str(path)} | options, around)
        assert isinstance(made, LlamaCppAdapter)
        self.adapter = made
        self.health = made.health
        self.reasons: list[str] = []
        self.pids: list[int] = [self.pid]
        made.health.on_change = lambda: self.reasons.append(made.health.reason)

    @property
    def pid(self) -> int:
        assert self.adapter.worker_pid is not None
        return self.adapter.worker_pid

    async def serves(self) -> None:
        await until(lambda: self.health.state is State.UP, f"up, not {self.health}", LIMIT_S)
        if self.pid not in self.pids:
            self.pids.append(self.pid)

    def start(self, task: RunTask) -> tuple[RunHandle, RecordingRunSink]:
        sink = RecordingRunSink()
        return self.adapter.run_adapter(provider()).start(task, sink), sink

    async def ask(self, task: RunTask) -> RecordingRunSink:
        _, sink = self.start(task)
        await over(sink)
        return sink


async def over(sink: RecordingRunSink) -> End:
    await until(lambda: sink.end is not None, "the run's end", LIMIT_S)
    assert sink.end is not None
    return sink.end


@asynccontextmanager
async def served(path: Path, **options: Any) -> AsyncIterator[Model]:
    """A model; nothing of it is left behind."""
    made = Model(path, **options)
    try:
        yield made
    finally:
        await made.adapter.close()
    assert made.adapter.worker_pid is None
    assert not any(is_running(pid) for pid in made.pids)
    assert list((path.parents[1] / "tmp").iterdir()) == []


def of_process(pid: int, name: str) -> bytes:
    return Path(f"/proc/{pid}/{name}").read_bytes()


def is_running(pid: int) -> bool:
    """True for a process that has not exited."""
    try:
        stat = of_process(pid, "stat")
    except FileNotFoundError:
        return False
    return stat.rpartition(b")")[2].split()[0] not in (b"Z", b"X")


@on_uvloop
async def life(path: Path) -> None:
    async with served(path, slots=3) as at:
        await at.serves()
        assert b"secret" not in of_process(at.pid, "environ")
        sink = await at.ask(chat("hello there"))
        assert (sink.text(), sink.finished) == ("hellothere", {0: "stop"})
        assert sink.end == End(pb.RunEnd.OK, "", Usage(1, 2, 0))
        assert sink.is_taken
        assert (await at.ask(completion("once"))).text() == "once"
        # More than a window, and each larger than what is read in one turn.
        sink = await at.ask(embedding(*["text"] * 100))
        assert sink.end == End(pb.RunEnd.OK, "", Usage(100, 0, 0))
        assert sink.embeddings == {index: [0.5] * 1024 for index in range(100)}

        # One run that nobody reads stands still, another goes on; both can be cancelled.
        handle, sink = at.start(chat("forever"))
        handle.pause()
        still, resting = at.start(chat("forever"))
        await until(lambda: len(resting.said) > 10_000, "it goes on beyond any window", LIMIT_S)
        assert (await at.ask(chat("third"))).text() == "third"
        assert sink.said == []
        handle.resume()
        await until(lambda: len(sink.said) > 10_000, "it goes on", LIMIT_S)
        handle.cancel()
        still.cancel()
        assert (await over(sink)).status == pb.RunEnd.CANCELLED
        assert (await over(resting)).status == pb.RunEnd.CANCELLED

        # What runs when it is closed is cancelled.
        _, sink = at.start(chat("forever"))
        await until(lambda: sink.is_taken, "it runs", LIMIT_S)
    assert sink.end == End(pb.RunEnd.CANCELLED, "cancelled", None)


def test_a_model_serves_from_a_process_of_its_own_and_leaves_none(model: Path) -> None:
    life(model)


@on_uvloop
async def crash(path: Path) -> None:
    async with served(path, slots=2) as at:
        await at.serves()
        _, other = at.start(chat("word gate-never"))
        await until(lambda: other.text() == "word", "it runs", LIMIT_S)
        sink = await at.ask(chat("first abort"))
        expected = "the model's process ended by SIGABRT: model.cpp:7: GGML_ASSERT(n > 0) failed"
        assert sink.end == End(pb.RunEnd.UPSTREAM_ERROR, expected, None)
        assert await over(other) == sink.end
        assert at.health.state is State.LOADING
        again = "loading small.gguf again in 0.1 s: " + expected.replace("the model's", "its")
        assert at.health.reason == again
        refused = await at.ask(chat("meanwhile"))
        assert refused.end == End(pb.RunEnd.CONNECT_FAILED, again, None)
        await at.serves()
        assert len(at.pids) == 2
        assert (await at.ask(chat("hello"))).text() == "hello"
        os.kill(at.pid, signal.SIGKILL)
        killed = "loading small.gguf again in 0.2 s: its process ended by SIGKILL"
        await until(lambda: at.health.reason == killed, "it is known", LIMIT_S)


def test_a_worker_that_crashes_ends_its_runs_and_another_serves(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iop_fast.node.adapters.llama_cpp.RESTART_FIRST_S", 0.1)
    crash(model)


async def let_go(fifo: Path) -> None:
    """Open a FIFO that somebody waits for, or is about to."""
    for _ in range(10_000):
        try:
            os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
        except OSError:
            await asyncio.sleep(0.002)
        else:
            return
    raise AssertionError("nobody waits for the FIFO")


@on_uvloop
async def held_load(path: Path) -> None:
    hold = path.parent / "hold"
    os.mkfifo(hold)
    async with served(path) as at:
        await until(lambda: at.health.reason == "loading small.gguf: setting up", "it is set up", LIMIT_S)
        for _ in range(100):
            await asyncio.sleep(0)
        assert at.reasons[-1] == "loading small.gguf: setting up", "a hundred turns, and the library has not come back"
        await let_go(hold)
        await at.serves()
        assert at.reasons[-2:] == ["loading small.gguf: warming up", ""]
    async with served(path) as at:
        await until(lambda: at.health.reason == "loading small.gguf: setting up", "it is set up", LIMIT_S)
        # It is closed while the library holds Python's lock, and does not wait for that.
    async with served(path) as at:
        await until(lambda: at.health.reason == "loading small.gguf: setting up", "it is set up", LIMIT_S)
        os.kill(at.pid, signal.SIGSTOP)  # deaf to SIGTERM


def test_the_library_holds_up_its_worker_alone(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iop_fast.node.adapters.llama_link.TERM_LIMIT_S", 0.5)
    held_load(model)


NODE = """
    import asyncio, sys
    from iop_fast.config.schema import NodeLimits
    from iop_fast.node.adapters import Surroundings
    from iop_fast.node.adapters.llama_cpp import make_llama_cpp

    async def run():
        loop = asyncio.get_running_loop()
        made = make_llama_cpp({"path": sys.argv[1]}, Surroundings(loop, {"PYTHONPATH": sys.argv[2]}, {}, NodeLimits()))
        while not made.health.reason.endswith("setting up"):
            await asyncio.sleep(0.01)
        print(made.worker_pid, flush=True)
        await asyncio.sleep(3600)

    asyncio.run(run())
"""


def test_a_worker_ends_with_its_node_whatever_it_does(model: Path) -> None:
    os.mkfifo(model.parent / "hold")
    command = [sys.executable, "-c", textwrap.dedent(NODE), str(model), MODULES]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, env={"TMPDIR": tempfile.gettempdir(), "PYTHONPATH": MODULES}
    ) as node:
        try:
            assert node.stdout is not None
            pid = int(node.stdout.readline())
            assert is_running(pid)
        finally:
            node.kill()
    asyncio.run(until(lambda: not is_running(pid), "the worker has ended", LIMIT_S))
