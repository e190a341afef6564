"""Header fields: see iop_fast/_hot/fields.pyi for the contract.

Every search is bounded by the block's end, so a block that httptools would refuse is an error here and never a read
beyond it.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.tuple cimport PyTuple_GET_ITEM
from libc.string cimport memchr, memcmp

from iop_fast._hot.records cimport new_record

from iop_fast.seams import RequestHead

cdef enum:
    DIGITS_MAX = 18     # of a Content-Length


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


cpdef Py_ssize_t match_head(bytes data, bytes front, bytes back) except -1:
    cdef const char *text = PyBytes_AS_STRING(data)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
    cdef Py_ssize_t at = PyBytes_GET_SIZE(front)
    cdef Py_ssize_t rest = PyBytes_GET_SIZE(back)
    cdef Py_ssize_t start = at
    if size < at or memcmp(text, PyBytes_AS_STRING(front), at) != 0:
        return 0
    if rest == 0:
        return at
    while at < size and at - start < DIGITS_MAX and 48 <= text[at] <= 57:
        at += 1
    if at == start or size - at < rest or memcmp(text + at, PyBytes_AS_STRING(back), rest) != 0:
        return 0
    return at + rest


cpdef long long number_at(bytes data, Py_ssize_t at) except -1:
    cdef const char *text = PyBytes_AS_STRING(data)
    cdef Py_ssize_t end = min(PyBytes_GET_SIZE(data), at + DIGITS_MAX)
    cdef long long number = 0
    while at < end and 48 <= text[at] <= 57:
        number = number * 10 + (text[at] - 48)
        at += 1
    return number


cpdef with_length(head, length):
    if type(head) is not RequestHead:
        raise TypeError(f"expected a RequestHead, got {type(head).__name__}")
    cdef object fields = (
        <object>PyTuple_GET_ITEM(head, 0),
        <object>PyTuple_GET_ITEM(head, 1),
        <object>PyTuple_GET_ITEM(head, 2),
        <object>PyTuple_GET_ITEM(head, 3),
        length,
        <object>PyTuple_GET_ITEM(head, 5),
    )
    return new_record(RequestHead, fields)
