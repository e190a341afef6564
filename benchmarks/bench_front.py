"""What the HTTP front costs a request, in process: no sockets, no loop, a service that answers from memory.

    python -m benchmarks.bench_front [--profile]

Each line is CPU time per request, best of several rounds: parsing and judging a request with the 17 header fields that
the openai SDK sends, opening it, and framing its answer. The transport is a stub; on uvloop one write(2) comes on top.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import pstats
import time
from collections.abc import Callable

from benchmarks.edge_operations import SDK_FIELDS, request
from iop_fast._core.clock import MonotonicClock
from iop_fast.config.schema.front import HttpLimits
from iop_fast.edge.front.connection import Connection
from iop_fast.edge.front.listener import Front
from iop_fast.errors import Failure
from iop_fast.seams import Downstream, Head, RequestHead

ROUNDS = 7
REQUESTS = 10_000

ANSWER = Head(
    200,
    b"OK",
    [
        (b"content-type", b"application/json"),
        (b"content-length", b"400"),
        (b"server", b"uvicorn"),
        (b"date", b"Sun, 06 Nov 1994 08:49:37 GMT"),
        (b"x-request-id", b"0123456789abcdef0123456789abcdef"),
        (b"x-iop-provider", b"gpu-1"),
        (b"x-iop-node", b"node-1"),
    ],
)
ANSWER_BODY = [b"x" * 400]
STREAM = Head(200, b"OK", [(b"content-type", b"text/event-stream"), (b"x-request-id", b"0123456789abcdef")])
EVENT = [b'data: {"choices":[{"delta":{"content":"token"}}]}\n\n' * 2]


class Stub:
    """Service and receiver in one."""

    def __init__(self, events: int = 0) -> None:
        self.events = events

    def open(self, head: RequestHead, downstream: Downstream) -> Stub:
        self.downstream = downstream
        return self

    def on_body(self, piece: bytes) -> None:
        pass

    def on_body_complete(self) -> None:
        if self.events:
            self.downstream.send(STREAM, (), False)
            for _ in range(self.events):
                self.downstream.send(None, EVENT, False)
            self.downstream.send(None, (), True)
        else:
            self.downstream.send(ANSWER, ANSWER_BODY, True)

    def on_refused(self, failure: Failure, message: str) -> None:
        pass

    def on_client_gone(self) -> None:
        pass

    def on_writable(self) -> None:
        pass


class NullTransport(asyncio.Transport):
    """Takes everything."""

    def write(self, data: bytes) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0


def connection(loop: asyncio.AbstractEventLoop, events: int = 0) -> Connection:
    """A connected Connection."""
    front = Front(Stub(events), HttpLimits(), MonotonicClock(), loop)
    made = Connection(front)
    made.connection_made(NullTransport())
    return made


def measure(run: Callable[[], None], count: int) -> float:
    """Best CPU time of one of `count` repetitions, in ns."""
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.process_time_ns()
        for _ in range(count):
            run()
        best = min(best, (time.process_time_ns() - start) / count)
    return best


def main() -> None:
    """Print the table, or a profile of the first line."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--profile", action="store_true", help="profile the SDK request")
    is_profile = arguments.parse_args().profile
    loop = asyncio.new_event_loop()
    sdk, small = request(SDK_FIELDS), request(SDK_FIELDS[:1] + SDK_FIELDS[4:5])
    whole = connection(loop)
    if is_profile:
        profile = cProfile.Profile()
        profile.enable()
        for _ in range(REQUESTS):
            whole.data_received(sdk)
        profile.disable()
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)
        return
    head_size = sdk.index(b"\r\n\r\n") + 4

    def in_two() -> None:
        whole.data_received(sdk[:head_size])
        whole.data_received(sdk[head_size:])

    events = 100
    stream = connection(loop, events)
    print(f"SDK request, 17 fields, one read    {measure(lambda: whole.data_received(sdk), REQUESTS):8.0f} ns")
    print(f"  head and body in two reads        {measure(in_two, REQUESTS):8.0f} ns")
    print(f"request with 3 fields               {measure(lambda: whole.data_received(small), REQUESTS):8.0f} ns")
    chunk = measure(lambda: stream.data_received(sdk), REQUESTS // events) / events
    print(f"one event of a streamed answer      {chunk:8.0f} ns")
    loop.close()


if __name__ == "__main__":
    main()
