"""Sessions over real sockets, by either transport at either end: what a link may rely on, and the traps of each."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import uvloop

from iop_fast.wire import transport
from iop_fast.wire.ends import METHOD
from iop_fast.wire.grpcio.streams import STOP_LIMIT_S
from iop_fast.wire.listening import split_address
from iop_fast.wire.options import LINK_WINDOW_BYTES, MAX_MESSAGE_BYTES, MAX_RECEIVE_BYTES
from iop_fast.wire.transport import EdgeStream, NodeStream
from tests.integration.wire_pairs import EDGES, LIMIT_S, NODES, PAIRS, Pair, echo

from grpc import StatusCode, aio  # isort: skip

pairs = pytest.mark.parametrize("pair", PAIRS, ids=str)
edges = pytest.mark.parametrize("pair", EDGES, ids=str)
nodes = pytest.mark.parametrize("pair", NODES, ids=str)

# A grace of 0.2 s, what grpcio is waited for besides, and slack for a busy machine.
STOP_LIMITS_S = {"builtin": 2.0, "grpcio": 0.2 + STOP_LIMIT_S + 1.0}


async def until(condition: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
    """Wait for a condition of this process, with a deadline."""
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "the condition did not come true in time"
        await asyncio.sleep(0.005)


async def until_still(value: Callable[[], int]) -> None:
    """Wait until a rising number stands still: whoever raises it is blocked."""
    seen = -1
    while seen != value() or not seen:
        seen = value()
        await asyncio.sleep(0.15)


async def write_until_refused(stream: EdgeStream | NodeStream, written: list[int]) -> None:
    """Write without end; return when the stream raises ConnectionError."""
    with suppress(ConnectionError):
        while True:
            await stream.write(bytes(16_384))
            written.append(16_384)


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pairs
def test_both_ends_are_streams_of_messages(pair: Pair) -> None:
    peers: list[str] = []

    async def serve(stream: EdgeStream, peer: str) -> None:
        peers.append(peer)
        await echo(stream, peer)

    async def main() -> None:
        async with pair.running(serve) as (_, address):
            node = await pair.dial(address)
            for message in (b"", b"a", bytes(MAX_MESSAGE_BYTES)):
                await node.write(message)
                assert await node.read() == message
            node.abandon()
            assert await node.read() is None
            with pytest.raises(ConnectionError):
                await node.write(b"late")

    uvloop.run(main())
    assert peers[0].startswith("127.0.0.1:")


# Listening.


@edges
def test_a_second_edge_on_the_same_port_is_refused(pair: Pair) -> None:
    """Two Edges on one port would be two ledgers over one fleet."""
    with pair.program("serve", "127.0.0.1:0") as first:
        port = first_line(first).split()[1]
        with pair.program("serve", f"127.0.0.1:{port}") as second:
            assert first_line(second) == (f"error [Errno 98] cannot listen on 127.0.0.1:{port}: Address already in use")
            assert second.wait(LIMIT_S) == 1


@edges
def test_a_name_is_bound_on_all_its_addresses_or_not_at_all(pair: Pair) -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
                await pair.serve(f"localhost:{port}", echo)

    uvloop.run(main())


@edges
@pytest.mark.parametrize(
    ("address", "error", "text"),
    [
        ("203.0.113.7:0", OSError, "cannot listen on 203.0.113.7:0: Cannot assign requested address"),
        ("no-such-host.invalid:80", OSError, "cannot listen on no-such-host.invalid:80: "),
        ("8081", ValueError, "expected host:port, got '8081'"),
        ("host:", ValueError, "expected host:port, got 'host:'"),
        ("host:65536", ValueError, "expected host:port, got 'host:65536'"),
    ],
)
def test_an_address_that_cannot_be_had_is_said_plainly(
    address: str, error: type[Exception], text: str, pair: Pair
) -> None:
    async def main() -> None:
        with pytest.raises(error, match=text):
            await pair.serve(address, echo)

    uvloop.run(main())


def test_a_refused_address_is_harmless_beside_debug_logging(caplog: pytest.LogCaptureFixture) -> None:
    """gRPC's server would log itself while it is being freed, and whoever keeps the record crashes the process."""

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            with pytest.raises(OSError, match="Address already in use"):
                await transport.serve(address, echo, transport="grpcio")

    with caplog.at_level(logging.DEBUG):
        uvloop.run(main())
        gc.collect()
    assert not [record for record in caplog.records if "__dealloc__" in record.message]


