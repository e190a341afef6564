"""A TCP proxy that does to a connection what networks do: delays it, stalls it, cuts it, or loses it without a word.

    proxy = FaultProxy(target_port)
    await proxy.start()          # proxy.port is where to connect
    proxy.delay_s = 0.05         # every piece is that late, in both directions
    proxy.stall() / proxy.resume()
    proxy.cut()                  # RST to both sides of everything that is open
    proxy.lose() / proxy.find()  # half-open: nothing gets through and nobody is told; new connections fare alike
    await proxy.stop()

What is open when it is lost stays lost; `find` lets new connections through. While it is stalled the proxy goes on
reading, up to `HELD_BYTES_MAX` a direction, so that it knows at once when a side has closed (`Line.is_client_gone`).
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from typing import cast

HELD_BYTES_MAX = 4 * 1024 * 1024
# A host that is told nothing finds out by itself that a lost connection is dead, sooner or later.
LOST_LIMIT_S = 10.0

END = b""


class Side(asyncio.Protocol):
    """One side of a line. What it hears goes to the other one's `say`."""

    def __init__(self, line: Line) -> None:
        self.line = line
        self.other: Side
        self.transport: asyncio.Transport | None = None
        self.is_gone = False
        self.held: deque[tuple[float, bytes]] = deque()  # to be said, with the time
        self.held_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.line.on_made(self)

    def data_received(self, data: bytes) -> None:
        self.other.hear(data)
        if self.other.held_bytes > HELD_BYTES_MAX and self.transport is not None:
            self.transport.pause_reading()

    def eof_received(self) -> bool:
        self.is_gone = True
        self.other.hear(END)
        return True

    def connection_lost(self, error: Exception | None) -> None:
        self.is_gone = True
        self.transport = None
        self.other.hear(END)
        self.line.on_lost()

    def pause_writing(self) -> None:
        if self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other.transport is not None:
            self.other.transport.resume_reading()

    def hear(self, data: bytes) -> None:
        """Take what the other side sent (or its end) on its way to this one."""
        if self.line.is_lost:
            return
        due = asyncio.get_running_loop().time() + self.line.proxy.delay_s
        self.held.append((due, data))
        self.held_bytes += len(data)
        self.go_on()

    def go_on(self) -> None:
        """Pass on what is due."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        loop = asyncio.get_running_loop()
        while self.held and self.transport is not None and not self.line.proxy.is_stalled:
            due, data = self.held[0]
            if due > loop.time():
                self._timer = loop.call_at(due, self.go_on)
                return
            self.held.popleft()
            self.held_bytes -= len(data)
            if data:
                self.transport.write(data)
            else:
                self.transport.close()
        if self.held_bytes <= HELD_BYTES_MAX // 2 and self.other.transport is not None:
            self.other.transport.resume_reading()

    def reset(self) -> None:
        """End this side by RST."""
        self.held.clear()
        self.held_bytes = 0
        if self._timer is not None:
            self._timer.cancel()
        if self.transport is not None:
            raw = self.transport.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.transport.abort()


class Line:
    """One connection through the proxy."""

    def __init__(self, proxy: FaultProxy) -> None:
        self.proxy = proxy
        self.is_lost = proxy.is_lost
        self.client, self.server = Side(self), Side(self)
        self.client.other, self.server.other = self.server, self.client

    @property
    def is_client_gone(self) -> bool:
        """True once the side that connected has closed."""
        return self.client.is_gone

    def on_made(self, side: Side) -> None:
        if side is self.client:
            self.proxy.lines[self] = None
            if not self.is_lost:
                self.proxy.connect(self)
        else:
            self.proxy.by_port[side.transport.get_extra_info("sockname")[1]] = self  # type: ignore[union-attr]
            side.go_on()

    def on_lost(self) -> None:
        if self.client.transport is None and self.server.transport is None:
            self.proxy.lines.pop(self, None)
        elif self.is_lost:
            asyncio.get_running_loop().call_later(LOST_LIMIT_S, self.reset)

    def reset(self) -> None:
        """End both sides by RST."""
        self.client.reset()
        self.server.reset()


class FaultProxy:
    """Listens on a free loopback port and passes connections on to `target_port`. `counts` says what it did."""

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.port = 0
        self.delay_s = 0.0
        self.is_stalled = False
        self.is_lost = False
        self.lines: dict[Line, None] = {}
        self.by_port: dict[int, Line] = {}  # by the port that the target sees
        self._server: asyncio.Server
        self._connecting: dict[asyncio.Task[None], None] = {}

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Line(self).client, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self._server.close()
        for task in list(self._connecting):
            task.cancel()
        await asyncio.gather(*self._connecting, return_exceptions=True)
        self.cut()
        await self._server.wait_closed()

    def connect(self, line: Line) -> None:
        """Make the other half of a line."""
        task = asyncio.get_running_loop().create_task(self._connect(line))
        self._connecting[task] = None
        task.add_done_callback(self._connecting.pop)

    async def _connect(self, line: Line) -> None:
        try:
            await asyncio.get_running_loop().create_connection(lambda: line.server, "127.0.0.1", self.target_port)
        except OSError:
            line.client.reset()

    # Faults.

    def stall(self) -> None:
        """Pass nothing on, and keep it."""
        self.is_stalled = True

    def resume(self) -> None:
        """Pass on again, what was kept first."""
        self.is_stalled = False
        for line in list(self.lines):
            line.client.go_on()
            line.server.go_on()

    def cut(self) -> None:
        """Reset every connection."""
        for line in list(self.lines):
            line.reset()

    def lose(self) -> None:
        """Lose everything on every connection, and on new ones until `find`."""
        self.is_lost = True
        for line in self.lines:
            line.is_lost = True
            line.client.held.clear()
            line.server.held.clear()

    def find(self) -> None:
        """Let new connections through."""
        self.is_lost = False
