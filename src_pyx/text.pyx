"""Small pieces of text; the contract stands in iop_fast/_hot/text.pyi."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memchr

cdef enum:
    DIGITS = 20         # of a 64-bit number

cdef const char *HEX = b"0123456789abcdef"


cpdef bytes decimal(long long number):
    cdef char[DIGITS] text
    cdef int at = DIGITS
    cdef unsigned long long left = <unsigned long long>number
    if number < 0:
        raise ValueError(f"expected a number that is not negative, got {number}")
    while True:
        at -= 1
        text[at] = <char>(48 + left % 10)
        left //= 10
        if left == 0:
            return PyBytes_FromStringAndSize(text + at, DIGITS - at)


cpdef bytes chunk_line(Py_ssize_t size):
    cdef char[DIGITS] text
    cdef int at = DIGITS - 2
    cdef size_t left = <size_t>size
    text[DIGITS - 2] = 13
    text[DIGITS - 1] = 10
    while True:
        at -= 1
        text[at] = HEX[left & 15]
        left >>= 4
        if left == 0:
            return PyBytes_FromStringAndSize(text + at, DIGITS - at)


cpdef bint breaks_line(list parts, Py_ssize_t start, Py_ssize_t step) except -1:
    cdef bytes part
    cdef const char *text
    cdef Py_ssize_t size
    while start < len(parts):
        part = parts[start]
        text = PyBytes_AS_STRING(part)
        size = PyBytes_GET_SIZE(part)
        if memchr(text, 10, size) != NULL or memchr(text, 13, size) != NULL or memchr(text, 0, size) != NULL:
            return True
        start += step
    return False