def test_addresses_split() -> None:
    assert split_address("127.0.0.1:80") == ("127.0.0.1", 80)
    assert split_address("[::1]:80") == ("::1", 80)


# Dialling.


@nodes
def test_what_stops_a_dial_is_said_plainly(pair: Pair) -> None:
    async def speak_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            start = time.monotonic()
            with pytest.raises(ConnectionError, match=rf"no answer from the Edge at 127.0.0.1:{port} within 0.3 s"):
                await pair.dial(f"127.0.0.1:{port}", limit_s=0.3)
            assert time.monotonic() - start < LIMIT_S
        with pytest.raises(ConnectionError, match=r"Edge at 127.0.0.1:.*: .*Connection refused$"):
            await pair.dial(f"127.0.0.1:{port}")
        http = await asyncio.start_server(speak_http, "127.0.0.1", 0)
        port = http.sockets[0].getsockname()[1]
        with pytest.raises(ConnectionError, match=r"http1.x server|HTTP/1"):
            await pair.dial(f"127.0.0.1:{port}")
        http.close()
        await http.wait_closed()
        assert await transport.settle(LIMIT_S)

    uvloop.run(main())


@nodes
def test_another_grpc_server_is_no_edge(pair: Pair) -> None:
    async def main() -> None:
        other = aio.server()
        port = other.add_insecure_port("127.0.0.1:0")
        await other.start()
        # The refusal of the call races with the end of the dialling: it is told by either.
        try:
            node = await pair.dial(f"127.0.0.1:{port}")
            assert await node.read() is None
            reason = node.end_reason
            node.abandon()
        except ConnectionError as error:
            reason = str(error)
        assert reason.endswith("it speaks gRPC but is not an Edge")
        assert await transport.settle(LIMIT_S)
        await other.stop(None)

    uvloop.run(main())


@pairs
def test_a_node_is_back_within_a_second_of_its_edge(pair: Pair) -> None:
    """gRPC's own back-off, shared by all channels of a process, would make it wait up to two minutes."""

    async def main() -> None:
        async with pair.running() as (server, address):
            node = await pair.dial(address)
            port = server.port
        assert await node.read() is None
        node.abandon()
        end = time.monotonic() + 2.5
        while time.monotonic() < end:
            with pytest.raises(ConnectionError):
                await pair.dial(address)
            await asyncio.sleep(0.1)
        again = await pair.serve(f"127.0.0.1:{port}", echo)
        start = time.monotonic()
        node = await pair.dial(address)
        assert time.monotonic() - start < 1.0
        await node.write(b"back")
        assert await node.read() == b"back"
        node.abandon()
        assert await again.stop(0.1)
        assert await transport.settle(LIMIT_S)

    uvloop.run(main())


# Limits.


@pairs
def test_a_message_over_the_limit_is_refused_by_its_sender_and_harms_nothing(pair: Pair) -> None:
    refused: list[str] = []

    async def serve(stream: EdgeStream, peer: str) -> None:
        await stream.read()
        try:
            await stream.write(bytes(MAX_MESSAGE_BYTES + 1))
        except ValueError as error:
            refused.append(str(error))
        await stream.write(b"still here")
        await stream.read()

    async def main() -> None:
        async with pair.running(serve) as (_, address):
            node = await pair.dial(address)
            with pytest.raises(ValueError, match="at most 1048576 bytes, got 1048577"):
                await node.write(bytes(MAX_MESSAGE_BYTES + 1))
            await node.write(b"still here")
            assert await node.read() == b"still here"
            node.abandon()

    uvloop.run(main())
    assert refused == ["message too large: expected at most 1048576 bytes, got 1048577"]


@edges
def test_a_peer_that_sends_too_much_ends_its_own_session_alone(pair: Pair) -> None:
    ends: list[bytes | None] = []

    async def serve(stream: EdgeStream, peer: str) -> None:
        while (message := await stream.read()) is not None:
            await stream.write(message)
        ends.append(message)

    async def main() -> None:
        async with pair.running(serve) as (_, address):
            good = await pair.dial(address)
            channel = aio.insecure_channel(address, options=[("grpc.max_send_message_length", -1)])
            call = channel.stream_stream(METHOD)()
            await call.wait_for_connection()
            sending = asyncio.ensure_future(call.write(bytes(MAX_RECEIVE_BYTES + 1)))
            await until(lambda: len(ends) == 1)
            await asyncio.wait((sending,))
            assert await call.code() is StatusCode.RESOURCE_EXHAUSTED
            await good.write(b"fine")
            assert await good.read() == b"fine"
            good.abandon()
            await channel.close(None)

    uvloop.run(main())


