"""C types of connection.py."""

cimport cython

from iop_fast.wire.http2.call cimport Call
from iop_fast.wire.http2.life cimport Life
from iop_fast.wire.http2.peer cimport read_word

cdef int CLOSING, DRAINING, NEW, OPEN
cdef int CONTINUATION, DATA, GOAWAY, HEADERS, PING, PRIORITY, PUSH_PROMISE, RST_STREAM, SETTINGS, WINDOW_UPDATE
cdef int ACK, END_HEADERS, END_STREAM, PADDED, PRIORITY_FIELDS
cdef Py_ssize_t CONTROL_BYTES_MAX, FRAME_BYTES_MAX, HEAD_BYTES
cdef long long BLOCK_BYTES_FREE, BLOCK_BYTES_PER_COST, COST_OF_BLOCK, COST_OF_FRAME, COST_OF_PING, COST_OF_RESET, COST_OF_SETTINGS
cdef long long DATA_BYTES_PER_COST, FIELDS_FREE, SETTINGS_BYTES_MAX


@cython.final
cdef class Connection(Life):
    cdef Call _data_call
    cdef object _ended, _on_call, _reader
    cdef bytes _block, _rest
    cdef bint _data_ends
    cdef int _block_flags
    cdef long long _block_id, _recv_owed
    cdef Py_ssize_t _data_left, _pad_left, _preface, _skip_left

    @cython.locals(at="Py_ssize_t", size="Py_ssize_t", step="Py_ssize_t", taken="Py_ssize_t")
    cdef _feed(self, bytes chunk)
    @cython.locals(start="Py_ssize_t", step="Py_ssize_t")
    cdef Py_ssize_t _take_preface(self, bytes chunk) except -1
    @cython.locals(start="Py_ssize_t", stop="Py_ssize_t", length="Py_ssize_t", kind=int, flags=int,
                   stream_id="long long")
    cdef Py_ssize_t _take_frame(self, bytes chunk, Py_ssize_t at, Py_ssize_t size) except -1
    cdef _take_control(self, int kind, int flags, long long stream_id, bytes payload)
    @cython.locals(start="Py_ssize_t", padding="Py_ssize_t", call=Call)
    cdef Py_ssize_t _start_data(self, bytes chunk, Py_ssize_t at, Py_ssize_t size, Py_ssize_t length, int flags,
                                long long stream_id) except -1
    @cython.locals(gain="Py_ssize_t")
    cdef _pay_for_data(self, Py_ssize_t length, Py_ssize_t padding)
    @cython.locals(stop="Py_ssize_t", step="Py_ssize_t", call=Call)
    cdef Py_ssize_t _take_data(self, bytes chunk, Py_ssize_t at, Py_ssize_t size) except -1
    @cython.locals(call=Call, is_end=bint)
    cdef _end_data(self)
    cdef _end_side(self, Call call)
    @cython.locals(start="Py_ssize_t", stop="Py_ssize_t")
    cdef _on_headers(self, int flags, long long stream_id, bytes payload)
    cdef _on_continuation(self, int flags, bytes payload)
    @cython.locals(is_whole=bint, block=bytes, size="Py_ssize_t", found=list)
    cdef _add_block(self, bytes part, int flags)
    @cython.locals(call=Call)
    cdef _on_block(self, long long stream_id, list block, bint is_end)
    cdef _on_more_fields(self, Call call, list block, bint is_end)
    @cython.locals(call=Call)
    cdef _open(self, long long stream_id, list block, bint is_end)
    cdef _on_priority(self, long long stream_id, bytes payload)
    @cython.locals(call=Call)
    cdef _on_rst_stream(self, long long stream_id, bytes payload)
    cdef _on_settings(self, int flags, long long stream_id, bytes payload)
    @cython.locals(change="long long", call=Call)
    cdef _on_settings_ack(self)
    @cython.locals(change="long long", call=Call)
    cdef _set(self, long long name, long long value)
    cdef _on_ping(self, int flags, long long stream_id, bytes payload)
    @cython.locals(last_id="long long", number="long long", call=Call)
    cdef _on_goaway(self, long long stream_id, bytes payload)
    @cython.locals(byte_count="long long", call=Call)
    cdef _on_window_update(self, long long stream_id, bytes payload)
    cdef bint _is_idle(self, long long stream_id) except -1
