"""The inside of a JSON string; the contract stands in iop_fast/_core/json_string.pxd and .pyi.

A string is read in runs. Plain ASCII and one-letter escapes go by blocks of 64 bytes (json_blocks.h), characters of
several bytes and \\u escapes in loops of their own; whatever the end of a piece cuts through (an escape, a
character) goes on byte by byte from the fields of JsonString, so any split gives the same result. A text that is kept
goes through `_keep`, which knows its limits; runs of kept text stop at each escape.

UTF-8 is well-formed by Unicode table 3-7, and the fault is the first byte that no well-formed text has there. An
escaped surrogate without its other half is JSON, counts as one character and is marked (`is_lone`).

The weight of a text is the sum of its code points' weights, by kind of ASCII character and by script, so it depends on
neither the split nor the spelling. Those of ASCII come from a fit over English, code and markup in seven public
tokenizers, those of the other scripts from samples; tests/unit/core/test_scan_estimate.py holds them.
"""

from libc.stdint cimport int8_t, int16_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

# ASCII by kind (in json_blocks.h); every other code point below U+10000 by its block of 64; the rest by plane.
cdef extern from "json_blocks.h":
    enum:
        LETTER_UNITS
        DIGIT_UNITS
        SPACE_UNITS
        MARK_UNITS
        SCAN_BLOCK
    int16_t ESCAPE_CHANGE[256]
    uint8_t IS_ESCAPE[256]
    const uint8_t *scan_run_words(const uint8_t *p, const uint8_t *end, int stops, uint64_t *units) noexcept nogil
    const uint8_t *scan_run_avx2(const uint8_t *p, const uint8_t *end, int stops, uint64_t *units) noexcept nogil
    int scan_can_avx2() noexcept nogil

ctypedef const uint8_t *(*RunReader)(const uint8_t *p, const uint8_t *end, int stops, uint64_t *units) noexcept nogil

cdef enum:
    TAB_UNITS = 60
    EMOJI_UNITS = 128
    LONE_SURROGATE_UNITS = 192
    ASTRAL_UNITS = 192       # other planes: rare ideographs, mathematical letters, old scripts

cdef RunReader read_run
cdef uint8_t ASCII_UNITS[128]
cdef uint8_t BLOCK_UNITS[1024]
cdef uint8_t IS_PLAIN[256]      # ASCII that stands for itself in a string
cdef uint8_t ESCAPED[256]       # what a one-letter escape stands for
cdef int8_t HEX[256]            # value of a hexadecimal digit, -1 for any other byte

# First and last code point of a range, both at a block's edge, and the weight of one of them.
cdef tuple SCRIPT_UNITS = (
    (0x0080, 0x02FF, 38),       # Latin with marks
    (0x0300, 0x07FF, 44),       # Greek, Cyrillic, Hebrew, Arabic
    (0x0800, 0x0DFF, 50),       # Indic
    (0x0E00, 0x0E7F, 47),       # Thai
    (0x0E80, 0x1FFF, 96),       # Lao, Tibetan, Georgian, Ethiopic, Khmer and others
    (0x2000, 0x203F, 48),       # general punctuation, joiners
    (0x2040, 0x24FF, 80),       # signs, arrows, mathematics
    (0x2500, 0x25FF, 64),       # boxes and shapes
    (0x2600, 0x2FFF, 96),       # symbols
    (0x3000, 0x303F, 60),       # CJK punctuation
    (0x3040, 0x30FF, 70),       # kana
    (0x3100, 0x9FFF, 74),       # CJK ideographs
    (0xA000, 0xABFF, 160),      # Yi and others
    (0xAC00, 0xD7FF, 78),       # Hangul
    (0xD800, 0xDFFF, LONE_SURROGATE_UNITS),
    (0xE000, 0xF8FF, 192),      # private use
    (0xF900, 0xFDFF, 96),       # compatibility forms
    (0xFE00, 0xFE3F, 64),       # variation selectors
    (0xFE40, 0xFFFF, 60),       # full width, half width
)


