"""Chunked bodies of the plain form; the contract stands in iop_fast/_hot/plain_chunks.pyi.

    SIZE -digits CRLF-> DATA -so many bytes-> DATA_CR -CR-> DATA_LF -LF-> SIZE
    SIZE -0 CRLF CRLF-> COMPLETE

A size line is taken whole or not at all: what there is of one waits in `_line` for the rest. Everything else leads to
ODD, with what an ordinary parser has to see from there on in `odd`.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memcpy

cdef enum:
    DIGITS_MAX = 15
    LINE_MAX = DIGITS_MAX + 4       # digits, and two line ends behind the last chunk's


cdef inline int hex_value(unsigned char c) noexcept nogil:
    if 48 <= c <= 57:
        return c - 48
    c |= 0x20
    if 97 <= c <= 102:
        return c - 87
    return -1


cdef enum Found:
    CUT         # the line goes on in the next piece
    CHUNK
    LAST
    OTHER


cdef inline Found read_size(Cursor at, Cursor end, long long *size, Py_ssize_t *line) noexcept nogil:
    """Read a size line; `line` becomes its length, that of the empty line behind the last one included."""
    cdef Cursor start = at
    cdef int digit
    size[0] = 0
    while at < end:
        digit = hex_value(at[0])
        if digit < 0:
            break
        if at - start == DIGITS_MAX:
            return OTHER
        size[0] = size[0] * 16 + digit
        at += 1
    if at == end:
        return CUT
    if at == start or at[0] != 13:
        return OTHER
    if at + 1 == end:
        return CUT
    if at[1] != 10:
        return OTHER
    at += 2
    if size[0]:
        line[0] = at - start
        return CHUNK
    if at == end:
        return CUT
    if at[0] != 13:
        return OTHER
    if at + 1 == end:
        return CUT
    if at[1] != 10:
        return OTHER
    line[0] = at + 2 - start
    return LAST


cdef inline bint is_line_end(Cursor at) noexcept nogil:
    return at[0] == 13 and at[1] == 10


cdef inline bytes cut(Cursor start, Cursor end):
    return PyBytes_FromStringAndSize(<const char *>start, end - start)


@cython.final
cdef class PlainChunks:

    def __cinit__(self):
        self._state = SIZE
        self._line = b""

    @property
    def is_complete(self):
        return self._state == COMPLETE

    cpdef bytes feed(self, bytes data):
        cdef Cursor at
        cdef Cursor end
        cdef bytes body
        cdef char *out
        cdef Py_ssize_t size, written = 0
        if PyBytes_GET_SIZE(self._line):
            data = self._line + data
            self._line = b""
        at = <Cursor>PyBytes_AS_STRING(data)
        end = at + PyBytes_GET_SIZE(data)
        if self._state == SIZE and at < end:
            at = self._take_size(at, end)
            if at == NULL:
                return b""
        if self._state == DATA and end - at < self._left:   # fast path for a part of a chunk
            self._left -= end - at
            return data if at == <Cursor>PyBytes_AS_STRING(data) else cut(at, end)
        if self._state == DATA and end - at == self._left + 2 and is_line_end(end - 2):   # and for a whole one
            self._state = SIZE
            return cut(at, end - 2)
        body = PyBytes_FromStringAndSize(NULL, end - at)
        out = PyBytes_AS_STRING(body)
        while at < end:
            if self._state == DATA:
                size = end - at if end - at < self._left else <Py_ssize_t>self._left
                memcpy(out + written, at, size)
                written += size
                at += size
                self._left -= size
                if self._left == 0:
                    self._state = DATA_CR
            elif self._state == SIZE:
                at = self._take_size(at, end)
                if at == NULL:
                    break
            elif self._state == DATA_CR and at[0] == 13:
                self._state = DATA_LF
                at += 1
            elif self._state == DATA_LF and at[0] == 10:
                self._state = SIZE
                at += 1
            elif self._state == COMPLETE:
                self.has_more = True
                break
            else:
                self._give_up(at, end)
                break
        return body[:written]

    cdef Cursor _take_size(self, Cursor at, Cursor end) except? NULL:
        """Take a size line and return the place behind it; NULL when the piece ends in it or it is odd."""
        cdef Py_ssize_t line = 0
        cdef Found found = read_size(at, end, &self._left, &line)
        if found == CHUNK:
            self._state = DATA
            return at + line
        if found == LAST:
            self._state = COMPLETE
            return at + line
        if found == CUT:
            self._line = (<const char *>at)[:end - at]
        else:
            self._state = ODD
            self.odd = (<const char *>at)[:end - at]
        return NULL

    cdef int _give_up(self, Cursor at, Cursor end) except -1:
        """What stands behind a chunk's data is odd: a parser is shown a chunk of one byte in its place."""
        self.odd = (b"1\r\nx\r" if self._state == DATA_LF else b"1\r\nx") + (<const char *>at)[:end - at]
        self.has_filler = True
        self._state = ODD
        return 0
