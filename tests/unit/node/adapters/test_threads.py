"""Work in a thread: told on the loop in order, paused and cancelled there, its end told when the thread has left."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from threading import Event
from typing import Any

import pytest

from iop_fast.node.adapters.threads import FAILED, Teller, ThreadRun, Work
from iop_fast.seams import End, RunText, Usage
from iop_fast.wire import runtime_pb2 as pb
from tests.integration.node_bench import until
from tests.unit.node.adapters.run_sink import RecordingRunSink

LIMIT_S = 10.0
DONE = End(pb.RunEnd.OK, "", Usage(1, 2, 0))


class Sink(RecordingRunSink):
    """Notes the thread that it is called in, and lets a test wait."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: set[str] = set()
        self.ended = asyncio.Event()

    def on_text(self, text: str, index: int = 0) -> None:
        self.threads.add(threading.current_thread().name)
        super().on_text(text, index)

    def on_end(self, end: End) -> None:
        super().on_end(end)
        self.ended.set()

    async def over(self) -> End:
        async with asyncio.timeout(LIMIT_S):
            await self.ended.wait()
        assert self.end is not None
        return self.end


class Bench:
    def __init__(self, threads: int) -> None:
        self.executor = ThreadPoolExecutor(threads)
        self.over: list[ThreadRun] = []

    def start(self, work: Work, sink: Sink) -> ThreadRun:
        return ThreadRun(asyncio.get_running_loop(), self.executor, work, sink, self.over.append)


@asynccontextmanager
async def bench(threads: int = 1) -> AsyncIterator[Bench]:
    made = Bench(threads)
    try:
        yield made
    finally:
        await asyncio.to_thread(made.executor.shutdown)


def wait(event: Event) -> None:
    assert event.wait(LIMIT_S)


def test_everything_is_told_on_the_loop_in_its_order() -> None:
    def work(teller: Teller) -> End:
        for number in range(100):
            teller.text(str(number))
        teller.reasoning("hm", 1)
        teller.tool_call(0, "c1", "look", "{}", 2)
        teller.embedding([1.0], 3)
        teller.finish("stop", 4)
        return DONE

    async def run() -> None:
        async with bench() as made:
            sink = Sink()
            started = made.start(work, sink)
            assert await sink.over() == DONE
            assert sink.is_taken
            assert [said.text for said in sink.said if isinstance(said, RunText)] == [str(n) for n in range(100)]
            assert sink.said[100:] == [("reasoning", "hm", 1), (0, "c1", "look", "{}", 2)]
            assert (sink.embeddings, sink.finished) == ({3: [1.0]}, {4: "stop"})
            assert sink.threads == {threading.main_thread().name}
            assert made.over == [started]
            started.cancel()  # too late
            await asyncio.sleep(0)

    asyncio.run(run())


def test_what_piles_up_while_the_loop_is_busy_comes_in_one_turn() -> None:
    async def run() -> None:
        turns: list[int] = []
        all_said = Event()

        def work(teller: Teller) -> End:
            for _ in range(500):
                teller.text("x")
            all_said.set()
            return DONE

        class Counting(Sink):
            def on_text(self, text: str, index: int = 0) -> None:
                turns.append(turn[0])
                super().on_text(text, index)

        turn = [0]

        def count() -> None:
            turn[0] += 1
            asyncio.get_running_loop().call_soon(count)

        async with bench() as made:
            sink = Counting()
            made.start(work, sink)
            wait(all_said)  # holds the loop
            count()
            await sink.over()
            assert len(turns) == 500
            assert len(set(turns)) == 1

    asyncio.run(run())


