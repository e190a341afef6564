"""One HTTP/2 connection that carries gRPC calls (skeleton of the interface)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from iop_fast.wire.http2.call import Call
from iop_fast.wire.http2.limits import Limits


class Connection(asyncio.Protocol):
    """One connection; a protocol for `loop.create_server` and `loop.create_connection`."""

    transport: asyncio.Transport | None
    """None before connection_made and after connection_lost."""
    is_ready: bool
    is_open: bool
    end_reason: str
    calls: int
    ready: asyncio.Future[None]

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limits: Limits,
        *,
        is_server: bool,
        on_call: Callable[[Call], None] | None = None,
        on_lost: Callable[[Connection], None] | None = None,
    ) -> None:
        raise NotImplementedError

    def open_call(self, path: bytes, authority: bytes, scheme: bytes = b"http") -> Call:
        """Open a call (client). Raises ConnectionError with a plain reason when it is not possible."""
        raise NotImplementedError

    def drain(self) -> None:
        """Take no further call and close once the last one is over. Idempotent."""
        raise NotImplementedError

    def close(self, reason: str = "") -> None:
        """End every call, say so to the peer, send what is left and close. Idempotent."""
        raise NotImplementedError

    def abort(self, reason: str) -> None:
        """Cut the connection at once, whatever is unsent. Idempotent."""
        raise NotImplementedError
