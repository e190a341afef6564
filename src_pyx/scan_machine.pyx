"""The grammar of a JSON body; the contract stands in iop_fast/_core/scan_machine.pxd.

`run` takes one piece, byte by byte; whatever is open at the end of the piece (a string, half an escape, two bytes of a
character, a number) is in the Machine, so any split gives the same result. No byte of the body is kept but these, all
bounded: the top-level keys (at most 256 of at most 256 bytes), the model (1,024 characters), and the short names and
`type` values that decide what a string is. Work is O(bytes); memory is O(max_depth).

The grammar between strings and numbers stands here; the inside of those in json_string.pyx and json_number.pxd, what a
key means in scan_names.pyx, what is counted in scan_roles.pyx, the top-level keys in scan_keys.pyx.

Functions that take bytes return where they stopped, or NULL after a fault; the first fault stays.

The grammar is RFC 8259's without any leniency: an object at the top, no byte order mark, no comments, no NaN, nothing
behind the closing brace but white space. Strings are well-formed UTF-8; an escaped lone surrogate is JSON and is
accepted, but not in the model. The first fault in byte order is the one reported.

What one parser reads and another does not is refused here, since the provider's parser must see the request that was
admitted: a top-level key given twice (decoded keys are compared byte by byte, so there are no collisions), and a key
that is one of ours in other letters (`Model`, `STREAM`), which a parser that folds case takes for it.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t

from iop_fast._core.json_number cimport NOT_A_NUMBER, NumberState, open_number, take_number
from iop_fast._core.json_string cimport (
    STRING_CLOSED,
    STRING_CONTROL,
    STRING_ESCAPE,
    STRING_HEX,
    STRING_OPEN,
    STRING_UTF8,
    UNITS_PER_TOKEN,
    open_string,
    take_string,
)
from iop_fast._core.scan_faults cimport (
    FAULT_BYTE_ORDER_MARK,
    FAULT_COLON,
    FAULT_COMMA_ARRAY,
    FAULT_COMMA_OBJECT,
    FAULT_CONTROL,
    FAULT_DEPTH,
    FAULT_ESCAPE,
    FAULT_FIRST_ITEM,
    FAULT_FIRST_KEY,
    FAULT_HEX,
    FAULT_KEY,
    FAULT_KEY_COUNT,
    FAULT_KEY_LENGTH,
    FAULT_LITERAL,
    FAULT_MESSAGES_TYPE,
    FAULT_MODEL_LENGTH,
    FAULT_MODEL_SURROGATE,
    FAULT_MODEL_TYPE,
    FAULT_NOT_OBJECT,
    FAULT_NUMBER,
    FAULT_START,
    FAULT_STREAM_TYPE,
    FAULT_TRAILING,
    FAULT_UTF8,
    FAULT_VALUE,
    KEY_BYTES,
    KEY_LIMIT,
    NO_FAULT,
    Fault,
)
from iop_fast._core.scan_keys cimport add_key, save_text
from iop_fast._core.scan_names cimport (
    MEDIA,
    NAME_BYTES,
    NAME_MESSAGES,
    NAME_MODEL,
    NAME_STREAM,
    NAME_TEXTS,
    OTHER,
    SCHEMA,
    TEXTS,
    TOP,
    UNNAMED,
    Name,
    Role,
    name_in,
    top_name,
)
from iop_fast._core.scan_roles cimport (
    SCHEMA_SCALAR_UNITS,
    SCHEMA_STRING_UNITS,
    Frame,
    count_frame,
    expect_string,
    mark_schema,
    note_value,
    role_of_child,
    weigh,
)


cdef const uint8_t *fail_at(Machine *m, Fault fault, int64_t offset) noexcept:
    if m.fault == NO_FAULT:
        m.fault = fault
        m.fault_at = offset
    return NULL


cdef inline int64_t offset(Machine *m, const uint8_t *p) noexcept:
    return m.base + (p - m.piece)


cdef const uint8_t *fail(Machine *m, Fault fault, const uint8_t *p) noexcept:
    return fail_at(m, fault, offset(m, p))


cdef void run(Machine *m, const uint8_t *piece, Py_ssize_t size) noexcept:
    cdef const uint8_t *p = piece
    cdef const uint8_t *end = piece + size
    m.piece = piece
    while p != NULL and p < end:
        if m.state < IN_STRING:
            p = take_structure(m, p, end)
        elif m.state == IN_STRING:
            p = go_on_string(m, p, end)
        elif m.state == IN_LITERAL:
            p = go_on_literal(m, p, end)
        else:
            p = go_on_number(m, m.number, p, end)
    m.base += size
    m.piece = NULL


cdef const uint8_t *take_structure(Machine *m, const uint8_t *p, const uint8_t *end) noexcept:
    """Take what stands between strings, up to the next string's quote or the end of the piece."""
    cdef State state = m.state
    cdef uint8_t c
    while p < end:
        c = p[0]
        if c == 32 or c == 10 or c == 13 or c == 9:
            p += 1
        elif c == 44 and state == AT_COMMA:
            state = AT_KEY if m.frames[m.depth - 1].is_object else AT_VALUE
            p += 1
        elif c == 58 and state == AT_COLON:
            state = AT_VALUE
            p += 1
        else:
            m.state = state
            p = take_mark(m, c, p, end)
            state = m.state
            if p == NULL or state >= IN_STRING:
                return p
    m.state = state
    return p


