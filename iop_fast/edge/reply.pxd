"""C types of reply.py."""

cimport cython

from iop_fast._hot.text cimport part

cdef Py_ssize_t TAIL_BYTES


@cython.final
@cython.freelist(64)
cdef class Reply:
    cdef public object _downstream
    cdef object _extra
    cdef long long _quiet_mark
    cdef bint _takes_event
    cdef bytes _tail
    cdef readonly int status
    cdef readonly long long bytes_out
    cdef public long long owed

    cpdef bint give_up(self) except -1
    cpdef begin(self, head, bint takes_event, list data, bint is_whole)
    cpdef go_on(self, list data, bint is_whole)
    @cython.locals(count="Py_ssize_t", piece=bytes, last=bytes)
    cdef _note(self, list data)