@pairs
def test_a_reader_that_stops_bounds_what_is_in_flight(pair: Pair) -> None:
    written: list[int] = []

    async def serve(stream: EdgeStream, peer: str) -> None:
        await write_until_refused(stream, written)

    async def main() -> None:
        async with pair.running(serve) as (_, address):
            node = await pair.dial(address)
            await until_still(lambda: sum(written))
            assert LINK_WINDOW_BYTES // 2 <= sum(written) <= LINK_WINDOW_BYTES + 65_536
            node.abandon()

    uvloop.run(main())


# Ending.


@pairs
def test_what_was_written_arrives_before_the_end_whoever_ends(pair: Pair) -> None:
    got: list[bytes] = []
    done = asyncio.Event()

    async def serve(stream: EdgeStream, peer: str) -> None:
        match await stream.read():
            case b"return" | b"abandon" as word:
                for number in range(5):
                    await stream.write(b"%d" % number)
                if word == b"abandon":
                    stream.abandon()
                done.set()
            case _:
                while (message := await stream.read()) is not None:
                    got.append(message)

    async def read_all(node: NodeStream) -> list[bytes]:
        messages = []
        while (message := await node.read()) is not None:
            messages.append(message)
        return messages

    async def main() -> None:
        async with pair.running(serve) as (server, address):
            for word, reason in ((b"return", ""), (b"abandon", "the Edge closed the session")):
                node = await pair.dial(address)
                await node.write(word)
                await done.wait()  # all of it is on its way before the first read
                done.clear()
                assert await read_all(node) == [b"0", b"1", b"2", b"3", b"4"]
                assert node.end_reason == reason
                node.abandon()
            await until(lambda: (server.abandoned, server.abandoned_pending) == (1, 0))
            node = await pair.dial(address)
            for number in range(5):
                await node.write(b"%d" % number)
            node.abandon()
            await until(lambda: len(got) == 4)

    uvloop.run(main())
    assert got == [b"1", b"2", b"3", b"4"]


@pairs
def test_a_peer_that_does_not_read_does_not_block_abandon(pair: Pair) -> None:
    """grpcio cannot end such a call: it is counted until its peer is gone. Ours is cut."""
    ended = asyncio.Event()
    written: list[int] = []

    async def serve(stream: EdgeStream, peer: str) -> None:
        if await stream.read() == b"echo":
            await stream.write(b"echo")
            return
        writer = asyncio.ensure_future(write_until_refused(stream, written))
        await until_still(lambda: sum(written))
        start = time.monotonic()
        stream.abandon()
        stream.abandon()
        assert time.monotonic() - start < 0.1
        assert await stream.read() is None
        ended.set()
        await writer

    async def main() -> None:
        async with pair.running(serve) as (server, address):
            with pair.program("dial", address) as frozen:
                assert await asyncio.to_thread(first_line, frozen) == "open"
                await ended.wait()
                stuck = 1 if pair.edge == "grpcio" else 0
                assert (server.abandoned, server.abandoned_pending) == (1, stuck)
                node = await pair.dial(address)  # the Edge is as good as before
                await node.write(b"echo")
                assert await node.read() == b"echo"
                node.abandon()
                assert server.abandoned_pending == stuck
            await until(lambda: server.abandoned_pending == 0)

    uvloop.run(main())


@pairs
def test_a_read_that_waits_for_a_silent_peer_ends_with_abandon(pair: Pair) -> None:
    ended: list[bytes | None] = []

    async def serve(stream: EdgeStream, peer: str) -> None:
        asyncio.get_running_loop().call_soon(stream.abandon)
        ended.append(await stream.read())

    async def main() -> None:
        async with pair.running(serve) as (server, address):
            node = await pair.dial(address)
            assert await node.read() is None
            assert node.end_reason == "the Edge closed the session"
            await until(lambda: ended == [None] and server.abandoned_pending == 0)
            node.abandon()

    uvloop.run(main())


