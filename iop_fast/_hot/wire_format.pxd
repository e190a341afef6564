"""Protobuf's wire format: tags, numbers and lengths, written and read in place. It knows no message of ours.

Inline, since a frame takes dozens of these. Writers take a place that has room, as their `_size` functions counted it,
and return the place behind what they wrote.

Readers take a cursor and the end of the message that they stand in, and return the cursor behind what they read, or
NULL for bytes that are no protobuf; nothing is read at or behind the end.
"""

from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy

cdef extern from *:
    int leading_zeros "__builtin_clzll"(unsigned long long value) nogil

ctypedef unsigned char *Place
ctypedef const unsigned char *Cursor

cdef enum WireType:
    VARINT = 0
    FIXED64 = 1
    SPAN = 2
    GROUP = 3
    GROUP_END = 4
    FIXED32 = 5

cdef enum:
    GROUP_DEPTH_MAX = 100      # upb's limit of nesting
    SPAN_MAX = 0x7FFFFFFF      # protobuf's limit of a length


# ---- writing ---------------------------------------------------------------------------------------------------------


cdef inline unsigned char tag_of(int number, WireType kind) noexcept nogil:
    """Tag of a field below 16: one byte."""
    return <unsigned char>(number << 3 | kind)


cdef inline Py_ssize_t varint_size(uint64_t value) noexcept nogil:
    return ((63 - leading_zeros(value | 1)) * 9 + 73) // 64


cdef inline Py_ssize_t span_size(Py_ssize_t size) noexcept nogil:
    """Size of a length and the bytes it counts."""
    return varint_size(size) + size


cdef inline Py_ssize_t bytes_field_size(Py_ssize_t size) noexcept nogil:
    return 1 + span_size(size) if size else 0


cdef inline Py_ssize_t number_field_size(uint64_t value) noexcept nogil:
    return 1 + varint_size(value) if value else 0


cdef inline Place put_varint(Place at, uint64_t value) noexcept nogil:
    while value >= 0x80:
        at[0] = <unsigned char>(value | 0x80)
        value >>= 7
        at += 1
    at[0] = <unsigned char>value
    return at + 1


cdef inline Place put_bytes_field(Place at, int number, const void *source, Py_ssize_t size) noexcept nogil:
    if not size:
        return at
    at[0] = tag_of(number, SPAN)
    at = put_varint(at + 1, size)
    memcpy(at, source, size)
    return at + size


cdef inline Place put_number_field(Place at, int number, uint64_t value) noexcept nogil:
    if not value:
        return at
    at[0] = tag_of(number, VARINT)
    return put_varint(at + 1, value)


# ---- reading ---------------------------------------------------------------------------------------------------------


cdef inline Cursor read_varint(Cursor at, Cursor end, uint64_t *value) noexcept nogil:
    cdef uint64_t got = 0
    cdef int shift = 0
    if at < end and at[0] < 0x80:       # fast path for one byte
        value[0] = at[0]
        return at + 1
    while at < end and shift < 70:
        got |= <uint64_t>(at[0] & 0x7F) << shift
        if at[0] < 0x80:
            value[0] = got
            return at + 1
        at += 1
        shift += 7
    return NULL


cdef inline Cursor read_tag(Cursor at, Cursor end, uint32_t *tag) noexcept nogil:
    """Read a field's number and wire type, number << 3 | type."""
    cdef uint64_t value = 0
    at = read_varint(at, end, &value)
    if at == NULL or value >> 32 or value < 8:
        return NULL
    tag[0] = <uint32_t>value
    return at


cdef inline Cursor read_span(Cursor at, Cursor end, Cursor *start) noexcept nogil:
    """Read a length; the bytes it counts go from `start` to the returned cursor."""
    cdef uint64_t size = 0
    at = read_varint(at, end, &size)
    if at == NULL or size > SPAN_MAX or <Py_ssize_t>size > end - at:
        return NULL
    start[0] = at
    return at + size


cdef inline Cursor skip_field(Cursor at, Cursor end, uint32_t tag, int depth) noexcept nogil:
    """Skip the value of an unknown field."""
    cdef uint64_t number
    cdef Cursor start
    cdef int kind = tag & 7
    if kind == VARINT:
        return read_varint(at, end, &number)
    if kind == SPAN:
        return read_span(at, end, &start)
    if kind == FIXED64:
        return at + 8 if end - at >= 8 else NULL
    if kind == FIXED32:
        return at + 4 if end - at >= 4 else NULL
    if kind == GROUP and depth < GROUP_DEPTH_MAX:
        return skip_group(at, end, tag + (GROUP_END - GROUP), depth + 1)
    return NULL


cdef inline Cursor skip_group(Cursor at, Cursor end, uint32_t end_tag, int depth) noexcept nogil:
    """Skip the fields of an unknown group and the tag that ends it."""
    cdef uint32_t tag = 0
    while True:
        at = read_tag(at, end, &tag)
        if at == NULL or tag == end_tag:
            return at
        at = skip_field(at, end, tag, depth)
        if at == NULL:
            return NULL
