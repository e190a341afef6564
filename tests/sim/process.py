"""A program of the simulated world: a view of the one loop that can be frozen and killed.

An Edge or a Node gets a `Process` where it would get its event loop. Everything it schedules goes through here, so the
world can do to it what an operating system does:

    freeze   nothing of it runs (SIGSTOP, a hung loop, a starved machine); what becomes due meanwhile is kept, in order,
             and runs late after `thaw`, while the transports below it go on
    kill     nothing of it ever runs again; its tasks stay as they are, and are taken apart by `bury` once the world is
             over, so that no `finally` of a dead program acts on the living

While one of its callbacks runs, it is the running loop, so `asyncio.get_running_loop`, futures, locks and tasks made in
there belong to it. Nothing else of a loop exists here: no sockets, no executors, no signals.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import Any

from tests.sim.loop import VirtualLoop


class Call:
    """A callback that a process has scheduled; what asyncio calls a Handle."""

    __slots__ = ("args", "callback", "context", "is_cancelled", "process", "timer", "when_s")

    def __init__(
        self, process: Process, callback: Callable[..., object], args: tuple[Any, ...], context: Any, when_s: float
    ) -> None:
        self.process = process
        self.callback = callback
        self.args = args
        self.context = context
        self.when_s = when_s
        self.timer: asyncio.TimerHandle | None = None
        self.is_cancelled = False

    def cancel(self) -> None:
        if not self.is_cancelled:
            self.is_cancelled = True
            self.process.drop(self)

    def cancelled(self) -> bool:
        return self.is_cancelled

    def when(self) -> float:
        return self.when_s


class Process(asyncio.AbstractEventLoop):
    """One program's loop. `timers` are those it has set and neither cancelled nor seen fire."""

    def __init__(self, loop: VirtualLoop, name: str) -> None:
        self.name = name
        self.real = loop
        self.is_frozen = False
        self.is_dead = False
        self.timers: dict[Call, None] = {}
        self.failures: list[dict[str, Any]] = []
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._held: list[Call] = []

    def __repr__(self) -> str:
        state = "dead" if self.is_dead else "frozen" if self.is_frozen else "running"
        return f"<Process {self.name} {state}>"

    # What the world does to it.

    def freeze(self) -> None:
        """Let nothing of it run until `thaw`."""
        self.is_frozen = True

    def thaw(self) -> None:
        """Let it go on with what was kept."""
        if not self.is_frozen:
            return
        self.is_frozen = False
        held, self._held = self._held, []
        for call in held:
            self.real.call_soon(self._run, call, context=call.context)

    def kill(self) -> None:
        """Let nothing of it run any more."""
        self.is_dead = True
        for call in list(self.timers):
            self.drop(call)
        self._held.clear()

    def bury(self) -> None:
        """Take a dead program's tasks apart. Only at the end of the world."""
        assert self.is_dead, f"{self!r} is alive"
        for task in list(self._tasks):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            task.get_coro().close()  # type: ignore[union-attr]
        self._tasks.clear()

    @property
    def unfinished(self) -> list[str]:
        """What the program still has going on: names of tasks and of timers' callbacks."""
        names = [f"task {task.get_coro().__qualname__}" for task in self._tasks]  # type: ignore[union-attr]
        return names + [f"timer {getattr(call.callback, '__qualname__', call.callback)}" for call in self.timers]

    # What the program does.

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Any = None) -> Any:
        call = Call(self, callback, args, context, self.real.time())
        if not self.is_dead:
            self.real.call_soon(self._run, call, context=context)
        return call

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any, context: Any = None) -> Any:
        return self.call_at(self.real.time() + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Callable[..., object], *args: Any, context: Any = None) -> Any:
        if context is None:
            context = contextvars.copy_context()
        call = Call(self, callback, args, context, when)
        if not self.is_dead:
            self.timers[call] = None
            call.timer = self.real.call_at(when, self._run, call, context=context)
        return call

    def time(self) -> float:
        return self.real.time()

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Any = None
    ) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks[task] = None
        task.add_done_callback(self._forget)
        return task

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self.is_dead

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.failures.append(context)

    def drop(self, call: Call) -> None:
        """Take back a call (used by it)."""
        self.timers.pop(call, None)
        if call.timer is not None:
            call.timer.cancel()
            call.timer = None

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and task.exception() is not None:
            self.call_exception_handler({"message": "a task failed", "exception": task.exception(), "task": task})

    def _run(self, call: Call) -> None:
        if self.is_dead or call.is_cancelled:
            return
        if self.is_frozen:
            call.timer = None
            self._held.append(call)
            return
        self.timers.pop(call, None)
        call.timer = None
        asyncio._set_running_loop(self)
        try:
            call.callback(*call.args)
        except Exception as error:  # noqa: BLE001 - as a loop does: the program goes on and the world hears of it
            self.call_exception_handler({"message": "a callback failed", "exception": error, "handle": call})
        finally:
            asyncio._set_running_loop(self.real)
