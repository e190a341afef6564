"""C types of answers.py."""

cimport cython

cdef dict _known


cpdef list id_fields(bytes request_id, dialect, answered=*)
cpdef list own_fields(bytes request_id, dialect, answered, clamped)
@cython.locals(kept=list, field=tuple, is_stream=bint, is_plain=bint, says_buffering=bint)
cpdef tuple passed_on(head, own)
cpdef bytes blank_line_after(bytes tail)
