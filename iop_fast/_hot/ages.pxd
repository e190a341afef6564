"""C interface of the age lists; the contract stands in ages.pyi."""

cimport cython

from iop_fast._core.clock cimport Clock


@cython.final
cdef class AgeList:
    cdef Clock clock
    cdef dict entries           #: dict[int, tuple[int, Item]], oldest first
    cdef long long last_handle
    cdef long long limit_ns
    cdef object on_expired

    cpdef long long add(self, item) except -1
    cpdef int remove(self, long long handle) except -1
