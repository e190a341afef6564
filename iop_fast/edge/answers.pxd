"""C types of answers.py."""

cimport cython

from iop_fast._hot.records cimport item, new_record

cdef dict _known
cdef object ANTHROPIC
cdef int CONNECTION, TYPE, BUFFERING, LENGTH


cpdef list id_fields(bytes request_id, dialect, answered=*)
cpdef list own_fields(bytes request_id, dialect, answered, clamped)
@cython.locals(
    headers=list, kept=list, field=tuple, is_stream=bint, is_plain=bint, says_buffering=bint, meaning=int, known=object
)
cpdef tuple passed_on(head, own)
cpdef bint is_event_stream(bytes media_type) except -1
cpdef bytes blank_line_after(bytes tail)
