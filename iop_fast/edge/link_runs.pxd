"""C types of link_runs.py."""

cimport cython

from iop_fast._hot.frames cimport encode_tunnel_request
from iop_fast.wire.outbox cimport Outbox

cdef Py_ssize_t SENT_SLACK


cdef class LinkRuns:
    cdef long long _buffered_max, _held_bytes
    cdef dict _held, _waiting
    cdef object _reconciler
    cdef readonly object _counters
    cdef readonly dict _runs, _sent_in
    cdef readonly Outbox _outbox
    cdef readonly object generation, node_id

    cdef _drop_ended(self)
    @cython.locals(entry=bytes)
    cpdef open(self, run_id, run, opening)
    cpdef send_body(self, run_id, piece, complete)
    cpdef wait_to_send(self, run_id)
    cpdef hold(self, run_id, long long byte_count)
    cpdef grant(self, run_id, byte_count)
    cpdef cancel(self, run_id)
    cpdef withdraw(self, run_id)
    cpdef forget(self, run_id)