cdef int fill_tables() except -1:
    cdef int c
    for c in range(128):
        if 97 <= (c | 32) <= 122:
            ASCII_UNITS[c] = LETTER_UNITS
        elif 48 <= c <= 57:
            ASCII_UNITS[c] = DIGIT_UNITS
        elif c == 32:
            ASCII_UNITS[c] = SPACE_UNITS
        else:
            ASCII_UNITS[c] = TAB_UNITS if c == 9 else MARK_UNITS
    for c in range(256):
        IS_PLAIN[c] = 32 <= c < 128 and c != 34 and c != 92
        HEX[c] = -1
    for c in range(16):
        HEX[b"0123456789abcdef"[c]] = c
        HEX[b"0123456789ABCDEF"[c]] = c
    for first, last, units in SCRIPT_UNITS:
        for c in range(first >> 6, (last >> 6) + 1):
            BLOCK_UNITS[c] = units
    for escape, stands_for in zip(b'"\\/bfnrt', b'"\\/\b\f\n\r\t'):
        IS_ESCAPE[escape] = True
        ESCAPED[escape] = stands_for
        ESCAPE_CHANGE[escape] = ASCII_UNITS[stands_for] - ASCII_UNITS[escape] - MARK_UNITS
    return 0


def block_readers():
    return ("avx2", "words") if scan_can_avx2() else ("words",)


def use_block_reader(str name):
    global read_run
    if name not in block_readers():
        raise ValueError(f"block reader: expected one of {block_readers()}, got {name!r}")
    read_run = scan_run_avx2 if name == "avx2" else scan_run_words


fill_tables()
use_block_reader(block_readers()[0])


cdef inline uint32_t units_of(uint32_t point) noexcept:
    if point < 0x80:
        return ASCII_UNITS[point]
    if point < 0x10000:
        return BLOCK_UNITS[point >> 6]
    return EMOJI_UNITS if 0x1F000 <= point <= 0x1FAFF else ASTRAL_UNITS


def estimate_tokens(str text):
    cdef uint64_t units = 0
    cdef Py_UCS4 point
    for point in text:
        units += units_of(point)
    return (units + UNITS_PER_TOKEN - 1) // UNITS_PER_TOKEN


# ---- keeping and weighing --------------------------------------------------------------------------------------------


cdef void _keep(JsonString *s, const uint8_t *decoded, size_t size, size_t characters) noexcept:
    """Append decoded bytes to the kept text, up to its limits."""
    cdef size_t room = s.limit - s.length
    s.characters += characters
    if size > room:
        s.is_cut = True
        size = room
    memcpy(s.kept + s.length, decoded, size)
    s.length += size
    if (s.is_cut and s.is_strict) or (s.max_characters and s.characters > s.max_characters):
        s.status = STRING_TOO_LONG


cdef void _add_point(JsonString *s, uint32_t point) noexcept:
    """Weigh and keep one decoded code point, a lone surrogate included."""
    cdef uint8_t encoded[4]
    cdef int size
    s.units += units_of(point)
    if not s.limit:
        return
    if point < 0x80:
        encoded[0] = point
        size = 1
    elif point < 0x800:
        encoded[0] = 0xC0 | (point >> 6)
        encoded[1] = 0x80 | (point & 0x3F)
        size = 2
    elif point < 0x10000:
        encoded[0] = 0xE0 | (point >> 12)
        encoded[1] = 0x80 | ((point >> 6) & 0x3F)
        encoded[2] = 0x80 | (point & 0x3F)
        size = 3
    else:
        encoded[0] = 0xF0 | (point >> 18)
        encoded[1] = 0x80 | ((point >> 12) & 0x3F)
        encoded[2] = 0x80 | ((point >> 6) & 0x3F)
        encoded[3] = 0x80 | (point & 0x3F)
        size = 4
    _keep(s, encoded, size, 1)


cdef inline void _drop_high(JsonString *s) noexcept:
    """What follows a high surrogate is no low one: it stands alone."""
    cdef uint32_t high = s.high
    if high:
        s.high = 0
        s.is_lone = True
        _add_point(s, high)


