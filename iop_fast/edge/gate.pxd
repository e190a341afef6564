"""C types of gate.py."""

from iop_fast._core.clock cimport Clock as CoreClock


cdef class Gate:
    cdef readonly object _admission
    cdef CoreClock _clock
    cdef object _loop, _timer
    cdef bint _is_reclaim_due
    cdef long long _timer_ns

    cpdef submit(self, owner, str model, bint long, needs)
    cpdef readmit(self, owner, str model, needs, ended)
    cpdef bint release(self, lease) except -1
    cpdef bint cancel(self, waiter) except -1
    cpdef provider_key(self, lease)
    cdef _after_step(self)
