"""Clocks; the contract stands in iop_fast/_core/clock.pyi."""

cimport cython
from libc.time cimport time_t


cdef extern from "<time.h>" nogil:
    ctypedef int clockid_t
    struct timespec:
        time_t tv_sec
        long tv_nsec
    int clock_gettime(clockid_t clock, timespec *at)
    const clockid_t CLOCK_MONOTONIC


cdef class Clock:

    cpdef long long now_ns(self) except -1:
        raise TypeError("Clock is a base class, use MonotonicClock or VirtualClock")


@cython.final
cdef class MonotonicClock(Clock):

    cpdef long long now_ns(self) except -1:
        cdef timespec at
        clock_gettime(CLOCK_MONOTONIC, &at)
        return <long long>at.tv_sec * 1_000_000_000 + at.tv_nsec


@cython.final
cdef class VirtualClock(Clock):
    cdef long long _now_ns

    def __init__(self, long long now_ns=0):
        self._now_ns = now_ns

    cpdef long long now_ns(self) except -1:
        return self._now_ns

    def advance_to(self, long long now_ns):
        if now_ns < self._now_ns:
            raise ValueError(f"time never falls: expected at least {self._now_ns} ns, got {now_ns}")
        self._now_ns = now_ns
