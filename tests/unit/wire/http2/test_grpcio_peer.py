"""grpcio, the reference, as the peer in both roles over loopback sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import uvloop

from iop_fast.wire.grpcio.options import channel_options, server_options
from iop_fast.wire.http2.call import Call
from iop_fast.wire.http2.connection import Connection
from iop_fast.wire.http2.limits import Limits
from tests.unit.wire.http2.harness import echo

import grpc  # isort: skip
from grpc import aio  # isort: skip

SIZES = (0, 1, 100, 16_384, 20_000, 128 * 1024, 1024 * 1024, 300_000)
LIMIT_S = 30

RUNNERS: list[Callable[..., Any]] = [asyncio.run, uvloop.run]


class Server:
    """Our server on a free port of loopback; calls are echoed, or served otherwise."""

    def __init__(self) -> None:
        self.connections: list[Connection] = []
        self.calls: list[Call] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.serve: Callable[[Call], Any] = echo
        self.port = 0

    def on_call(self, call: Call) -> None:
        self.calls.append(call)
        self.tasks.append(asyncio.get_running_loop().create_task(self.serve(call)))

    def make(self) -> asyncio.Protocol:
        loop = asyncio.get_running_loop()
        connection = Connection(loop, Limits(), is_server=True, on_call=self.on_call)
        connection.on_known()
        self.connections.append(connection)
        return cast(asyncio.Protocol, connection)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not condition():  # noqa: ASYNC110 - it changes in callbacks of both libraries
            await asyncio.sleep(0.005)


def channel_to(server: Server) -> aio.Channel:
    return aio.insecure_channel(f"127.0.0.1:{server.port}", options=channel_options())


@asynccontextmanager
async def our_server() -> AsyncIterator[Server]:
    server = Server()
    listening = await asyncio.get_running_loop().create_server(server.make, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()
        for connection in server.connections:
            connection.abort("the test is over")
        await until(lambda: all(connection.transport is None for connection in server.connections))
        await asyncio.gather(*server.tasks)


@asynccontextmanager
async def grpc_server(serve: Callable[..., Any]) -> AsyncIterator[tuple[aio.Server, int]]:
    server = aio.server(options=server_options())
    method = grpc.stream_stream_rpc_method_handler(serve)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("iop.test", {"Echo": method}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield server, port
    finally:
        await server.stop(0)


@asynccontextmanager
async def our_client(port: int) -> AsyncIterator[Connection]:
    loop = asyncio.get_running_loop()
    connection = Connection(loop, Limits(), is_server=False)
    await loop.create_connection(lambda: cast(asyncio.Protocol, connection), "127.0.0.1", port)
    assert connection.ready is not None
    await connection.ready
    try:
        yield connection
    finally:
        connection.close()
        await until(lambda: connection.transport is None)


async def grpc_echo(requests: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
    async for request in requests:
        yield request


@pytest.mark.parametrize("run", RUNNERS)
def test_a_client_of_grpcio(run: Callable[..., Any]) -> None:
    async def scene() -> None:
        async with our_server() as server:
            channel = channel_to(server)
            call = channel.stream_stream("/iop.test/Echo")()
            for size in SIZES:
                await call.write(bytes(size))
                assert await call.read() == bytes(size)
            await call.done_writing()
            assert await call.read() is aio.EOF
            assert await call.code() is grpc.StatusCode.OK
            await channel.close()
            del call  # it holds the connection
            await until(lambda: server.connections[0].transport is None)
            assert server.connections[0].end_reason == ""

    run(scene())


@pytest.mark.parametrize("run", RUNNERS)
def test_a_server_of_grpcio(run: Callable[..., Any]) -> None:
    async def scene() -> None:
        async with grpc_server(grpc_echo) as (_, port), our_client(port) as connection:
            call = connection.open_call(b"/iop.test/Echo", b"host")
            for size in SIZES:
                await call.write(bytes(size))
                assert await call.read() == bytes(size)
            call.half_close()
            assert await call.read() is None
            assert (call.status, call.details, connection.calls) == (0, "", 0)
            unknown = connection.open_call(b"/iop.test/Other", b"host")
            assert await unknown.read() is None
            assert unknown.status == 12

    run(scene())


def test_many_messages_both_ways_at_once() -> None:
    count = 2000

    async def flood(call: Call) -> None:
        writer = asyncio.get_running_loop().create_task(write(call))
        got = 0
        while (message := await call.read()) is not None:
            assert message == b"%d" % got + bytes(got % 3000)
            got += 1
        await writer
        call.finish(0 if got == count else 13)

    async def write(call: Call) -> None:
        for number in range(count):
            await call.write(b"%d" % number + bytes(number % 3000))

    async def scene() -> None:
        async with our_server() as server:
            server.serve = flood
            async with channel_to(server) as channel:
                call = channel.stream_stream("/iop.test/Echo")()

                async def send() -> None:
                    for number in range(count):
                        await call.write(b"%d" % number + bytes(number % 3000))
                    await call.done_writing()

                sending = asyncio.get_running_loop().create_task(send())
                for number in range(count):
                    assert await call.read() == b"%d" % number + bytes(number % 3000)
                await sending
                assert await call.read() is aio.EOF
                assert await call.code() is grpc.StatusCode.OK

    uvloop.run(scene())


def test_statuses_and_their_messages_reach_a_client_of_grpcio() -> None:
    async def refuse(call: Call) -> None:
        call.finish(7, "not for you: ü 100%\nnever")

    async def refuse_late(call: Call) -> None:
        assert await call.read() is not None
        await call.write(b"one")
        call.finish(16, "who are you")

    async def scene() -> None:
        async with our_server() as server, channel_to(server) as channel:
            server.serve = refuse
            call = channel.stream_stream("/iop.test/Echo")()
            assert await call.code() is grpc.StatusCode.PERMISSION_DENIED
            assert await call.details() == "not for you: ü 100%\nnever"
            server.serve = refuse_late
            call = channel.stream_stream("/iop.test/Echo")()
            await call.write(b"x")
            assert await call.read() == b"one"
            assert await call.code() is grpc.StatusCode.UNAUTHENTICATED
            assert await call.details() == "who are you"

    uvloop.run(scene())


def test_a_message_too_large_is_refused_to_a_client_of_grpcio() -> None:
    async def scene() -> None:
        async with our_server() as server, channel_to(server) as channel:
            call = channel.unary_unary("/iop.test/Echo")(bytes(4 * 1024 * 1024 + 1))
            assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            compressed = channel.unary_unary("/iop.test/Echo")(bytes(10_000), compression=grpc.Compression.Gzip)
            assert await compressed.code() is grpc.StatusCode.UNIMPLEMENTED

    uvloop.run(scene())


def test_a_cancelled_call_of_grpcio_ends_alone() -> None:
    async def scene() -> None:
        async with our_server() as server, channel_to(server) as channel:
            calls = [channel.stream_stream("/iop.test/Echo")() for _ in range(2)]
            for call in calls:
                await call.write(b"x")
                assert await call.read() == b"x"
            calls[0].cancel()
            await until(lambda: any(call.is_over for call in server.calls))
            ends = sorted(call.details for call in server.calls)
            assert ends == ["", "the peer reset the call: cancelled"]
            await calls[1].write(b"y")
            assert await calls[1].read() == b"y"

    uvloop.run(scene())


def test_a_deadline_of_grpcio_ends_its_call() -> None:
    async def scene() -> None:
        async with our_server() as server, channel_to(server) as channel:
            call = channel.stream_stream("/iop.test/Echo")(timeout=0.05)
            assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            await until(lambda: server.calls[0].is_over)

    uvloop.run(scene())


def test_a_connection_that_drains_lets_a_client_of_grpcio_go_elsewhere() -> None:
    async def scene() -> None:
        async with our_server() as server, channel_to(server) as channel:
            call = channel.stream_stream("/iop.test/Echo")()
            await call.write(b"x")
            assert await call.read() == b"x"
            server.connections[0].drain()
            await call.write(b"y")
            assert await call.read() == b"y"
            other = channel.stream_stream("/iop.test/Echo")()
            await other.write(b"z")
            assert await other.read() == b"z"
            await call.done_writing()
            assert await call.code() is grpc.StatusCode.OK
            assert len(server.connections) == 2
            await until(lambda: server.connections[0].transport is None)

    uvloop.run(scene())


def test_a_server_of_grpcio_that_stops_ends_our_call() -> None:
    async def scene() -> None:
        async with grpc_server(grpc_echo) as (server, port), our_client(port) as connection:
            call = connection.open_call(b"/iop.test/Echo", b"host")
            await call.write(b"x")
            assert await call.read() == b"x"
            reading = asyncio.get_running_loop().create_task(call.read())
            await asyncio.sleep(0)
            await server.stop(0)
            assert await reading is None
            assert call.is_over
            assert call.status in (1, 14)

    uvloop.run(scene())
