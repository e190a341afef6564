"""Incremental scan of a request body; the contract stands in iop_fast/_core/scan.pyi.

How it works
------------
A byte-level state machine in C types. `feed` runs it over one piece; whatever is open at the end of the piece (a
string, half an escape, two bytes of a character, a number) is in the fields of the scan, so any split gives the same
result. What is inside a string is json_string's part; what names mean stands in scan_names.pxd. No byte of the body is
kept but these, all bounded: the top-level keys (at most 256 of at most 256 bytes), the model (1,024 characters), and
the short names and `type` values that decide what a string is. Work is O(bytes); memory is O(max_depth).

A fault is a number in C and becomes a ScanError once, in `feed`. Functions that take bytes return where they stopped,
or NULL after a fault; the first fault stays.

The grammar is RFC 8259's without any leniency: an object at the top, no byte order mark, no comments, no NaN, nothing
behind the closing brace but white space. Strings are well-formed UTF-8; an escaped lone surrogate is JSON and is
accepted, but not in the model. The first fault in byte order is the one reported.

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
  A string in it that begins as an http URL makes it remote media.
- anything else at the top level (`metadata`, `user`, `response_format` ...) is nothing.

A text's estimate is the sum of its code points' weights (json_string.pyx), in 1/64 tokens, rounded up once at the end:
it depends on neither the split nor the spelling, and `\\u` escapes count as what they stand for.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy

from iop_fast._core.json_string cimport (
    STRING_CLOSED,
    STRING_CONTROL,
    STRING_ESCAPE,
    STRING_HEX,
    STRING_OPEN,
    STRING_UTF8,
    UNITS_PER_TOKEN,
    JsonString,
    open_string,
    take_string,
)
from iop_fast._core.scan_names cimport (
    CONTENT,
    FORMAT,
    FORMAT_HOLDER,
    KIND_AUDIO,
    KIND_FILE,
    KIND_IMAGE,
    KIND_TEXT_SOURCE,
    KIND_VIDEO,
    MEDIA,
    MESSAGES,
    NAME_BYTES,
    NAME_CONTENT,
    NAME_DATA,
    NAME_FILE,
    NAME_FORMAT,
    NAME_FORMAT_HOLDER,
    NAME_IMAGE,
    NAME_MESSAGES,
    NAME_MODEL,
    NAME_SCHEMA,
    NAME_SOURCE,
    NAME_STREAM,
    NAME_TEXTS,
    NAME_TOOLS,
    NAME_TYPE,
    OTHER,
    SCHEMA,
    SOURCE,
    TEXTS,
    TOP,
    UNNAMED,
    Name,
    Role,
    is_http_url,
    is_other_spelling,
    kind_of_type,
    name_in,
    same,
    top_name,
)

from iop_fast._core.json_string import estimate_tokens  # no-cython-lint: a part of the interface

cdef enum:
    TOOLS_BIT = 1
    IMAGES_BIT = 2
    AUDIO_BIT = 4
    JSON_SCHEMA_BIT = 8
    REMOTE_MEDIA_BIT = 16
    FILES_BIT = 32

FEATURE_TOOLS = TOOLS_BIT
FEATURE_IMAGES = IMAGES_BIT
FEATURE_AUDIO = AUDIO_BIT
FEATURE_JSON_SCHEMA = JSON_SCHEMA_BIT
FEATURE_REMOTE_MEDIA = REMOTE_MEDIA_BIT
FEATURE_FILES = FILES_BIT

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
    KEY_LIMIT = 256
    KEY_BYTES = 256
    MODEL_CHARACTERS = 1024
    TEXT_ROOM = 4096 + 4     # a model of 1,024 characters of four bytes, one character over
    DEPTH_LIMIT = 1024
    ROOM_DEPTH = 128
    ROOM_STORE = 512
    SPARE_ROOMS_MAX = 32
    URL_BYTES = 8            # https://

# Fixed weights, in 1/64 tokens.
cdef enum:
    SCHEMA_STRING_UNITS = 64
    SCHEMA_SCALAR_UNITS = 64
    SCHEMA_FRAME_UNITS = 64

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
    IN_LITERAL
    IN_MINUS         # a digit must follow
    IN_POINT         # a digit must follow
    IN_E             # a sign or a digit must follow
    IN_E_SIGN        # a digit must follow
    IN_ZERO          # the number may end, from here on
    IN_INTEGER
    IN_FRACTION
    IN_EXPONENT

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

# By fault: the code, the field at fault (KEY for the key that was read last), and what is wrong.
cdef object KEY = object()
cdef dict FAULTS = {
    FAULT_START: ("invalid_json", None, "expected '{'"),
    FAULT_BYTE_ORDER_MARK: ("invalid_json", None, "expected '{', got a byte order mark"),
    FAULT_NOT_OBJECT: ("not_an_object", None, "the body is not an object, expected '{'"),
    FAULT_FIRST_KEY: ("invalid_json", None, "expected a key in double quotes or '}'"),
    FAULT_KEY: ("invalid_json", None, "expected a key in double quotes"),
    FAULT_COLON: ("invalid_json", None, "expected ':'"),
    FAULT_FIRST_ITEM: ("invalid_json", None, "expected a value or ']'"),
    FAULT_VALUE: ("invalid_json", None, "expected a value"),
    FAULT_COMMA_OBJECT: ("invalid_json", None, "expected ',' or '}'"),
    FAULT_COMMA_ARRAY: ("invalid_json", None, "expected ',' or ']'"),
    FAULT_TRAILING: ("invalid_json", None, "expected nothing behind the closing brace"),
    FAULT_CONTROL: ("invalid_json", None, "control characters in a string must be escaped"),
    FAULT_ESCAPE: ("invalid_json", None, "expected one of \" \\ / b f n r t u behind a backslash"),
    FAULT_HEX: ("invalid_json", None, "expected four hexadecimal digits behind \\u"),
    FAULT_LITERAL: ("invalid_json", None, "expected true, false or null"),
    FAULT_NUMBER: ("invalid_json", None, "malformed number"),
    FAULT_UTF8: ("invalid_utf8", None, "malformed UTF-8"),
    FAULT_DEPTH: ("too_deep", None, "arrays and objects are nested too deep"),
    FAULT_DUPLICATE: ("duplicate_key", KEY, "the key stands twice at the top level"),
    FAULT_SPELLING: ("bad_field", KEY, "the key is a known one in other letters, expected lower case"),
    FAULT_KEY_COUNT: ("too_many_keys", None, f"more than {KEY_LIMIT} keys at the top level"),
    FAULT_KEY_LENGTH: ("key_too_long", None, f"a top-level key is longer than {KEY_BYTES} bytes"),
    FAULT_MODEL_TYPE: ("bad_field", "model", "model must be a string"),
    FAULT_MODEL_LENGTH: ("bad_field", "model", f"model is longer than {MODEL_CHARACTERS} characters"),
    FAULT_MODEL_SURROGATE: ("bad_field", "model", "model holds a lone surrogate"),
    FAULT_STREAM_TYPE: ("bad_field", "stream", "stream must be true, false or null"),
    FAULT_MESSAGES_TYPE: ("bad_field", "messages", "messages must be an array"),
    FAULT_EMPTY: ("invalid_json", None, "the body is empty"),
    FAULT_INCOMPLETE: ("invalid_json", None, "the body ends inside the object"),
}

cdef struct Frame:
    uint8_t is_object
    uint8_t role         # Role
    uint8_t kinds        # KIND_* seen in this part
    uint8_t name         # Name of the key whose value is read; UNNAMED in an array
    uint64_t held        # units of a SOURCE, counted only if its type says text

cdef struct Key:
    uint32_t at          # of its bytes, in the store
    uint32_t length
    uint32_t hash
    int64_t value_start
    int64_t value_end    # 0 while the value is read

# What nearly every scan works in. Rooms of scans that are over are kept for the next ones: a request would pay four
# times for the allocator's large blocks.
cdef struct Room:
    Key keys[KEY_LIMIT]
    Frame frames[ROOM_DEPTH]
    uint8_t text[TEXT_ROOM]
    uint8_t store[ROOM_STORE]

cdef Room *spare_rooms[SPARE_ROOMS_MAX]
cdef int spare_room_count = 0


cdef Room *take_room() noexcept:
    global spare_room_count
    if spare_room_count > 0:
        spare_room_count -= 1
        return spare_rooms[spare_room_count]
    return <Room *>malloc(sizeof(Room))


cdef void give_room(Room *room) noexcept:
    global spare_room_count
    if spare_room_count < SPARE_ROOMS_MAX:
        spare_rooms[spare_room_count] = room
        spare_room_count += 1
    else:
        free(room)


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
    cdef Room *_room
    cdef Frame *_frames
    cdef int _depth
    cdef int _max_depth
    # The open string or literal.
    cdef JsonString _string
    cdef bint _is_key
    cdef bint _weighs               # its text counts
    cdef int64_t _string_at
    cdef uint8_t *_text             # TEXT_ROOM bytes, where a string is kept
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
    cdef uint64_t _value_count
    cdef uint64_t _input_value_count
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
        self._room = take_room()
        if self._room == NULL:
            raise MemoryError
        self._frames = self._room.frames
        if max_depth > ROOM_DEPTH:
            self._frames = <Frame *>malloc(max_depth * sizeof(Frame))
            if self._frames == NULL:
                raise MemoryError
        self._text = self._room.text
        self._keys = self._room.keys
        self._store = self._room.store
        self._store_size = ROOM_STORE
        self._string.kept = self._text

    def __dealloc__(self):
        if self._room == NULL:
            return
        if self._frames != self._room.frames:
            free(self._frames)
        if self._store != self._room.store:
            free(self._store)
        give_room(self._room)

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
        return (self._units + UNITS_PER_TOKEN - 1) // UNITS_PER_TOKEN

    @property
    def value_count(self):
        self._check_finished()
        return self._value_count

    @property
    def input_value_count(self):
        self._check_finished()
        return self._input_value_count

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
        code, param, what = FAULTS[self._fault]
        if param is KEY:
            param = (<char *>self._text)[:self._string.length].decode("utf-8", "replace")
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
            elif self._state == IN_LITERAL:
                p = self._take_literal(p, end)
            else:
                p = self._take_number(p, end)
        self._base += size
        self._piece = NULL

    cdef const uint8_t *_take_structure(self, const uint8_t *p, const uint8_t *end) noexcept:
        """Take what stands between strings, up to the next string's quote or the end of the piece."""
        cdef State state = self._state
        cdef uint8_t c
        while p < end:
            c = p[0]
            if c == 32 or c == 10 or c == 13 or c == 9:
                p += 1
            elif c == 44 and state == AT_COMMA:
                state = AT_KEY if self._frames[self._depth - 1].is_object else AT_VALUE
                p += 1
            elif c == 58 and state == AT_COLON:
                state = AT_VALUE
                p += 1
            else:
                self._state = state
                p = self._take_mark(c, p, end)
                state = self._state
                if p == NULL or state >= IN_STRING:
                    return p
        self._state = state
        return p

    cdef const uint8_t *_take_mark(self, uint8_t c, const uint8_t *p, const uint8_t *end) noexcept:
        """Take the byte that begins or ends a value or a key, and a number or literal with it."""
        if self._state == AT_VALUE:
            return self._begin_value(c, p, end)
        if self._state == AT_KEY or self._state == AT_FIRST_KEY:
            return self._begin_member(c, p)
        if self._state == AT_COMMA:
            return self._end_frame(c, p)
        if self._state == AT_FIRST_ITEM:
            return self._close(p) if c == 93 else self._begin_value(c, p, end)
        if self._state == AT_START:
            return self._begin_body(c, p)
        return self._fail(FAULT_COLON if self._state == AT_COLON else FAULT_TRAILING, p)

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

    cdef inline const uint8_t *_end_frame(self, uint8_t c, const uint8_t *p) noexcept:
        cdef bint is_object = self._frames[self._depth - 1].is_object
        if c == (125 if is_object else 93):
            return self._close(p)
        return self._fail(FAULT_COMMA_OBJECT if is_object else FAULT_COMMA_ARRAY, p)

    cdef inline const uint8_t *_begin_value(self, uint8_t c, const uint8_t *p, const uint8_t *end) noexcept:
        cdef Frame *frame = &self._frames[self._depth - 1]
        if frame.role == TOP and not self._admit_top_value(<Name>frame.name, c, p):
            return NULL
        self._value_count += 1
        if self._frames[0].name == NAME_MESSAGES or self._frames[0].name == NAME_TEXTS:
            self._input_value_count += 1
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
        cdef bint is_literal = c == 116 or c == 102 or c == 110
        cdef bint is_value = is_literal or c == 34 or c == 123 or c == 91 or c == 45 or 48 <= c <= 57
        self._keys[self._key_count - 1].value_start = self._offset(p)
        if not is_value:
            return True
        if name == NAME_MODEL and c != 34:
            self._fail(FAULT_MODEL_TYPE, p)
        elif name == NAME_STREAM and not is_literal:
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
            self._features |= IMAGES_BIT | FILES_BIT
            self._units += TOKENS_PER_VIDEO * UNITS_PER_TOKEN
        if kinds & KIND_FILE and not kinds & KIND_TEXT_SOURCE:
            self._features |= FILES_BIT
            self._units += TOKENS_PER_FILE * UNITS_PER_TOKEN

    # -- strings --

    cdef inline void _open_string(self, uint32_t limit, const uint8_t *p) noexcept:
        self._state = IN_STRING
        self._string_at = self._offset(p)
        self._is_key = False
        self._weighs = False
        open_string(&self._string, limit)

    cdef const uint8_t *_begin_key(self, const uint8_t *p) noexcept:
        cdef Role role = <Role>self._frames[self._depth - 1].role
        if role == TOP:
            if self._key_count == KEY_LIMIT:
                return self._fail(FAULT_KEY_COUNT, p)
            self._open_string(KEY_BYTES, p)
            self._string.is_strict = True
        elif role == SCHEMA:
            self._open_string(0, p)
            self._weighs = True
            self._mark_schema(SCHEMA_STRING_UNITS)
        else:
            self._open_string(0 if role == OTHER or role == MEDIA else NAME_BYTES, p)
        self._is_key = True
        return p + 1

    cdef const uint8_t *_begin_string(self, Frame *frame, const uint8_t *p) noexcept:
        """Begin a string that is a value; its frame and key say what it is."""
        cdef Role role = <Role>frame.role
        cdef Name name = <Name>frame.name
        self._open_string(0, p)
        if role == CONTENT:
            if name == UNNAMED or name == NAME_SOURCE or name == NAME_SCHEMA:
                self._weighs = True
            elif name == NAME_TYPE:
                self._string.limit = NAME_BYTES
            elif NAME_IMAGE <= name <= NAME_FILE:
                frame.kinds |= 1 << (name - NAME_IMAGE)
                self._string.limit = URL_BYTES
        elif role == MEDIA:
            self._string.limit = URL_BYTES
        elif role == MESSAGES or role == TEXTS:
            self._weighs = True
        elif role == SCHEMA:
            self._weighs = True
            self._mark_schema(SCHEMA_STRING_UNITS)
        elif role == TOP:
            self._weighs = name == NAME_TEXTS or name == NAME_TOOLS
            if name == NAME_MODEL:
                self._string.limit = TEXT_ROOM
                self._string.max_characters = MODEL_CHARACTERS
        elif role == FORMAT or role == SOURCE:
            self._weighs = name == NAME_DATA
            self._string.limit = NAME_BYTES if name == NAME_TYPE else 0
        return p + 1

    cdef const uint8_t *_take_string(self, const uint8_t *p, const uint8_t *end) noexcept:
        p = take_string(&self._string, p, end)
        if self._string.status == STRING_OPEN:
            return p
        if self._string.status == STRING_CLOSED:
            return self._close_string(p)
        if self._string.status == STRING_CONTROL:
            return self._fail(FAULT_CONTROL, p)
        if self._string.status == STRING_ESCAPE:
            return self._fail(FAULT_ESCAPE, p)
        if self._string.status == STRING_HEX:
            return self._fail(FAULT_HEX, p)
        if self._string.status == STRING_UTF8:
            return self._fail(FAULT_UTF8, p)
        return self._fail_at(FAULT_KEY_LENGTH if self._is_key else FAULT_MODEL_LENGTH, self._string_at)

    cdef const uint8_t *_close_string(self, const uint8_t *p) noexcept:
        """The string ended before `p`: count it, and note what was kept of it."""
        cdef Frame *frame = &self._frames[self._depth - 1]
        if self._weighs:
            if frame.role == SOURCE:
                frame.held += self._string.units
            else:
                self._units += self._string.units
        if self._is_key:
            if frame.role == TOP:
                if not self._add_key():
                    return NULL
            elif self._string.limit:
                frame.name = UNNAMED
                if not self._string.is_cut:
                    frame.name = name_in(<Role>frame.role, self._text, self._string.length)
            self._state = AT_COLON
            return p
        if self._string.limit and not self._note_text(frame):
            return NULL
        self._end_value(self._offset(p))
        return p

    cdef bint _note_text(self, Frame *frame) noexcept:
        """The kept value is complete: the model, the beginning of media, or a `type` that says what its frame is."""
        cdef uint32_t length = self._string.length
        if frame.role == TOP:
            return self._note_model()
        if frame.role == MEDIA or (frame.role == CONTENT and frame.name != NAME_TYPE):
            if is_http_url(self._text, length):
                self._features |= REMOTE_MEDIA_BIT
            return True
        if self._string.is_cut:
            return True
        if frame.role == CONTENT:
            frame.kinds |= kind_of_type(self._text, length)
        elif frame.role == SOURCE:
            if same(self._text, length, b"text", 4):
                frame.kinds |= KIND_TEXT_SOURCE
        elif same(self._text, length, b"json_schema", 11):
            self._features |= JSON_SCHEMA_BIT
        return True

    cdef bint _note_model(self) noexcept:
        if self._string.is_lone:
            self._fail_at(FAULT_MODEL_SURROGATE, self._string_at)
            return False
        self._model_key = self._key_count - 1
        self._model_at = self._store_used
        self._model_length = self._string.length
        return self._save_text()

    cdef bint _add_key(self) noexcept:
        """A top-level key is complete: refuse it the second time and in other letters, else keep it."""
        cdef uint32_t length = self._string.length
        cdef uint32_t hash_ = 2166136261U   # FNV-1a
        cdef uint32_t at
        cdef int index
        cdef Key *key
        for at in range(length):
            hash_ = (hash_ ^ self._text[at]) * 16777619
        for index in range(self._key_count):
            key = &self._keys[index]
            if key.hash == hash_ and key.length == length and memcmp(self._store + key.at, self._text, length) == 0:
                self._fail_at(FAULT_DUPLICATE, self._string_at)
                return False
        if is_other_spelling(self._text, length):
            self._fail_at(FAULT_SPELLING, self._string_at)
            return False
        key = &self._keys[self._key_count]
        key.at = self._store_used
        key.length = length
        key.hash = hash_
        key.value_start = 0
        key.value_end = 0
        self._key_count += 1
        self._frames[0].name = top_name(self._text, length)
        return self._save_text()

    cdef bint _save_text(self) noexcept:
        """Put the kept text of the string at the end of the store."""
        cdef uint32_t size = self._store_size
        cdef uint8_t *grown
        while self._store_used + self._string.length > size:
            size *= 2
        if size != self._store_size:
            grown = <uint8_t *>realloc(NULL if self._store == self._room.store else self._store, size)
            if grown == NULL:
                self._fail_at(FAULT_MEMORY, self._string_at)
                return False
            if self._store == self._room.store:
                memcpy(grown, self._store, self._store_used)
            self._store = grown
            self._store_size = size
        memcpy(self._store + self._store_used, self._text, self._string.length)
        self._store_used += self._string.length
        return True

    # -- numbers and literals --

    cdef inline const uint8_t *_begin_number(
        self, Frame *frame, uint8_t c, const uint8_t *p, const uint8_t *end
    ) noexcept:
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
        p += 1
        if c > 48:
            while p < end and 48 <= p[0] <= 57:
                p += 1
        return self._take_number(p, end)

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
