"""What a request costs the Edge's own code, in process: no sockets, no gRPC, no clock's noise.

    python -m benchmarks.bench_edge [--profile]

A real front, service, exchange, core, run table, outbox and frame codec; a transport that takes everything, a stream
that keeps messages, a Node that is a few encoded frames. 32 requests share a message each way, as they do at 32 busy
connections. CPU time per request (or per chunk), best of several rounds. Kernel and gRPC come on top: see README.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import os
import pstats
import time
from collections.abc import Callable
from random import Random

from benchmarks.bench_front import SDK_FIELDS, NullTransport, request
from iop_fast._core.clock import MonotonicClock
from iop_fast._hot.frames import dispatch_edge, encode_data, encode_end, encode_head, encode_taken
from iop_fast.config.schema.front import HttpLimits
from iop_fast.edge.front.connection import Connection
from iop_fast.edge.front.listener import Front
from iop_fast.edge.gate import Gate
from iop_fast.edge.lines import LineWriter, write_to
from iop_fast.edge.link_runs import LinkCounters, LinkRuns
from iop_fast.edge.service import EdgeService
from iop_fast.edge.state import EdgeState
from iop_fast.seams import End, Head, Usage
from iop_fast.wire import runtime_pb2 as pb
from iop_fast.wire.outbox import Outbox
from tests.unit.edge.exchange_world import provider_spec, runtime_of

ROUNDS = 9
TURNS = 150
CONNECTIONS = 32
CHUNKS = 50

OK = End(pb.RunEnd.OK, "", Usage(12, 40, 0))
WHOLE = Head(200, b"OK", [(b"content-type", b"application/json"), (b"content-length", b"400")])
STREAM = Head(200, b"OK", [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")])
EVENT = b'data: {"choices":[{"delta":{"content":"token"}}]}\n\n' * 3


class KeptStream:
    """A MessageStream that takes everything at once."""

    async def read(self) -> bytes | None:
        await asyncio.get_running_loop().create_future()
        return None

    async def write(self, message: bytes) -> None:
        pass

    def abandon(self) -> None:
        pass


class Session(LinkRuns):
    """The run table of one session."""

    @property
    def is_up(self) -> bool:
        return True

    def on_control(self, frame: bytes) -> None:
        raise AssertionError("no session frames here")


class OneLink(dict[str, Session]):
    """The sessions, as the exchange asks for them."""

    def for_lease(self, node_id: str, generation: int) -> Session | None:
        return self.get(node_id)


class EdgeInProcess:
    """An Edge with one ready Node and a number of connections."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        clock = MonotonicClock()
        runtime = runtime_of([provider_spec("n1", "p1", capacity=4000)], {"m": {"p1": "served-m"}}, {})
        gate = Gate(runtime.plan(lambda key: True), clock, loop)
        links = OneLink()
        state = EdgeState(runtime, gate, links, clock, Random(7))
        state.books.write_access(LineWriter("bench", write_to(os.open(os.devnull, os.O_WRONLY))))
        outbox = Outbox(KeptStream(), clock, loop)
        outbox.start()
        self.session = links["n1"] = Session("n1", 1, outbox, LinkCounters(), 1 << 30)
        assert gate.node_ready("n1", 1, {})
        front = Front(EdgeService(state), HttpLimits(), clock, loop)
        self.connections = [Connection(front) for _ in range(CONNECTIONS)]
        for connection in self.connections:
            connection.connection_made(NullTransport())
        self.request = request(SDK_FIELDS)

    async def ask(self) -> list[int]:
        """One request on every connection; the ids of their runs, which are in a message then."""
        for connection in self.connections:
            connection.data_received(self.request)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return list(self.session._runs)

    def deliver(self, frames: list[bytes]) -> None:
        """One message from the Node."""
        dispatch_edge(b"".join(frames), self.session._runs, self.session)


async def whole_answers(edge: EdgeInProcess, spent: Callable[[int], None]) -> None:
    """Answers of one piece."""
    start = time.process_time_ns()
    runs = await edge.ask()
    assert len(runs) == CONNECTIONS
    frames = []
    for run in runs:
        frames += [encode_taken(run), encode_head(run, WHOLE), encode_data(run, b"x" * 400), encode_end(run, OK)]
    edge.deliver(frames)
    spent(time.process_time_ns() - start)


async def chunks(edge: EdgeInProcess, spent: Callable[[int], None]) -> None:
    """A chunk of a stream on every connection, many times."""
    runs = await edge.ask()
    edge.deliver([encode_head(run, STREAM) for run in runs])
    message = [encode_data(run, EVENT) for run in runs]
    start = time.process_time_ns()
    for _ in range(CHUNKS):
        edge.deliver(message)
    spent((time.process_time_ns() - start) // CHUNKS)
    edge.deliver([encode_end(run, OK) for run in runs])


async def measure(scene: Callable[[EdgeInProcess, Callable[[int], None]], object], turns: int) -> float:
    """Best CPU time of one unit in us."""
    edge = EdgeInProcess(asyncio.get_running_loop())
    best = float("inf")
    for _ in range(ROUNDS):
        times: list[int] = []
        for _ in range(turns):
            await scene(edge, times.append)  # type: ignore[misc]
        best = min(best, sum(times) / turns / CONNECTIONS / 1000)
    return best


async def main(is_profile: bool) -> None:
    """Print the table, or a profile of whole answers."""
    if is_profile:
        edge = EdgeInProcess(asyncio.get_running_loop())
        await whole_answers(edge, lambda _: None)
        with cProfile.Profile() as profile:
            for _ in range(TURNS):
                await whole_answers(edge, lambda _: None)
        pstats.Stats(profile).sort_stats("tottime").print_stats(45)
        return
    print(f"a request and its answer, access line included   {await measure(whole_answers, TURNS):7.2f} us")
    print(f"a chunk of a streamed answer                     {await measure(chunks, 3):7.2f} us")


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--profile", action="store_true")
    asyncio.run(main(arguments.parse_args().profile))
