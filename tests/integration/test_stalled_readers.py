"""A client that stops reading keeps a bounded amount in the Edge, over real sockets, and nobody else waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import socket

from iop_fast.edge.front.connection import Connection
from iop_fast.wire.options import RUN_WINDOW_BYTES
from tests.fakes.fake_node import FakeRun
from tests.integration.edge_harness import CHAT, Bench, bench, config, provider, run, until

# uvloop's high-water mark: what a transport may hold when a window is granted.
HIGH_WATER = 64 * 1024
PIECE = b"data: " + b"x" * 8_000 + b"\n\n"


async def flood(run: FakeRun) -> None:
    """Answer as fast as the window allows, for ever, as a Node whose provider is fast."""
    await run.taken()
    await run.head(200, (b"content-type", b"text/event-stream"))
    with contextlib.suppress(asyncio.CancelledError):
        while not run.is_cancelled:
            if run.window >= len(PIECE):
                run.window -= len(PIECE)
                await run.data(PIECE)
            else:
                await asyncio.sleep(0.005)
        await run.end()


def ask_and_stop_reading(b: Bench) -> socket.socket:
    """Send a request whose answer nobody will read; the kernel takes little of it."""
    body = b'{"model":"m","stream":true,"messages":[]}'
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", b.edge.http_port))
    client.setblocking(False)
    client.send(
        b"POST %b HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
        % (CHAT.encode(), len(body), body)
    )
    return client


def unsent(b: Bench) -> list[int]:
    """What each connection's transport still holds."""
    connections: list[Connection] = list(b.edge.front._connections)
    return [0 if one._transport is None else one._transport.get_write_buffer_size() for one in connections]


def test_a_stalled_reader_keeps_its_window_and_the_transports_mark_at_most() -> None:
    readers = 4

    async def work() -> None:
        async with bench(config({"n1": [provider("p1", readers + 1)]})) as b:
            node = await b.ready()
            node.on_run = flood
            clients = [ask_and_stop_reading(b) for _ in range(readers)]
            await until(lambda: len(node.runs) == readers, "all are answered")
            await until(lambda: all(run.window < len(PIECE) for run in node.runs.values()), "the windows are used up")
            link = b.edge.links.current("n1")
            assert link is not None
            held = unsent(b)
            # uvloop counts what it holds; the rest is in the kernel's buffers, which are the kernel's to bound.
            assert max(held) <= RUN_WINDOW_BYTES + HIGH_WATER
            assert link.buffered_bytes <= readers * RUN_WINDOW_BYTES
            assert link.has_room
            node.on_run = None
            answer = asyncio.ensure_future(b.chat())
            await (await node.next_run()).answer(b"{}")
            assert (await answer).status == 200
            for client in clients:
                client.close()
            await b.idle()
            assert link.buffered_bytes == 0

    run(work())


def test_a_session_full_of_stalled_readers_takes_no_further_run() -> None:
    """At edge.link.buffered_bytes_max a further request is refused, and served again once somebody reads or leaves."""
    settings = config({"n1": [provider("p1", 4)]}, edge={"link": {"buffered_bytes_max": 300_000}})

    async def work() -> None:
        async with bench(settings) as b:
            node = await b.ready()
            node.on_run = flood
            clients = [ask_and_stop_reading(b) for _ in range(2)]
            link = b.edge.links.current("n1")
            assert link is not None
            await until(lambda: not link.has_room, "the session is full")
            refused = await b.chat()
            assert refused.status == 503
            assert (await refused.json())["error"]["code"] == "overloaded"
            assert refused.headers["x-iop-reason"] == "overloaded"
            clients.pop().close()
            await until(lambda: link.has_room, "room again")
            node.on_run = None
            answer = asyncio.ensure_future(b.chat())
            await (await node.next_run()).answer(b"{}")
            assert (await answer).status == 200
            clients.pop().close()
            await b.idle()

    run(work())
