"""C types of runs.py."""

from iop_fast.node.backends cimport Provider
from iop_fast.wire.outbox cimport Outbox

cdef object RUNNING, HELD, STOPPING, ENDED
cdef object STOPS, ENDS_HELD, ENDS
cdef tuple NEXT

cdef class Run


cdef class Table:
    cdef readonly Outbox outbox
    cdef public long long window_bytes

    cpdef stop(self, Run run, end)
    cpdef forget(self, Run run)
    cpdef flush_soon(self, Run run)


cdef class Run:
    cdef public object trace
    cdef readonly object run_id
    cdef readonly Table _table
    cdef readonly Provider _provider
    cdef readonly object _end, _handle, _state
    cdef public long long _credit_bytes
    cdef long long _consumed_bytes, _receivable_bytes
    cdef readonly bint _is_body_complete, _is_paused

    cdef _set_up(self, Table table, run_id, Provider provider, long long first_bytes, bint is_body_complete)
    cpdef _move(self, event)
    cpdef feed(self, bytes piece, bint complete)
    cpdef flush(self)
    cpdef grant(self, long long byte_count)
    cpdef stop(self, end)
    cpdef cut(self, detail)
    cpdef _hold(self, handle)
    cpdef _receive(self, bytes piece, bint complete)
    cpdef on_taken(self)
    cpdef on_consumed(self, long long byte_count)
    cpdef on_end(self, end)
    cpdef bint _send_held(self) except -1
    cpdef _drop_held(self)
    cpdef _pause_if_used_up(self)
    cpdef _finish(self, event)
