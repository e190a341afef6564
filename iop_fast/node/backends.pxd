"""C types of backends.py."""

cimport cython


@cython.final
cdef class Backend:
    cdef object _on_idle
    cdef readonly object adapter, health
    cdef readonly str key
    cdef readonly dict runs

    cpdef enter(self, run)
    cpdef leave(self, run)
    cpdef when_idle(self, on_idle)


@cython.final
cdef class Provider:
    cdef readonly Backend backend
    cdef readonly str id
    cdef readonly object payload, run_adapter, upstream
