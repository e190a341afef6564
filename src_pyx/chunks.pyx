"""Chunked request bodies: see iop_fast/_hot/chunks.pyi for the contract.

The automaton (RFC 9112, 7.1; a lone CR or LF is an error everywhere):

    SIZE_FIRST -hex-> SIZE -";"-> EXTENSION
    SIZE, EXTENSION -CR-> SIZE_LF -LF-> DATA            size > 0
                                     -> TRAILER_FIRST   size = 0
    DATA -size bytes-> DATA_CR -CR-> DATA_LF -LF-> SIZE_FIRST
    TRAILER_FIRST -CR-> FINAL_LF -LF-> COMPLETE
    TRAILER_FIRST -token-> TRAILER_NAME -":"-> TRAILER_VALUE -CR-> TRAILER_LF -LF-> TRAILER_FIRST

Every error leads to DEAD. Only whole bytes of framing are counted against the payload, at line ends and at the end of
a feed, so the verdict does not depend on how the bytes were split; within a line the line's own bound holds.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.string cimport memcpy

cdef enum State:
    SIZE_FIRST
    SIZE
    EXTENSION
    SIZE_LF
    DATA
    DATA_CR
    DATA_LF
    TRAILER_FIRST
    TRAILER_NAME
    TRAILER_VALUE
    TRAILER_LF
    FINAL_LF
    COMPLETE
    DEAD

cdef enum:
    SIZE_DIGITS_MAX = 16
    LINE_BYTES_MAX = 4096
    TRAILER_BYTES_MAX = 16384
    TRAILER_FIELDS_MAX = 100
    OVERHEAD_FACTOR = 16
    OVERHEAD_BYTES = 16384


class ChunkError(ValueError):
    pass


class PayloadTooLargeError(ChunkError):
    pass


cdef inline int hex_value(unsigned char c) noexcept:
    if 48 <= c <= 57:
        return c - 48
    c |= 0x20
    if 97 <= c <= 102:
        return c - 87
    return -1


cdef inline bint is_token(unsigned char c) noexcept:
    """RFC 9110, 5.6.2: a digit, a letter or one of !#$%&'*+-.^_`|~."""
    if 48 <= c <= 57 or 65 <= c <= 90 or 94 <= c <= 122:
        return True
    return c == 33 or 35 <= c <= 39 or c == 42 or c == 43 or c == 45 or c == 46 or c == 124 or c == 126


cdef inline bint is_text(unsigned char c) noexcept:
    """What a field value may hold: visible characters, space, tab and bytes from 0x80 up."""
    return c == 9 or (c >= 32 and c != 127)


