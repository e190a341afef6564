"""Heads of HTTP/1.1 messages to and from a provider: fields sorted out, requests written, plain answers read.

Names of fields are compared whatever their case; fields keep their bytes and their order.
"""

from collections.abc import Iterable, Sequence

Field = tuple[bytes, bytes]

CHUNKED: int
"""The length of a body that comes in chunks."""
UNTIL_CLOSE: int
"""The length of a body that ends where the connection does."""

class Names:
    """A set of names of fields, given in lower case."""

    def __init__(self, names: Iterable[bytes]) -> None: ...

def end_to_end(fields: Sequence[Field], drop: Names) -> list[Field]:
    """Return the fields that go past one connection: not in `drop`, which holds `connection`, nor named by one."""

def has_field(fields: Sequence[Field], names: Names) -> bool:
    """True when one of the fields has one of the names."""

def write_request(method: bytes, target: bytes, host: bytes, fields: list[Field], body: bytes) -> bytes:
    """Return a request: its head, with `host` as its first field, and the body or its beginning behind it.

    Raises ValueError for a method or a name that is no token, and for a value with a line end or NUL. Target and host
    are the caller's to check.
    """

def line_text_size(fields: list[Field]) -> int:
    """Return the size of all names and values; raise ValueError for one with a line end or NUL."""

def read_plain_head(data: bytes, end: int) -> tuple[int, bytes, list[Field], int, bool] | None:
    """Read the head of an answer, `data` up to `end`, where its empty line ends.

    Returns status, reason, the fields, the body's length (CHUNKED, UNTIL_CLOSE; it is that of the answer to a request
    which is not HEAD), and whether the connection can be kept behind the body. None for a head that is not of the
    plain form, sound or not: HTTP/1.1, a final status, names that are tokens, values without control characters, lines
    that end with CRLF and are not folded, at most one Content-Length, of digits, or one Transfer-Encoding, `chunked`,
    at most one Connection, `close` or `keep-alive`, no Upgrade, 256 fields at most.
    """

def find_head_end(data: bytes, start: int) -> int:
    """Return where the first empty line behind `start` ends, of CRLF or LF; 0 when there is none."""
