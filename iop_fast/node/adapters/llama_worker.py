"""The worker: a process of its own that a native model runs in, so that whatever its library does is done to it alone.

Run as `python -m iop_fast.node.adapters.llama_worker FD PID`: FD is a stream socket to the Node, whose process is PID.
`llama_channel` says what is spoken on it, `llama_link` is the other end.

    main thread    the event loop: the channel, and what runs say
    loader         loads the model, then leaves
    a slot each    does one task at a time (`ThreadRun`); further ones wait for a thread

It ends when the channel does, at once and whatever it does: there is nothing to save. A library that holds Python's
lock cannot delay that: SIGTERM has the kernel's own action, and on Linux the kernel kills this process with the Node.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from iop_fast import logs
from iop_fast.config.schema.native import LlamaCppOptions
from iop_fast.node.adapters.cli_spawner_program import PR_SET_PDEATHSIG, Prctl
from iop_fast.node.adapters.llama_channel import WINDOW_BYTES, Frame, Unpacker, pack
from iop_fast.node.adapters.llama_model import LoadError, Server, do_task, load
from iop_fast.node.adapters.threads import ThreadRun
from iop_fast.seams import End, RunHandle

log = logs.get(__name__)

# Events in one frame, at most: a frame is what a run may overdraw its credit by.
EVENTS_MAX = 64


class Worker(asyncio.Protocol):
    """The worker's end of the channel. `leave` ends the process."""

    def __init__(self, loop: asyncio.AbstractEventLoop, leave: Callable[[int], object] = os._exit) -> None:
        self._loop = loop
        self._leave = leave
        self._unpacker = Unpacker()
        self._transport: asyncio.WriteTransport | None = None
        self._executor: ThreadPoolExecutor | None = None
        self._server: Server | None = None
        self._runs: dict[int, ChannelSink] = {}

    # The channel.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        for frame in self._unpacker.feed(data):
            self._obey(frame)

    def connection_lost(self, error: Exception | None) -> None:
        """The Node is gone, or wants this worker gone."""
        self._leave(0)

    def send(self, frame: bytes) -> None:
        """Send a frame. The credit of the runs bounds what waits here."""
        assert self._transport is not None, "a frame before the channel"
        self._transport.write(frame)

    def _obey(self, frame: Frame) -> None:
        head = frame.head
        if "start" in head:
            self._start(head["start"], head["kind"], frame.tail)
        elif "load" in head:
            options = LlamaCppOptions.model_validate(head["load"])
            self._executor = ThreadPoolExecutor(options.slots, thread_name_prefix="llama_cpp")
            loader = threading.Thread(target=self._load, args=(options, head["folder"]), name="loader", daemon=True)
            loader.start()
        elif "used" in head:
            if (run := self._runs.get(head["used"])) is not None:
                run.on_used(head["bytes"])
        elif (run := self._runs.get(head["cancel"])) is not None:
            run.cancel()

    def _start(self, number: int, kind: int, request: bytes) -> None:
        server, executor = self._server, self._executor
        assert server is not None, "a run before the model"
        assert executor is not None, "a model without threads"
        sink = self._runs[number] = ChannelSink(self._loop, number, self.send, self._runs.pop)
        sink.handle = ThreadRun(self._loop, executor, partial(do_task, server, kind, request), sink)

    # Loading. `_load` and `_tell` are the loader's.

    def _load(self, options: LlamaCppOptions, folder: str) -> None:
        begin_s = time.monotonic()
        try:
            server = load(options, folder, self._tell)
        except LoadError as error:
            self._loop.call_soon_threadsafe(self._say, {"broken": plain(str(error))})
        except Exception as error:  # noqa: BLE001 - whatever a library raises, the provider must be said to be broken
            log.failure("model_failed", error, model=Path(options.path).name)
            self._loop.call_soon_threadsafe(self._say, {"broken": plain(f"{type(error).__name__}: {error}")})
        else:
            self._loop.call_soon_threadsafe(self._on_loaded, server, time.monotonic() - begin_s)

    def _tell(self, how_far: str) -> None:
        """Return when it is on its way: the loop may come to a stand behind it."""
        told = threading.Event()
        self._loop.call_soon_threadsafe(self._say, {"loading": how_far}, told)
        told.wait()

    def _on_loaded(self, server: Server, took_s: float) -> None:
        self._server = server
        self._say({"loaded": round(took_s, 1)})

    def _say(self, head: Mapping[str, Any], told: threading.Event | None = None) -> None:
        self.send(pack(head))
        if told is not None:
            told.set()