cdef void _add_unit(JsonString *s, uint32_t unit) noexcept:
    """Take a UTF-16 code unit that an escape spelled; pairs make one code point."""
    cdef uint32_t high = s.high
    if high and 0xDC00 <= unit <= 0xDFFF:
        s.high = 0
        _add_point(s, 0x10000 + ((high - 0xD800) << 10) + (unit - 0xDC00))
        return
    _drop_high(s)
    if 0xD800 <= unit <= 0xDBFF:
        s.high = unit
        return
    if 0xDC00 <= unit <= 0xDFFF:
        s.is_lone = True
    _add_point(s, unit)


# ---- whole runs ------------------------------------------------------------------------------------------------------


cdef inline const uint8_t *_take_plain(JsonString *s, const uint8_t *p, const uint8_t *end, int stops) noexcept:
    """Take what stands for itself, and with it one-letter escapes unless the text is kept (`stops`)."""
    cdef uint64_t units = 0
    if end - p >= SCAN_BLOCK and (IS_PLAIN[p[0]] or p[0] == 92):
        p = read_run(p, end, stops, &units)
    while p < end:
        if IS_PLAIN[p[0]]:
            units += ASCII_UNITS[p[0]]
            p += 1
        elif p[0] == 92 and not stops and end - p > 1 and IS_ESCAPE[p[1]]:
            units += ASCII_UNITS[ESCAPED[p[1]]]
            p += 2
        else:
            break
    s.units += units
    return p


cdef const uint8_t *_take_spelled(JsonString *s, const uint8_t *p, const uint8_t *end) noexcept:
    """Take \\u escapes that are whole and single characters between them; begin what else a backslash begins."""
    cdef int high, low
    cdef uint32_t unit
    cdef uint64_t units = 0
    while end - p >= 6 and s.status == STRING_OPEN:
        if p[0] != 92 or p[1] != 117:
            if s.high or s.limit or p[1] != 92 or not IS_PLAIN[p[0]]:
                break
            units += ASCII_UNITS[p[0]]
            p += 1
            continue
        high = (HEX[p[2]] * 16) | HEX[p[3]]
        low = (HEX[p[4]] * 16) | HEX[p[5]]
        if high < 0 or low < 0:
            break
        unit = (high << 8) | low
        if s.high or s.limit or 0xD800 <= unit <= 0xDFFF:
            _add_unit(s, unit)
        else:
            units += units_of(unit)
        p += 6
    s.units += units
    if s.status == STRING_OPEN and p < end and p[0] == 92:
        s.place = BEHIND_BACKSLASH
        p += 1
    return p


cdef const uint8_t *_take_wide(JsonString *s, const uint8_t *p, const uint8_t *end) noexcept:
    """Take characters of several bytes and single ASCII characters between them; begin one that is not whole."""
    cdef uint32_t word, block, point
    cdef uint64_t units = 0
    while end - p >= 4 and not s.limit:
        memcpy(&word, p, 4)
        if (word & 0xC0C0F0) == 0x8080E0:
            block = ((word & 0x0F) << 6) | ((word >> 8) & 0x3F)
            if block < 0x800 >> 6 or 0xD800 >> 6 <= block <= 0xDFFF >> 6:
                break
            units += BLOCK_UNITS[block]
            p += 3
        elif (word & 0x8080) == 0x8000 and IS_PLAIN[p[0]]:
            units += ASCII_UNITS[p[0]]
            p += 1
        elif (word & 0xC0E0) == 0x80C0:
            block = word & 0x1F
            if block < 0x80 >> 6:
                break
            units += BLOCK_UNITS[block]
            p += 2
        elif (word & 0xC0C0C0F8U) == 0x808080F0U:
            point = ((word & 0x07) << 18) | ((word & 0x3F00) << 4) | ((word >> 10) & 0xFC0) | ((word >> 24) & 0x3F)
            if point < 0x10000 or point > 0x10FFFF:
                break
            units += units_of(point)
            p += 4
        else:
            break
    s.units += units
    return _begin_character(s, p) if p < end and p[0] >= 0x80 else p


# ---- byte by byte ----------------------------------------------------------------------------------------------------


