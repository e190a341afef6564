"""Small pieces of text as bytes, for lines and heads that are written for every request.

Bytes operations of Python cost several times as much: `%` parses its format, a slice makes a slice object, a join makes
its list and an object of each part.
"""

from typing import final

def decimal(number: int) -> bytes:
    """Return the decimal digits of a number that is not negative and has 63 bits; raise ValueError or OverflowError."""

def part(text: bytes, start: int, end: int) -> bytes:
    """Return text[start:end] for places that the text has; raise IndexError for others."""

def replaced(text: bytes, start: int, end: int, by: bytes) -> bytes:
    """Return the text with other bytes in the place of text[start:end]; raise IndexError for places that it does not
    have."""

@final
class Block:
    """A line or head being written, over and over in the same memory."""

    def put(self, text: bytes) -> int:
        """Add some bytes."""

    def put_value(self, text: bytes) -> int:
        """Add what must stand within its line; raise ValueError for CR, LF or NUL in it."""

    def put_text(self, text: str) -> int:
        """Add a text as UTF-8; raise UnicodeEncodeError for a lone surrogate."""

    def put_number(self, number: int) -> int:
        """Add what `decimal` returns."""

    def put_hexadecimal(self, number: int) -> int:
        """Add the hexadecimal digits of a number that is not negative."""

    def clear(self) -> int:
        """Begin anew, whatever was written."""

    def take(self) -> bytes:
        """Return what was written, and begin anew."""

    def take_with(self, pieces: list[bytes], end: bytes) -> bytes:
        """Return what was written with `pieces` and `end` behind it, and begin anew. What was written is kept where it
        raises, TypeError for a piece that is no bytes. A piece that is all there is is returned as it is."""

@final
class Stamp:
    """The time of now as text. It reads the system's clock, and renders a millisecond once."""

    def now(self) -> bytes:
        """Return it as RFC 3339 with milliseconds, UTC."""
