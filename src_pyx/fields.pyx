"""Header fields: see iop_fast/_hot/fields.pyi for the contract.

Every search is bounded by the block's end, so a block that httptools would refuse is an error here and never a read
beyond it.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.string cimport memchr


cdef inline bint is_space(char c) noexcept:
    return c == 32 or c == 9


cdef bytes lower_name(const char *data, Py_ssize_t size, bint *has_underscore):
    cdef bytes name = PyBytes_FromStringAndSize(NULL, size)
    cdef char *out = PyBytes_AS_STRING(name)
    cdef Py_ssize_t at
    cdef char c
    for at in range(size):
        c = data[at]
        if 65 <= c <= 90:
            c += 32
        elif c == 95:
            has_underscore[0] = True
        out[at] = c
    return name


def split_fields(bytes block not None, Py_ssize_t start, frozenset special not None):
    cdef const char *data = PyBytes_AS_STRING(block)
    cdef Py_ssize_t end = len(block) - 2
    cdef Py_ssize_t at = start
    cdef Py_ssize_t colon, stop, line_end
    cdef const char *found
    cdef bint has_underscore
    cdef list aside = []
    cdef list plain = []
    cdef bytes name
    if start < 0 or end < 0 or data[end] != 13 or data[end + 1] != 10:
        raise ValueError("expected a head that ends with an empty line")
    while at < end:
        found = <const char *>memchr(data + at, 13, end - at)
        if found == NULL or found[1] != 10:
            raise ValueError("expected a field line that ends with CRLF")
        line_end = found - data
        found = <const char *>memchr(data + at, 58, line_end - at)
        if found == NULL or found == data + at:
            raise ValueError("expected a field line with a name and a colon")
        colon = found - data
        has_underscore = False
        name = lower_name(data + at, colon - at, &has_underscore)
        at = colon + 1
        while at < line_end and is_space(data[at]):
            at += 1
        stop = line_end
        while stop > at and is_space(data[stop - 1]):
            stop -= 1
        if has_underscore or name in special:
            aside.append((name, data[at:stop]))
        else:
            plain.append((name, data[at:stop]))
        at = line_end + 2
    return aside, plain