@pairs
def test_a_server_stops_in_time_though_a_peer_does_not_read(pair: Pair) -> None:
    started = asyncio.Event()

    async def serve(stream: EdgeStream, peer: str) -> None:
        started.set()
        try:
            while True:
                await stream.write(bytes(65_536))
        finally:
            stream.abandon()

    async def main() -> None:
        server = await pair.serve("127.0.0.1:0", serve)
        with pair.program("dial", f"127.0.0.1:{server.port}") as frozen:
            assert await asyncio.to_thread(first_line, frozen) == "open"
            await started.wait()
            start = time.monotonic()
            await server.stop(0.2)
            assert time.monotonic() - start < STOP_LIMITS_S[pair.edge]
        assert await transport.settle(LIMIT_S)

    uvloop.run(main())


@pairs
def test_a_node_gives_up_an_edge_that_does_not_read(pair: Pair) -> None:
    closed = asyncio.Event()
    written: list[int] = []

    async def serve(stream: EdgeStream, peer: str) -> None:
        await closed.wait()
        while await stream.read() is not None:
            pass

    async def main() -> None:
        async with pair.running(serve) as (_, address):
            node = await pair.dial(address)
            reading = asyncio.ensure_future(node.read())
            writing = asyncio.ensure_future(write_until_refused(node, written))
            await until_still(lambda: sum(written))
            start = time.monotonic()
            node.abandon()
            assert time.monotonic() - start < 0.1
            await asyncio.wait_for(writing, LIMIT_S)
            assert await asyncio.wait_for(reading, LIMIT_S) is None
            closed.set()

    uvloop.run(main())


@pairs
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_node_that_dies_is_read_as_the_end(how: signal.Signals, pair: Pair) -> None:
    async def main() -> None:
        ends: list[object] = []

        async def serve(stream: EdgeStream, peer: str) -> None:
            while (message := await stream.read()) is not None:
                pass
            ends.append(message)
            with pytest.raises(ConnectionError):
                await stream.write(b"x")

        async with pair.running(serve) as (_, address):
            with pair.program("dial", address) as node:
                assert await asyncio.to_thread(first_line, node) == "open"
                node.send_signal(how)
                await until(lambda: ends == [None])

    uvloop.run(main())


@pairs
def test_a_session_that_fails_ends_its_own_stream_alone_and_tells_the_loop(pair: Pair) -> None:
    failures: list[dict[str, Any]] = []

    async def serve(stream: EdgeStream, peer: str) -> None:
        match await stream.read():
            case b"fail":
                raise RuntimeError("a secret that the peer must not see")
            case b"gone":
                raise ConnectionError("the stream has ended")
            case message:
                assert message is not None
                await stream.write(message)

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
        async with pair.running(serve) as (_, address):
            for word, reason in ((b"fail", "internal"), (b"gone", "")):
                node = await pair.dial(address)
                await node.write(word)
                assert await node.read() is None
                assert node.end_reason == reason
                node.abandon()
            node = await pair.dial(address)
            await node.write(b"fine")
            assert await node.read() == b"fine"
            node.abandon()

    uvloop.run(main())
    # grpcio's poller reports reads that found nothing once there were several loops in a process (grpc #25364).
    ours = [str(failure["exception"]) for failure in failures if failure["message"] == "a session failed"]
    assert ours == ["a secret that the peer must not see"]


# Fork.


@pairs
def test_subprocesses_beside_a_live_stream_all_start(pair: Pair) -> None:
    """With gRPC's fork handlers on, uvloop's children die by SIGSEGV before exec, 3 to 8 in 100."""
    exits: dict[int, int] = {}

    async def start_children(count: int) -> None:
        for _ in range(count):
            child = await asyncio.create_subprocess_exec("/bin/true")
            code = await child.wait()
            exits[code] = exits.get(code, 0) + 1

    async def main() -> None:
        async with pair.running() as (_, address):
            node = await pair.dial(address)
            starters = [asyncio.ensure_future(start_children(75)) for _ in range(4)]
            children = asyncio.gather(*starters)
            echoes = 0
            while not children.done():
                await node.write(b"x" * 900)
                assert await node.read() == b"x" * 900
                echoes += 1
            assert echoes > 0
            node.abandon()

    uvloop.run(main())
    assert exits == {0: 300}
