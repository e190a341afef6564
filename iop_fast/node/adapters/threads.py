"""Normalized runs whose work blocks: done in a thread, told on the event loop.

    loop    start, pause, resume, cancel; every call of the sink
    thread  `work(teller)`, which speaks through the Teller

What the thread says is put into one list and taken up by the loop in one call for all of it, so that a model that makes
tokens faster than the loop turns costs a turn and not a call a token. A thread that may not go on, because the client
reads no further, waits inside the Teller's call; one whose run is cancelled is told so by the next call and returns.

The end is `work`'s return value, or INTERNAL for what it raises, and it is told when the thread has left: a slot is not
given to another request while the thread still works for this one. A run that no thread has begun is cancelled at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from functools import partial
from threading import Event, Lock

from iop_fast import logs
from iop_fast.seams import End, RunSink
from iop_fast.wire import runtime_pb2 as pb

log = logs.get(__name__)

CANCELLED = End(pb.RunEnd.CANCELLED, "cancelled", None)
FAILED = End(pb.RunEnd.INTERNAL, "the adapter failed", None)

Work = Callable[["Teller"], End]


class Cancelled(Exception):
    """The run was cancelled: its thread leaves. Raised by the Teller there."""


class Teller:
    """What the work calls, in its thread, in the place of the sink. Every call may wait, and may raise Cancelled."""

    def __init__(self, run: ThreadRun) -> None:
        self._run = run

    @property
    def is_cancelled(self) -> bool:
        """True when there is nobody left to tell; for work that can stop between calls."""
        return self._run.is_cancelled

    def text(self, text: str, index: int = 0) -> None:
        """See RunSink.on_text."""
        self._run.tell(partial(say_text, text, index))

    def reasoning(self, text: str, index: int = 0) -> None:
        """See RunSink.on_reasoning."""
        self._run.tell(partial(say_reasoning, text, index))

    def tool_call(self, call_index: int, call_id: str, name: str, arguments: str, index: int = 0) -> None:
        """See RunSink.on_tool_call."""
        self._run.tell(partial(say_tool_call, call_index, call_id, name, arguments, index))

    def embedding(self, values: Sequence[float], index: int = 0) -> None:
        """See RunSink.on_embedding."""
        self._run.tell(partial(say_embedding, values, index))

    def finish(self, reason: str, index: int = 0) -> None:
        """See RunSink.on_finish."""
        self._run.tell(partial(say_finish, reason, index))


class ThreadRun:
    """One run. A RunHandle for the relay. `on_over` is called with it, on the loop, just before its end is told."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        executor: Executor,
        work: Work,
        sink: RunSink,
        on_over: Callable[[ThreadRun], object] = lambda run: None,
    ) -> None:
        self._loop = loop
        self._on_over = on_over
        self._sink = sink
        self._lock = Lock()
        self._said: list[Callable[[RunSink], None]] = []
        self._may_go_on = Event()
        self._may_go_on.set()
        self._has_ended = False
        self.is_cancelled = False
        self._future: Future[None] = executor.submit(self._run, work)

    # The event loop's.

    def pause(self) -> None:
        """See RunHandle."""
        self._may_go_on.clear()

    def resume(self) -> None:
        """See RunHandle."""
        self._may_go_on.set()

    def cancel(self) -> None:
        """See RunHandle."""
        if self.is_cancelled or self._has_ended:
            return
        self.is_cancelled = True
        self._may_go_on.set()
        if self._future.cancel():  # no thread has begun it
            self._loop.call_soon(self._end, CANCELLED)

    def _take_up(self) -> None:
        """Pass on what the thread has said."""
        with self._lock:
            said, self._said = self._said, []
        try:
            for say in said:
                if self.is_cancelled:
                    return
                say(self._sink)
        except Exception as error:  # noqa: BLE001 - what cannot be said ends this run alone
            log.failure("run_failed", error)
            self.cancel()

    def _end(self, end: End) -> None:
        self._take_up()
        self._has_ended = True
        self._on_over(self)
        self._sink.on_end(CANCELLED if self.is_cancelled and end.status == pb.RunEnd.OK else end)

    # The thread's.

    def tell(self, say: Callable[[RunSink], None]) -> None:
        """Have something said on the event loop; wait while the run is paused. Raises Cancelled."""
        self._may_go_on.wait()
        if self.is_cancelled:
            raise Cancelled
        with self._lock:
            self._said.append(say)
            is_first = len(self._said) == 1
        if is_first:
            self._loop.call_soon_threadsafe(self._take_up)

    def _run(self, work: Work) -> None:
        """Work, and have the end told whatever becomes of it."""
        try:
            self.tell(say_taken)
            end = work(Teller(self))
        except Cancelled:
            end = CANCELLED
        except Exception as error:  # noqa: BLE001 - the run must end, and the thread serves others
            log.failure("work_failed", error)
            end = FAILED
        try:
            self._loop.call_soon_threadsafe(self._end, end)
        except RuntimeError:
            log.info("run_left_over")  # the loop is closed: there is nobody to tell


def say_taken(sink: RunSink) -> None:
    sink.on_taken()


def say_text(text: str, index: int, sink: RunSink) -> None:
    sink.on_text(text, index)


def say_reasoning(text: str, index: int, sink: RunSink) -> None:
    sink.on_reasoning(text, index)


def say_tool_call(call_index: int, call_id: str, name: str, arguments: str, index: int, sink: RunSink) -> None:
    sink.on_tool_call(call_index, call_id, name, arguments, index)


def say_embedding(values: Sequence[float], index: int, sink: RunSink) -> None:
    sink.on_embedding(values, index)


def say_finish(reason: str, index: int, sink: RunSink) -> None:
    sink.on_finish(reason, index)
