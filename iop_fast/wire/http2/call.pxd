"""C types of call.py."""

cimport cython

from iop_fast.wire.http2.peer cimport Peer, read_word

cdef int DATA, END_HEADERS, END_STREAM, HEADERS
cdef long long COST_OF_RESET, DATA_BYTES_PER_COST, EARNED_BY_MESSAGE
cdef Py_ssize_t MESSAGE_OVERHEAD_BYTES, PART_BYTES_MIN, PREFIX_BYTES
cdef int READS_A_TURN


@cython.final
cdef class Call:
    cdef readonly bint is_over, is_peer_ended
    cdef readonly str details
    cdef readonly object id, path, status
    cdef public object on_over
    cdef Peer _peer
    cdef object _last, _message, _messages, _parts, _prefix, _reader, _writer
    cdef int _reads
    cdef bint _has_answered, _is_deaf, _is_ended, _is_ending
    cdef long long _content_left, _part_bytes, _sent, _size, _uncredited, _waiting, _window
    cdef long long recv_window

    cdef bytes _pop(self)
    cdef _check_open(self)
    cpdef finish(self, status, str details=*)
    cpdef half_close(self)
    cpdef reset(self, int code)
    cdef _drop_received(self)
    cdef _end_ours(self, bytes last)
    @cython.locals(peer=Peer, last=bytes)
    cdef _put_last(self)
    @cython.locals(peer=Peer, size="Py_ssize_t", total="Py_ssize_t", head=bytes)
    cdef bint _put_whole(self, bytes message) except -1
    cdef bytes _answer_head(self)
    @cython.locals(peer=Peer, message=bytes, size="long long", total="long long", is_whole=bint)
    cdef flush(self)
    @cython.locals(start="long long", end="long long")
    cdef _add_part(self, list pieces, bytes message, long long size)
    cdef bint widen(self, long long byte_count) except -1
    cdef refuse(self, int http_status)
    cdef expect_content(self, long long byte_count)
    @cython.locals(size="Py_ssize_t")
    cdef take(self, bytes chunk, Py_ssize_t start, Py_ssize_t end)
    @cython.locals(prefix=bytes, at="Py_ssize_t", stop="Py_ssize_t", size="long long")
    cdef Py_ssize_t _take_prefix(self, bytes chunk, Py_ssize_t start, Py_ssize_t end) except -1
    @cython.locals(stop="Py_ssize_t", size="Py_ssize_t")
    cdef Py_ssize_t _take_part(self, bytes chunk, Py_ssize_t start, Py_ssize_t end) except -1
    cdef _deliver(self, bytes message)
    @cython.locals(held="long long")
    cdef bint _is_crowded(self, long long size) except -1
    cdef _refuse_message(self, int flag, long long size)
    cdef _give_up(self, int status, str text)
    @cython.locals(peer=Peer, credit="long long")
    cdef _give_credit(self)
    cdef take_padding(self, long long byte_count)
    cdef end_peer(self)
    cdef on_fields(self, list block, bint is_end)
    cdef end_by(self, ending)
    cdef fail(self, int code, str text)
    cpdef end(self, status, str details)
    cdef _wake_reader(self)
    cdef _wake_writer(self, bint is_sent)
