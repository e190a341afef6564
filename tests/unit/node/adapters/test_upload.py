"""A body's way to the HTTP client, and the watchdog over it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from iop_fast.node.adapters.http_run import leaving
from iop_fast.node.adapters.upload import REPLAY_BYTES_MAX, Upload
from iop_fast.node.adapters.watchdog import Watchdog
from tests.unit.edge.worlds import VirtualLoop


class Sender:
    """Takes an upload's pieces as the HTTP client does, one at a time when told to."""

    def __init__(self, loop: VirtualLoop, length: int) -> None:
        self.loop = loop
        self.written = 0
        self.ends = 0
        self.upload = Upload(length, loop, self.on_written, self.on_end)

    def on_written(self, byte_count: int) -> None:
        self.written += byte_count

    def on_end(self) -> None:
        self.ends += 1

    def start(self) -> AsyncIterator[bytes]:
        return leaving(self.upload)

    def take(self, pieces: AsyncIterator[bytes]) -> bytes | None:
        """The next piece; None at the end. It must be there."""

        async def step() -> bytes | None:
            return await anext(pieces, None)

        task = self.loop.create_task(step())
        self.loop.settle()
        assert task.done(), "it waits for more"
        return task.result()


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    with VirtualLoop() as loop:
        yield loop


def test_pieces_leave_in_order_and_count_when_the_next_is_asked_for(loop: VirtualLoop) -> None:
    sender = Sender(loop, 5)
    sender.upload.feed(b"ab", False)
    sender.upload.feed(b"", False)
    pieces = sender.start()
    assert sender.take(pieces) == b"ab"
    assert sender.written == 0
    sender.upload.feed(b"cde", True)
    assert sender.take(pieces) == b"cde"
    assert sender.written == 2
    assert sender.take(pieces) is None
    assert (sender.written, sender.ends) == (5, 1)


def test_an_upload_waits_for_what_is_still_to_come(loop: VirtualLoop) -> None:
    sender = Sender(loop, 2)
    pieces = sender.start()

    async def step() -> bytes:
        return await anext(pieces)

    task = loop.create_task(step())
    loop.settle()
    assert not task.done()
    sender.upload.feed(b"ab", True)
    loop.settle()
    assert task.result() == b"ab"


def test_it_can_start_again_until_it_is_written_and_counts_nothing_twice(loop: VirtualLoop) -> None:
    sender = Sender(loop, 6)
    sender.upload.feed(b"ab", False)
    sender.upload.feed(b"cd", False)
    first = sender.start()
    assert [sender.take(first), sender.take(first)] == [b"ab", b"cd"]
    assert sender.written == 2
    assert sender.upload.can_replay
    second = sender.start()
    assert sender.take(second) == b"ab"
    sender.upload.feed(b"ef", True)
    assert [sender.take(second) for _ in range(3)] == [b"cd", b"ef", None]
    assert (sender.written, sender.ends) == (6, 1)
    assert not sender.upload.can_replay


def test_a_long_body_is_not_kept(loop: VirtualLoop) -> None:
    sender = Sender(loop, REPLAY_BYTES_MAX * 4)
    pieces = sender.start()
    for _ in range(8):
        sender.upload.feed(bytes(REPLAY_BYTES_MAX // 2), False)
        assert sender.take(pieces) is not None
    assert not sender.upload.can_replay
    assert sum(map(len, sender.upload._pieces)) <= REPLAY_BYTES_MAX


@pytest.mark.parametrize(
    "steps", [[(b"abc", True)], [(b"a", True)], [(b"abcd", False)], [(b"ab", True), (b"", True)], [(b"", True)]]
)
def test_a_body_of_another_length_is_refused(loop: VirtualLoop, steps: list[tuple[bytes, bool]]) -> None:
    upload = Sender(loop, 2).upload
    for piece, complete in steps[:-1]:
        upload.feed(piece, complete)
    with pytest.raises(ValueError, match="expected a body of 2 bytes"):
        upload.feed(*steps[-1])


class Watched:
    """A watchdog and when it called."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.started_s = loop.time()
        self.calls: list[tuple[float, int]] = []
        self.dog = Watchdog(loop, lambda limit: self.calls.append((round(loop.time() - self.started_s, 2), limit)))


def test_silence_is_told_once(loop: VirtualLoop) -> None:
    watched = Watched(loop)
    watched.dog.note()
    loop.run_for(10)
    assert watched.calls == []
    watched.dog.watch(2_000)
    loop.run_for(30)
    assert watched.calls == [(12, 2_000)]


def test_progress_moves_the_moment_and_sets_no_timer(loop: VirtualLoop) -> None:
    watched = Watched(loop)
    watched.dog.watch(1_000)
    for _ in range(50):
        loop.run_for(0.3)
        watched.dog.note()
    assert watched.calls == []
    loop.run_for(5)
    assert watched.calls == [(16, 1_000)]


def test_another_limit_begins_anew(loop: VirtualLoop) -> None:
    watched = Watched(loop)
    watched.dog.watch(10_000)
    loop.run_for(5)
    watched.dog.watch(500)
    loop.run_for(5)
    assert watched.calls == [(5.5, 500)]


def test_it_stands_still_while_held(loop: VirtualLoop) -> None:
    watched = Watched(loop)
    watched.dog.watch(1_000)
    loop.run_for(0.9)
    watched.dog.hold()
    watched.dog.hold()
    loop.run_for(60)
    watched.dog.go_on()
    loop.run_for(0.9)
    assert watched.calls == []
    loop.run_for(0.2)
    assert len(watched.calls) == 1


def test_the_upload_of_a_cancelled_run_is_left_where_it_is(loop: VirtualLoop) -> None:
    sender = Sender(loop, 9)
    sender.upload.feed(b"ab", False)

    async def send() -> None:
        async for _ in leaving(sender.upload):
            pass

    task = loop.create_task(send())
    loop.settle()
    task.cancel()
    loop.settle()
    assert task.cancelled()
    sender.upload.feed(b"cd", False)
    assert isinstance(asyncio.all_tasks(loop), set)
    assert sender.ends == 0
