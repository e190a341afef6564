"""The manager's end of systemd's notification socket: what a service said, message by message."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

LIMIT_S = 20.0
LOOK_S = 0.01

Message = dict[str, str]


class FakeServiceManager:
    """Listens at `address`: a path, or "@name" for an abstract name. Use it as a context."""

    def __init__(self, address: Path | str) -> None:
        self.address = str(address)
        self.messages: list[Message] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind("\0" + self.address[1:] if self.address.startswith("@") else self.address)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._socket.close()

    @property
    def environment(self) -> dict[str, str]:
        """What the manager puts into a service's environment."""
        return {"NOTIFY_SOCKET": self.address}

    def read(self) -> list[Message]:
        """Take up what has come; return every message so far."""
        while True:
            try:
                message = self._socket.recv(65536).decode()
            except BlockingIOError:
                return self.messages
            self.messages.append(dict(line.split("=", 1) for line in message.split("\n")))

    async def until(self, look: Callable[[list[Message]], bool], what: str) -> list[Message]:
        """Read until a condition on all messages holds; fail past the limit."""
        deadline = asyncio.get_running_loop().time() + LIMIT_S
        while not look(self.read()):
            assert asyncio.get_running_loop().time() < deadline, f"{what} not within {LIMIT_S} s: {self.messages}"
            await asyncio.sleep(LOOK_S)
        return self.messages

    async def said(self, name: str, count: int = 1) -> Message:
        """Wait until an assignment has come so often; return the last message with it."""
        found = await self.until(lambda all_: sum(name in each for each in all_) >= count, f"{count} x {name}")
        return [each for each in found if name in each][count - 1]
