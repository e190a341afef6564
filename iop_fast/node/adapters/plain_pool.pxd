"""C types of plain_pool.py."""

cimport cython

from iop_fast.node.adapters.watchdog cimport Watchdog


@cython.final
cdef class PlainConnection:
    cdef PlainPool _pool
    cdef object _transport
    cdef readonly object borrower
    cdef double _idle_until_s
    cdef readonly bint is_reused, is_writable
    cdef readonly Watchdog watchdog

    cdef bint is_usable(self) except -1
    cpdef bint is_lost(self) except -1
    cdef write(self, bytes data)
    cdef pause_reading(self)
    cdef resume_reading(self)
    cdef abort(self)
    cpdef throw_away(self)


cdef class PlainPool:
    cdef object _host, _loop, _lookup, _port, _sweeper
    cdef double _keepalive_s
    cdef readonly dict _idle
    cdef bint _is_closed

    @cython.locals(connection=PlainConnection)
    cpdef PlainConnection take(self, borrower)
    cpdef give_back(self, PlainConnection connection)
    cpdef discard(self, PlainConnection connection)
    cpdef close(self)
    @cython.locals(connection=PlainConnection)
    cdef _close_old(self, double now_s)