@cython.final
cdef class ChunkDecoder:
    cdef State _state
    cdef int _digits
    cdef int _line_bytes
    cdef int _trailer_bytes
    cdef int _trailer_fields
    cdef unsigned long long _chunk_left
    cdef unsigned long long _payload
    cdef unsigned long long _overhead
    cdef unsigned long long _payload_max
    cdef readonly Py_ssize_t consumed

    def __cinit__(self, unsigned long long payload_bytes_max):
        self._payload_max = payload_bytes_max
        self._state = SIZE_FIRST

    @property
    def is_complete(self):
        return self._state == COMPLETE

    @property
    def left(self):
        return self._chunk_left if self._state == DATA else 0

    def feed(self, data):
        cdef Py_buffer view
        cdef char *payload = NULL
        cdef Py_ssize_t payload_size = 0
        if self._state == COMPLETE or self._state == DEAD:
            raise ValueError("the chunked body has ended already")
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            payload = <char *>PyMem_Malloc(view.len if view.len else 1)
            if payload == NULL:
                raise MemoryError()
            payload_size = self._run(<const unsigned char *>view.buf, view.len, payload)
            return PyBytes_FromStringAndSize(payload, payload_size)
        finally:
            PyMem_Free(payload)
            PyBuffer_Release(&view)

    cdef Py_ssize_t _run(self, const unsigned char *data, Py_ssize_t size, char *payload) except -1:
        """Take `data`, write the payload in it to `payload` and return its size; sets `consumed`."""
        cdef Py_ssize_t at = 0
        cdef Py_ssize_t written = 0
        cdef Py_ssize_t piece
        while at < size and self._state != COMPLETE:
            if self._state == DATA:
                piece = size - at
                if <unsigned long long>piece > self._chunk_left:
                    piece = <Py_ssize_t>self._chunk_left
                memcpy(payload + written, data + at, piece)
                written += piece
                at += piece
                self._payload += <unsigned long long>piece
                self._chunk_left -= <unsigned long long>piece
                if self._chunk_left == 0:
                    self._state = DATA_CR
            else:
                self._step(data[at])
                self._overhead += 1
                at += 1
        self._check_overhead()
        self.consumed = at
        return written

    cdef int _step(self, unsigned char c) except -1:
        """Take one byte of framing."""
        cdef State state = self._state
        if state == SIZE_FIRST or state == SIZE:
            return self._on_size(c)
        if state == EXTENSION:
            return self._on_extension(c)
        if state == SIZE_LF:
            return self._on_size_end(c)
        if state == DATA_CR:
            return self._expect(c, 13, DATA_LF, "CR after the chunk's data")
        if state == DATA_LF:
            return self._expect(c, 10, SIZE_FIRST, "LF after the chunk's data")
        if state == FINAL_LF:
            return self._expect(c, 10, COMPLETE, "LF at the end of the body")
        return self._on_trailer(c)

    cdef int _expect(self, unsigned char c, unsigned char wanted, State following, str what) except -1:
        if c != wanted:
            self._die(f"expected {what}")
        self._state = following
        return 0

    cdef int _on_size(self, unsigned char c) except -1:
        cdef int digit = hex_value(c)
        if digit >= 0:
            if self._state == SIZE_FIRST:
                self._digits = 0
                self._line_bytes = 0
                self._chunk_left = 0
                self._state = SIZE
            self._digits += 1
            if self._digits > SIZE_DIGITS_MAX:
                self._die("chunk size has too many digits")
            self._chunk_left = self._chunk_left * 16 + <unsigned long long>digit
        elif self._state == SIZE and c == 13:
            self._state = SIZE_LF
        elif self._state == SIZE and c == 59:
            self._state = EXTENSION
        else:
            self._die("chunk size is not a hexadecimal number")
        return 0

    cdef int _on_extension(self, unsigned char c) except -1:
        self._line_bytes += 1
        if c == 13:
            self._state = SIZE_LF
        elif not is_text(c):
            self._die("chunk extension holds a control character")
        elif self._line_bytes > LINE_BYTES_MAX:
            self._die(f"chunk extension is longer than {LINE_BYTES_MAX} bytes")
        return 0

    cdef int _on_size_end(self, unsigned char c) except -1:
        if c != 10:
            self._die("expected LF after the chunk's size")
        if self._chunk_left == 0:
            self._state = TRAILER_FIRST
            return 0
        if self._chunk_left > self._payload_max - self._payload:
            self._state = DEAD
            raise PayloadTooLargeError(f"body is larger than {self._payload_max} bytes")
        self._check_overhead()
        self._state = DATA
        return 0

    cdef int _on_trailer(self, unsigned char c) except -1:
        cdef State state = self._state
        self._trailer_bytes += 1
        if self._trailer_bytes > TRAILER_BYTES_MAX:
            self._die(f"trailers are larger than {TRAILER_BYTES_MAX} bytes")
        if state == TRAILER_FIRST and c == 13:
            self._state = FINAL_LF
        elif (state == TRAILER_FIRST or state == TRAILER_NAME) and is_token(c):
            self._state = TRAILER_NAME
        elif state == TRAILER_NAME and c == 58:
            self._state = TRAILER_VALUE
        elif state == TRAILER_VALUE and c == 13:
            self._state = TRAILER_LF
        elif state == TRAILER_VALUE and is_text(c):
            pass
        elif state == TRAILER_LF and c == 10:
            self._trailer_fields += 1
            if self._trailer_fields > TRAILER_FIELDS_MAX:
                self._die(f"more than {TRAILER_FIELDS_MAX} trailer fields")
            self._state = TRAILER_FIRST
        else:
            self._die("malformed trailer field")
        return 0

    cdef int _check_overhead(self) except -1:
        if self._overhead > OVERHEAD_FACTOR * self._payload + OVERHEAD_BYTES:
            self._die("chunk framing is out of proportion to the body")
        return 0

    cdef int _die(self, str message) except -1:
        self._state = DEAD
        raise ChunkError(message)
