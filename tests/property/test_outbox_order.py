"""The outbox under any sequence of sends, drops and stalls: nothing lost, nothing twice, each run in order."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from iop_fast.wire.options import BATCH_BYTES
from iop_fast.wire.outbox import Outbox
from tests.sim.loop import VirtualLoop, run_virtual
from tests.sim.pipes import Pipe

SIZES = st.sampled_from([8, 40, 300, 5_000, 20_000, 65_000, 140_000])
RUNS = st.integers(1, 4)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("control"), st.just(0), SIZES),
        st.tuples(st.sampled_from(["bulk", "bulk", "prompt"]), RUNS, SIZES),
        st.tuples(st.just("open"), st.integers(10, 99), SIZES),
        st.tuples(st.sampled_from(["withdraw", "drop"]), st.one_of(RUNS, st.integers(10, 99)), st.just(0)),
        st.tuples(st.sampled_from(["turn", "wait", "stall", "resume"]), st.just(0), st.just(0)),
    ),
    max_size=60,
)


class Book:
    """What was queued and not dropped, by run; run 0 is control. An entry is its name, padded to its size."""

    def __init__(self, outbox: Outbox) -> None:
        self.outbox = outbox
        self.number = 0
        self.entries: dict[int, list[bytes]] = {}
        self.opened: dict[int, int] = {}
        self.withdrawn: set[int] = set()
        self.dropped: set[bytes] = set()

    def new_entry(self, run_id: int, size: int) -> bytes:
        self.number += 1
        entry = b"<%d:%d" % (run_id, self.number)
        entry += b"." * (size - len(entry) - 1) + b">"
        self.entries.setdefault(run_id, []).append(entry)
        return entry

    def drop(self, run_id: int) -> None:
        """Note what may be dropped: everything of the run so far; what of it was written stays in `written`."""
        self.dropped.update(self.entries.get(run_id, ()))

    def act(self, action: str, run_id: int, size: int) -> None:
        outbox = self.outbox
        if action == "control":
            outbox.send_control(self.new_entry(0, size))
        elif action in ("bulk", "prompt"):
            outbox.send_run(run_id, self.new_entry(run_id, size), action == "bulk")
        elif action == "open" and run_id not in self.entries:
            outbox.send_open(run_id, self.new_entry(run_id, size), self.opened.__setitem__)
        elif action == "withdraw":
            if outbox.withdraw(run_id):
                assert run_id not in self.opened
                self.withdrawn.add(run_id)
                self.drop(run_id)
        elif action == "drop":
            outbox.drop_run(run_id)
            self.drop(run_id)


def split(message: bytes) -> list[bytes]:
    return [part + b">" for part in message.split(b">") if part]


def run_of(entry: bytes) -> int:
    return int(entry[1:].split(b":")[0])


def check(messages: list[bytes], book: Book) -> None:
    written = [entry for message in messages for entry in split(message)]
    assert len(written) == len(set(written))
    for run_id, entries in book.entries.items():
        of_run = [entry for entry in written if run_of(entry) == run_id]
        assert of_run == [entry for entry in entries if entry in set(of_run)], "order of a run"
        assert set(entries) - set(of_run) <= book.dropped, "lost"
    for message in messages:
        assert len(message) <= BATCH_BYTES or len(split(message)) == 1
        controls = [run_of(entry) == 0 for entry in split(message)]
        assert controls == sorted(controls, reverse=True), "control goes first"
    for run_id, number in book.opened.items():
        assert any(run_of(entry) == run_id for entry in split(messages[number - 1]))
        assert run_id not in book.withdrawn
    assert all(run_of(entry) not in book.withdrawn for entry in written)


@given(ACTIONS, st.sampled_from([0, 2_000_000]))
@settings(max_examples=150, deadline=None)
def test_nothing_is_lost_or_out_of_order(actions: list[tuple[str, int, int]], pace_ns: int) -> None:
    loop = VirtualLoop()
    messages: list[bytes] = []

    async def read(pipe: Pipe) -> None:
        while (message := await pipe.node.read()) is not None:
            messages.append(message)

    async def main() -> Any:
        pipe = Pipe(loop, delay_s=0.001)
        reader = loop.create_task(read(pipe))
        outbox = Outbox(pipe.edge, loop.clock, loop, pace_ns=pace_ns)
        outbox.start()
        book = Book(outbox)
        for action, run_id, size in actions:
            match action:
                case "turn":
                    await asyncio.sleep(0)
                case "wait":
                    await asyncio.sleep(0.0007)
                case "stall":
                    pipe.to_node.stall()
                case "resume":
                    pipe.to_node.resume()
                case _:
                    book.act(action, run_id, size)
        pipe.to_node.resume()
        await asyncio.sleep(1)
        assert outbox.queued_bytes == 0
        outbox.close()
        pipe.edge.abandon()
        await reader
        check(messages, book)
        assert len(messages) == outbox.messages_written
        assert not pipe.misuses

    run_virtual(main(), loop)
