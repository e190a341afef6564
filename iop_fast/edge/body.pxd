"""C types of body.py."""

cimport cython

from iop_fast._hot.records cimport item
from iop_fast._hot.text cimport part, replaced


@cython.final
cdef class ByteBudget:
    cdef readonly long long limit, used

    cpdef bint take(self, long long count) except -1
    cpdef give(self, long long count)


@cython.final
@cython.freelist(64)
cdef class Body:
    cdef long long _allocated, _limit
    cdef readonly long long _charged, size
    cdef list _blocks
    cdef ByteBudget _budget

    @cython.locals(count="Py_ssize_t")
    cpdef append(self, piece)
    cdef _append_to_blocks(self, piece)
    cdef _growing_block(self)
    @cython.locals(first="Py_ssize_t", last="Py_ssize_t", base="Py_ssize_t", size="Py_ssize_t", block_bytes="Py_ssize_t")
    cpdef bytes slice(self, Py_ssize_t start, Py_ssize_t end)
    cpdef drop(self)


@cython.locals(parts=list, at="Py_ssize_t", start="Py_ssize_t", end="Py_ssize_t")
cpdef bytes apply_edits(bytes text, edits)
