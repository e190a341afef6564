"""One gRPC call on an HTTP/2 connection (skeleton of the interface)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Call:
    """One gRPC call; made by its connection."""

    id: int
    path: bytes
    connection: Any
    is_over: bool
    status: int | None
    details: str
    on_over: Callable[[Call], None] | None
    """Called once, with this call, when it is over; not called when it was over before this was set."""

    async def read(self) -> bytes | None:
        """Return the next whole message, or None for ever once the peer has ended its side or the call is over.

        One reader at a time. A cancelled read loses nothing.
        """
        raise NotImplementedError

    async def write(self, message: bytes) -> None:
        """Send one message; return once it is handed to the transport, within the peer's windows.

        One writer at a time. A write that is cancelled half way is still sent whole. Raises ValueError above
        `Limits.max_message_bytes`, ConnectionError once the call is over or was ended by us.
        """
        raise NotImplementedError

    def finish(self, status: int, details: str = "") -> None:
        """End the call (server) by a gRPC status, behind what was written. Idempotent, never raises.

        What was written may wait for a peer that does not read: `is_over` then comes late, or `reset` makes it.
        """
        raise NotImplementedError

    def half_close(self) -> None:
        """Say that no further message follows (client), behind what was written. Idempotent, never raises."""
        raise NotImplementedError

    def reset(self, code: int) -> None:
        """End the call at once by RST_STREAM with an error code of RFC 9113, section 7; what waits is dropped."""
        raise NotImplementedError