cdef const uint8_t *take_mark(Machine *m, uint8_t c, const uint8_t *p, const uint8_t *end) noexcept:
    """Take the byte that begins or ends a value or a key, and a number or literal with it."""
    if m.state == AT_VALUE:
        return begin_value(m, c, p, end)
    if m.state == AT_KEY or m.state == AT_FIRST_KEY:
        return begin_member(m, c, p)
    if m.state == AT_COMMA:
        return end_frame(m, c, p)
    if m.state == AT_FIRST_ITEM:
        return close_frame(m, p) if c == 93 else begin_value(m, c, p, end)
    if m.state == AT_START:
        return begin_body(m, c, p)
    return fail(m, FAULT_COLON if m.state == AT_COLON else FAULT_TRAILING, p)


cdef inline const uint8_t *begin_member(Machine *m, uint8_t c, const uint8_t *p) noexcept:
    if c == 34:
        return begin_key(m, p)
    if m.state == AT_KEY:
        return fail(m, FAULT_KEY, p)
    if c != 125:
        return fail(m, FAULT_FIRST_KEY, p)
    return close_frame(m, p)


cdef const uint8_t *begin_body(Machine *m, uint8_t c, const uint8_t *p) noexcept:
    if c == 123:
        m.frames[0] = Frame(is_object=True, role=TOP, kinds=0, name=UNNAMED, held=0)
        m.depth = 1
        m.insert_at = offset(m, p) + 1
        m.state = AT_FIRST_KEY
        return p + 1
    if c == 91 or c == 34 or c == 45 or 48 <= c <= 57 or c == 116 or c == 102 or c == 110:
        return fail(m, FAULT_NOT_OBJECT, p)
    return fail(m, FAULT_BYTE_ORDER_MARK if c == 0xEF else FAULT_START, p)


cdef inline const uint8_t *end_frame(Machine *m, uint8_t c, const uint8_t *p) noexcept:
    cdef bint is_object = m.frames[m.depth - 1].is_object
    if c == (125 if is_object else 93):
        return close_frame(m, p)
    return fail(m, FAULT_COMMA_OBJECT if is_object else FAULT_COMMA_ARRAY, p)


