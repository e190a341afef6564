"""C types of http_rules.py."""

from iop_fast._hot.heads cimport Names, end_to_end, has_field, line_text_size, write_request

cdef Names CODINGS, CREDENTIALS, HOP_BY_HOP, NOT_FORWARDED, NOT_OF_CHUNKED
cdef frozenset METHODS_WITHOUT_BODY


cpdef bytes request_head(bytes method, bytes target, bytes host, fields, str key, body_bytes, bytes body=*)
cpdef list answer_fields(fields)
