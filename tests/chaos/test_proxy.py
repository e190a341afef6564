"""The fault proxy does what it says: passes on, delays, stalls, cuts and loses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.chaos.proxy import FaultProxy
from tests.integration.edge_harness import run, until


class Echo:
    """A server that says everything back and knows who is connected."""

    def __init__(self) -> None:
        self.open = 0
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            return
        finally:
            self.open -= 1
            writer.close()


@asynccontextmanager
async def bench() -> AsyncIterator[tuple[FaultProxy, Echo]]:
    echo = Echo()
    server = await asyncio.start_server(echo.serve, "127.0.0.1", 0)
    proxy = FaultProxy(server.sockets[0].getsockname()[1])
    await proxy.start()
    try:
        yield proxy, echo
    finally:
        await proxy.stop()
        await until(lambda: echo.open == 0, "the server's connections are over")
        server.close()


async def said_back(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, text: bytes = b"hello") -> bytes:
    writer.write(text)
    async with asyncio.timeout(10):
        return await reader.readexactly(len(text))


async def hears_nothing(reader: asyncio.StreamReader) -> bool:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await reader.read(1)
    return True


def test_a_sound_line_passes_everything_and_its_end() -> None:
    async def work() -> None:
        async with bench() as (proxy, echo):
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            large = bytes(range(256)) * 40_000
            sending = asyncio.create_task(said_back(reader, writer, large))
            assert await sending == large
            assert len(proxy.lines) == 1
            writer.close()
            await until(lambda: echo.open == 0 and not proxy.lines, "the end on both sides")

    run(work())


def test_a_delay_holds_both_directions_back() -> None:
    async def work() -> None:
        async with bench() as (proxy, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            proxy.delay_s = 0.05
            began = asyncio.get_running_loop().time()
            assert await said_back(reader, writer) == b"hello"
            # The loop's clock counts milliseconds, and their difference as a float may fall short of one.
            assert round(asyncio.get_running_loop().time() - began, 3) >= 0.1
            writer.close()

    run(work())


def test_a_stall_keeps_what_comes_and_sees_who_leaves() -> None:
    async def work() -> None:
        async with bench() as (proxy, echo):
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            assert await said_back(reader, writer) == b"hello"
            proxy.stall()
            writer.write(b"later")
            assert await hears_nothing(reader)
            proxy.resume()
            assert await reader.readexactly(5) == b"later"
            proxy.stall()
            (line,) = proxy.lines
            writer.close()
            await until(lambda: line.is_client_gone, "the close is seen")
            assert echo.open == 1
            proxy.resume()
            await until(lambda: echo.open == 0, "the server hears of it")

    run(work())


def test_a_cut_resets_both_sides() -> None:
    async def work() -> None:
        async with bench() as (proxy, echo):
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            assert await said_back(reader, writer) == b"hello"
            proxy.cut()
            with pytest.raises(ConnectionResetError):
                await reader.read(1)
            await until(lambda: echo.open == 0 and not proxy.lines, "the server's side")
            writer.close()

    run(work())


def test_a_lost_line_tells_nobody_and_a_new_one_works_again() -> None:
    async def work() -> None:
        async with bench() as (proxy, echo):
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            assert await said_back(reader, writer) == b"hello"
            proxy.lose()
            writer.write(b"gone")
            fresh_reader, fresh_writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            fresh_writer.write(b"gone too")
            assert await hears_nothing(fresh_reader)
            proxy.find()
            assert await hears_nothing(reader)
            assert echo.open == 1
            good_reader, good_writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            assert await said_back(good_reader, good_writer) == b"hello"
            for one in (writer, fresh_writer, good_writer):
                one.close()

    run(work())


def test_a_target_that_refuses_is_refused_on() -> None:
    async def work() -> None:
        proxy = FaultProxy(1)
        await proxy.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        with pytest.raises(ConnectionResetError):
            await reader.read(1)
        writer.close()
        await proxy.stop()

    run(work())