def test_a_paused_run_s_worker_waits_and_goes_on() -> None:
    async def run() -> None:
        begun, go = Event(), Event()
        reached: list[int] = []

        def work(teller: Teller) -> End:
            begun.set()
            wait(go)
            for number in range(3):
                reached.append(number)
                teller.text(str(number))
            return DONE

        async with bench() as made:
            sink = Sink()
            started = made.start(work, sink)
            await until(begun.is_set, "the worker")
            started.pause()
            go.set()
            await until(lambda: reached == [0], "the worker's first words")
            for _ in range(20):
                await asyncio.sleep(0.001)
            assert (reached, sink.said) == ([0], [])
            started.resume()
            assert await sink.over() == DONE
            assert sink.text() == "012"

    asyncio.run(run())


@pytest.mark.parametrize("is_paused", [False, True])
def test_a_cancelled_worker_is_told_and_the_end_waits_for_it(is_paused: bool) -> None:
    async def run() -> None:
        begun, may_go_on, left = Event(), Event(), Event()

        def work(teller: Teller) -> End:
            teller.text("a")
            begun.set()
            wait(may_go_on)
            try:
                while True:
                    teller.text("b")
            finally:
                left.set()

        async with bench() as made:
            sink = Sink()
            started = made.start(work, sink)
            await until(begun.is_set, "it")
            if is_paused:
                started.pause()
            started.cancel()
            started.cancel()
            await asyncio.sleep(0.01)
            assert sink.end is None, "the thread still works for it"
            may_go_on.set()
            assert (await sink.over()).status == pb.RunEnd.CANCELLED
            assert left.is_set()
            assert "b" not in sink.text()

    asyncio.run(run())


def test_a_worker_that_ends_well_after_a_cancel_was_cancelled() -> None:
    async def run() -> None:
        begun, may_end = Event(), Event()

        def work(teller: Teller) -> End:
            begun.set()
            wait(may_end)
            assert teller.is_cancelled
            return DONE

        async with bench() as made:
            sink = Sink()
            started = made.start(work, sink)
            await until(begun.is_set, "it")
            started.cancel()
            may_end.set()
            assert (await sink.over()).status == pb.RunEnd.CANCELLED

    asyncio.run(run())


def test_a_run_that_waits_for_a_thread_is_cancelled_at_once() -> None:
    async def run() -> None:
        free = Event()

        def hold(teller: Teller) -> End:
            wait(free)
            return DONE

        def never(teller: Teller) -> End:
            raise AssertionError("it was cancelled")

        async with bench() as made:
            first, second = Sink(), Sink()
            made.start(hold, first)
            waiting = made.start(never, second)
            waiting.cancel()
            assert (await second.over()).status == pb.RunEnd.CANCELLED
            assert not second.is_taken
            assert first.end is None
            free.set()
            assert await first.over() == DONE

    asyncio.run(run())


def test_a_worker_that_raises_ends_its_run_and_its_thread_serves_the_next() -> None:
    def fail(teller: Teller) -> End:
        teller.text("a")
        raise KeyError("model")

    async def run() -> None:
        async with bench() as made:
            first, second = Sink(), Sink()
            made.start(fail, first)
            assert await first.over() == FAILED
            assert first.text() == "a"
            made.start(lambda teller: DONE, second)
            assert await second.over() == DONE

    asyncio.run(run())


def test_a_sink_that_raises_cancels_its_worker() -> None:
    class Broken(Sink):
        def on_text(self, text: str, index: int = 0) -> None:
            raise TypeError("not a text")

    def work(teller: Teller) -> End:
        while True:
            teller.text("a")

    async def run() -> None:
        async with bench() as made:
            sink = Broken()
            made.start(work, sink)
            assert (await sink.over()).status == pb.RunEnd.CANCELLED

    asyncio.run(run())


def test_a_loop_that_is_gone_leaves_no_thread_behind() -> None:
    free, begun = Event(), Event()
    executor = ThreadPoolExecutor(1)
    kept: list[Any] = []

    def work(teller: Teller) -> End:
        begun.set()
        wait(free)
        return DONE

    async def run() -> None:
        kept.append(ThreadRun(asyncio.get_running_loop(), executor, work, Sink()))
        await until(begun.is_set, "it")

    asyncio.run(run())
    free.set()
    executor.shutdown()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("ThreadPoolExecutor")]
