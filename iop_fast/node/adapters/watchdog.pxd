"""C types of watchdog.py."""

cimport cython


@cython.final
cdef class Watchdog:
    cdef bint _is_watching
    cdef double _limit_s, _noted_s, _timer_s
    cdef object _loop, _on_silent, _timer

    cpdef watch(self, limit_ms)
    cpdef note(self)
    cpdef hold(self)
    @cython.locals(due_s=double)
    cpdef go_on(self)
    cpdef close(self)
    cdef _set_timer(self, double due_s)
