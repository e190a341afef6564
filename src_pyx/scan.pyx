"""Incremental scan of a request body; the contract stands in iop_fast/_core/scan.pyi.

How it works
------------
A byte-level state machine in C types. `feed` runs it over one piece; whatever is open at the end of the piece (a string,
half an escape, two bytes of a character, a number) is in the fields of the scan, so any split gives the same result. No
byte of the body is kept but these, all bounded: the top-level keys (at most 256 of at most 256 bytes), the model (1,024
characters), and the short names and `type` values that decide what a string is. Work is O(bytes); memory is O(max_depth).

The grammar is RFC 8259's without any leniency: an object at the top, no byte order mark, no comments, no NaN, nothing
behind the closing brace but white space. Strings are well-formed UTF-8 (Unicode table 3-7); an escaped lone surrogate is
JSON and is accepted, but not in the model. The first fault in byte order is the one reported.

What one parser reads and another does not is refused here, since the provider's parser must see the request that was
admitted: a top-level key given twice (decoded keys are compared byte by byte, so there are no collisions), and a key
that is one of ours in other letters (`Model`, `STREAM`), which a parser that folds case takes for it.

What counts as input tokens
---------------------------
Every frame (open object or array) has a role, found from its parent's role and the key it stands under; the role says
what the strings in it are.

- text: `prompt`, `input`, `system`, `instructions`, `suffix`, `query`, `documents` and everything in `messages`, that
  is content strings, text parts, names, tool calls' arguments, tool results. Not the values of keys that name or
  describe (`type`, `role`, `id`, `tool_call_id`, `media_type` ...). Each message adds MESSAGE_TOKENS.
- a number in an array under `prompt` or `input` is one token, whatever its size.
- schema: `tools`, `functions` and objects under `arguments` or `input` of a tool call. Providers put the JSON text
  itself into the prompt, so keys count like values and punctuation counts.
- media: a content part whose `type` or own key says image, audio, video or file costs its constant once; nothing inside
  of it counts, so base64 is never taken by its length. The exception is an Anthropic document whose source is text.
- anything else at the top level (`metadata`, `user`, `response_format` ...) is nothing.

A text's estimate is the sum of its code points' weights, in 1/64 tokens, rounded up once at the end: it depends on
neither the split nor the spelling (`\\u` escapes count as what they stand for). Weights are by kind of ASCII character and
by script; tests/unit/core/test_scan_estimate.py holds them to counts of public tokenizers.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from libc.stdint cimport int8_t, int16_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy

cdef enum:
    TOOLS_BIT = 1
    IMAGES_BIT = 2
    AUDIO_BIT = 4
    JSON_SCHEMA_BIT = 8

FEATURE_TOOLS = TOOLS_BIT
FEATURE_IMAGES = IMAGES_BIT
FEATURE_AUDIO = AUDIO_BIT
FEATURE_JSON_SCHEMA = JSON_SCHEMA_BIT

# Tokens that a message costs beyond its text, and that a media part costs whatever its size.
cdef enum:
    TOKENS_PER_MESSAGE = 4
    TOKENS_PER_IMAGE = 1_000
    TOKENS_PER_AUDIO = 1_000
    TOKENS_PER_VIDEO = 8_000
    TOKENS_PER_FILE = 4_000

MESSAGE_TOKENS = TOKENS_PER_MESSAGE
IMAGE_TOKENS = TOKENS_PER_IMAGE
AUDIO_TOKENS = TOKENS_PER_AUDIO
VIDEO_TOKENS = TOKENS_PER_VIDEO
FILE_TOKENS = TOKENS_PER_FILE

cdef enum:
    UNITS_PER_TOKEN = 64
    KEY_LIMIT = 256
    KEY_BYTES = 256
    NAME_BYTES = 24          # the longest key or type that decides anything, and some
    MODEL_CHARACTERS = 1024
    TEXT_ROOM = 4096 + 4     # a model of 1,024 characters of four bytes, one character over
    DEPTH_LIMIT = 1024

# Fixed weights, in 1/64 tokens.
cdef enum:
    SCHEMA_STRING_UNITS = 64
    SCHEMA_SCALAR_UNITS = 64
    SCHEMA_FRAME_UNITS = 64
    LONE_SURROGATE_UNITS = 192

cdef enum State:
    AT_START
    AT_FIRST_KEY     # a key or "}"
    AT_KEY
    AT_COLON
    AT_FIRST_ITEM    # a value or "]"
    AT_VALUE
    AT_COMMA         # "," or the closing bracket
    AT_END           # the object is closed
    IN_STRING
    IN_ESCAPE        # behind the backslash
    IN_HEX           # in the four digits of \u
    IN_CHARACTER     # in a character of several bytes
    IN_LITERAL
    IN_MINUS         # a digit must follow
    IN_POINT         # a digit must follow
    IN_E             # a sign or a digit must follow
    IN_E_SIGN        # a digit must follow
    IN_ZERO          # the number may end, from here on
    IN_INTEGER
    IN_FRACTION
    IN_EXPONENT

cdef enum Role:
    OTHER            # nothing in it matters
    TOP
    MESSAGES         # array of messages
    TEXTS            # array of texts, tokens or input items
    CONTENT          # a message, its content, a part
    SCHEMA
    MEDIA            # what a media key stands for
    SOURCE           # Anthropic's `source`: media, unless its type says text
    FORMAT           # response_format
    FORMAT_HOLDER    # object with a response format under "format"

cdef enum Name:
    UNNAMED          # any other key, and what an array's items stand under
    NAME_MODEL
    NAME_STREAM
    NAME_MESSAGES
    NAME_TEXTS
    NAME_TOOLS
    NAME_FORMAT
    NAME_FORMAT_HOLDER
    NAME_LIMIT
    NAME_TYPE
    NAME_LABEL       # its string is no text
    NAME_IMAGE
    NAME_AUDIO
    NAME_VIDEO
    NAME_FILE
    NAME_SOURCE
    NAME_SCHEMA
    NAME_DATA
    NAME_CONTENT

cdef enum:
    KIND_IMAGE = 1
    KIND_AUDIO = 2
    KIND_VIDEO = 4
    KIND_FILE = 8
    KIND_TEXT_SOURCE = 16

cdef enum Fault:
    NO_FAULT
    FAULT_START
    FAULT_BYTE_ORDER_MARK
    FAULT_NOT_OBJECT
    FAULT_FIRST_KEY
    FAULT_KEY
    FAULT_COLON
    FAULT_FIRST_ITEM
    FAULT_VALUE
    FAULT_COMMA_OBJECT
    FAULT_COMMA_ARRAY
    FAULT_TRAILING
    FAULT_CONTROL
    FAULT_ESCAPE
    FAULT_HEX
    FAULT_LITERAL
    FAULT_NUMBER
    FAULT_UTF8
    FAULT_DEPTH
    FAULT_DUPLICATE
    FAULT_SPELLING
    FAULT_KEY_COUNT
    FAULT_KEY_LENGTH
    FAULT_MODEL_TYPE
    FAULT_MODEL_LENGTH
    FAULT_MODEL_SURROGATE
    FAULT_STREAM_TYPE
    FAULT_MESSAGES_TYPE
    FAULT_EMPTY
    FAULT_INCOMPLETE
    FAULT_MEMORY

cdef dict FAULTS = {
    FAULT_START: ("invalid_json", "expected '{'"),
    FAULT_BYTE_ORDER_MARK: ("invalid_json", "expected '{', got a byte order mark"),
    FAULT_NOT_OBJECT: ("not_an_object", "the body is not an object, expected '{'"),
    FAULT_FIRST_KEY: ("invalid_json", "expected a key in double quotes or '}'"),
    FAULT_KEY: ("invalid_json", "expected a key in double quotes"),
    FAULT_COLON: ("invalid_json", "expected ':'"),
    FAULT_FIRST_ITEM: ("invalid_json", "expected a value or ']'"),
    FAULT_VALUE: ("invalid_json", "expected a value"),
    FAULT_COMMA_OBJECT: ("invalid_json", "expected ',' or '}'"),
    FAULT_COMMA_ARRAY: ("invalid_json", "expected ',' or ']'"),
    FAULT_TRAILING: ("invalid_json", "expected nothing behind the closing brace"),
    FAULT_CONTROL: ("invalid_json", "control characters in a string must be escaped"),
    FAULT_ESCAPE: ("invalid_json", "expected one of \" \\ / b f n r t u behind a backslash"),
    FAULT_HEX: ("invalid_json", "expected four hexadecimal digits behind \\u"),
    FAULT_LITERAL: ("invalid_json", "expected true, false or null"),
    FAULT_NUMBER: ("invalid_json", "malformed number"),
    FAULT_UTF8: ("invalid_utf8", "malformed UTF-8"),
    FAULT_DEPTH: ("too_deep", "arrays and objects are nested too deep"),
    FAULT_DUPLICATE: ("duplicate_key", "the key stands twice at the top level"),
    FAULT_SPELLING: ("bad_field", "the key is a known one in other letters, expected lower case"),
    FAULT_KEY_COUNT: ("too_many_keys", f"more than {KEY_LIMIT} keys at the top level"),
    FAULT_KEY_LENGTH: ("key_too_long", f"a top-level key is longer than {KEY_BYTES} bytes"),
    FAULT_MODEL_TYPE: ("bad_field", "model must be a string"),
    FAULT_MODEL_LENGTH: ("bad_field", f"model is longer than {MODEL_CHARACTERS} characters"),
    FAULT_MODEL_SURROGATE: ("bad_field", "model holds a lone surrogate"),
    FAULT_STREAM_TYPE: ("bad_field", "stream must be true, false or null"),
    FAULT_MESSAGES_TYPE: ("bad_field", "messages must be an array"),
    FAULT_EMPTY: ("invalid_json", "the body is empty"),
    FAULT_INCOMPLETE: ("invalid_json", "the body ends inside the object"),
}

cdef struct Frame:
    uint8_t is_object
    uint8_t role         # Role
    uint8_t kinds        # KIND_* seen in this part
    uint8_t name         # Name of the key whose value is read; UNNAMED in an array
    uint64_t held        # units of a SOURCE, counted only if its type says text

cdef struct Key:
    uint32_t at          # of its bytes, in the store
    uint16_t length
    uint16_t name        # Name
    uint32_t hash
    int64_t value_start
    int64_t value_end    # 0 while the value is read


# ---- weights ---------------------------------------------------------------------------------------------------------

# ASCII by kind (in scan_blocks.h); every other code point below U+10000 by its block of 64; the rest by plane.
cdef extern from "scan_blocks.h":
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
    ASTRAL_UNITS = 192       # other planes: rare ideographs, mathematical letters, old scripts

cdef RunReader read_run
cdef uint8_t ASCII_UNITS[128]
cdef uint8_t BLOCK_UNITS[1024]
cdef uint8_t IS_PLAIN[256]      # ASCII that stands for itself in a string
cdef uint8_t ESCAPED[256]       # what a one-letter escape stands for
cdef int8_t HEX[256]            # value of a hexadecimal digit, -1 for any other byte

# First and last code point of a range, both at a block's edge, and the weight of one of them.
SCRIPT_UNITS = (
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


cdef void fill_tables() noexcept:
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


cdef inline int64_t tokens_of(uint64_t units) noexcept:
    return <int64_t>((units + UNITS_PER_TOKEN - 1) // UNITS_PER_TOKEN)


def estimate_tokens(str text):
    cdef uint64_t units = 0
    cdef Py_UCS4 point
    for point in text:
        units += units_of(point)
    return tokens_of(units)


# ---- names -----------------------------------------------------------------------------------------------------------


cdef inline bint same(const uint8_t *text, size_t length, const char *name, size_t name_length) noexcept:
    return length == name_length and memcmp(text, name, length) == 0


cdef Name top_name(const uint8_t *text, size_t length) noexcept:
    """Find what a top-level key means."""
    if length == 5:
        if memcmp(text, b"model", 5) == 0:
            return NAME_MODEL
        if memcmp(text, b"input", 5) == 0 or memcmp(text, b"query", 5) == 0:
            return NAME_TEXTS
        if memcmp(text, b"tools", 5) == 0:
            return NAME_TOOLS
    elif length == 6:
        if memcmp(text, b"stream", 6) == 0:
            return NAME_STREAM
        if memcmp(text, b"prompt", 6) == 0 or memcmp(text, b"system", 6) == 0 or memcmp(text, b"suffix", 6) == 0:
            return NAME_TEXTS
    elif same(text, length, b"messages", 8):
        return NAME_MESSAGES
    elif same(text, length, b"functions", 9):
        return NAME_TOOLS
    elif same(text, length, b"documents", 9) or same(text, length, b"instructions", 12):
        return NAME_TEXTS
    elif same(text, length, b"response_format", 15) or same(text, length, b"output_format", 13):
        return NAME_FORMAT
    elif same(text, length, b"text", 4) or same(text, length, b"output_config", 13):
        return NAME_FORMAT_HOLDER
    elif (
        same(text, length, b"max_tokens", 10)
        or same(text, length, b"max_completion_tokens", 21)
        or same(text, length, b"max_output_tokens", 17)
    ):
        return NAME_LIMIT
    return UNNAMED


cdef Name content_name(const uint8_t *text, size_t length) noexcept:
    """Find what a key of a message, an input item or a content part means."""
    if same(text, length, b"type", 4):
        return NAME_TYPE
    if same(text, length, b"text", 4) or same(text, length, b"content", 7):
        return UNNAMED
    if (
        same(text, length, b"role", 4) or same(text, length, b"id", 2) or same(text, length, b"status", 6)
        or same(text, length, b"detail", 6) or same(text, length, b"call_id", 7) or same(text, length, b"file_id", 7)
        or same(text, length, b"tool_call_id", 12) or same(text, length, b"tool_use_id", 11)
        or same(text, length, b"media_type", 10) or same(text, length, b"file_data", 9)
        or same(text, length, b"encrypted_content", 17) or same(text, length, b"signature", 9)
        or same(text, length, b"result", 6) or same(text, length, b"file_url", 8)
    ):
        return NAME_LABEL
    if same(text, length, b"image_url", 9) or same(text, length, b"image", 5) or same(text, length, b"image_embeds", 12):
        return NAME_IMAGE
    if same(text, length, b"input_audio", 11) or same(text, length, b"audio_url", 9):
        return NAME_AUDIO
    if same(text, length, b"video_url", 9) or same(text, length, b"video", 5):
        return NAME_VIDEO
    if same(text, length, b"file", 4):
        return NAME_FILE
    if same(text, length, b"source", 6):
        return NAME_SOURCE
    if same(text, length, b"arguments", 9) or same(text, length, b"input", 5):
        return NAME_SCHEMA
    return UNNAMED


cdef int kind_of_type(const uint8_t *text, size_t length) noexcept:
    """Find what a part is by its `type`, as KIND_* or 0."""
    if (
        same(text, length, b"image_url", 9) or same(text, length, b"input_image", 11) or same(text, length, b"image", 5)
        or same(text, length, b"image_generation_call", 21) or same(text, length, b"image_embeds", 12)
    ):
        return KIND_IMAGE
    if same(text, length, b"input_audio", 11) or same(text, length, b"audio_url", 9) or same(text, length, b"audio", 5):
        return KIND_AUDIO
    if same(text, length, b"video_url", 9) or same(text, length, b"video", 5) or same(text, length, b"input_video", 11):
        return KIND_VIDEO
    if same(text, length, b"file", 4) or same(text, length, b"input_file", 10) or same(text, length, b"document", 8):
        return KIND_FILE
    return 0


cdef Name name_in(Role role, const uint8_t *text, size_t length) noexcept:
    """Find what a key means in a frame below the top."""
    if role == CONTENT:
        return content_name(text, length)
    if role == FORMAT_HOLDER:
        return NAME_FORMAT if same(text, length, b"format", 6) else UNNAMED
    if role == FORMAT:
        return NAME_TYPE if same(text, length, b"type", 4) else UNNAMED
    if role == SOURCE:
        if same(text, length, b"type", 4):
            return NAME_TYPE
        if same(text, length, b"data", 4):
            return NAME_DATA
        if same(text, length, b"content", 7):
            return NAME_CONTENT
    return UNNAMED


cdef bint is_other_spelling(const uint8_t *text, size_t length) noexcept:
    """Tell whether the key is a known one once letters are folded as case-blind parsers fold them (also U+017F for s,
    U+212A for k)."""
    cdef uint8_t folded[NAME_BYTES]
    cdef size_t at = 0, size = 0
    cdef bint is_folded = False
    while at < length and size < NAME_BYTES:
        if 65 <= text[at] <= 90:
            folded[size] = text[at] | 32
            is_folded = True
            at += 1
        elif text[at] == 0xC5 and at + 1 < length and text[at + 1] == 0xBF:
            folded[size] = 115
            is_folded = True
            at += 2
        elif text[at] == 0xE2 and at + 2 < length and text[at + 1] == 0x84 and text[at + 2] == 0xAA:
            folded[size] = 107
            is_folded = True
            at += 3
        else:
            folded[size] = text[at]
            at += 1
        size += 1
    return is_folded and at == length and top_name(folded, size) != UNNAMED


class ScanError(ValueError):

    def __init__(self, str code, param, Py_ssize_t offset, str message):
        super().__init__(message)
        self.code = code
        self.param = param
        self.offset = offset


# ---- the machine -----------------------------------------------------------------------------------------------------


@cython.final
@cython.no_gc
cdef class BodyScan:
    # Place in the body.
    cdef int64_t _base              # bytes taken by earlier pieces
    cdef const uint8_t *_piece      # the piece that is read; NULL between feeds
    cdef State _state
    # Open arrays and objects.
    cdef Frame *_frames
    cdef int _depth
    cdef int _max_depth
    # The open string.
    cdef bint _is_key
    cdef bint _weighs
    cdef bint _is_lone              # a lone surrogate was seen in it
    cdef uint8_t _text_full         # more than _text_limit bytes
    cdef uint32_t _text_limit       # bytes kept of it, 0 for none
    cdef uint32_t _text_length
    cdef uint32_t _characters       # counted only while it is kept
    cdef uint64_t _string_units
    cdef int64_t _string_at
    cdef uint8_t *_text             # TEXT_ROOM bytes, decoded
    # Inside an escape or a character.
    cdef uint32_t _high             # high surrogate that waits for its low one, 0 for none
    cdef uint32_t _point
    cdef int _missing
    cdef uint8_t _lowest            # bounds of the next byte of the character
    cdef uint8_t _highest
    cdef const char *_literal       # what is left of it
    # Top-level keys.
    cdef Key *_keys
    cdef int _key_count
    cdef uint8_t *_store
    cdef uint32_t _store_used
    cdef uint32_t _store_size
    # Findings.
    cdef uint32_t _features
    cdef uint64_t _units
    cdef int64_t _insert_at
    cdef bint _is_stream
    cdef int _model_key             # -1 without one
    cdef uint32_t _model_at         # of its decoded bytes, in the store
    cdef uint32_t _model_length
    cdef bint _is_finished
    # The first fault.
    cdef Fault _fault
    cdef int64_t _fault_at

    def __cinit__(self, int max_depth=128):
        if not 1 <= max_depth <= DEPTH_LIMIT:
            raise ValueError(f"max_depth: expected 1..{DEPTH_LIMIT}, got {max_depth}")
        self._max_depth = max_depth
        self._model_key = -1
        self._frames = <Frame *>malloc(max_depth * sizeof(Frame))
        self._text = <uint8_t *>malloc(TEXT_ROOM)
        self._keys = <Key *>malloc(KEY_LIMIT * sizeof(Key))
        self._store_size = 512
        self._store = <uint8_t *>malloc(self._store_size)
        if self._frames == NULL or self._text == NULL or self._keys == NULL or self._store == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self._frames)
        free(self._text)
        free(self._keys)
        free(self._store)

    # -- for callers --

    def feed(self, piece):
        cdef Py_buffer view
        self._check_alive()
        if PyBytes_CheckExact(piece):
            self._run(<const uint8_t *>PyBytes_AS_STRING(piece), PyBytes_GET_SIZE(piece))
        else:
            PyObject_GetBuffer(piece, &view, PyBUF_SIMPLE)
            try:
                self._run(<const uint8_t *>view.buf, view.len)
            finally:
                PyBuffer_Release(&view)
        if self._fault != NO_FAULT:
            raise self._error()

    def finish(self):
        self._check_alive()
        if self._state != AT_END:
            self._fault = FAULT_EMPTY if self._state == AT_START else FAULT_INCOMPLETE
            self._fault_at = self._base
            raise self._error()
        self._is_finished = True

    @property
    def model(self):
        self._check_finished()
        if self._model_key < 0:
            return None
        return (<char *>self._store)[self._model_at:self._model_at + self._model_length].decode()

    @property
    def model_span(self):
        self._check_finished()
        if self._model_key < 0:
            return (0, 0)
        return (self._keys[self._model_key].value_start, self._keys[self._model_key].value_end)

    @property
    def stream(self):
        self._check_finished()
        return self._is_stream

    @property
    def features(self):
        self._check_finished()
        return self._features

    @property
    def estimated_tokens(self):
        self._check_finished()
        return tokens_of(self._units)

    @property
    def top_level_keys(self):
        self._check_finished()
        return [self._key_text(index) for index in range(self._key_count)]

    @property
    def insert_at(self):
        self._check_finished()
        return self._insert_at

    def value_span(self, str key):
        cdef bytes wanted = key.encode("utf-8", "surrogatepass")
        cdef int index
        self._check_finished()
        for index in range(self._key_count):
            if same(
                self._store + self._keys[index].at, self._keys[index].length, PyBytes_AS_STRING(wanted), len(wanted)
            ):
                return (self._keys[index].value_start, self._keys[index].value_end)
        return None

    # -- errors --

    cdef int _check_alive(self) except -1:
        if self._fault != NO_FAULT or self._is_finished:
            raise RuntimeError("the scan is over: it was finished or has raised")
        return 0

    cdef int _check_finished(self) except -1:
        if not self._is_finished:
            raise RuntimeError("the scan is not finished")
        return 0

    cdef str _key_text(self, int index):
        cdef Key *key = &self._keys[index]
        return (<char *>self._store)[key.at:key.at + key.length].decode("utf-8", "replace")

    cdef object _error(self):
        if self._fault == FAULT_MEMORY:
            return MemoryError()
        code, what = FAULTS[self._fault]
        param = None
        if self._fault in (FAULT_MODEL_TYPE, FAULT_MODEL_LENGTH, FAULT_MODEL_SURROGATE):
            param = "model"
        elif self._fault == FAULT_STREAM_TYPE:
            param = "stream"
        elif self._fault == FAULT_MESSAGES_TYPE:
            param = "messages"
        elif self._fault in (FAULT_DUPLICATE, FAULT_SPELLING):
            param = (<char *>self._text)[:self._text_length].decode("utf-8", "replace")
        return ScanError(code, param, self._fault_at, f"{what}, at byte {self._fault_at}")

    cdef const uint8_t *_fail_at(self, Fault fault, int64_t offset) noexcept:
        if self._fault == NO_FAULT:
            self._fault = fault
            self._fault_at = offset
        return NULL

    cdef inline int64_t _offset(self, const uint8_t *p) noexcept:
        return self._base + (p - self._piece)

    cdef const uint8_t *_fail(self, Fault fault, const uint8_t *p) noexcept:
        return self._fail_at(fault, self._offset(p))

    # -- structure --

    cdef void _run(self, const uint8_t *piece, Py_ssize_t size) noexcept:
        cdef const uint8_t *p = piece
        cdef const uint8_t *end = piece + size
        self._piece = piece
        while p != NULL and p < end:
            if self._state < IN_STRING:
                p = self._take_structure(p, end)
            elif self._state == IN_STRING:
                p = self._take_string(p, end)
            elif self._state > IN_LITERAL:
                p = self._take_number(p, end)
            elif self._state == IN_LITERAL:
                p = self._take_literal(p, end)
            elif self._state == IN_CHARACTER:
                p = self._take_character(p, end)
            else:
                p = self._take_escape(p, end)
        self._base += size
        self._piece = NULL

    cdef const uint8_t *_take_structure(self, const uint8_t *p, const uint8_t *end) noexcept:
        """Take what stands between strings, up to the next string's quote or the end of the piece."""
        cdef uint8_t c
        while p != NULL and p < end and self._state < IN_STRING:
            c = p[0]
            if c == 32 or c == 10 or c == 13 or c == 9:
                p += 1
            elif self._state == AT_COMMA:
                p = self._take_comma(c, p)
            elif self._state == AT_VALUE:
                p = self._begin_value(c, p, end)
            elif self._state == AT_COLON:
                if c != 58:
                    return self._fail(FAULT_COLON, p)
                self._state = AT_VALUE
                p += 1
            elif self._state == AT_KEY or self._state == AT_FIRST_KEY:
                p = self._begin_member(c, p)
            elif self._state == AT_FIRST_ITEM:
                p = self._close(p) if c == 93 else self._begin_value(c, p, end)
            elif self._state == AT_START:
                p = self._begin_body(c, p)
            else:
                return self._fail(FAULT_TRAILING, p)
        return p

    cdef inline const uint8_t *_begin_member(self, uint8_t c, const uint8_t *p) noexcept:
        if c == 34:
            return self._begin_key(p)
        if self._state == AT_KEY:
            return self._fail(FAULT_KEY, p)
        if c != 125:
            return self._fail(FAULT_FIRST_KEY, p)
        return self._close(p)

    cdef const uint8_t *_begin_body(self, uint8_t c, const uint8_t *p) noexcept:
        if c == 123:
            self._frames[0] = Frame(is_object=True, role=TOP, kinds=0, name=UNNAMED, held=0)
            self._depth = 1
            self._insert_at = self._offset(p) + 1
            self._state = AT_FIRST_KEY
            return p + 1
        if c == 91 or c == 34 or c == 45 or 48 <= c <= 57 or c == 116 or c == 102 or c == 110:
            return self._fail(FAULT_NOT_OBJECT, p)
        return self._fail(FAULT_BYTE_ORDER_MARK if c == 0xEF else FAULT_START, p)

    cdef inline const uint8_t *_take_comma(self, uint8_t c, const uint8_t *p) noexcept:
        cdef bint is_object = self._frames[self._depth - 1].is_object
        if c == 44:
            self._state = AT_KEY if is_object else AT_VALUE
            return p + 1
        if c == (125 if is_object else 93):
            return self._close(p)
        return self._fail(FAULT_COMMA_OBJECT if is_object else FAULT_COMMA_ARRAY, p)

    cdef inline const uint8_t *_begin_value(self, uint8_t c, const uint8_t *p, const uint8_t *end) noexcept:
        cdef Frame *frame = &self._frames[self._depth - 1]
        if frame.role == TOP and not self._admit_top_value(<Name>frame.name, c, p):
            return NULL
        if c == 34:
            return self._begin_string(frame, p)
        if c == 123 or c == 91:
            return self._open(frame, c == 123, p)
        if c == 116:
            self._literal = b"rue"
            self._is_stream = self._is_stream or (frame.role == TOP and frame.name == NAME_STREAM)
        elif c == 102:
            self._literal = b"alse"
        elif c == 110:
            self._literal = b"ull"
        else:
            return self._begin_number(frame, c, p, end)
        if frame.role == SCHEMA:
            self._mark_schema(SCHEMA_SCALAR_UNITS)
        self._state = IN_LITERAL
        return self._take_literal(p + 1, end)

    cdef bint _admit_top_value(self, Name name, uint8_t c, const uint8_t *p) noexcept:
        """Note where a top-level value begins; refuse one of the wrong type where the type matters."""
        cdef bint is_value = c == 34 or c == 123 or c == 91 or c == 45 or 48 <= c <= 57
        self._keys[self._key_count - 1].value_start = self._offset(p)
        if c == 116 or c == 102 or c == 110:
            is_value = True
        if not is_value:
            return True
        if name == NAME_MODEL and c != 34:
            self._fail(FAULT_MODEL_TYPE, p)
        elif name == NAME_STREAM and not (c == 116 or c == 102 or c == 110):
            self._fail(FAULT_STREAM_TYPE, p)
        elif name == NAME_MESSAGES and c != 91:
            self._fail(FAULT_MESSAGES_TYPE, p)
        return self._fault == NO_FAULT

    cdef inline void _end_value(self, int64_t offset) noexcept:
        """The value that the top frame waited for ends before `offset`."""
        self._state = AT_COMMA
        if self._depth == 1:
            self._keys[self._key_count - 1].value_end = offset

    cdef const uint8_t *_open(self, Frame *frame, bint is_object, const uint8_t *p) noexcept:
        cdef Frame *child
        if self._depth == self._max_depth:
            return self._fail(FAULT_DEPTH, p)
        child = frame + 1
        child.is_object = is_object
        child.role = self._role_of_child(frame, is_object)
        child.kinds = 0
        child.name = UNNAMED
        child.held = 0
        self._depth += 1
        self._state = AT_FIRST_KEY if is_object else AT_FIRST_ITEM
        return p + 1

    cdef const uint8_t *_close(self, const uint8_t *p) noexcept:
        cdef Frame *frame = &self._frames[self._depth - 1]
        self._depth -= 1
        if self._depth == 0:
            self._state = AT_END
            return p + 1
        if frame.kinds and frame.role == CONTENT:
            self._count_media(frame.kinds)
        elif frame.role == SOURCE and frame.kinds & KIND_TEXT_SOURCE:
            self._units += frame.held
            (frame - 1).kinds |= KIND_TEXT_SOURCE
        self._end_value(self._offset(p) + 1)
        return p + 1

    # -- meaning --

    cdef Role _role_of_child(self, Frame *frame, bint is_object) noexcept:
        """Find the role of the array or object that begins in `frame`, and count what its beginning says."""
        cdef Role role = <Role>frame.role
        cdef Name name = <Name>frame.name
        if role == OTHER or role == FORMAT or role == MEDIA:
            return role if role == MEDIA else OTHER
        if role == SCHEMA:
            self._mark_schema(SCHEMA_FRAME_UNITS)
            return SCHEMA
        if role == TOP:
            return self._role_of_field(name, is_object)
        if role == MESSAGES or role == TEXTS:
            if not is_object:
                return TEXTS
            self._units += TOKENS_PER_MESSAGE * UNITS_PER_TOKEN
            return CONTENT
        if role == SOURCE:
            if name != NAME_CONTENT:
                return MEDIA
            frame.kinds |= KIND_TEXT_SOURCE
            return CONTENT
        if role == FORMAT_HOLDER:
            return FORMAT if name == NAME_FORMAT else OTHER
        if name == NAME_SCHEMA:
            return SCHEMA
        if name == NAME_SOURCE:
            return SOURCE
        if NAME_IMAGE <= name <= NAME_FILE:
            frame.kinds |= 1 << (name - NAME_IMAGE)
            return MEDIA
        return CONTENT

    cdef Role _role_of_field(self, Name name, bint is_object) noexcept:
        if name == NAME_MESSAGES:
            return MESSAGES
        if name == NAME_TEXTS:
            return CONTENT if is_object else TEXTS
        if name == NAME_TOOLS:
            return SCHEMA
        if is_object and name == NAME_FORMAT:
            return FORMAT
        if is_object and name == NAME_FORMAT_HOLDER:
            return FORMAT_HOLDER
        return OTHER

    cdef void _mark_schema(self, uint32_t units) noexcept:
        """Count a piece of schema; one directly inside the top-level field makes the field not empty."""
        self._units += units
        if self._depth == 2:
            self._features |= TOOLS_BIT

    cdef void _count_media(self, int kinds) noexcept:
        """A part is closed: count what it holds, once."""
        if kinds & KIND_IMAGE:
            self._features |= IMAGES_BIT
            self._units += TOKENS_PER_IMAGE * UNITS_PER_TOKEN
        if kinds & KIND_AUDIO:
            self._features |= AUDIO_BIT
            self._units += TOKENS_PER_AUDIO * UNITS_PER_TOKEN
        if kinds & KIND_VIDEO:
            self._features |= IMAGES_BIT
            self._units += TOKENS_PER_VIDEO * UNITS_PER_TOKEN
        if kinds & KIND_FILE and not kinds & KIND_TEXT_SOURCE:
            self._units += TOKENS_PER_FILE * UNITS_PER_TOKEN

    # -- strings --

    cdef const uint8_t *_begin_key(self, const uint8_t *p) noexcept:
        cdef Role role = <Role>self._frames[self._depth - 1].role
        self._open_string(p)
        self._is_key = True
        if role == TOP:
            if self._key_count == KEY_LIMIT:
                return self._fail(FAULT_KEY_COUNT, p)
            self._text_limit = KEY_BYTES
        elif role == SCHEMA:
            self._weighs = True
            self._mark_schema(SCHEMA_STRING_UNITS)
        elif role != OTHER and role != MEDIA:
            self._text_limit = NAME_BYTES
        return p + 1

    cdef const uint8_t *_begin_string(self, Frame *frame, const uint8_t *p) noexcept:
        cdef Role role = <Role>frame.role
        cdef Name name = <Name>frame.name
        self._open_string(p)
        if role == CONTENT:
            if name == UNNAMED or name == NAME_SOURCE or name == NAME_SCHEMA:
                self._weighs = True
            elif name == NAME_TYPE:
                self._text_limit = NAME_BYTES
            elif NAME_IMAGE <= name <= NAME_FILE:
                frame.kinds |= 1 << (name - NAME_IMAGE)
        elif role == MESSAGES or role == TEXTS:
            self._weighs = True
        elif role == SCHEMA:
            self._weighs = True
            self._mark_schema(SCHEMA_STRING_UNITS)
        elif role == TOP:
            self._weighs = name == NAME_TEXTS or name == NAME_TOOLS
            self._text_limit = TEXT_ROOM if name == NAME_MODEL else 0
        elif role == FORMAT or role == SOURCE:
            self._weighs = name == NAME_DATA
            self._text_limit = NAME_BYTES if name == NAME_TYPE else 0
        return p + 1

    cdef inline void _open_string(self, const uint8_t *p) noexcept:
        self._state = IN_STRING
        self._string_at = self._offset(p)
        self._is_key = False
        self._weighs = False
        self._is_lone = False
        self._text_full = False
        self._text_limit = 0
        self._text_length = 0
        self._characters = 0
        self._string_units = 0
        self._high = 0

    cdef const uint8_t *_take_string(self, const uint8_t *p, const uint8_t *end) noexcept:
        """Take the open string up to its closing quote, or to where the piece or what is plain in it ends."""
        cdef const uint8_t *start
        cdef uint8_t c
        cdef int stops = self._text_limit != 0
        while p < end:
            start = p
            p = self._take_plain(p, end, stops)
            if p != start:
                self._drop_high()
                if stops:
                    self._keep(start, p - start, p - start)
                    if self._fault != NO_FAULT:
                        return NULL
                if p == end:
                    return p
            c = p[0]
            if c == 92:
                p = self._take_spelled(p, end)
            else:
                self._drop_high()
                if self._fault != NO_FAULT:
                    return NULL
                if c == 34:
                    return self._close_string(p)
                if c < 32:
                    return self._fail(FAULT_CONTROL, p)
                p = self._take_wide(p, end)
            if p == NULL or self._state != IN_STRING:
                return p
        return p

    cdef inline const uint8_t *_take_plain(self, const uint8_t *p, const uint8_t *end, int stops) noexcept:
        """Take what stands for itself, and with it one-letter escapes unless the bytes are kept."""
        cdef uint64_t units = 0
        if end - p >= SCAN_BLOCK:
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
        self._string_units += units
        return p

    cdef const uint8_t *_take_spelled(self, const uint8_t *p, const uint8_t *end) noexcept:
        """Take \\u escapes that are whole; leave the first that is not, or what else the backslash begins."""
        cdef int high, low
        cdef uint32_t unit
        cdef uint64_t units = 0
        while end - p >= 6:
            if p[0] != 92 or p[1] != 117:
                if self._high or self._text_limit or p[1] != 92 or not IS_PLAIN[p[0]]:
                    break
                units += ASCII_UNITS[p[0]]
                p += 1
                continue
            high = (HEX[p[2]] << 4) | HEX[p[3]]
            low = (HEX[p[4]] << 4) | HEX[p[5]]
            if high < 0 or low < 0:
                break
            unit = (high << 8) | low
            if self._high or self._text_limit or 0xD800 <= unit <= 0xDFFF:
                self._add_unit(unit)
                if self._fault != NO_FAULT:
                    return NULL
            else:
                units += units_of(unit)
            p += 6
        self._string_units += units
        if p < end and p[0] == 92:
            self._state = IN_ESCAPE
            return p + 1
        return p

    cdef const uint8_t *_take_wide(self, const uint8_t *p, const uint8_t *end) noexcept:
        """Take characters of three bytes and single ASCII characters between them; begin any other."""
        cdef uint32_t word, block
        cdef uint64_t units = 0
        while end - p >= 4 and not self._text_limit:
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
            else:
                break
        self._string_units += units
        if p < end and p[0] >= 0x80:
            p = self._begin_character(p[0], p)
            if p != NULL and p < end:
                p = self._take_character(p, end)
        return p

    cdef void _keep(self, const uint8_t *bytes_, size_t size, size_t characters) noexcept:
        """Append decoded bytes to the kept text of the open string."""
        cdef size_t room = self._text_limit - self._text_length
        self._characters += characters
        if size > room:
            self._text_full = True
            size = room
        memcpy(self._text + self._text_length, bytes_, size)
        self._text_length += size
        if self._text_limit == TEXT_ROOM and self._characters > MODEL_CHARACTERS:
            self._fail_at(FAULT_MODEL_LENGTH, self._string_at)
        elif self._text_limit == KEY_BYTES and self._text_full:
            self._fail_at(FAULT_KEY_LENGTH, self._string_at)

    cdef void _add_point(self, uint32_t point) noexcept:
        """Count and keep one decoded code point, surrogates by themselves included."""
        cdef uint8_t encoded[4]
        cdef int size
        self._string_units += units_of(point)
        if not self._text_limit:
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
        self._keep(encoded, size, 1)

    cdef inline void _drop_high(self) noexcept:
        """What follows a high surrogate is no low one: it stands alone."""
        cdef uint32_t high = self._high
        if high:
            self._high = 0
            self._is_lone = True
            self._add_point(high)

    cdef const uint8_t *_begin_character(self, uint8_t c, const uint8_t *p) noexcept:
        """Take the first byte of a character of several bytes (Unicode table 3-7)."""
        self._lowest = 0x80
        self._highest = 0xBF
        if 0xC2 <= c <= 0xDF:
            self._missing = 1
            self._point = c & 0x1F
        elif 0xE0 <= c <= 0xEF:
            self._missing = 2
            self._point = c & 0x0F
            if c == 0xE0:
                self._lowest = 0xA0
            elif c == 0xED:
                self._highest = 0x9F
        elif 0xF0 <= c <= 0xF4:
            self._missing = 3
            self._point = c & 0x07
            if c == 0xF0:
                self._lowest = 0x90
            elif c == 0xF4:
                self._highest = 0x8F
        else:
            return self._fail(FAULT_UTF8, p)
        self._state = IN_CHARACTER
        return p + 1

    cdef const uint8_t *_take_character(self, const uint8_t *p, const uint8_t *end) noexcept:
        """Take the further bytes of a character."""
        while p < end:
            if not self._lowest <= p[0] <= self._highest:
                return self._fail(FAULT_UTF8, p)
            self._lowest = 0x80
            self._highest = 0xBF
            self._point = (self._point << 6) | (p[0] & 0x3F)
            self._missing -= 1
            p += 1
            if self._missing == 0:
                self._state = IN_STRING
                self._add_point(self._point)
                return p if self._fault == NO_FAULT else NULL
        return p

    cdef const uint8_t *_take_escape(self, const uint8_t *p, const uint8_t *end) noexcept:
        """Take what stands behind a backslash."""
        cdef uint8_t c
        cdef int digit
        if self._state == IN_ESCAPE:
            c = p[0]
            p += 1
            if c == 117:
                self._state = IN_HEX
                self._missing = 4
                self._point = 0
                return p
            self._drop_high()
            if not IS_ESCAPE[c]:
                return self._fail(FAULT_ESCAPE, p - 1)
            self._state = IN_STRING
            self._add_point(ESCAPED[c])
            return p if self._fault == NO_FAULT else NULL
        while p < end:
            digit = HEX[p[0]]
            if digit < 0:
                return self._fail(FAULT_HEX, p)
            self._point = (self._point << 4) | <uint32_t>digit
            self._missing -= 1
            p += 1
            if self._missing == 0:
                self._state = IN_STRING
                self._add_unit(self._point)
                return p if self._fault == NO_FAULT else NULL
        return p

    cdef void _add_unit(self, uint32_t unit) noexcept:
        """Take a UTF-16 code unit that an escape spelled; pairs make one code point."""
        cdef uint32_t high = self._high
        if high and 0xDC00 <= unit <= 0xDFFF:
            self._high = 0
            self._add_point(0x10000 + ((high - 0xD800) << 10) + (unit - 0xDC00))
            return
        self._drop_high()
        if 0xD800 <= unit <= 0xDBFF:
            self._high = unit
            return
        if 0xDC00 <= unit <= 0xDFFF:
            self._is_lone = True
        self._add_point(unit)

    cdef const uint8_t *_close_string(self, const uint8_t *p) noexcept:
        cdef Frame *frame = &self._frames[self._depth - 1]
        if not self._weighs:
            pass
        elif frame.role == SOURCE:
            frame.held += self._string_units
        else:
            self._units += self._string_units
        if self._is_key:
            if frame.role == TOP:
                if not self._add_key():
                    return NULL
            elif self._text_limit:
                frame.name = UNNAMED if self._text_full else name_in(<Role>frame.role, self._text, self._text_length)
            self._state = AT_COLON
            return p + 1
        if self._text_limit and not self._note_text(frame):
            return NULL
        self._end_value(self._offset(p) + 1)
        return p + 1

    cdef bint _note_text(self, Frame *frame) noexcept:
        """The kept value is complete: the model, or a `type` that says what its frame is."""
        if frame.role == TOP:
            if self._is_lone:
                self._fail_at(FAULT_MODEL_SURROGATE, self._string_at)
                return False
            self._model_key = self._key_count - 1
            self._model_at = self._store_used
            self._model_length = self._text_length
            return self._save_text()
        if self._text_full:
            return True
        if frame.role == CONTENT:
            frame.kinds |= kind_of_type(self._text, self._text_length)
        elif frame.role == SOURCE:
            if same(self._text, self._text_length, b"text", 4):
                frame.kinds |= KIND_TEXT_SOURCE
        elif same(self._text, self._text_length, b"json_schema", 11):
            self._features |= JSON_SCHEMA_BIT
        return True

    cdef bint _add_key(self) noexcept:
        """A top-level key is complete: refuse it the second time and in other letters, else keep it."""
        cdef uint32_t hash_ = 2166136261
        cdef uint32_t at
        cdef int index
        cdef Key *key
        for at in range(self._text_length):
            hash_ = (hash_ ^ self._text[at]) * 16777619
        for index in range(self._key_count):
            key = &self._keys[index]
            if key.hash == hash_ and key.length == self._text_length:
                if memcmp(self._store + key.at, self._text, key.length) == 0:
                    self._fail_at(FAULT_DUPLICATE, self._string_at)
                    return False
        if is_other_spelling(self._text, self._text_length):
            self._fail_at(FAULT_SPELLING, self._string_at)
            return False
        key = &self._keys[self._key_count]
        key.at = self._store_used
        key.length = self._text_length
        key.hash = hash_
        key.name = top_name(self._text, self._text_length)
        key.value_start = 0
        key.value_end = 0
        self._key_count += 1
        self._frames[0].name = key.name
        return self._save_text()

    cdef bint _save_text(self) noexcept:
        """Put the kept text of the string at the end of the store."""
        cdef uint32_t size = self._store_size
        cdef uint8_t *grown
        while self._store_used + self._text_length > size:
            size *= 2
        if size != self._store_size:
            grown = <uint8_t *>realloc(self._store, size)
            if grown == NULL:
                self._fail_at(FAULT_MEMORY, self._string_at)
                return False
            self._store = grown
            self._store_size = size
        memcpy(self._store + self._store_used, self._text, self._text_length)
        self._store_used += self._text_length
        return True

    # -- numbers and literals --

    cdef inline const uint8_t *_begin_number(self, Frame *frame, uint8_t c, const uint8_t *p, const uint8_t *end) noexcept:
        if c == 45:
            self._state = IN_MINUS
        elif c == 48:
            self._state = IN_ZERO
        elif 49 <= c <= 57:
            self._state = IN_INTEGER
        else:
            return self._fail(FAULT_FIRST_ITEM if self._state == AT_FIRST_ITEM else FAULT_VALUE, p)
        if frame.role == TEXTS:
            self._units += UNITS_PER_TOKEN
        elif frame.role == SCHEMA:
            self._mark_schema(SCHEMA_SCALAR_UNITS)
        return self._take_number(p + 1, end)

    cdef const uint8_t *_take_number(self, const uint8_t *p, const uint8_t *end) noexcept:
        cdef uint8_t c
        cdef State state = self._state
        while p < end:
            c = p[0]
            if 48 <= c <= 57:
                if state == IN_MINUS:
                    state = IN_ZERO if c == 48 else IN_INTEGER
                elif state == IN_POINT:
                    state = IN_FRACTION
                elif state == IN_E or state == IN_E_SIGN:
                    state = IN_EXPONENT
                elif state == IN_ZERO:
                    return self._fail(FAULT_NUMBER, p)
            elif c == 46 and (state == IN_INTEGER or state == IN_ZERO):
                state = IN_POINT
            elif (c == 101 or c == 69) and IN_ZERO <= state <= IN_FRACTION:
                state = IN_E
            elif (c == 43 or c == 45) and state == IN_E:
                state = IN_E_SIGN
            elif state >= IN_ZERO:
                self._end_value(self._offset(p))
                return p
            else:
                return self._fail(FAULT_NUMBER, p)
            p += 1
        self._state = state
        return p

    cdef const uint8_t *_take_literal(self, const uint8_t *p, const uint8_t *end) noexcept:
        while p < end:
            if p[0] != <uint8_t>self._literal[0]:
                return self._fail(FAULT_LITERAL, p)
            p += 1
            self._literal += 1
            if self._literal[0] == 0:
                self._end_value(self._offset(p))
                return p
        return p