class ChannelSink:
    """What a run says, on its way to the Node: a RunSink. Frames without credit wait here, and the run is paused."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        number: int,
        send: Callable[[bytes], None],
        on_over: Callable[[int], object],
    ) -> None:
        self._loop = loop
        self._number = number
        self._send = send
        self._on_over = on_over
        self._said: list[list[Any]] = []
        self._waiting: deque[bytes] = deque()
        self._credit = WINDOW_BYTES
        self._has_ended = False
        self._is_cancelled = False
        self.handle: RunHandle | None = None  # set before anything is said

    def on_used(self, size: int) -> None:
        """The Node has passed so many bytes on."""
        self._credit += size
        self._pump()

    def cancel(self) -> None:
        """The Node wants no more of it than its end."""
        self._is_cancelled = True
        self._said.clear()
        ends = [self._waiting[-1]] if self._has_ended else []
        self._waiting.clear()
        self._waiting.extend(ends)
        self._pump()
        if self.handle is not None:
            self.handle.cancel()

    def on_taken(self) -> None:
        """See RunSink."""
        self._add(["taken"])

    def on_text(self, text: str, index: int = 0) -> None:
        """See RunSink."""
        self._add(["text", text, index])

    def on_reasoning(self, text: str, index: int = 0) -> None:
        """See RunSink."""
        self._add(["reasoning", text, index])

    def on_tool_call(self, call_index: int, call_id: str, name: str, arguments: str, index: int = 0) -> None:
        """See RunSink."""
        self._add(["tool_call", call_index, call_id, name, arguments, index])

    def on_finish(self, reason: str, index: int = 0) -> None:
        """See RunSink."""
        self._add(["finish", reason, index])

    def on_embedding(self, values: Sequence[float], index: int = 0) -> None:
        """See RunSink."""
        self._flush()
        self._queue(pack({"run": self._number, "embedding": index}, array("f", values).tobytes()))

    def on_end(self, end: End) -> None:
        """See RunSink."""
        self._flush()
        self._has_ended = True
        usage = None if end.usage is None else list(end.usage)
        self._queue(pack({"run": self._number, "end": [end.status, plain(end.detail), usage, end.refusal_status]}))

    def _add(self, event: list[Any]) -> None:
        self._said.append(event)
        if len(self._said) >= EVENTS_MAX:
            self._flush()
        elif len(self._said) == 1:
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        if self._said:
            said, self._said = self._said, []
            self._queue(pack({"run": self._number, "said": said}))

    def _queue(self, frame: bytes) -> None:
        self._waiting.append(frame)
        self._pump()

    def _pump(self) -> None:
        """Send what there is credit for, all of what is left of a cancelled run."""
        while self._waiting and (self._credit > 0 or self._is_cancelled):
            frame = self._waiting.popleft()
            self._credit -= len(frame)
            self._send(frame)
        if self._has_ended:
            if not self._waiting:
                self._on_over(self._number)
        elif self.handle is not None:
            if self._credit > 0 or self._is_cancelled:
                self.handle.resume()
            else:
                self.handle.pause()


def plain(text: str) -> str:
    """Replace what UTF-8 does not have: a library or an operating system may put anything into an error."""
    return text.encode("utf-8", "replace").decode()


async def serve(channel: socket.socket) -> None:
    """Serve the channel until it closes, which ends the process."""
    loop = asyncio.get_running_loop()
    await loop.create_unix_connection(lambda: Worker(loop), sock=channel)
    await loop.create_future()


def main(argv: Sequence[str]) -> int:
    """Serve the socket FD until the Node is gone."""
    channel = socket.socket(fileno=int(argv[1]))
    channel.set_inheritable(False)
    logs.setup()
    if sys.platform == "linux":
        Prctl()(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(argv[2]):
        return 0  # the Node died before the kernel knew
    asyncio.run(serve(channel))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
