"""Heads of HTTP/1.1 messages to and from a provider; the contract stands in iop_fast/_hot/heads.pyi.

`read_plain_head` judges nothing doubtful: it takes heads of the form that RFC 9112 wants of senders, with the few
framing fields that real servers send, and returns None for everything else. Whoever calls it asks llhttp then.

Loops over a line need no look at the block's end: they stop at every control character, and a bytes object ends with a
NUL that is none of its own.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.tuple cimport PyTuple_Check, PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.stdint cimport uint64_t
from libc.string cimport memchr, memcmp, memcpy

ctypedef const unsigned char *Cursor

cdef enum:
    DIGITS_MAX = 18     # of a Content-Length
    FIELDS_MAX = 256
    CHUNKED_BODY = -1
    CLOSE_BODY = -2
    STATUS_LINE_MIN = 13

cdef uint64_t EACH = 0x0101010101010101U

CHUNKED = CHUNKED_BODY
UNTIL_CLOSE = CLOSE_BODY

# By byte: its lower case where it may stand in a token (RFC 9110, 5.6.2), else 0.
cdef unsigned char[256] TOKEN
# By byte: whether it may stand in a field's value: visible characters, space, tab, and bytes from 0x80 up.
cdef bint[256] TEXT


cdef void fill_tables() noexcept:
    cdef int c
    for c in range(256):
        TEXT[c] = c == 9 or (c >= 32 and c != 127)
        if 48 <= c <= 57 or 94 <= c <= 122 or c == 33 or 35 <= c <= 39:
            TOKEN[c] = c
        elif c == 42 or c == 43 or c == 45 or c == 46 or c == 124 or c == 126:
            TOKEN[c] = c
        elif 65 <= c <= 90:
            TOKEN[c] = c + 32


fill_tables()


cdef inline bytes name_of(object field):
    return <bytes?>(<object>PyTuple_GET_ITEM(field, 0))


cdef inline bytes value_of(object field):
    return <bytes?>(<object>PyTuple_GET_ITEM(field, 1))


cdef inline int check_field(object field) except -1:
    if not PyTuple_Check(field) or PyTuple_GET_SIZE(field) != 2:
        raise TypeError(f"expected a field as (name, value), got {type(field).__name__}")
    return 0


cdef bytes lowered(bytes name):
    """The name in lower case: itself where it is so already."""
    cdef Cursor text = <Cursor>PyBytes_AS_STRING(name)
    cdef Py_ssize_t at
    for at in range(PyBytes_GET_SIZE(name)):
        if 65 <= text[at] <= 90:
            return name.lower()
    return name


cdef inline unsigned char sign_of(bytes name) noexcept:
    """The same for every spelling of a name, and seldom the same for two names."""
    cdef Cursor text = <Cursor>PyBytes_AS_STRING(name)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(name)
    return <unsigned char>(size * 8 + TOKEN[text[0]] + TOKEN[text[size - 1]] * 5) if size else 0


@cython.final
cdef class Names:

    def __cinit__(self, names):
        cdef object name
        self._names = frozenset(names)
        for name in self._names:
            self._signs[sign_of(<bytes?>name)] = True

    cdef bint has(self, bytes name) except -1:
        return self._signs[sign_of(name)] and lowered(name) in self._names


cpdef list end_to_end(fields, Names drop):
    cdef list kept = []
    cdef list named = None
    cdef bytes name
    cdef object field
    for field in fields:
        check_field(field)
        name = name_of(field)
        if not drop.has(name):
            kept.append(field)
        elif PyBytes_GET_SIZE(name) == 10 and lowered(name) == b"connection":
            named = (named or []) + [word.strip().lower() for word in value_of(field).split(b",")]
    if named is not None:
        return [field for field in kept if lowered(name_of(field)) not in named]
    return kept


cpdef bint has_field(fields, Names names) except -1:
    cdef object field
    for field in fields:
        check_field(field)
        if names.has(name_of(field)):
            return True
    return False


cdef inline bint is_token(bytes word) noexcept:
    cdef Cursor text = <Cursor>PyBytes_AS_STRING(word)
    cdef Py_ssize_t at
    for at in range(PyBytes_GET_SIZE(word)):
        if not TOKEN[text[at]]:
            return False
    return PyBytes_GET_SIZE(word) > 0


cdef inline bint is_one_line(bytes text) noexcept:
    """True without NUL, CR and LF. Eight bytes at a time are looked at for anything below 14."""
    cdef Cursor at = <Cursor>PyBytes_AS_STRING(text)
    cdef Cursor end = at + PyBytes_GET_SIZE(text)
    cdef uint64_t word
    while end - at >= 8:
        memcpy(&word, at, 8)
        if (word - EACH * 14) & ~word & (EACH * 128) and not is_line(at, at + 8):
            return False
        at += 8
    return is_line(at, end)


cdef inline bint is_line(Cursor at, Cursor end) noexcept:
    while at < end:
        if at[0] <= 13 and (at[0] == 0 or at[0] == 10 or at[0] == 13):
            return False
        at += 1
    return True


cdef inline char *put(char *at, bytes text) noexcept:
    memcpy(at, PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))
    return at + PyBytes_GET_SIZE(text)


cdef inline char *put_text(char *at, const char *text, Py_ssize_t size) noexcept:
    memcpy(at, text, size)
    return at + size


cpdef bytes write_request(bytes method, bytes target, bytes host, list fields, bytes body):
    cdef Py_ssize_t size = PyBytes_GET_SIZE(method) + PyBytes_GET_SIZE(target) + PyBytes_GET_SIZE(host) + 22
    cdef object field
    cdef bytes name, value, block
    cdef char *at
    cdef bint are_tokens = is_token(method)
    for field in fields:
        check_field(field)
        name = name_of(field)
        value = value_of(field)
        are_tokens = are_tokens and is_token(name)
        if not is_one_line(value):
            raise ValueError("a header field holds a line end or NUL")
        size += PyBytes_GET_SIZE(name) + PyBytes_GET_SIZE(value) + 4
    if not are_tokens:
        raise ValueError("expected a method and field names that are tokens")
    block = PyBytes_FromStringAndSize(NULL, size + PyBytes_GET_SIZE(body))
    at = put(PyBytes_AS_STRING(block), method)
    at = put_text(at, b" ", 1)
    at = put(at, target)
    at = put_text(at, b" HTTP/1.1\r\nHost: ", 17)
    at = put(at, host)
    at = put_text(at, b"\r\n", 2)
    for field in fields:
        at = put(at, name_of(field))
        at = put_text(at, b": ", 2)
        at = put(at, value_of(field))
        at = put_text(at, b"\r\n", 2)
    at = put_text(at, b"\r\n", 2)
    put(at, body)
    return block


cpdef Py_ssize_t line_text_size(list fields) except -1:
    cdef Py_ssize_t size = 0
    cdef object field
    cdef bytes name, value
    for field in fields:
        check_field(field)
        name = name_of(field)
        value = value_of(field)
        if not is_one_line(name) or not is_one_line(value):
            raise ValueError("a header field holds a line end or NUL")
        size += PyBytes_GET_SIZE(name) + PyBytes_GET_SIZE(value)
    return size


# What of a plain head says where its body ends.
cdef struct Framing:
    long long length
    bint has_length
    bint is_chunked
    bint has_connection
    bint closes


cdef inline bint is_word(Cursor start, Cursor end, const char *word, Py_ssize_t size) noexcept:
    """True when this is the word, whatever its case."""
    cdef Py_ssize_t at
    if end - start != size:
        return False
    for at in range(size):
        if TOKEN[start[at]] != <unsigned char>word[at]:
            return False
    return True


cdef bint note_framing(Cursor name, Cursor name_end, Cursor value, Cursor end, Framing *framing) noexcept:
    """Take a field that frames the body; False when it is not of the plain form."""
    cdef Py_ssize_t size = name_end - name
    if size == 14 and is_word(name, name_end, b"content-length", 14):
        if framing.has_length or not 1 <= end - value <= DIGITS_MAX:
            return False
        framing.has_length = True
        while value < end:
            if not 48 <= value[0] <= 57:
                return False
            framing.length = framing.length * 10 + (value[0] - 48)
            value += 1
    elif size == 17 and is_word(name, name_end, b"transfer-encoding", 17):
        if framing.is_chunked or not is_word(value, end, b"chunked", 7):
            return False
        framing.is_chunked = True
    elif size == 10 and is_word(name, name_end, b"connection", 10):
        if framing.has_connection:
            return False
        framing.has_connection = True
        framing.closes = is_word(value, end, b"close", 5)
        return framing.closes or is_word(value, end, b"keep-alive", 10)
    elif size == 7 and is_word(name, name_end, b"upgrade", 7):
        return False
    elif size == 16 and is_word(name, name_end, b"proxy-connection", 16):
        return False
    return True


cdef inline bytes cut(Cursor start, Cursor end):
    return PyBytes_FromStringAndSize(<const char *>start, end - start)


cpdef object read_plain_head(bytes data, Py_ssize_t end):
    cdef Cursor at = <Cursor>PyBytes_AS_STRING(data)
    cdef Cursor stop = at + end - 2         # of the empty line
    cdef Cursor name, name_end, value, line_end
    cdef Framing framing
    cdef list fields = []
    cdef int status
    cdef bytes reason
    if end < STATUS_LINE_MIN + 4 or end > PyBytes_GET_SIZE(data) or memcmp(at, b"HTTP/1.1 ", 9) != 0:
        return None
    if not (50 <= at[9] <= 57 and 48 <= at[10] <= 57 and 48 <= at[11] <= 57 and at[12] == 32):   # no interim answer
        return None
    status = (at[9] - 48) * 100 + (at[10] - 48) * 10 + (at[11] - 48)
    line_end = end_of_text(at + 13, stop)
    if line_end == NULL:
        return None
    reason = cut(at + 13, line_end)
    at = line_end + 2
    framing.length = 0
    framing.has_length = framing.is_chunked = framing.has_connection = framing.closes = False
    while at < stop:
        name = at
        while TOKEN[at[0]]:
            at += 1
        if at == name or at[0] != 58:
            return None
        name_end = at
        at += 1
        while at[0] == 32 or at[0] == 9:
            at += 1
        value = at
        line_end = end_of_text(at, stop)
        if line_end == NULL or len(fields) == FIELDS_MAX:
            return None
        at = line_end + 2
        while line_end > value and ((line_end - 1)[0] == 32 or (line_end - 1)[0] == 9):
            line_end -= 1
        if not note_framing(name, name_end, value, line_end, &framing):
            return None
        fields.append((cut(name, name_end), cut(value, line_end)))
    if at != stop or at[0] != 13 or at[1] != 10 or (framing.has_length and framing.is_chunked):
        return None
    return finished(status, reason, fields, &framing)


cdef Cursor end_of_text(Cursor at, Cursor stop) noexcept:
    """The place of the CRLF that ends a line of text; NULL for a line that ends otherwise. A CR stands before `stop`'s
    own, at the latest there."""
    while TEXT[at[0]]:
        at += 1
    return at if at < stop and at[0] == 13 and at[1] == 10 else NULL


cdef object finished(int status, bytes reason, list fields, Framing *framing):
    """Where the body ends (RFC 9112, section 6.3), and whether the connection may be kept."""
    cdef bint is_empty = status == 204 or status == 304
    cdef bint has_end = is_empty or framing.has_length or framing.is_chunked
    cdef object length
    if is_empty:
        length = 0
    elif framing.is_chunked:
        length = CHUNKED
    elif framing.has_length:
        length = framing.length
    else:
        length = UNTIL_CLOSE
    return status, reason, fields, length, has_end and not framing.closes


cpdef Py_ssize_t find_head_end(bytes data, Py_ssize_t start) except -1:
    cdef Cursor begin = <Cursor>PyBytes_AS_STRING(data)
    cdef Cursor end = begin + PyBytes_GET_SIZE(data)
    cdef Cursor at = begin + min(start, PyBytes_GET_SIZE(data))
    while True:
        at = <Cursor>memchr(at, 10, end - at)
        if at == NULL or at + 1 >= end:
            return 0
        at += 1
        if at[0] == 10:
            return at + 1 - begin
        if at[0] == 13 and at + 1 < end and at[1] == 10:
            return at + 2 - begin
