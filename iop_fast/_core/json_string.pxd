"""The inside of one JSON string, taken in pieces: validated, decoded where it is kept, and weighed in tokens."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

cdef enum:
    UNITS_PER_TOKEN = 64

cdef enum StringStatus:
    STRING_OPEN          # the piece ended inside it
    STRING_CLOSED
    STRING_CONTROL       # a control character that is not escaped
    STRING_ESCAPE        # no escape of JSON
    STRING_HEX           # no hexadecimal digit in a \u escape
    STRING_UTF8          # malformed UTF-8
    STRING_TOO_LONG      # more than it may have

cdef enum StringPlace:
    IN_TEXT
    BEHIND_BACKSLASH
    IN_HEX
    IN_CHARACTER

cdef struct JsonString:
    # Set by the owner.
    uint8_t *kept             # room for `limit` bytes, where `limit` is not 0
    uint32_t limit            # bytes of the decoded text that are kept
    uint32_t max_characters   # 0 without one; else a longer text is STRING_TOO_LONG; counted only if kept
    bint is_strict            # more than `limit` bytes are STRING_TOO_LONG, else they are dropped and it is cut
    # Findings.
    StringStatus status
    uint32_t length           # bytes kept; a lone surrogate is kept as the three bytes UTF-8 would have for it
    uint32_t characters
    bint is_cut
    bint is_lone              # there is a lone surrogate in it
    uint64_t units            # weight of what was taken, in 1/64 tokens
    # Where it stands.
    StringPlace place
    uint32_t high             # high surrogate that waits for its low one, 0 for none
    uint32_t point            # code point or code unit that is being read
    int missing               # bytes or digits that it still lacks
    uint8_t lowest            # bounds of a character's next byte
    uint8_t highest

# Begin a string behind its opening quote, of which `limit` bytes are kept.
cdef void open_string(JsonString *s, uint32_t limit) noexcept

# Take bytes up to and with the closing quote, or to the end of the piece. Returns where it stopped: behind the quote,
# at `end`, or at the byte at fault; `status` says which.
cdef const uint8_t *take_string(JsonString *s, const uint8_t *p, const uint8_t *end) noexcept
