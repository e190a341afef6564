"""C types of upload.py."""

cimport cython


@cython.final
cdef class Upload:
    cdef long long _fed_bytes, _length, _position, _reported_bytes
    cdef Py_ssize_t _index
    cdef bint _is_closed, _is_complete, _is_out
    cdef object _loop, _on_end, _on_written, _waiter
    cdef readonly list _pieces
    cdef readonly bint can_replay, is_written

    cpdef feed(self, bytes piece, bint complete)
    cpdef close(self)
    cpdef rewind(self)
    cpdef bytes next_piece(self)
    cpdef note_written(self)
    cpdef bint is_complete(self) except -1
    cpdef more(self)
    @cython.locals(byte_count="long long")
    cdef _let_go(self)
