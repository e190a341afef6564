"""Incremental scan of a request body: validates JSON and finds the few spans that admission and the edits of it need.

Fed with pieces as they arrive; any split of the bytes gives the same result. Never holds the body: spans are offsets
into it.
"""

from collections.abc import Sequence
from typing import final

from iop_fast._core.json_string import estimate_tokens as estimate_tokens
from iop_fast._core.scan_faults import ScanError as ScanError

# Feature bits of a request, part of `needs` (see iop_fast.edge.needs for the surface bits).
FEATURE_TOOLS: int
FEATURE_IMAGES: int
FEATURE_AUDIO: int
FEATURE_JSON_SCHEMA: int
FEATURE_REMOTE_MEDIA: int
FEATURE_FILES: int

# What the estimate adds for a message beyond its text, and for a media part whatever its size.
MESSAGE_TOKENS: int
IMAGE_TOKENS: int
AUDIO_TOKENS: int
VIDEO_TOKENS: int
FILE_TOKENS: int

@final
class BodyScan:
    """One scan of one body. `feed` each piece, then `finish` once; both raise ScanError and are dead afterwards.

    A dead or finished scan that is fed, and a read-out before `finish`, raise RuntimeError. The first fault in byte
    order is the one raised, by the piece that holds it. At most `max_depth` arrays and objects are open at once, the
    body's own object included (1..1024).
    """

    def __new__(cls, max_depth: int = 128) -> BodyScan: ...
    def feed(self, piece: bytes | bytearray | memoryview) -> None:
        """Take the next bytes; O(len), no allocation that grows with the body. The piece may be changed afterwards."""
    def finish(self) -> None:
        """Declare the body complete; the read-outs below are valid from here on."""
    @property
    def model(self) -> str | None:
        """Decoded top-level "model" string; None when absent. A value that is not a string, one over 1,024 characters,
        or one with a lone surrogate, is a ScanError "bad_field" with param "model"."""
    @property
    def model_span(self) -> tuple[int, int]:
        """Start and end offset of the model's JSON text, quotes included; (0, 0) when absent."""
    @property
    def stream(self) -> bool:
        """Top-level "stream" is true; null and absent are False, another type is a ScanError "bad_field"."""
    @property
    def features(self) -> int:
        """FEATURE_* bits seen: non-empty top-level tools/functions, image or audio content parts, a response_format of
        type json_schema, media that stands elsewhere (an http URL), video parts (image parts too) and files."""
    @property
    def estimated_tokens(self) -> int:
        """Estimated input tokens; what counts stands at the head of src_pyx/scan_roles.pyx."""
    @property
    def value_count(self) -> int:
        """JSON values in the body, its own object not counted: what reading it makes."""
    @property
    def input_value_count(self) -> int:
        """Those of them in the fields that hold the input: `messages`, `prompt`, `input`, `system`, `instructions`,
        `suffix`, `query`, `documents`; the field's own value and everything inside of it."""
    @property
    def top_level_keys(self) -> Sequence[str]:
        """Names of the top-level keys in order, decoded. More than 256, or one over 256 bytes, is a ScanError."""
    def value_span(self, key: str) -> tuple[int, int] | None:
        """Start and end offset of a top-level value's JSON text; None for a key that the body does not have."""
    @property
    def insert_at(self) -> int:
        """Offset just behind the opening brace, where absent fields can be inserted."""
