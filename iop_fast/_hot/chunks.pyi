"""Decoder of a chunked request body (RFC 9112, section 7.1), strict and bounded.

httptools is not used for bodies: it has no pause, so it would run over the end of one request into the next, it calls
back once a chunk (43,000 times for one read of one-byte chunks), it bounds neither extensions nor trailers and it takes
trailer fields for header fields. This decoder hands out one piece a feed, says where the message ends, and drops
extensions and trailers after having checked their form.
"""

class ChunkError(ValueError):
    """The framing is broken or out of bounds; the connection cannot be used any more."""

class PayloadTooLargeError(ChunkError):
    """The chunk sizes announce more than `payload_bytes_max`; raised at the size line, before the bytes come."""

class ChunkDecoder:
    """One body. Any split of the same bytes gives the same payload and the same verdict.

    Bounds: `payload_bytes_max` for the payload; framing (size lines, extensions, CRLFs, trailers) to 16 times the
    payload received so far + 16 KiB; one size line with its extension to 4 KiB; trailers to 16 KiB and 100 fields.
    """

    def __init__(self, payload_bytes_max: int) -> None: ...
    def feed(self, data: bytes | bytearray | memoryview) -> bytes:
        """Take the next bytes and return the payload in them, maybe b"".

        Stops behind the final CRLF: `consumed` tells how many bytes of `data` belong to this body. Raises ChunkError;
        a decoder that raised or is complete takes nothing more (ValueError).
        """
    @property
    def consumed(self) -> int:
        """Bytes of the last `feed` that belong to this body."""
    @property
    def is_complete(self) -> bool:
        """True once the final CRLF was read."""
    @property
    def left(self) -> int:
        """Bytes of payload that are known to come: what is left of the chunk under way."""
