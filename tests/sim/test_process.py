"""A simulated process can be frozen and killed, and whatever asyncio makes in it belongs to it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.sim.loop import VirtualLoop
from tests.sim.process import Process


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop()
    yield loop
    loop.close()


def run_for(loop: VirtualLoop, seconds: float) -> None:
    loop.call_later(seconds, loop.stop)
    loop.run_forever()


async def beat(said: list[str], name: str) -> None:
    while True:
        said.append(name)
        await asyncio.sleep(1)


def test_a_task_runs_on_its_process(loop: VirtualLoop) -> None:
    process = Process(loop, "p")

    async def work() -> str:
        assert asyncio.get_running_loop() is process
        async with asyncio.Lock():
            done, _ = await asyncio.wait([asyncio.create_task(asyncio.sleep(1, "slept"))], timeout=5)
        return str(done.pop().result())

    task = process.create_task(work())
    run_for(loop, 3)
    assert task.result() == "slept"
    assert process.unfinished == []


def test_a_frozen_process_runs_late_and_in_order(loop: VirtualLoop) -> None:
    process = Process(loop, "p")
    said: list[str] = []
    process.call_later(1, said.append, "first")
    process.call_later(2, said.append, "second")
    cancelled = process.call_later(2, said.append, "cancelled while frozen")
    process.freeze()
    process.call_soon(said.append, "at once")
    run_for(loop, 5)
    assert said == []
    cancelled.cancel()
    process.thaw()
    process.thaw()
    run_for(loop, 0.1)
    assert said == ["at once", "first", "second"]


def test_freezing_one_process_leaves_the_others(loop: VirtualLoop) -> None:
    said: list[str] = []
    frozen, other = Process(loop, "frozen"), Process(loop, "other")
    frozen.create_task(beat(said, "frozen"))
    other.create_task(beat(said, "other"))
    run_for(loop, 0.5)
    frozen.freeze()
    run_for(loop, 2)
    assert said == ["frozen", "other", "other", "other"]
    for process in (frozen, other):
        process.kill()
        process.bury()


def test_a_killed_process_does_nothing_more_until_it_is_buried(loop: VirtualLoop) -> None:
    process = Process(loop, "p")
    said: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(1)
        finally:
            said.append("finally")

    process.create_task(work())
    run_for(loop, 0.5)
    process.kill()
    run_for(loop, 5)
    assert said == []
    assert process.call_later(1, said.append, "late").when() > 0
    run_for(loop, 5)
    process.bury()
    assert said == ["finally"]
    assert process.unfinished == []


def test_what_a_program_does_not_handle_is_kept_for_the_world(loop: VirtualLoop) -> None:
    process = Process(loop, "p")

    async def work() -> None:
        raise LookupError("in a task")

    process.create_task(work())
    process.call_soon(int, "no number")
    run_for(loop, 1)
    assert [type(context["exception"]) for context in process.failures] == [ValueError, LookupError]
