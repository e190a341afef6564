"""Small pieces of text as bytes, for lines that are written for every request. `%` costs five times as much."""

def decimal(number: int) -> bytes:
    """Return the decimal digits of a number that is not negative and has 63 bits; raise ValueError or OverflowError."""

def chunk_line(size: int) -> bytes:
    """Return the line that begins a chunk of a body (RFC 9112, section 7.1): hexadecimal digits and CRLF."""

def breaks_line(parts: list[bytes], start: int, step: int) -> bool:
    """True when one of every `step`-th part from `start` on holds CR, LF or NUL."""
