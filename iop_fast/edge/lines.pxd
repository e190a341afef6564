"""C types of lines.py."""

cimport cython


@cython.final
cdef class _Handed:
    cdef public long long done, failed, given


@cython.final
cdef class LineWriter:
    cdef list _batch
    cdef _Handed _handed
    cdef object _name, _queue, _thread, _write
    cdef bint _is_failing
    cdef long long _lines_max
    cdef readonly long long dropped

    cpdef put(self, bytes line)
