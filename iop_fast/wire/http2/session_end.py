"""What both ends of a session over our own HTTP/2 do alike."""

from __future__ import annotations

from iop_fast.wire.ends import GIVEN_UP, check_size
from iop_fast.wire.http2.call import Call


class SessionEnd:
    """One end of a session: a MessageStream over a call, but for what the two ends do each in its own way.

    `is_abandoned` is set by the subclass's `abandon`, `_is_writing` says that a message is not wholly sent.
    """

    __slots__ = ("_call", "_is_writing", "is_abandoned")

    def __init__(self, call: Call) -> None:
        self._call = call
        self._is_writing = False
        self.is_abandoned = False

    async def write(self, message: bytes) -> None:
        """See MessageStream. Raises ValueError above `MAX_MESSAGE_BYTES`."""
        check_size(message)
        if self.is_abandoned:
            raise ConnectionError(GIVEN_UP)
        self._is_writing = True
        try:
            await self._call.write(message)  # network
        finally:
            self._is_writing = False
