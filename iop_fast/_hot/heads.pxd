"""C interface of the heads; the contract stands in heads.pyi."""

cpdef list end_to_end(fields, frozenset drop)
cpdef bint has_field(fields, frozenset names) except -1
cpdef bytes write_request(bytes method, bytes target, bytes host, list fields, bytes body)
cpdef Py_ssize_t line_text_size(list fields) except -1
cpdef object read_plain_head(bytes data, Py_ssize_t end)
cpdef Py_ssize_t find_head_end(bytes data, Py_ssize_t start) except -1
