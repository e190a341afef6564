"""C interface of the header fields; the contract stands in fields.pyi."""

cpdef Py_ssize_t match_head(bytes data, bytes front, bytes back) except -1
cpdef long long number_at(bytes data, Py_ssize_t at) except -1
cpdef with_length(head, length)
