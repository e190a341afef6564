"""A small world for the link's tests: a loop on virtual time and an in-memory stream, both driven by the test."""

from __future__ import annotations

import asyncio
import math
import selectors
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any

from iop_fast._core.clock import VirtualClock
from iop_fast.edge.gate import Gate

NS_PER_S = 1_000_000_000


class OpenGate(Gate):
    """A gate whose steps a test can replace: those of the compiled class itself stand fast."""


class _VirtualSelector(selectors.SelectSelector):
    """Waits by moving the clock. Only the loop's own wake-up pipe is ever registered, and nothing comes through it."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self.clock = clock
        self.is_settling = False
        self.on_idle: Callable[[], None] | None = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout <= 0:
            return []
        if self.is_settling:
            assert self.on_idle is not None
            self.on_idle()
        elif timeout is None:
            raise RuntimeError("the virtual loop would wait for ever: nothing is scheduled")
        else:
            self.clock.advance_to(self.clock.now_ns() + math.ceil(timeout * NS_PER_S))
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is a VirtualClock. Close it with `with`."""

    def __init__(self) -> None:
        self.clock = VirtualClock(1_000 * NS_PER_S)
        self._virtual = _VirtualSelector(self.clock)
        self._virtual.on_idle = self.stop
        super().__init__(self._virtual)
        self.failures: list[dict[str, Any]] = []
        self.set_exception_handler(lambda loop, context: self.failures.append(context))

    def __enter__(self) -> VirtualLoop:
        asyncio.set_event_loop(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.settle()
        for task in asyncio.all_tasks(self):
            task.cancel()
        self.settle()
        asyncio.set_event_loop(None)
        self.close()
        assert self.failures == [] or kind is not None, self.failures

    def time(self) -> float:
        return self.clock.now_ns() / NS_PER_S

    def run_for(self, seconds: float) -> None:
        """Let virtual time pass and everything happen that is due in it."""
        self.call_later(seconds, self.stop)
        self.run_forever()
        self.settle()

    def settle(self) -> None:
        """Run what is ready, and what that makes ready, without letting time pass."""
        self._virtual.is_settling = True
        try:
            self.run_forever()
        finally:
            self._virtual.is_settling = False

    def jump(self, seconds: float) -> None:
        """Let time pass while nothing runs: the process was stopped or starved."""
        self.clock.advance_to(self.clock.now_ns() + round(seconds * NS_PER_S))


class TestStream:
    """A MessageStream held by the test: `feed` what the peer says, look at `sent`, `end` it."""

    __test__ = False

    def __init__(self) -> None:
        self.inbox: deque[bytes | None] = deque()
        self.sent: list[bytes] = []
        self.is_abandoned = False
        self.is_held = False  # writes do not finish: the peer does not read
        self._reader: asyncio.Future[None] | None = None
        self._held: list[asyncio.Future[None]] = []
        self._ended = False

    async def read(self) -> bytes | None:
        assert self._reader is None, "two reads at once"
        while not self.inbox:
            if self._ended:
                return None
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        return self.inbox.popleft()

    async def write(self, message: bytes) -> None:
        if self._ended:
            raise ConnectionError("the stream has ended")
        self.sent.append(message)
        if self.is_held:
            held = asyncio.get_running_loop().create_future()
            self._held.append(held)
            await held
            if self._ended:
                raise ConnectionError("the stream has ended")

    def abandon(self) -> None:
        """Give up; like gRPC with a frozen peer, a pending write stays pending until the test ends the stream."""
        self.is_abandoned = True

    def feed(self, message: bytes) -> None:
        self.inbox.append(message)
        self._wake()

    def release(self) -> None:
        self.is_held = False
        held, self._held = self._held, []
        for write in held:
            write.set_result(None)

    def end(self) -> None:
        self._ended = True
        self._wake()
        self.release()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
