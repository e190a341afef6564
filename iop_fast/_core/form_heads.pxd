"""What the head of a form's part says of it; what is refused is said in src_pyx/form_heads.pyx."""

from libc.stdint cimport int64_t

cdef enum:
    NAME_LIMIT = 64

cdef enum Kind:
    OTHER
    FILE
    MODEL
    STREAM
    PROMPT

# Read a head, without the empty line behind it: what the part is, and the length that it gives, -1 for none. Raises
# BadPart.
cdef Kind read_part(bytes head, int64_t *declared) except *
