"""Every way in which a JSON body is refused: a number while bytes are read, a ScanError once."""

from libc.stdint cimport int64_t

# Bounds of what is kept of a body.
cdef enum:
    KEY_LIMIT = 256
    KEY_BYTES = 256
    MODEL_CHARACTERS = 1024

cdef enum Fault:
    NO_FAULT
    FAULT_START
    FAULT_BYTE_ORDER_MARK
    FAULT_NOT_OBJECT
    FAULT_FIRST_KEY
    FAULT_KEY
    FAULT_COLON
    FAULT_FIRST_ITEM
    FAULT_VALUE
    FAULT_COMMA_OBJECT
    FAULT_COMMA_ARRAY
    FAULT_TRAILING
    FAULT_CONTROL
    FAULT_ESCAPE
    FAULT_HEX
    FAULT_LITERAL
    FAULT_NUMBER
    FAULT_UTF8
    FAULT_DEPTH
    FAULT_DUPLICATE
    FAULT_SPELLING
    FAULT_KEY_COUNT
    FAULT_KEY_LENGTH
    FAULT_MODEL_TYPE
    FAULT_MODEL_LENGTH
    FAULT_MODEL_SURROGATE
    FAULT_STREAM_TYPE
    FAULT_MESSAGES_TYPE
    FAULT_EMPTY
    FAULT_INCOMPLETE
    FAULT_MEMORY

# The exception of a fault that stands at `offset`; `key` is the top-level key that was read last.
cdef object error_of(Fault fault, str key, int64_t offset)
