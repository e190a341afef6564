"""Where usage stands in a JSON document; the contract is in iop_fast/_hot/usage_scan.pyi.

Strings are passed by memchr: an answer is one long string in a little JSON, and most of its bytes cost a fraction of
an instruction. The next quote is looked for once and remembered: a text full of escapes is not searched again and
again.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.string cimport memchr, memcmp

cdef extern from *:
    """
    #ifndef _GNU_SOURCE
    #define _GNU_SOURCE
    #endif
    #include <string.h>
    """
    void *memmem(const void *text, size_t size, const void *wanted, size_t wanted_size) nogil

cdef enum:
    USAGE_MAX = 16384
    NO_KEY = -1

USAGE_BYTES_MAX = USAGE_MAX

cdef tuple PLACES = (b"", b"response", b"message")


cdef inline bint is_space(unsigned char c) noexcept nogil:
    """What a regular expression of bytes calls white space."""
    return c == 32 or 9 <= c <= 13


@cython.final
cdef class UsageScan:

    def __cinit__(self):
        self.found = {}
        self._parent = TOP
        self._key_size = NO_KEY

    cpdef feed(self, bytes data):
        cdef Cursor begin = <Cursor>PyBytes_AS_STRING(data)
        cdef Cursor end = begin + PyBytes_GET_SIZE(data)
        cdef Cursor at = begin
        cdef Cursor start = begin if self._captured is not None else NULL   # of the captured object in this piece
        cdef unsigned char mark
        while at < end:
            if self._in_string:
                at = self._walk_string(at, end)
                continue
            mark = at[0]
            at += 1
            if mark == 34:      # "
                self._in_string = True
                self._key_size = 0 if self._depth <= 2 else NO_KEY
                self._colon = False
            elif mark == 44:    # ,
                self._key_size = NO_KEY
            elif mark == 58:    # :
                self._colon = True
            elif mark == 123 or mark == 91:     # { [
                if self._open(mark):
                    start = at - 1
            elif mark == 125 or mark == 93:     # } ]
                if self._close():
                    self._keep(start, at)
                    start = NULL
        if start != NULL:
            self._capture(start, end)

    cdef Cursor _walk_string(self, Cursor at, Cursor end) noexcept:
        """Go to the string's end or the piece's; return the place behind it."""
        cdef Cursor start
        cdef Cursor quote
        cdef Cursor slash
        if self._escaped:
            self._escaped = False
            self._key_size = NO_KEY
            at += 1
        start = at
        while True:
            quote = <Cursor>memchr(at, 34, end - at)
            if quote == NULL:
                quote = end
            while True:
                slash = <Cursor>memchr(at, 92, quote - at)
                if slash == NULL or slash + 1 == end:
                    break
                at = slash + 2
                if at > quote:      # that quote was escaped
                    break
            if slash == NULL:
                self._add_to_key(start, quote)
                if quote == end:
                    return end
                self._in_string = False
                return quote + 1
            if slash + 1 == end:
                self._key_size = NO_KEY
                self._escaped = True
                return end

    cdef void _add_to_key(self, Cursor start, Cursor end) noexcept:
        cdef Py_ssize_t at
        if self._key_size == NO_KEY:
            return
        if self._key_size + (end - start) > KEY_MAX:
            self._key_size = NO_KEY
            return
        for at in range(end - start):
            self._key[self._key_size + at] = <char>start[at]
        self._key_size += <int>(end - start)

    cdef bint _is_key(self, const char *name, int size) noexcept:
        return self._key_size == size and memcmp(self._key, name, size) == 0

    cdef bint _open(self, unsigned char mark) except -1:
        """Enter an object or array; True when it is a usage object to be captured from here."""
        cdef bint is_value = self._colon and mark == 123 and self._key_size != NO_KEY
        cdef bint is_usage = is_value and self._is_key(b"usage", 5)
        self._depth += 1
        self._colon = False
        if is_value and self._captured is None:
            if self._depth == 2 and self._is_key(b"response", 8):
                self._parent = RESPONSE
            elif self._depth == 2 and self._is_key(b"message", 7):
                self._parent = MESSAGE
            elif is_usage and (self._depth == 2 or (self._depth == 3 and self._parent != TOP)):
                self._captured = bytearray()
                self._until = self._depth - 1
                self._key_size = NO_KEY
                return True
        self._key_size = NO_KEY
        return False

    cdef bint _close(self) noexcept:
        """Leave an object or array; True when it was the captured one."""
        cdef bint is_captured
        self._depth -= 1
        self._key_size = NO_KEY
        self._colon = False
        is_captured = self._captured is not None and self._depth == self._until
        if self._depth < 2 and not is_captured:
            self._parent = TOP
        return is_captured

    cdef int _capture(self, Cursor start, Cursor end) except -1:
        if self._captured is not None:
            self._captured += (<const char *>start)[:end - start]
            if len(self._captured) > USAGE_MAX:
                self._captured = None
        return 0

    cdef int _keep(self, Cursor start, Cursor end) except -1:
        """The captured object is whole; the last one of a place counts."""
        self._capture(start, end)
        if self._captured is not None:
            self.found[PLACES[self._parent]] = bytes(self._captured)
            self._captured = None
        return 0


cpdef bint names_usage(bytes data) except -1:
    cdef Cursor at = <Cursor>PyBytes_AS_STRING(data)
    cdef Cursor end = at + PyBytes_GET_SIZE(data)
    while True:
        at = <Cursor>memmem(at, end - at, b'"usage"', 7)
        if at == NULL:
            return False
        at += 7
        if not is_null(at, end):
            return True


cdef bint is_null(Cursor at, Cursor end) noexcept:
    """True when a colon and null stand here, with white space or without."""
    while at < end and is_space(at[0]):
        at += 1
    if at == end or at[0] != 58:
        return False
    at += 1
    while at < end and is_space(at[0]):
        at += 1
    return end - at >= 4 and memcmp(at, b"null", 4) == 0
