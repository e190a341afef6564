"""C interface of the records; the contract stands in records.pyi."""

cpdef object new_record(type kind, tuple values)
cpdef object item(record, Py_ssize_t place)
