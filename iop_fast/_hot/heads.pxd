"""C interface of the heads; the contract stands in heads.pyi."""

cimport cython


@cython.final
cdef class Names:
    cdef frozenset _names
    cdef bint[256] _signs       # of the names: most others have none of these and are not looked up

    cdef bint has(self, bytes name) except -1


cpdef list end_to_end(fields, Names drop)
cpdef bint has_field(fields, Names names) except -1
cpdef bytes write_request(bytes method, bytes target, bytes host, list fields, bytes body)
cpdef Py_ssize_t line_text_size(list fields) except -1
cpdef object read_plain_head(bytes data, Py_ssize_t end)
cpdef Py_ssize_t find_head_end(bytes data, Py_ssize_t start) except -1
