"""Small pieces of text; the contract stands in iop_fast/_hot/text.pyi.

A `Block` grows to what it has ever held at once, which is a head or a line: bodies never pass through it.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from libc.stdint cimport int64_t
from libc.string cimport memcpy
from libc.time cimport gmtime_r, time_t, tm

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL

cdef extern from "<time.h>" nogil:
    ctypedef int clockid_t
    struct timespec:
        time_t tv_sec
        long tv_nsec
    int clock_gettime(clockid_t clock, timespec *at)
    const clockid_t CLOCK_REALTIME

cdef enum:
    DIGITS = 20         # of a 64-bit number
    FIRST_ROOM = 1024
    STAMP_SIZE = 29     # 2026-01-01T00:00:00.000+00:00
    NS_PER_MS = 1_000_000
    MS_PER_S = 1_000

cdef const char *HEX = b"0123456789abcdef"


cdef inline Py_ssize_t put_before(char *end, unsigned long long number, unsigned int base) noexcept:
    """Write the digits of a number so that they end before `end`; return how many they are."""
    cdef char *at = end
    while True:
        at -= 1
        at[0] = HEX[number % base]
        number //= base
        if number == 0:
            return end - at


cdef inline unsigned long long natural(long long number) except? 0:
    if number < 0:
        raise ValueError(f"expected a number that is not negative, got {number}")
    return <unsigned long long>number


cpdef bytes decimal(long long number):
    cdef char[DIGITS] text
    cdef Py_ssize_t size = put_before(text + DIGITS, natural(number), 10)
    return PyBytes_FromStringAndSize(text + DIGITS - size, size)


cpdef bytes part(bytes text, Py_ssize_t start, Py_ssize_t end):
    cdef Py_ssize_t size = PyBytes_GET_SIZE(text)
    if start < 0 or end > size:
        raise IndexError(f"expected a part of {size} bytes, got {start} to {end}")
    if start == 0 and end == size:
        return text
    return PyBytes_FromStringAndSize(PyBytes_AS_STRING(text) + start, max(end - start, 0))


cpdef bytes replaced(bytes text, Py_ssize_t start, Py_ssize_t end, bytes by):
    cdef Py_ssize_t size = PyBytes_GET_SIZE(text)
    cdef Py_ssize_t put = PyBytes_GET_SIZE(by)
    cdef bytes made
    cdef char *at
    if not 0 <= start <= end <= size:
        raise IndexError(f"expected a part of {size} bytes, got {start} to {end}")
    made = PyBytes_FromStringAndSize(NULL, size - (end - start) + put)
    at = PyBytes_AS_STRING(made)
    memcpy(at, PyBytes_AS_STRING(text), start)
    memcpy(at + start, PyBytes_AS_STRING(by), put)
    memcpy(at + start + put, PyBytes_AS_STRING(text) + end, size - end)
    return made


cdef inline bint is_one_line(const char *text, Py_ssize_t size) noexcept:
    """Most values are short: one pass beats three calls of memchr."""
    cdef Py_ssize_t at
    cdef char c
    for at in range(size):
        c = text[at]
        if c == 13 or c == 10 or c == 0:
            return False
    return True


@cython.final
cdef class Block:

    def __dealloc__(self):
        PyMem_Free(self.text)

    cdef char *room_for(self, Py_ssize_t size) except NULL:
        """Return where the next `size` bytes go; they count as written."""
        cdef Py_ssize_t wanted = self.size + size
        cdef char *moved
        if wanted > self.room or self.text == NULL:
            wanted = max(2 * wanted, FIRST_ROOM)
            moved = <char *>PyMem_Realloc(self.text, wanted)
            if moved == NULL:
                raise MemoryError
            self.text = moved
            self.room = wanted
        moved = self.text + self.size
        self.size += size
        return moved

    cpdef int put(self, bytes text) except -1:
        cdef Py_ssize_t size = PyBytes_GET_SIZE(text)
        memcpy(self.room_for(size), PyBytes_AS_STRING(text), size)
        return 0

    cpdef int put_value(self, bytes text) except -1:
        cdef Py_ssize_t size = PyBytes_GET_SIZE(text)
        if not is_one_line(PyBytes_AS_STRING(text), size):
            raise ValueError("a header field or the reason phrase holds CR, LF or NUL")
        memcpy(self.room_for(size), PyBytes_AS_STRING(text), size)
        return 0

    cpdef int put_text(self, str text) except -1:
        cdef Py_ssize_t size
        cdef const char *utf8 = PyUnicode_AsUTF8AndSize(text, &size)
        memcpy(self.room_for(size), utf8, size)
        return 0

    cpdef int put_number(self, long long number) except -1:
        cdef char[DIGITS] text
        cdef Py_ssize_t size = put_before(text + DIGITS, natural(number), 10)
        memcpy(self.room_for(size), text + DIGITS - size, size)
        return 0

    cpdef int put_hexadecimal(self, long long number) except -1:
        cdef char[DIGITS] text
        cdef Py_ssize_t size = put_before(text + DIGITS, natural(number), 16)
        memcpy(self.room_for(size), text + DIGITS - size, size)
        return 0

    cpdef int clear(self) except -1:
        self.size = 0
        return 0

    cpdef bytes take(self):
        cdef Py_ssize_t size = self.size
        self.size = 0
        return PyBytes_FromStringAndSize(self.text, size)

    cpdef bytes take_with(self, list pieces, bytes end):
        cdef bytes made
        cdef object piece
        cdef Py_ssize_t size = self.size + PyBytes_GET_SIZE(end)
        cdef char *at
        for piece in pieces:
            if type(piece) is not bytes:
                raise TypeError(f"expected pieces of bytes, got {type(piece).__name__}")
            size += PyBytes_GET_SIZE(piece)
        if len(pieces) == 1 and size == PyBytes_GET_SIZE(<bytes>pieces[0]):
            self.size = 0
            return pieces[0]    # nothing stands around it
        made = PyBytes_FromStringAndSize(NULL, size)
        at = PyBytes_AS_STRING(made)
        if self.size:
            memcpy(at, self.text, self.size)
            at += self.size
        self.size = 0
        for piece in pieces:
            size = PyBytes_GET_SIZE(piece)
            memcpy(at, PyBytes_AS_STRING(piece), size)
            at += size
        memcpy(at, PyBytes_AS_STRING(end), PyBytes_GET_SIZE(end))
        return made


cdef inline char *put_digits(char *at, int number, int count) noexcept:
    cdef int place
    for place in range(count - 1, -1, -1):
        at[place] = <char>(48 + number % 10)
        number //= 10
    return at + count


@cython.final
cdef class Stamp:

    cpdef bytes now(self):
        cdef timespec at
        cdef int64_t milli
        clock_gettime(CLOCK_REALTIME, &at)
        milli = <int64_t>at.tv_sec * MS_PER_S + at.tv_nsec // NS_PER_MS
        if milli != self.milli or self.text is None:
            self.milli = milli
            self.text = self.render(at.tv_sec, <int>(at.tv_nsec // NS_PER_MS))
        return self.text

    cdef bytes render(self, time_t second, int milli):
        cdef tm date
        cdef char[STAMP_SIZE] text
        cdef char *at = text
        gmtime_r(&second, &date)
        at = put_digits(at, date.tm_year + 1900, 4)
        at[0] = b"-"
        at = put_digits(at + 1, date.tm_mon + 1, 2)
        at[0] = b"-"
        at = put_digits(at + 1, date.tm_mday, 2)
        at[0] = b"T"
        at = put_digits(at + 1, date.tm_hour, 2)
        at[0] = b":"
        at = put_digits(at + 1, date.tm_min, 2)
        at[0] = b":"
        at = put_digits(at + 1, date.tm_sec, 2)
        at[0] = b"."
        at = put_digits(at + 1, milli, 3)
        memcpy(at, b"+00:00", 6)
        return PyBytes_FromStringAndSize(text, STAMP_SIZE)
