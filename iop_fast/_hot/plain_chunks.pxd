"""C interface of chunked bodies; the contract stands in plain_chunks.pyi."""

cimport cython

ctypedef const unsigned char *Cursor

cdef enum State:
    SIZE
    DATA
    DATA_CR
    DATA_LF
    COMPLETE
    ODD


@cython.final
cdef class PlainChunks:
    cdef State _state
    cdef long long _left        # of the chunk under way
    cdef bytes _line            # what there is of a size line
    cdef readonly bytes odd
    cdef readonly bint has_filler, has_more

    cpdef bytes feed(self, bytes data)
    cdef Cursor _take_size(self, Cursor at, Cursor end) except? NULL
    cdef int _give_up(self, Cursor at, Cursor end) except -1
