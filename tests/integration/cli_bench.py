"""Real programs run by the cli adapter in this process: a bench that counts what is left of them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from iop_fast.config.payload import TimeoutSettings
from iop_fast.config.schema import CliProfile, NodeLimits
from iop_fast.node.adapters import Surroundings
from iop_fast.node.adapters.cli import CliAdapter, make_cli
from iop_fast.seams import End, RunHandle, RunTask, TaskMessage, TaskPart
from iop_fast.wire import runtime_pb2 as pb
from tests.integration.node_bench import LIMIT_S, until
from tests.unit.node.worlds import provider, settings

RunEnd = pb.RunEnd
OK = End(RunEnd.OK, "", None)
CANCELLED = End(RunEnd.CANCELLED, "cancelled", None)


class TaskSink:
    """A RunSink that keeps what it is told."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.texts: list[str] = []
        self.reasonings: list[str] = []
        self.finish: str | None = None
        self.end: End | None = None
        self.handle: RunHandle | None = None
        self._ended = asyncio.Event()

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def reasoning(self) -> str:
        return "".join(self.reasonings)

    def _note(self, call: str) -> None:
        assert self.end is None, f"{call} after the end"
        if not self.calls or self.calls[-1] != call:
            self.calls.append(call)

    def on_taken(self) -> None:
        assert "taken" not in self.calls
        self._note("taken")

    def on_text(self, text: str, index: int = 0) -> None:
        assert text
        assert index == 0
        self._note("text")
        self.texts.append(text)

    def on_reasoning(self, text: str, index: int = 0) -> None:
        self._note("reasoning")
        self.reasonings.append(text)

    def on_tool_call(self, call_index: int, call_id: str, name: str, arguments: str, index: int = 0) -> None:
        raise AssertionError("a command line tool calls no tools")

    def on_embedding(self, values: Sequence[float], index: int = 0) -> None:
        raise AssertionError("a command line tool makes no embeddings")

    def on_finish(self, reason: str, index: int = 0) -> None:
        self._note("finish")
        self.finish = reason

    def on_end(self, end: End) -> None:
        self._note("end")
        self.end = end
        self._ended.set()

    async def ended(self, limit_s: float = LIMIT_S) -> End:
        async with asyncio.timeout(limit_s):
            await self._ended.wait()
        assert self.end is not None
        return self.end

    async def said(self, text: str) -> None:
        """Wait until the answer holds a text."""
        await until(lambda: text in self.text, f"{text!r} in {self.text[:200]!r}")


def chat(text: str = "hello", **parameters: Any) -> RunTask:
    """A task of one message."""
    return task(("user", text), **parameters)


def task(*messages: tuple[str, str], model: str = "served", **parameters: Any) -> RunTask:
    """A chat of (role, text)."""
    said = [TaskMessage(role, [TaskPart("text", text)]) for role, text in messages]
    return RunTask(model, pb.RunRequest.CHAT, True, said, [], parameters)


class CliBench:
    """One adapter and its runs."""

    def __init__(self, adapter: CliAdapter, timeouts: TimeoutSettings) -> None:
        self.adapter = adapter
        self.runs = adapter.run_adapter(provider(timeouts=timeouts))

    def start(self, asked: RunTask | None = None) -> TaskSink:
        """Start a run; its handle is the sink's."""
        sink = TaskSink()
        sink.handle = self.runs.start(chat() if asked is None else asked, sink)
        return sink

    async def ask(self, asked: RunTask | None = None) -> TaskSink:
        """Run to the end."""
        sink = self.start(asked)
        await sink.ended()
        return sink

    def children(self) -> list[tuple[int, str]]:
        """(pid, state) of what the spawner has for children."""
        spawner = self.adapter.spawner.pid
        return [] if spawner is None else [(pid, state) for pid, state, parent in processes() if parent == spawner]

    def spawner_fds(self) -> int:
        """Open files of the spawner."""
        return open_files(self.adapter.spawner.pid)

    def marked(self) -> list[int]:
        """Living processes that were started by this bench's spawner, wherever they are now."""
        return marked(f"{os.getpid()}-{id(self.adapter.spawner):x}-")


def processes() -> list[tuple[int, str, int]]:
    """(pid, state, parent) of every process."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
            except OSError:
                continue
            found.append((int(entry.name), fields[0].decode(), int(fields[1])))
    return found


def marked(prefix: str) -> list[int]:
    """Living processes whose IOP_RUN begins so."""
    found = []
    for pid, state, _ in processes():
        try:
            if state != "Z" and f"IOP_RUN={prefix}".encode() in Path(f"/proc/{pid}/environ").read_bytes():
                found.append(pid)
        except OSError:
            continue
    return found


def open_files(pid: int | None) -> int:
    """Open files of a process; 0 where there is none."""
    return 0 if pid is None else len(os.listdir(f"/proc/{pid}/fd"))


def has_ended(pid: int) -> bool:
    """True when a process is gone, or is a zombie that its parent will reap."""
    return all(one != pid or state == "Z" for one, state, _ in processes())


def surroundings(profile: CliProfile, environ: Mapping[str, str] | None = None) -> Surroundings:
    """A Node with one profile."""
    environ = dict(os.environ) if environ is None else environ
    limits = NodeLimits(probe_ms_min=10, probe_ms_max=20)
    return Surroundings(asyncio.get_running_loop(), environ, {}, limits, {profile.id: profile})


@asynccontextmanager
async def cli_bench(
    command: Sequence[str],
    *,
    environ: Mapping[str, str] | None = None,
    first_byte_ms: int = 60_000,
    idle_ms: int = 60_000,
    **keys: Any,
) -> AsyncIterator[CliBench]:
    """Make an adapter, and close it; nothing may be left then."""
    keys = {"kill_after_ms": 100} | keys
    profile = CliProfile(id="p", command=tuple(command), **keys)
    adapter = make_cli(settings("", profile="p"), surroundings(profile, environ))
    bench = CliBench(adapter, TimeoutSettings(5_000, first_byte_ms, idle_ms))
    spawner = None
    try:
        yield bench
        assert bench.children() == [], "children of the spawner that no run has"
    finally:
        spawner = adapter.spawner.pid
        await adapter.close()
    assert adapter.spawner.pid is None
    assert spawner is None or all(pid != spawner for pid, _, _ in processes()), "a spawner that was not reaped"
    assert bench.marked() == []


def exists(path: str | Path) -> bool:
    return Path(path).exists()


def secretive() -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": "/home/x",
        "IOP_NODE_TOKEN": "token-of-the-node",
        "TOOL_KEY": "key-of-the-tool",
        "OTHER_KEY": "key-of-another",
        "LC_ALL": "ko_KR.UTF-8",
        "LD_PRELOAD": "",
    }