cdef const uint8_t *_begin_character(JsonString *s, const uint8_t *p) noexcept:
    """Take the first byte of a character of several bytes."""
    cdef uint8_t c = p[0]
    s.lowest = 0x80
    s.highest = 0xBF
    if 0xC2 <= c <= 0xDF:
        s.missing = 1
        s.point = c & 0x1F
    elif 0xE0 <= c <= 0xEF:
        s.missing = 2
        s.point = c & 0x0F
        if c == 0xE0:
            s.lowest = 0xA0
        elif c == 0xED:
            s.highest = 0x9F
    elif 0xF0 <= c <= 0xF4:
        s.missing = 3
        s.point = c & 0x07
        if c == 0xF0:
            s.lowest = 0x90
        elif c == 0xF4:
            s.highest = 0x8F
    else:
        s.status = STRING_UTF8
        return p
    s.place = IN_CHARACTER
    return p + 1


cdef const uint8_t *_take_character(JsonString *s, const uint8_t *p, const uint8_t *end) noexcept:
    """Take the further bytes of a character."""
    while p < end:
        if not s.lowest <= p[0] <= s.highest:
            s.status = STRING_UTF8
            return p
        s.lowest = 0x80
        s.highest = 0xBF
        s.point = (s.point << 6) | (p[0] & 0x3F)
        s.missing -= 1
        p += 1
        if s.missing == 0:
            s.place = IN_TEXT
            _add_point(s, s.point)
            return p
    return p


cdef const uint8_t *_take_escape(JsonString *s, const uint8_t *p) noexcept:
    """Take the byte behind a backslash."""
    if p[0] == 117:
        s.place = IN_HEX
        s.missing = 4
        s.point = 0
        return p + 1
    _drop_high(s)
    if s.status != STRING_OPEN:
        return p
    if not IS_ESCAPE[p[0]]:
        s.status = STRING_ESCAPE
        return p
    s.place = IN_TEXT
    _add_point(s, ESCAPED[p[0]])
    return p + 1


cdef const uint8_t *_take_hex(JsonString *s, const uint8_t *p, const uint8_t *end) noexcept:
    """Take the digits of a \\u escape."""
    cdef int digit
    while p < end:
        digit = HEX[p[0]]
        if digit < 0:
            s.status = STRING_HEX
            return p
        s.point = (s.point << 4) | <uint32_t>digit
        s.missing -= 1
        p += 1
        if s.missing == 0:
            s.place = IN_TEXT
            _add_unit(s, s.point)
            return p
    return p


# ---- the string ------------------------------------------------------------------------------------------------------


cdef const uint8_t *_take_text(JsonString *s, const uint8_t *p, const uint8_t *end) noexcept:
    """Take text until something in it ends the run or the string."""
    cdef const uint8_t *start = p
    p = _take_plain(s, p, end, s.limit != 0)
    if p != start:
        _drop_high(s)
        if s.limit:
            _keep(s, start, p - start, p - start)
        if s.status != STRING_OPEN or p == end:
            return p
    if p[0] == 92:
        return _take_spelled(s, p, end)
    _drop_high(s)
    if s.status != STRING_OPEN:
        return p
    if p[0] == 34:
        s.status = STRING_CLOSED
        return p + 1
    if p[0] < 32:
        s.status = STRING_CONTROL
        return p
    return _take_wide(s, p, end)


cdef void open_string(JsonString *s, uint32_t limit) noexcept:
    s.limit = limit
    s.max_characters = 0
    s.is_strict = False
    s.status = STRING_OPEN
    s.length = 0
    s.characters = 0
    s.is_cut = False
    s.is_lone = False
    s.units = 0
    s.place = IN_TEXT
    s.high = 0


cdef const uint8_t *take_string(JsonString *s, const uint8_t *p, const uint8_t *end) noexcept:
    while p < end and s.status == STRING_OPEN:
        if s.place == IN_TEXT:
            p = _take_text(s, p, end)
        elif s.place == IN_CHARACTER:
            p = _take_character(s, p, end)
        elif s.place == IN_HEX:
            p = _take_hex(s, p, end)
        else:
            p = _take_escape(s, p)
    return p