cdef inline const uint8_t *begin_value(Machine *m, uint8_t c, const uint8_t *p, const uint8_t *end) noexcept:
    cdef Frame *frame = &m.frames[m.depth - 1]
    if frame.role == TOP and not admit_top_value(m, <Name>frame.name, c, p):
        return NULL
    m.value_count += 1
    if m.frames[0].name == NAME_MESSAGES or m.frames[0].name == NAME_TEXTS:
        m.input_value_count += 1
    if c == 34:
        return begin_string(m, frame, p)
    if c == 123 or c == 91:
        return open_frame(m, frame, c == 123, p)
    if c == 116:
        m.literal = b"rue"
        m.is_stream = m.is_stream or (frame.role == TOP and frame.name == NAME_STREAM)
    elif c == 102:
        m.literal = b"alse"
    elif c == 110:
        m.literal = b"ull"
    else:
        return begin_number(m, frame, c, p, end)
    if frame.role == SCHEMA:
        mark_schema(&m.found, SCHEMA_SCALAR_UNITS, m.depth)
    m.state = IN_LITERAL
    return go_on_literal(m, p + 1, end)


cdef bint admit_top_value(Machine *m, Name name, uint8_t c, const uint8_t *p) noexcept:
    """Note where a top-level value begins; refuse one of the wrong type where the type matters."""
    cdef bint is_literal = c == 116 or c == 102 or c == 110
    cdef bint is_value = is_literal or c == 34 or c == 123 or c == 91 or c == 45 or 48 <= c <= 57
    m.top.keys[m.top.count - 1].value_start = offset(m, p)
    if not is_value:
        return True
    if name == NAME_MODEL and c != 34:
        fail(m, FAULT_MODEL_TYPE, p)
    elif name == NAME_STREAM and not is_literal:
        fail(m, FAULT_STREAM_TYPE, p)
    elif name == NAME_MESSAGES and c != 91:
        fail(m, FAULT_MESSAGES_TYPE, p)
    return m.fault == NO_FAULT


cdef inline void end_value(Machine *m, int64_t offset) noexcept:
    """The value that the top frame waited for ends before `offset`."""
    m.state = AT_COMMA
    if m.depth == 1:
        m.top.keys[m.top.count - 1].value_end = offset


cdef const uint8_t *open_frame(Machine *m, Frame *frame, bint is_object, const uint8_t *p) noexcept:
    cdef Frame *child
    if m.depth == m.max_depth:
        return fail(m, FAULT_DEPTH, p)
    child = frame + 1
    child.is_object = is_object
    child.role = role_of_child(&m.found, frame, is_object, m.depth)
    child.kinds = 0
    child.name = UNNAMED
    child.held = 0
    m.depth += 1
    m.state = AT_FIRST_KEY if is_object else AT_FIRST_ITEM
    return p + 1


cdef const uint8_t *close_frame(Machine *m, const uint8_t *p) noexcept:
    cdef Frame *frame = &m.frames[m.depth - 1]
    m.depth -= 1
    if m.depth == 0:
        m.state = AT_END
        return p + 1
    count_frame(&m.found, frame)
    end_value(m, offset(m, p) + 1)
    return p + 1


cdef inline void enter_string(Machine *m, uint32_t limit, const uint8_t *p) noexcept:
    m.state = IN_STRING
    m.string_at = offset(m, p)
    m.is_key = False
    m.weighs = False
    open_string(&m.string, limit)


cdef const uint8_t *begin_key(Machine *m, const uint8_t *p) noexcept:
    cdef Role role = <Role>m.frames[m.depth - 1].role
    if role == TOP:
        if m.top.count == KEY_LIMIT:
            return fail(m, FAULT_KEY_COUNT, p)
        enter_string(m, KEY_BYTES, p)
        m.string.is_strict = True
    elif role == SCHEMA:
        enter_string(m, 0, p)
        m.weighs = True
        mark_schema(&m.found, SCHEMA_STRING_UNITS, m.depth)
    else:
        enter_string(m, 0 if role == OTHER or role == MEDIA else NAME_BYTES, p)
    m.is_key = True
    return p + 1


cdef inline const uint8_t *begin_string(Machine *m, Frame *frame, const uint8_t *p) noexcept:
    """Begin a string that is a value; its frame and key say what it is."""
    enter_string(m, 0, p)
    m.weighs = expect_string(&m.found, frame, &m.string, m.depth)
    return p + 1


