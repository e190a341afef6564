"""C interface of the small pieces of text; the contract stands in text.pyi."""

cpdef bytes decimal(long long number)
cpdef bytes chunk_line(Py_ssize_t size)
cpdef bint breaks_line(list parts, Py_ssize_t start, Py_ssize_t step) except -1
