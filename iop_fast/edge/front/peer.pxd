"""C types of peer.py."""

from iop_fast._hot.ages cimport AgeList
from iop_fast.edge.front.shared cimport Shared


cdef long long NO_HANDLE


cdef class Peer:
    cdef object _address
    cdef Shared _front
    cdef bint _is_writable
    cdef long long _phase_handle, _stall_handle, _stall_taken, _written
    cdef AgeList _phase_list
    cdef int _state
    cdef readonly object _transport

    cpdef write(self, bytes block)
    cpdef bytes date_line(self)
    cpdef bint can_keep(self) except -1
    cpdef on_answer_end(self, bint keeps)
    cpdef on_answer_cut(self, bint is_ended_by_close)
    cpdef close(self)
    cpdef linger(self)
    cpdef reset(self)
    cdef _enter_closing(self)
    cdef _enter_closed(self)
    cdef _drop_all(self)
    cdef _watch(self, AgeList ages)
    cdef _unwatch(self)
    cdef _watch_stall(self)
    cdef _unwatch_stall(self)
