"""Hostile and odd HTTP inputs against the front on a real loopback socket, whole and byte by byte.

One server serves them all, so each input also shows that those before it harmed nothing.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Iterator

import pytest
import uvloop

from iop_fast._core.clock import MonotonicClock
from iop_fast.config.schema.front import HttpLimits
from iop_fast.edge.front.listener import Front
from iop_fast.errors import Failure
from iop_fast.seams import Downstream, Head, RequestHead
from tests.fakes.http_inputs import INPUTS, KEPT, WAITING, HttpInput, Served

LIMIT_S = 10.0
STATUS_LINE = re.compile(rb"HTTP/1\.1 (\d{3}) ")
CANARY = b"GET /canary HTTP/1.1\r\nHost: a\r\n\r\n"
CANARY_SERVED = Served(b"GET", b"/canary", b"")
SPLIT_BYTES_MAX = 1_000


class StubRequest:
    """Takes one request whole and answers it."""

    def __init__(self, service: StubService, head: RequestHead, downstream: Downstream) -> None:
        self.service, self.head, self.downstream = service, head, downstream
        self.body = b""

    def on_body(self, piece: bytes) -> None:
        self.body += piece

    def on_body_complete(self) -> None:
        self.service.served.append(Served(self.head.method, self.head.path, self.body))
        self.downstream.send(Head(200, b"OK", [(b"content-length", b"2")]), [b"ok"], True)

    def on_refused(self, failure: Failure, message: str) -> None:
        pass

    def on_client_gone(self) -> None:
        self.service.dropped += 1

    def on_writable(self) -> None:
        raise AssertionError("an answer of two bytes never waits")


class StubService:
    def __init__(self) -> None:
        self.served: list[Served] = []
        self.dropped = 0

    def open(self, head: RequestHead, downstream: Downstream) -> StubRequest:
        return StubRequest(self, head, downstream)


class Server:
    """A front on a loopback port, on a loop that only runs while a test uses it."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self.runner = runner
        self.service = StubService()
        self.front = Front(self.service, HttpLimits(), MonotonicClock(), runner.get_loop())
        runner.run(self.front.start("127.0.0.1", 0))

    def close(self) -> None:
        async def close() -> None:
            self.front.close()
            async with asyncio.timeout(LIMIT_S):
                await self.front.wait_empty()

        self.runner.run(close())


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        failures: list[dict[str, object]] = []
        runner.get_loop().set_exception_handler(lambda _, context: failures.append(context))
        server = Server(runner)
        yield server
        server.close()
        assert failures == []
        assert server.front.counters.internal_errors == 0


class Client:
    """A raw client of the server, on the same loop."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.loop = asyncio.get_running_loop()
        self.sock = socket.socket()
        self.sock.setblocking(False)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.answers = b""

    async def connect(self) -> None:
        await self.loop.sock_connect(self.sock, ("127.0.0.1", self.server.front.port))

    async def send(self, data: bytes, step: int) -> None:
        """Send in pieces of `step` bytes; a server that has closed for good refuses the rest, which is no error."""
        try:
            for at in range(0, len(data), step):
                await self.loop.sock_sendall(self.sock, data[at : at + step])
                await asyncio.sleep(0)
        except ConnectionError:
            return

    async def read_until(self, count: int) -> None:
        """Read until there are `count` answers, or to the end."""
        while len(self.statuses) < count:
            data = await self.loop.sock_recv(self.sock, 65_536)
            if not data:
                return
            self.answers += data

    async def read_to_end(self) -> None:
        """Read what comes until the server ends the connection; it may reset one that sent more after its end."""
        try:
            while data := await self.loop.sock_recv(self.sock, 65_536):
                self.answers += data
        except ConnectionResetError:
            return

    @property
    def statuses(self) -> tuple[int, ...]:
        return tuple(int(status) for status in STATUS_LINE.findall(self.answers))


async def converse(server: Server, case: HttpInput, step: int) -> tuple[int, ...]:
    """Send the input and, right behind it, what shows the connection's state; return the statuses of all answers.

    `step` 0 sends all in one write.
    """
    client = Client(server)
    with client.sock:
        async with asyncio.timeout(LIMIT_S):
            await client.connect()
            follows = b"" if case.connection is WAITING else CANARY
            await client.send(case.sent + follows, step or len(case.sent) + len(follows))
            if case.connection is WAITING:
                await client.read_until(len(case.statuses))
                client.sock.shutdown(socket.SHUT_WR)
            if case.connection is KEPT:
                await client.read_until(len(case.statuses) + 1)
            else:
                await client.read_to_end()
    return client.statuses


def check(server: Server, case: HttpInput, step: int) -> None:
    server.service.served.clear()
    statuses = server.runner.run(converse(server, case, step))
    canary = ((200,), (CANARY_SERVED,)) if case.connection is KEPT else ((), ())
    assert statuses == case.statuses + canary[0]
    assert tuple(server.service.served) == case.served + canary[1]


@pytest.mark.parametrize("case", INPUTS, ids=lambda case: case.name)
def test_in_one_write(server: Server, case: HttpInput) -> None:
    """B24: no input makes the server see a request that was not sent, or fail to see one that was."""
    check(server, case, 0)


@pytest.mark.parametrize(
    "case", [case for case in INPUTS if case.is_split and len(case.sent) <= SPLIT_BYTES_MAX], ids=lambda case: case.name
)
def test_byte_by_byte(server: Server, case: HttpInput) -> None:
    """B24: how the bytes are split changes nothing."""
    check(server, case, 1)


def test_names_are_unique() -> None:
    assert len({case.name for case in INPUTS}) == len(INPUTS) >= 150
