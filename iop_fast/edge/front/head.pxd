"""C types of head.py."""

cimport cython

from iop_fast._hot.fields cimport match_head, number_at, with_length
from iop_fast._hot.records cimport new_record

cdef int _HOST, _LENGTH, _CODING, _CONNECTION, _EXPECT, _DROPPED
cdef dict _MEANING
cdef frozenset METHODS, _SPECIAL, _NO_ALIASES


@cython.final
cdef class KnownHead:
    cdef bytes _back, _front
    cdef readonly object head
    cdef readonly bint expects_continue, is_http10, keep_alive

    cpdef Py_ssize_t match(self, bytes data) except -1
    cpdef read(self, bytes data)


@cython.final
cdef class HeadParser:
    cdef object _limits
    cdef bytes _good_authority, _host, _length, _coding, _connection
    cdef readonly bint is_http10, keep_alive, expects_continue

    cdef _reset(self)
    @cython.locals(method=bytes, target=bytes, version=bytes, fields=list)
    cpdef parse(self, bytes block)
    @cython.locals(digits=bytes, spelling=bytes, at="Py_ssize_t", start="Py_ssize_t", end="Py_ssize_t")
    cpdef KnownHead remember(self, bytes block, head)
    cpdef recall(self, KnownHead known, bytes data)
    @cython.locals(special=list, fields=list)
    cdef list _read_fields(self, bytes block, Py_ssize_t start)
    @cython.locals(name=bytes, value=bytes)
    cdef _take_special(self, tuple field, list fields)
    cdef _on_expect(self, bytes value)
    @cython.locals(coding=bytes, length=bytes)
    cdef _judge_framing(self)
    @cython.locals(host=bytes)
    cdef _judge_host(self)
    @cython.locals(path=bytes, query=bytes)
    cdef tuple _split_target(self, bytes target)
    cdef list _apply_connection(self, bytes value, list fields)

@cython.locals(start="Py_ssize_t", end="Py_ssize_t")
cpdef Py_ssize_t find_head(buffer, Py_ssize_t scanned, limits) except -1
