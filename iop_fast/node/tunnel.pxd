"""C types of tunnel.py."""

cimport cython

from iop_fast._hot.records cimport new_record
from iop_fast.node.runs cimport Run
from iop_fast.node.usage cimport UsageReader, usage_reader
from iop_fast.wire.outbox cimport Outbox

cdef Py_ssize_t PIECE_BYTES
cdef object RUNNING


@cython.final
cdef class TunnelRun(Run):
    cdef object _held, _upstream_run
    cdef UsageReader _usage
    cdef bint _has_data

    cpdef start(self, upstream, request)
    cpdef on_head(self, head)
    @cython.locals(size="Py_ssize_t")
    cpdef on_data(self, bytes data)
    cdef _send(self, piece, Py_ssize_t size)
