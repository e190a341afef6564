"""What the arrays, objects and strings of a request body are, and what of them counts: features and the estimate of
input tokens. The rules stand at the head of src_pyx/scan_roles.pyx.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from iop_fast._core.json_string cimport JsonString
from iop_fast._core.scan_names cimport SOURCE, Role

cdef enum:
    TOOLS_BIT = 1
    IMAGES_BIT = 2
    AUDIO_BIT = 4
    JSON_SCHEMA_BIT = 8
    REMOTE_MEDIA_BIT = 16
    FILES_BIT = 32

# Tokens that a message costs beyond its text, and that a media part costs whatever its size.
cdef enum:
    TOKENS_PER_MESSAGE = 4
    TOKENS_PER_IMAGE = 1_000
    TOKENS_PER_AUDIO = 1_000
    TOKENS_PER_VIDEO = 8_000
    TOKENS_PER_FILE = 4_000

# Fixed weights, in 1/64 tokens.
cdef enum:
    SCHEMA_STRING_UNITS = 64
    SCHEMA_SCALAR_UNITS = 64
    SCHEMA_FRAME_UNITS = 64

cdef enum:
    TEXT_ROOM = 4096 + 4     # a model of 1,024 characters of four bytes, one character over
    URL_BYTES = 8            # https://

# An open array or object.
cdef struct Frame:
    uint8_t is_object
    uint8_t role         # Role
    uint8_t kinds        # KIND_* seen in this part
    uint8_t name         # Name of the key whose value is read; UNNAMED in an array
    uint64_t held        # units of a SOURCE, counted only if its type says text

cdef struct Findings:
    uint32_t features
    uint64_t units       # 1/64 tokens


cdef inline void mark_schema(Findings *found, uint32_t units, int depth) noexcept:
    """Count a piece of schema; one directly inside the top-level field makes the field not empty."""
    found.units += units
    if depth == 2:
        found.features |= TOOLS_BIT


cdef inline void weigh(Findings *found, Frame *frame, uint64_t units) noexcept:
    """Count the text of a string that ended in `frame`."""
    if frame.role == SOURCE:
        frame.held += units
    else:
        found.units += units


# Find the role of the array or object that begins in `frame`, and count what its beginning says.
cdef Role role_of_child(Findings *found, Frame *frame, bint is_object, int depth) noexcept

# Count what a frame that is closed has held.
cdef void count_frame(Findings *found, Frame *frame) noexcept

# A string that is a value begins in `frame`: say how much of it is kept, and return whether its text counts.
cdef bint expect_string(Findings *found, Frame *frame, JsonString *string, int depth) noexcept

# A kept value is complete: the beginning of media, or a `type` that says what its frame is.
cdef void note_value(Findings *found, Frame *frame, JsonString *string) noexcept
