"""Incremental scan of a multipart form (RFC 7578): finds the model's name among the fields, and refuses a body that two
parsers could read in two ways.

Fed with pieces as they arrive; any split of the bytes gives the same result. Never holds the body: spans are offsets
into it. It raises the same error as the scan of JSON bodies, `iop_fast._core.scan_faults.ScanError`, and is read the
same way.
"""

from typing import final

# Bounds of a form: bytes of a boundary, of one part's head, of a kept field's value; parts in all; bytes of a name.
BOUNDARY_BYTES_MAX: int
HEAD_BYTES_MAX: int
VALUE_BYTES_MAX: int
PARTS_MAX: int
NAME_BYTES_MAX: int

def is_boundary(boundary: bytes) -> bool:
    """True for 1 to 70 of the characters that RFC 2046 allows in a boundary, without the space."""

@final
class FormScan:
    """One scan of one form. `feed` each piece, then `finish` once; both raise ScanError and are dead afterwards.

    A dead or finished scan that is fed, and a read-out before `finish`, raise RuntimeError. The first fault in byte
    order is the one raised, by the piece that holds it. Its `code` is one of:

        invalid_form     the framing: preamble, line ends, what stands around a boundary, a form that is not closed
        bad_part         the head of a part: too long, malformed, or of a kind that parsers disagree about
        too_many_parts   more than PARTS_MAX
        duplicate_field  `model` or `stream` a second time
        bad_field        a value of `model` or `stream` that cannot be taken, or such a name in another spelling
        missing_field    no `model`

    `param` is the name of the field at fault, where it is known.
    """

    def __new__(cls, boundary: bytes) -> FormScan:
        """Raises ValueError for what `is_boundary` refuses."""
    def feed(self, piece: bytes | bytearray | memoryview) -> None:
        """Take the next bytes; O(len), no allocation that grows with the body. The piece may be changed afterwards."""
    def finish(self) -> None:
        """Declare the body complete; the read-outs below are valid from here on."""
    @property
    def model(self) -> str:
        """Value of the field `model`, at most 1,024 characters without control characters."""
    @property
    def model_span(self) -> tuple[int, int]:
        """Start and end offset of the model's value."""
    @property
    def stream(self) -> bool:
        """The field `stream` says true or 1."""
    @property
    def features(self) -> int:
        """FEATURE_* bits of a form: none, the surface says all that a form needs."""
    @property
    def estimated_tokens(self) -> int:
        """AUDIO_TOKENS for each file, whatever its size, and a quarter of a token for each byte of `prompt`."""
    def value_span(self, key: str) -> tuple[int, int] | None:
        """None: a form has no JSON members, so a generation policy finds nothing there."""
    @property
    def insert_at(self) -> int:
        """0: nothing is ever inserted into a form."""
