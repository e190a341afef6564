"""The library h2 as an independent peer, in both roles: it holds us to RFC 9113, and we understand it."""

from __future__ import annotations

import asyncio
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.settings
import pytest

from iop_fast.wire.http2.connection import Connection
from iop_fast.wire.http2.limits import Limits
from tests.sim.loop import VirtualLoop
from tests.unit.wire.http2.harness import PATH, MemoryTransport, echo, message, play

REQUEST = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", PATH.decode()),
    (":authority", "host"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
    ("x-long", "v" * 200),
]


class H2World:
    """One of our connections, and h2 on the other side; h2's events are collected and its windows kept open."""

    def __init__(self, loop: VirtualLoop, *, is_server: bool, settings: dict[int, int] | None = None) -> None:
        self.tasks: list[asyncio.Task[None]] = []
        self.events: list[Any] = []
        self.got = bytearray()
        self.is_reading = True
        config = h2.config.H2Configuration(client_side=is_server, header_encoding=None)
        self.h2 = h2.connection.H2Connection(config)
        self.h2.initiate_connection()
        if settings:
            self.h2.update_settings(settings)
        self.ours = Connection(
            loop,
            Limits(),
            is_server=is_server,
            on_call=lambda call: self.tasks.append(loop.create_task(echo(call))),
        )
        if is_server:
            self.ours.on_known()
        self.transport = MemoryTransport(loop, self.ours)

    async def exchange(self) -> None:
        """Carry bytes to and fro until nobody has any."""
        while True:
            await asyncio.sleep(0.001)
            theirs = self.h2.data_to_send()
            ours = bytes(self.transport.sent)
            self.transport.sent.clear()
            if not theirs and not ours:
                return
            if theirs:
                self.ours.data_received(theirs)
            for event in self.h2.receive_data(ours) if ours else []:
                self.events.append(event)
                if isinstance(event, h2.events.DataReceived):
                    self.got += event.data
                    if self.is_reading and event.flow_controlled_length:
                        self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)

    async def send(self, stream_id: int, payload: bytes) -> None:
        """Let h2 send as its windows allow."""
        while payload:
            size = min(self.h2.local_flow_control_window(stream_id), self.h2.max_outbound_frame_size, len(payload))
            if size <= 0:
                await self.exchange()
                continue
            self.h2.send_data(stream_id, payload[:size], pad_length=3 if size > 10 and size < 1000 else None)
            payload = payload[size:]
        await self.exchange()

    def of(self, kind: type[Any]) -> list[Any]:
        """The events of a kind."""
        return [event for event in self.events if isinstance(event, kind)]


@pytest.mark.parametrize(
    "settings",
    [
        None,
        {h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 100},
        {h2.settings.SettingCodes.MAX_FRAME_SIZE: 100_000, h2.settings.SettingCodes.HEADER_TABLE_SIZE: 0},
    ],
)
def test_a_client_made_by_h2(settings: dict[int, int] | None) -> None:
    async def scene(loop: VirtualLoop) -> None:
        world = H2World(loop, is_server=True, settings=settings)
        await world.exchange()
        for number in range(3):
            stream_id = world.h2.get_next_available_stream_id()
            world.h2.send_headers(stream_id, REQUEST)
            sent = b"".join(message(bytes((number,)) * size) for size in (0, 1, 500, 20_000, 300_000))
            world.got.clear()
            await world.send(stream_id, sent)
            world.h2.end_stream(stream_id)
            await world.exchange()
            assert world.got == sent
            assert dict(world.of(h2.events.ResponseReceived)[-1].headers)[b":status"] == b"200"
            assert dict(world.of(h2.events.TrailersReceived)[-1].headers) == {b"grpc-status": b"0"}
            assert world.of(h2.events.StreamEnded)[-1].stream_id == stream_id
        world.h2.ping(b"12345678")
        await world.exchange()
        assert world.of(h2.events.PingAckReceived)[-1].ping_data == b"12345678"
        world.ours.close()
        await world.exchange()
        assert world.of(h2.events.ConnectionTerminated)[-1].error_code == 0
        world.ours.abort("")

    play(scene)


def test_a_server_made_by_h2() -> None:
    async def scene(loop: VirtualLoop) -> None:
        world = H2World(loop, is_server=False)
        await world.exchange()
        assert world.ours.ready is not None
        await world.ours.ready
        call = world.ours.open_call(PATH, b"host")
        await world.exchange()
        opened = world.of(h2.events.RequestReceived)[-1]
        assert [pair for pair in opened.headers if pair[0] != b"user-agent"] == [
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", PATH),
            (b":authority", b"host"),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
        ]
        writing = loop.create_task(call.write(bytes(300_000)))
        await world.exchange()
        await writing
        call.half_close()
        await world.exchange()
        assert world.got == message(bytes(300_000))
        assert world.of(h2.events.StreamEnded)
        world.h2.send_headers(1, [(":status", "200"), ("content-type", "application/grpc")])
        await world.send(1, message(b"answer" * 1000))
        world.h2.send_headers(1, [("grpc-status", "3"), ("grpc-message", "not%20this")], end_stream=True)
        await world.exchange()
        assert await call.read() == b"answer" * 1000
        assert await call.read() is None
        assert (call.status, call.details) == (3, "not this")
        world.ours.drain()
        await world.exchange()
        assert world.transport.has_eof
        world.ours.abort("")

    play(scene)


def test_a_peer_that_does_not_read_holds_the_writer_back_and_a_reset_frees_it() -> None:
    async def scene(loop: VirtualLoop) -> None:
        world = H2World(loop, is_server=True)
        world.is_reading = False
        await world.exchange()
        world.h2.send_headers(1, REQUEST)
        await world.send(1, message(bytes(50_000)) * 2)
        assert len(world.got) == 65_535
        assert not world.tasks[0].done()
        world.h2.reset_stream(1)
        await world.exchange()
        await world.tasks[0]
        assert world.ours.calls == 0
        world.ours.abort("")

    play(scene)


def test_a_header_table_that_shrinks_is_no_trouble() -> None:
    async def scene(loop: VirtualLoop) -> None:
        world = H2World(loop, is_server=True)
        await world.exchange()
        for size in (4096, 0, 100):
            world.h2.update_settings({h2.settings.SettingCodes.HEADER_TABLE_SIZE: size})
            await world.exchange()
            stream_id = world.h2.get_next_available_stream_id()
            world.h2.send_headers(stream_id, REQUEST, end_stream=True)
            await world.exchange()
            assert world.of(h2.events.StreamEnded)[-1].stream_id == stream_id
        world.ours.abort("")

    play(scene)
