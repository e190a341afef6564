"""The grammar of a JSON body, taken in pieces: a state machine in C types, and everything that it has found."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from iop_fast._core.json_number cimport NumberState
from iop_fast._core.json_string cimport JsonString
from iop_fast._core.scan_faults cimport Fault
from iop_fast._core.scan_keys cimport KeyTable
from iop_fast._core.scan_roles cimport Findings, Frame

cdef enum State:
    AT_START
    AT_FIRST_KEY     # a key or "}"
    AT_KEY
    AT_COLON
    AT_FIRST_ITEM    # a value or "]"
    AT_VALUE
    AT_COMMA         # "," or the closing bracket
    AT_END           # the object is closed
    IN_STRING
    IN_LITERAL
    IN_NUMBER

cdef struct Machine:
    # Place in the body.
    int64_t base              # bytes taken by earlier pieces
    const uint8_t *piece      # the piece that is read; NULL between feeds
    State state
    # Open arrays and objects. The owner gives `frames` room for `max_depth`.
    Frame *frames
    int depth
    int max_depth
    # The open string, literal or number. The owner gives `string.kept` TEXT_ROOM bytes.
    JsonString string
    bint is_key
    bint weighs               # its text counts
    int64_t string_at
    const char *literal       # what is left of it
    NumberState number
    # Findings. The owner gives `top` its tables.
    KeyTable top
    Findings found
    uint64_t value_count
    uint64_t input_value_count
    int64_t insert_at
    bint is_stream
    int model_key             # -1 without one
    uint32_t model_at         # of its decoded bytes, in the store
    uint32_t model_length
    # The first fault.
    Fault fault
    int64_t fault_at

# Take a piece, up to its end or to the first fault.
cdef void run(Machine *m, const uint8_t *piece, Py_ssize_t size) noexcept
