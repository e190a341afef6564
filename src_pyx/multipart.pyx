"""Incremental scan of a multipart form; the contract stands in iop_fast/_core/multipart.pyi.

The automaton. N is "--" and the boundary.

    OPENING -[CRLF] N-> BEHIND
    BEHIND -CRLF-> HEAD -lines, an empty line-> DATA -CRLF N-> BEHIND
    BEHIND -"--"-> CLOSED -[CRLF]-> END

Framing and heads are read byte by byte. Data is searched for N with Knuth, Morris and Pratt's automaton, which needs
nothing but the length matched so far when a piece ends; memchr skips to the next "-". What stands before a match is
noted where the match begins. N holds neither CR nor LF, so a match that begins inside another one is never behind a
line end.

What is refused, and why. The provider's parser must find the model that was admitted. Parsers of forms differ in much,
so a form is taken only in the shape on which they agree, which is what clients write:

- nothing before the first boundary but one line end, and nothing behind the last but one: parsers skip, refuse or read
  what stands there;
- CRLF ends every line. A boundary behind a bare LF or CR ends a part for some parsers, so it is refused in data too;
- a boundary is followed by CRLF or "--": others tolerate space, or take a longer line for data;
- the closing boundary is there.

What is refused of a part's head is said in form_heads.pyx.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memchr, memcpy

from iop_fast._core.form_heads cimport FILE, MODEL, NAME_LIMIT, PROMPT, STREAM, Kind, read_part

from iop_fast._core.form_heads import BadPart
from iop_fast._core.scan import AUDIO_TOKENS
from iop_fast._core.scan_faults import ScanError

cdef enum:
    BOUNDARY_LIMIT = 70        # RFC 2046, section 5.1.1
    HEAD_LIMIT = 4096
    VALUE_LIMIT = 4096         # 1,024 characters of four bytes
    PART_LIMIT = 256
    MODEL_CHARACTERS = 1024
    NEEDLE_ROOM = 2 + BOUNDARY_LIMIT
    KEPT_ROOM = VALUE_LIMIT + 2 + NEEDLE_ROOM
    BYTES_PER_TOKEN = 4

BOUNDARY_BYTES_MAX = BOUNDARY_LIMIT
HEAD_BYTES_MAX = HEAD_LIMIT
VALUE_BYTES_MAX = VALUE_LIMIT
PARTS_MAX = PART_LIMIT
NAME_BYTES_MAX = NAME_LIMIT

cdef enum State:
    OPENING          # CRLF and N, the first two bytes optional
    BEHIND           # CR or "-"
    BEHIND_CR        # LF
    BEHIND_DASH      # "-"
    HEAD_LINE        # a line of a head, or its CR
    HEAD_CR          # LF
    DATA
    CLOSED           # CR or nothing
    CLOSED_CR        # LF
    END
    DEAD

cdef enum Before:
    IN_LINE
    BARE_END         # CR or LF alone
    LINE_END         # CRLF

cdef bytes ALPHANUMERIC = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
cdef frozenset BOUNDARY_CHARACTERS = frozenset(ALPHANUMERIC + b"'()+_,-./:=?")
cdef dict FLAGS = {b"true": True, b"1": True, b"false": False, b"0": False, b"": False}


def is_boundary(bytes boundary not None):
    return 1 <= len(boundary) <= BOUNDARY_LIMIT and BOUNDARY_CHARACTERS.issuperset(boundary)


@cython.final
@cython.no_gc
cdef class FormScan:
    # N, and the automaton that searches it: how much of N still matches where the next byte does not.
    cdef uint8_t _needle[NEEDLE_ROOM]
    cdef uint8_t _borders[NEEDLE_ROOM]
    cdef Py_ssize_t _needle_size
    cdef Py_ssize_t _matched
    cdef Before _before             # what stands before the match
    # Place in the body.
    cdef int64_t _base              # bytes taken by earlier pieces
    cdef const uint8_t *_piece
    cdef uint8_t _last[2]           # the two bytes before the piece
    cdef State _state
    # The part under way.
    cdef uint8_t *_head             # HEAD_LIMIT bytes
    cdef Py_ssize_t _head_size
    cdef Py_ssize_t _line_size
    cdef int64_t _head_at
    cdef int64_t _data_at
    cdef Kind _kind
    cdef int64_t _declared          # what its Content-Length says, -1 without one
    cdef uint8_t *_kept             # KEPT_ROOM bytes: the beginning of the data of a kept field
    cdef Py_ssize_t _kept_size
    # Findings.
    cdef int _part_count
    cdef int _file_count
    cdef int64_t _prompt_bytes
    cdef bint _is_stream
    cdef bint _has_stream
    cdef int64_t _model_at
    cdef int64_t _model_end
    cdef bytes _model
    cdef bint _is_finished

    def __cinit__(self, bytes boundary not None):
        if not is_boundary(boundary):
            raise ValueError(f"boundary: expected 1 to {BOUNDARY_LIMIT} characters of RFC 2046, got {len(boundary)}")
        self._head = <uint8_t *>malloc(HEAD_LIMIT)
        self._kept = <uint8_t *>malloc(KEPT_ROOM)
        if self._head == NULL or self._kept == NULL:
            raise MemoryError
        self._needle_size = 2 + len(boundary)
        self._needle[0] = self._needle[1] = 45
        memcpy(self._needle + 2, PyBytes_AS_STRING(boundary), len(boundary))
        self._find_borders()

    def __dealloc__(self):
        free(self._head)
        free(self._kept)

    cdef void _find_borders(self) noexcept:
        """For each beginning of N, note the longest shorter one that it ends with."""
        cdef Py_ssize_t at
        cdef Py_ssize_t border = 0
        self._borders[0] = 0
        for at in range(1, self._needle_size):
            while border and self._needle[at] != self._needle[border]:
                border = self._borders[border - 1]
            if self._needle[at] == self._needle[border]:
                border += 1
            self._borders[at] = <uint8_t>border

    # -- for callers --

    def feed(self, piece):
        cdef Py_buffer view
        self._check_alive()
        PyObject_GetBuffer(piece, &view, PyBUF_SIMPLE)
        try:
            self._run(<const uint8_t *>view.buf, view.len)
        except BaseException:
            self._state = DEAD
            raise
        finally:
            PyBuffer_Release(&view)

    def finish(self):
        self._check_alive()
        if self._state != CLOSED and self._state != END:
            self._state = DEAD
            what = "the body is empty" if self._base == 0 else "the form ends before its closing boundary"
            raise ScanError("invalid_form", None, self._base, f"{what}, at byte {self._base}")
        if self._model is None:
            self._state = DEAD
            raise ScanError("missing_field", "model", self._base, "expected a field model")
        self._is_finished = True

    @property
    def model(self):
        self._check_finished()
        return self._model.decode()

    @property
    def model_span(self):
        self._check_finished()
        return (self._model_at, self._model_end)

    @property
    def stream(self):
        self._check_finished()
        return self._is_stream

    @property
    def features(self):
        self._check_finished()
        return 0

    @property
    def estimated_tokens(self):
        self._check_finished()
        return self._file_count * AUDIO_TOKENS + (self._prompt_bytes + BYTES_PER_TOKEN - 1) // BYTES_PER_TOKEN

    @property
    def insert_at(self):
        self._check_finished()
        return 0

    def value_span(self, str key):
        self._check_finished()
        return None

    # -- errors --

    cdef int _check_alive(self) except -1:
        if self._state == DEAD or self._is_finished:
            raise RuntimeError("the scan is over: it was finished or has raised")
        return 0

    cdef int _check_finished(self) except -1:
        if not self._is_finished:
            raise RuntimeError("the scan is not finished")
        return 0

    cdef int _refuse(self, str code, str param, int64_t offset, str what) except -1:
        raise ScanError(code, param, offset, f"{what}, at byte {offset}")

    cdef inline int64_t _offset(self, const uint8_t *p) noexcept:
        return self._base + (p - self._piece)

    # -- reading --

    cdef int _run(self, const uint8_t *data, Py_ssize_t size) except -1:
        cdef const uint8_t *p = data
        cdef const uint8_t *end = data + size
        self._piece = data
        while p < end:
            if self._state == DATA:
                p = self._take_data(p, end)
            else:
                self._step(p[0], self._offset(p))
                p += 1
        if size >= 2:
            self._last[0] = data[size - 2]
            self._last[1] = data[size - 1]
        elif size == 1:
            self._last[0] = self._last[1]
            self._last[1] = data[0]
        self._base += size
        return 0

    cdef int _step(self, uint8_t c, int64_t at) except -1:
        """Take one byte outside of data."""
        cdef State state = self._state
        if state == HEAD_LINE or state == HEAD_CR:
            return self._on_head(c, at)
        if state == OPENING:
            return self._on_opening(c, at)
        if state == BEHIND:
            if c == 13:
                self._state = BEHIND_CR
            elif c == 45:
                self._state = BEHIND_DASH
            else:
                self._refuse("invalid_form", None, at, "expected CRLF or -- behind a boundary")
        elif state == BEHIND_CR:
            if c != 10:
                self._refuse("invalid_form", None, at, "expected LF behind CR")
            self._begin_head(at + 1)
        elif state == BEHIND_DASH:
            if c != 45:
                self._refuse("invalid_form", None, at, "expected CRLF or -- behind a boundary")
            self._state = CLOSED
        elif state == CLOSED and c == 13:
            self._state = CLOSED_CR
        elif state == CLOSED_CR and c == 10:
            self._state = END
        else:
            self._refuse("invalid_form", None, at, "expected nothing behind the closing boundary but one line end")
        return 0

    cdef int _on_opening(self, uint8_t c, int64_t at) except -1:
        """CR, LF, N: `_matched` counts them, and the two first may be left out."""
        cdef Py_ssize_t place = self._matched
        if place == 0 and c != 13:
            place = 2
        cdef uint8_t wanted = 13 if place == 0 else 10 if place == 1 else self._needle[place - 2]
        if c != wanted:
            self._refuse("invalid_form", None, at, "expected the boundary that the content-type names")
        self._matched = place + 1
        if self._matched == 2 + self._needle_size:
            self._matched = 0
            self._state = BEHIND
        return 0

    cdef int _begin_head(self, int64_t at) except -1:
        self._part_count += 1
        if self._part_count > PART_LIMIT:
            self._refuse("too_many_parts", None, at, f"more than {PART_LIMIT} parts")
        self._head_at = at
        self._head_size = 0
        self._line_size = 0
        self._state = HEAD_LINE
        return 0

    cdef int _on_head(self, uint8_t c, int64_t at) except -1:
        if self._state == HEAD_CR:
            if c != 10:
                self._refuse("bad_part", None, at, "expected LF behind CR")
            if self._line_size == 0:
                return self._begin_data(at + 1)
            self._line_size = 0
            self._state = HEAD_LINE
        elif c == 13:
            self._state = HEAD_CR
        elif c == 127 or (c < 32 and c != 9):
            self._refuse("bad_part", None, at, "a control character or a bare line end in the head of a part")
        else:
            self._line_size += 1
        if self._head_size == HEAD_LIMIT:
            self._refuse("bad_part", None, self._head_at, f"the head of a part is longer than {HEAD_LIMIT} bytes")
        self._head[self._head_size] = c
        self._head_size += 1
        return 0

    cdef int _begin_data(self, int64_t at) except -1:
        """The head is whole, but for the LF that was read last: find out what the part is."""
        cdef bytes head = (<char *>self._head)[:self._head_size - 3] if self._head_size > 3 else b""
        try:
            self._kind = read_part(head, &self._declared)
        except BadPart as error:
            self._refuse("bad_part", None, self._head_at, str(error))
        self._data_at = at
        self._kept_size = 0
        self._matched = 0
        self._state = DATA
        return 0

    cdef inline uint8_t _byte_before(self, const uint8_t *p, Py_ssize_t distance) noexcept:
        if p - self._piece >= distance:
            return (p - distance)[0]
        return self._last[2 + (p - self._piece) - distance]

    cdef inline Before _line_end_before(self, const uint8_t *p) noexcept:
        cdef uint8_t last = self._byte_before(p, 1)
        if last == 10 and self._byte_before(p, 2) == 13:
            return LINE_END
        return BARE_END if last == 10 or last == 13 else IN_LINE

    cdef const uint8_t *_take_data(self, const uint8_t *p, const uint8_t *end) except NULL:
        """Search data for a boundary; return the byte behind it, or `end`."""
        cdef const uint8_t *begin = p
        cdef Py_ssize_t matched = self._matched
        cdef uint8_t c
        while p < end:
            if matched == 0:
                p = <const uint8_t *>memchr(p, 45, end - p)
                if p == NULL:
                    p = end
                    break
                self._before = self._line_end_before(p)
                matched = 1
                p += 1
                continue
            c = p[0]
            if c != self._needle[matched]:
                # The byte is looked at again: it may go on with a shorter match, or begin one.
                matched = self._borders[matched - 1]
                self._before = IN_LINE
                continue
            p += 1
            matched += 1
            if matched == self._needle_size:
                if self._before != IN_LINE:
                    self._keep(begin, p)
                    self._matched = 0
                    self._end_data(self._offset(p) - self._needle_size)
                    return p
                matched = self._borders[matched - 1]
        self._matched = matched
        self._keep(begin, p)
        return p

    cdef void _keep(self, const uint8_t *begin, const uint8_t *end) noexcept:
        """Remember the beginning of the data of a field that is read, what may be a boundary included."""
        cdef Py_ssize_t size = end - begin
        if self._kind != MODEL and self._kind != STREAM:
            return
        if size > KEPT_ROOM - self._kept_size:
            size = KEPT_ROOM - self._kept_size
        memcpy(self._kept + self._kept_size, begin, size)
        self._kept_size += size

    cdef int _end_data(self, int64_t boundary_at) except -1:
        """A boundary begins at that offset, behind a line end."""
        cdef int64_t end = boundary_at - 2
        if self._before == BARE_END:
            self._refuse("invalid_form", None, boundary_at, "a boundary stands behind a bare CR or LF")
        if end < self._data_at:
            self._refuse("invalid_form", None, boundary_at, "expected CRLF before the boundary that ends a part")
        if self._declared >= 0 and self._declared != end - self._data_at:
            self._refuse("bad_part", None, self._head_at, "the length that a part gives is not its own")
        if self._kind == FILE:
            self._file_count += 1
        elif self._kind == PROMPT:
            self._prompt_bytes += end - self._data_at
        elif self._kind == MODEL:
            self._take_model(end)
        elif self._kind == STREAM:
            self._take_stream(end)
        self._state = BEHIND
        return 0

    cdef bytes _value(self, str name, int64_t end):
        if end - self._data_at > VALUE_LIMIT:
            self._refuse("bad_field", name, self._data_at, f"{name} is longer than {MODEL_CHARACTERS} characters")
        return (<char *>self._kept)[:end - self._data_at]

    cdef int _take_model(self, int64_t end) except -1:
        if self._model is not None:
            self._refuse("duplicate_field", "model", self._head_at, "the field model stands twice")
        cdef bytes value = self._value("model", end)
        try:
            text = value.decode()
        except UnicodeDecodeError:
            self._refuse("bad_field", "model", self._data_at, "model is not UTF-8")
        if len(text) > MODEL_CHARACTERS:
            self._refuse("bad_field", "model", self._data_at, f"model is longer than {MODEL_CHARACTERS} characters")
        if any(character < " " or character == "\x7f" for character in text):
            self._refuse("bad_field", "model", self._data_at, "model holds a control character")
        self._model = value
        self._model_at = self._data_at
        self._model_end = end
        return 0

    cdef int _take_stream(self, int64_t end) except -1:
        if self._has_stream:
            self._refuse("duplicate_field", "stream", self._head_at, "the field stream stands twice")
        self._has_stream = True
        said = FLAGS.get(self._value("stream", end).lower())
        if said is None:
            self._refuse("bad_field", "stream", self._data_at, "stream must be true or false")
        self._is_stream = said
        return 0
