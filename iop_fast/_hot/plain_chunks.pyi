"""Decoder of a chunked answer, as long as its framing is what servers send: sizes, data, CRLF and nothing else.

It judges nothing. Extensions, trailers, odd line ends and mistakes are handed to whoever called, with everything behind
them: an ordinary parser that has read the head goes on from there as if it had read the body from its beginning.
"""

class PlainChunks:
    """One body. Any split of the same bytes gives the same."""

    def __init__(self) -> None: ...
    def feed(self, data: bytes) -> bytes:
        """Take the next bytes and return the payload in them. Not called again behind the end, or once `odd` is set."""
    @property
    def is_complete(self) -> bool:
        """True once the last chunk and the empty line behind it were read."""
    @property
    def has_more(self) -> bool:
        """True when bytes came behind the end."""
    @property
    def odd(self) -> bytes | None:
        """What a parser has to be shown from here on, None while everything was plain."""
    @property
    def has_filler(self) -> bool:
        """True when `odd` begins with a chunk whose data, one byte, is none of the body."""
