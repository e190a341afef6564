"""Connections without sockets: transports in memory on a virtual loop, and peers made of single frames."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, NamedTuple

from iop_fast.wire.http2 import fields, frames
from iop_fast.wire.http2.call import Call
from iop_fast.wire.http2.connection import Connection
from iop_fast.wire.http2.limits import Limits
from tests.sim.loop import VirtualLoop, run_virtual

HIGH_WATER = 64 * 1024

PATH = b"/iop.test/Echo"


class MemoryTransport:
    """A transport that keeps what is written, or hands it to another one; like uvloop's it raises once it has ended.

    `is_held` stops the handing on, as a peer does that does not read.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, protocol: Any) -> None:
        self.loop = loop
        self.protocol = protocol
        self.other: MemoryTransport | None = None
        self.sent = bytearray()
        self.writes = 0
        self.is_held = False
        self.is_paused = False
        self.is_closed = False
        self.is_aborted = False
        self.has_eof = False
        self.cut: Callable[[bytes], list[bytes]] = lambda data: [data]
        self._queue = bytearray()
        protocol.connection_made(self)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def get_write_buffer_size(self) -> int:
        return len(self._queue)

    def is_closing(self) -> bool:
        return self.is_closed

    def can_write_eof(self) -> bool:
        return True

    def write(self, data: Any) -> None:
        if self.is_closed or self.has_eof:
            raise RuntimeError("unable to perform operation on a closed transport")
        self.writes += 1
        self.sent += data
        if self.other is not None or self.is_held:
            self._queue += data
            if len(self._queue) > HIGH_WATER and not self.is_paused:
                self.is_paused = True
                self.protocol.pause_writing()
            self.loop.call_soon(self._hand_on)

    def writelines(self, pieces: Any) -> None:
        self.write(b"".join(pieces))

    def write_eof(self) -> None:
        self.has_eof = True
        self.loop.call_soon(self._hand_on)

    def close(self) -> None:
        self._end(None)

    def abort(self) -> None:
        self.is_aborted = True
        self._queue.clear()
        self._end(None)

    def lose(self, error: Exception | None = None) -> None:
        """The network is gone."""
        self._end(error)

    def release(self) -> None:
        """The peer reads on."""
        self.is_held = False
        self._hand_on()

    def _hand_on(self) -> None:
        if self.is_held:
            return
        data = bytes(self._queue)
        self._queue.clear()
        if self.is_paused:
            self.is_paused = False
            self.protocol.resume_writing()
        other = self.other
        if other is None:
            return
        for piece in self.cut(data) if data else []:
            if not other.is_closed:
                other.protocol.data_received(piece)
        if self.has_eof and not other.is_closed and not other.protocol.eof_received():
            other.close()

    def _end(self, error: Exception | None) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        self.loop.call_soon(self.protocol.connection_lost, error)
        if self.other is not None:
            self.loop.call_soon(self.other.lose)


class Frame(NamedTuple):
    """A frame as it was sent."""

    kind: int
    flags: int
    stream_id: int
    payload: bytes


def parse(data: bytes) -> list[Frame]:
    """Cut bytes into frames; the last one must be whole."""
    found = []
    at = 0
    while at < len(data):
        length = int.from_bytes(data[at : at + 3], "big")
        kind, flags, stream_id = struct.unpack(">BBI", data[at + 3 : at + 9])
        assert len(data) >= at + 9 + length, "a frame that is not whole"
        found.append(Frame(kind, flags, stream_id, bytes(data[at + 9 : at + 9 + length])))
        at += 9 + length
    return found


