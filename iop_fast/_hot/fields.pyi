"""Header fields of a head that httptools has accepted, cut out of its bytes.

httptools judges the grammar. Having it call back costs 0.2 us a field, for the 17 fields of an SDK's request more than
all its judging. What it accepted has a shape that is cut without judging anything: lines that end with CRLF and hold
CR or LF nowhere else, each a name, a colon, and a value with optional space around it.
"""

from iop_fast.seams import RequestHead

Field = tuple[bytes, bytes]

def split_fields(block: bytes, start: int, special: frozenset[bytes]) -> tuple[list[Field], list[Field]]:
    """Cut the field lines of `block` from offset `start` (behind the request line) to its final empty line.

    Returns two lists of (name, value), each in the order of the fields: those with a name in `special` or with "_" in
    the name, and all others. Names are lower case; values are without the space and tabs around them (RFC 9112, 5.1).
    Raises ValueError for a block of another shape, which httptools refuses.
    """

def match_head(data: bytes, front: bytes, back: bytes) -> int:
    """Return how many bytes at the beginning of `data` are `front`, a number of 1 to 18 digits, and `back`; 0 for none.

    An empty `back` stands for no number: then they are `front` alone.
    """

def number_at(data: bytes, at: int) -> int:
    """Return the number whose digits, 18 at most, stand at an offset of `data`; 0 where there are none."""

def with_length(head: RequestHead, length: int) -> RequestHead:
    """Return the head of another request that differs in its content_length alone."""
