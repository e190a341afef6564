"""C types of shared.py."""

cimport cython

from iop_fast._core.clock cimport Clock as CoreClock
from iop_fast._hot.ages cimport AgeList
from iop_fast.edge.front.head cimport HeadParser


cdef class FrontCounters:
    cdef public long long connections, requests, requests_dropped, answers_cut, stalls, internal_errors
    cdef public dict refusals

    cpdef count_refusal(self, failure)


cdef class Turns:
    cdef CoreClock _clock
    cdef object _loop, _waiting
    cdef long long _until_ns
    cdef bint _is_open

    @cython.locals(now_ns="long long")
    cpdef bint is_spent(self) except -1
    cpdef wait(self, connection)


cdef class Shared:
    cdef public object service, limits, loop, render
    cdef public HeadParser parser
    cdef public FrontCounters counters
    cdef public Turns turns
    cdef public bint is_draining, keeps_alive
    cdef public Py_ssize_t body_bytes_max, body_window_bytes_min
    cdef public bytes date_line
    cdef public AgeList heads, bodies, idles, stalls, lingers
