"""C types of peer.py."""

cimport cython

cdef int CLOSING, NEW
cdef long long ALLOWANCE, ANSWER_BYTES_MAX, HEAVY_ALLOWANCE, JOIN_BYTES_MAX
cdef double ALLOWANCE_S


cdef class Peer:
    cdef readonly object limits, loop
    cdef readonly object transport
    cdef readonly bint is_known, is_server, is_writable
    cdef readonly str end_reason
    cdef readonly long long frame_bytes_max, message_bytes_max, receive_bytes_max, window, window_bytes
    cdef int _state
    cdef bint _is_feeding
    cdef list _answers
    cdef long long _allowance, _answer_bytes, _heavy
    cdef double _heavy_at, _refilled_at

    cpdef on_known(self)
    cpdef on_call_over(self, call)
    cpdef abort(self, str reason)
    @cython.locals(size="Py_ssize_t")
    cdef put(self, list pieces)
    cdef put_whole(self, bytes head, bytes message)
    cpdef answer(self, bytes frame)
    @cython.locals(frame=bytes)
    cdef put_answers(self)
    cdef charge(self, long long cost)
    cdef charge_heavy(self, long long cost)
    cdef earn(self, long long gain)


@cython.locals(word="long long")
cpdef long long read_word(bytes block, Py_ssize_t at) except -1
