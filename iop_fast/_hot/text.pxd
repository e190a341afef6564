"""C interface of the small pieces of text; the contract stands in text.pyi."""

cimport cython
from libc.stdint cimport int64_t
from libc.time cimport time_t


cpdef bytes decimal(long long number)
cpdef bytes part(bytes text, Py_ssize_t start, Py_ssize_t end)
cpdef bytes replaced(bytes text, Py_ssize_t start, Py_ssize_t end, bytes by)


@cython.final
cdef class Block:
    cdef char *text
    cdef Py_ssize_t size, room

    cdef char *room_for(self, Py_ssize_t size) except NULL
    cpdef int put(self, bytes text) except -1
    cpdef int put_value(self, bytes text) except -1
    cpdef int put_text(self, str text) except -1
    cpdef int put_number(self, long long number) except -1
    cpdef int put_hexadecimal(self, long long number) except -1
    cpdef int clear(self) except -1
    cpdef bytes take(self)
    cpdef bytes take_with(self, list pieces, bytes end)


@cython.final
cdef class Stamp:
    cdef int64_t milli
    cdef bytes text

    cpdef bytes now(self)
    cdef bytes render(self, time_t second, int milli)
