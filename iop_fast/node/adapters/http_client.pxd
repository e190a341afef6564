"""C types of http_client.py."""

cimport cython

from iop_fast.node.adapters.http_rules cimport request_head
from iop_fast.node.adapters.plain_pool cimport PlainPool
from iop_fast.node.adapters.plain_run cimport PlainRun


@cython.final
cdef class PlainClient:
    cdef readonly object _backend
    cdef bytes _host_field, _path, _target
    cdef public PlainPool _pool

    @cython.locals(block=bytes, run=PlainRun)
    cpdef start(self, request, timeouts, sink)
    cdef bytes _target_of(self, bytes path)