cdef const uint8_t *go_on_string(Machine *m, const uint8_t *p, const uint8_t *end) noexcept:
    p = take_string(&m.string, p, end)
    if m.string.status == STRING_OPEN:
        return p
    if m.string.status == STRING_CLOSED:
        return close_string(m, p)
    if m.string.status == STRING_CONTROL:
        return fail(m, FAULT_CONTROL, p)
    if m.string.status == STRING_ESCAPE:
        return fail(m, FAULT_ESCAPE, p)
    if m.string.status == STRING_HEX:
        return fail(m, FAULT_HEX, p)
    if m.string.status == STRING_UTF8:
        return fail(m, FAULT_UTF8, p)
    return fail_at(m, FAULT_KEY_LENGTH if m.is_key else FAULT_MODEL_LENGTH, m.string_at)


cdef const uint8_t *close_string(Machine *m, const uint8_t *p) noexcept:
    """The string ended before `p`: count it, and note what was kept of it."""
    cdef Frame *frame = &m.frames[m.depth - 1]
    if m.weighs:
        weigh(&m.found, frame, m.string.units)
    if m.is_key:
        if frame.role == TOP:
            if not note_key(m):
                return NULL
        elif m.string.limit:
            frame.name = UNNAMED
            if not m.string.is_cut:
                frame.name = name_in(<Role>frame.role, m.string.kept, m.string.length)
        m.state = AT_COLON
        return p
    if m.string.limit:
        if frame.role != TOP:
            note_value(&m.found, frame, &m.string)
        elif not note_model(m):
            return NULL
    end_value(m, offset(m, p))
    return p


cdef bint note_model(Machine *m) noexcept:
    if m.string.is_lone:
        fail_at(m, FAULT_MODEL_SURROGATE, m.string_at)
        return False
    m.model_key = m.top.count - 1
    m.model_at = m.top.used
    m.model_length = m.string.length
    return noted(m, save_text(&m.top, m.string.kept, m.string.length))


cdef bint note_key(Machine *m) noexcept:
    """A top-level key is complete."""
    m.frames[0].name = top_name(m.string.kept, m.string.length)
    return noted(m, add_key(&m.top, m.string.kept, m.string.length))


cdef inline bint noted(Machine *m, Fault fault) noexcept:
    if fault != NO_FAULT:
        fail_at(m, fault, m.string_at)
    return fault == NO_FAULT


cdef inline const uint8_t *begin_number(
    Machine *m, Frame *frame, uint8_t c, const uint8_t *p, const uint8_t *end
) noexcept:
    cdef NumberState number = open_number(c)
    if number == NOT_A_NUMBER:
        return fail(m, FAULT_FIRST_ITEM if m.state == AT_FIRST_ITEM else FAULT_VALUE, p)
    if frame.role == TEXTS:
        m.found.units += UNITS_PER_TOKEN
    elif frame.role == SCHEMA:
        mark_schema(&m.found, SCHEMA_SCALAR_UNITS, m.depth)
    p += 1
    if c > 48:
        while p < end and 48 <= p[0] <= 57:
            p += 1
        if p < end and (p[0] == 44 or p[0] == 93):      # fast path for tokens: whole numbers in an array
            end_value(m, offset(m, p))
            return p
    return go_on_number(m, number, p, end)


cdef const uint8_t *go_on_number(Machine *m, NumberState number, const uint8_t *p, const uint8_t *end) noexcept:
    p = take_number(&number, p, end)
    if number == NOT_A_NUMBER:
        return fail(m, FAULT_NUMBER, p)
    if p < end:
        end_value(m, offset(m, p))
    else:
        m.number = number
        m.state = IN_NUMBER
    return p


cdef const uint8_t *go_on_literal(Machine *m, const uint8_t *p, const uint8_t *end) noexcept:
    while p < end:
        if p[0] != <uint8_t>m.literal[0]:
            return fail(m, FAULT_LITERAL, p)
        p += 1
        m.literal += 1
        if m.literal[0] == 0:
            end_value(m, offset(m, p))
            return p
    return p
