"""C types of tunnel.py."""

cimport cython

from iop_fast._hot.records cimport new_record
from iop_fast.edge.body cimport Body, apply_edits
from iop_fast.edge.edits cimport plan_edits


@cython.final
cdef class Request:
    cdef readonly bytes id, boundary, method, target
    cdef readonly object surface, head, passed, principal, forwarded, cors

    @cython.locals(twin=Request)
    cpdef Request again(self, bytes id, head)
    cpdef new_scan(self)


@cython.final
cdef class Upload:
    cdef object _body
    cdef long long _credit, _handed

    cpdef bytes next_piece(self)
    cpdef go_on(self, link, run_id, long long granted)


@cython.locals(limit="Py_ssize_t", first=bytes, size="Py_ssize_t", edits=list)
cpdef tuple prepare_tunnel(Request request, Body body, scan, is_stream, model, runtime, tuple key)
cpdef list provider_fields(Request request, runtime)
