"""The feed's turns: what a reader gets, what a slow one skips, how streams end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import orjson
import pytest

from iop_fast.edge.feed import QUIET, QUIET_TICKS, READERS_MAX, RETRY, Feed

LIMIT_S = 10.0


class Numbers:
    """Parts that a test sets."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {"a": 1, "b": 2}
        self.begun = self.reads = 0
        self.readers: dict[str, Callable[[], Any]] = {"a": lambda: self.read("a"), "b": lambda: self.values["b"]}

    def begin(self) -> None:
        self.begun += 1

    def read(self, name: str) -> Any:
        self.reads += 1
        value = self.values[name]
        if isinstance(value, Exception):
            raise value
        return value


def feed_of(numbers: Numbers) -> Feed:
    return Feed(numbers, asyncio.get_running_loop(), tick_s=0.001)  # type: ignore[arg-type]


async def take(stream: AsyncGenerator[bytes, None]) -> tuple[str, Any]:
    """The next event, comments and the first line left out."""
    while True:
        piece = await asyncio.wait_for(anext(stream), LIMIT_S)
        if piece not in (RETRY, QUIET):
            kind, data, *_ = piece.decode().splitlines()
            return kind.removeprefix("event: "), orjson.loads(data.removeprefix("data: "))


def always() -> bool:
    return True


def test_everything_comes_first_and_then_what_differs() -> None:
    async def work() -> None:
        numbers = Numbers()
        feed = feed_of(numbers)
        stream = feed.follow(always)
        assert await asyncio.wait_for(anext(stream), LIMIT_S) == RETRY
        assert await take(stream) == ("snapshot", {"a": 1, "b": 2})
        numbers.values["b"] = 3
        assert await take(stream) == ("change", {"b": 3})
        numbers.values["a"] = "x"
        assert await take(stream) == ("change", {"a": "x"})
        await stream.aclose()
        assert feed.readers == 0
        await feed.stop()

    asyncio.run(work())


def test_a_slow_reader_skips_what_it_missed() -> None:
    async def work() -> None:
        numbers = Numbers()
        feed = feed_of(numbers)
        slow, quick = feed.follow(always), feed.follow(always)
        for stream in (slow, quick):
            assert (await take(stream))[0] == "snapshot"
        for value in range(10, 15):
            numbers.values["a"] = value
            assert await take(quick) == ("change", {"a": value})
        numbers.values["b"] = 20
        assert await take(quick) == ("change", {"b": 20})
        assert await take(slow) == ("change", {"a": 14, "b": 20})
        await feed.stop()

    asyncio.run(work())


def test_a_quiet_stream_is_kept_alive() -> None:
    async def work() -> None:
        feed = feed_of(Numbers())
        stream = feed.follow(always)
        assert (await take(stream))[0] == "snapshot"
        for _ in range(2):
            assert await asyncio.wait_for(anext(stream), LIMIT_S) == QUIET
        assert QUIET_TICKS > 1
        await feed.stop()

    asyncio.run(work())


def test_nothing_is_read_while_nobody_reads_and_rates_begin_anew() -> None:
    async def work() -> None:
        numbers = Numbers()
        feed = feed_of(numbers)
        for round_number in (1, 2):
            stream = feed.follow(always)
            assert (await take(stream))[0] == "snapshot"
            assert numbers.begun == round_number
            await stream.aclose()
            while feed._task is not None:  # noqa: ASYNC110 - see the next line
                await asyncio.sleep(0)  # the last tick notices that it is alone
            reads = numbers.reads
            for _ in range(20):
                await asyncio.sleep(0)
            assert numbers.reads == reads
        await feed.stop()

    asyncio.run(work())


def test_a_part_that_cannot_be_read_ends_the_streams_and_the_next_one_starts_anew(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work() -> None:
        numbers = Numbers()
        feed = feed_of(numbers)
        stream = feed.follow(always)
        assert (await take(stream))[0] == "snapshot"
        numbers.values["a"] = RuntimeError("broken")
        async with asyncio.timeout(LIMIT_S):
            assert [piece async for piece in stream if piece != QUIET] == []
        assert [record.message for record in caplog.records] == ["feed_failed"]
        numbers.values["a"] = 5
        again = feed.follow(always)
        assert await take(again) == ("snapshot", {"a": 5, "b": 2})
        await feed.stop()

    asyncio.run(work())


def test_a_reader_that_takes_an_event_while_the_feed_stops_is_ended() -> None:
    async def work() -> None:
        feed = feed_of(Numbers())
        stream = feed.follow(always)
        assert (await take(stream))[0] == "snapshot"
        await feed.stop()  # the reader has not come back for more
        async with asyncio.timeout(LIMIT_S):
            assert [piece async for piece in stream] == []

    asyncio.run(work())


def test_a_reader_that_has_gone_is_let_go() -> None:
    async def work() -> None:
        numbers = Numbers()
        feed = feed_of(numbers)
        is_open = True
        stream = feed.follow(lambda: is_open)
        assert (await take(stream))[0] == "snapshot"
        is_open = False
        with pytest.raises(StopAsyncIteration):
            await asyncio.wait_for(anext(stream), LIMIT_S)
        assert feed.readers == 0
        await feed.stop()

    asyncio.run(work())


def test_there_is_room_for_so_many_and_for_none_after_the_stop() -> None:
    async def work() -> None:
        feed = feed_of(Numbers())
        streams = [feed.follow(always) for _ in range(READERS_MAX)]
        for stream in streams:
            assert (await take(stream))[0] == "snapshot"
        assert not feed.has_room
        await streams.pop().aclose()
        assert feed.has_room
        await feed.stop()
        await feed.stop()
        assert not feed.has_room
        for stream in streams:
            with pytest.raises(StopAsyncIteration):
                await asyncio.wait_for(anext(stream), LIMIT_S)

    asyncio.run(work())