class Bench:
    """One server or client connection and a peer that is made of frames."""

    def __init__(
        self, loop: VirtualLoop, *, is_server: bool = True, shakes: bool = True, is_known: bool = True, **limits: Any
    ) -> None:
        self.loop = loop
        self.calls: list[Call] = []
        self.lost = 0
        self.connection = Connection(
            loop, Limits(**limits), is_server=is_server, on_call=self.calls.append, on_lost=self._on_lost
        )
        if is_known:
            self.connection.on_known()
        self.transport = MemoryTransport(loop, self.connection)
        if shakes:
            self.feed((frames.PREFACE if is_server else b"") + frames.settings({}) + frames.SETTINGS_ACK)
            self.take()

    def _on_lost(self, _: Connection) -> None:
        self.lost += 1

    def feed(self, data: bytes) -> None:
        """The peer sends."""
        self.connection.data_received(data)

    def take(self) -> list[Frame]:
        """Return the frames that were sent since the last time."""
        data = bytes(self.transport.sent)
        self.transport.sent.clear()
        return parse(data.removeprefix(frames.PREFACE))

    def open(self, stream_id: int = 1, *, ends: bool = False, path: bytes = PATH) -> Call:
        """The peer opens a call."""
        self.feed(request(stream_id, ends=ends, path=path))
        return self.calls[-1]

    @property
    def goaway(self) -> int | None:
        """The error code of the last GOAWAY that was sent, None without one."""
        sent = [f for f in parse(bytes(self.transport.sent).removeprefix(frames.PREFACE)) if f.kind == frames.GOAWAY]
        return int.from_bytes(sent[-1].payload[4:8], "big") if sent else None


def request(stream_id: int, *, ends: bool = False, path: bytes = PATH) -> bytes:
    """HEADERS that open a call."""
    flags = frames.END_HEADERS | (frames.END_STREAM if ends else 0)
    return frames.frame(frames.HEADERS, flags, stream_id, fields.request_block(path, b"host", b"http"))


def headers(stream_id: int, *pairs: tuple[bytes, bytes], ends: bool = False) -> bytes:
    """HEADERS of any fields."""
    flags = frames.END_HEADERS | (frames.END_STREAM if ends else 0)
    return frames.frame(frames.HEADERS, flags, stream_id, b"".join(fields.literal(*pair) for pair in pairs))


def message(payload: bytes) -> bytes:
    """A gRPC message with its prefix."""
    return struct.pack(">BI", 0, len(payload)) + payload


def data(stream_id: int, payload: bytes, *, ends: bool = False) -> bytes:
    """A DATA frame."""
    return frames.frame(frames.DATA, frames.END_STREAM if ends else 0, stream_id, payload)


class Pair:
    """A client and a server that are connected; the server echoes each call's messages and ends it by OK."""

    def __init__(self, loop: VirtualLoop, server: Limits | None = None, client: Limits | None = None) -> None:
        self.loop = loop
        self.calls: list[Call] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.serve: Callable[[Call], Coroutine[Any, Any, None]] = echo
        self.server = Connection(loop, server or Limits(), is_server=True, on_call=self._on_call)
        self.server.on_known()
        self.client = Connection(loop, client or Limits(), is_server=False)
        self.at_server = MemoryTransport(loop, self.server)
        self.at_client = MemoryTransport(loop, self.client)
        self.at_server.other, self.at_client.other = self.at_client, self.at_server
        for transport in (self.at_server, self.at_client):
            transport._queue += transport.sent
            loop.call_soon(transport._hand_on)

    def _on_call(self, call: Call) -> None:
        self.calls.append(call)
        self.tasks.append(self.loop.create_task(self.serve(call)))

    async def open(self) -> Call:
        """Open a call once the handshake is done."""
        assert self.client.ready is not None
        await self.client.ready
        return self.client.open_call(PATH, b"host")

    async def end(self) -> None:
        """Close and wait for both ends to know."""
        self.client.close()
        await until(lambda: self.client.transport is None and self.server.transport is None)
        await asyncio.gather(*self.tasks)


async def echo(call: Call) -> None:
    """Send every message back; end the call by OK when the peer has ended its side."""
    with suppress(ConnectionError):
        while (got := await call.read()) is not None:
            await call.write(got)
    call.finish(0)


async def until(condition: Callable[[], bool], limit_s: float = 60.0) -> None:
    """Wait for a condition, on virtual time."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + limit_s
    while not condition():
        assert loop.time() < deadline, "the condition did not come true"
        await asyncio.sleep(0.001)


def play(scene: Callable[[VirtualLoop], Coroutine[Any, Any, None]]) -> None:
    """Run a scene on a virtual loop of its own."""
    loop = VirtualLoop()
    run_virtual(scene(loop), loop)
