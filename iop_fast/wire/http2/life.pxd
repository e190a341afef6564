"""C types of life.py."""

cimport cython

from iop_fast.wire.http2.call cimport Call
from iop_fast.wire.http2.peer cimport Peer

cdef int CLOSED, CLOSING, DRAINING, NEW, OPEN
cdef int END_HEADERS, HEADERS, PING
cdef long long CONNECTION_WINDOWS, FRAME_BYTES_MAX


cdef class Life(Peer):
    cdef dict _calls
    cdef object _on_lost, _timer
    cdef readonly object ready
    cdef bint _is_acked, _is_block_open, _is_heard, _is_pinged, _is_told
    cdef readonly long long peer_calls_max
    cdef long long _block_ticks, _initial_window, _last_id, _recv_initial, _recv_window
    cdef double _due, _idle_since

    cpdef drop_input(self)
    @cython.locals(call=Call)
    cdef _flush_calls(self)
    cdef _tell(self, int code, str text)
    cpdef shut(self, int code, str text, str reason)
    @cython.locals(call=Call)
    cdef _finish_calls(self, str reason)
    @cython.locals(call=Call)
    cdef _enter_closing(self, str reason)
    cdef _set_timer(self, delay_ns)
    cdef _look_for_idleness(self)
