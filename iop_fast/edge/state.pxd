"""C types of state.py."""

cimport cython

from iop_fast._core.clock cimport Clock as CoreClock
from iop_fast._hot.ages cimport AgeList
from iop_fast._hot.text cimport part
from iop_fast.edge.body cimport ByteBudget
from iop_fast.edge.books cimport Books
from iop_fast.edge.gate cimport Gate


cdef Py_ssize_t ID_SIZE


cdef class EdgeState:
    cdef object _random
    cdef bytes _ids
    cdef Py_ssize_t _id_at
    cdef public Books books
    cdef public ByteBudget budget
    cdef public AgeList cancelling, quiet
    cdef public CoreClock clock
    cdef public Gate gate
    cdef public bint is_draining
    cdef public object links, runtime, unix_time

    cpdef count(self, str name)
    @cython.locals(at="Py_ssize_t")
    cpdef bytes new_request_id(self)
