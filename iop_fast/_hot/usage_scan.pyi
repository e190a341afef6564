"""Finds usage objects in JSON that passes in pieces, without keeping it."""

USAGE_BYTES_MAX: int
"""What is kept of one usage object; a larger one is passed over."""

class UsageScan:
    """Walks one JSON document and keeps its usage objects: `usage` at the top, of `response` and of `message` there.

    It knows nesting depth and the last short key, and copies nothing but the usage object. It trusts the text to be
    JSON; on other text it finds nothing or something harmless, and never fails. Any cuts give the same.
    """

    def __init__(self) -> None: ...
    def feed(self, data: bytes) -> None:
        """Take the next piece."""
    @property
    def found(self) -> dict[bytes, bytes]:
        """The last usage object of each place, as text: b"" for the top, b"response", b"message"."""

def names_usage(data: bytes) -> bool:
    """True when a key `usage` stands in `data` whose value is not null: some servers say null in every event."""
