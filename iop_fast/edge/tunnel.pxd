"""C types of tunnel.py."""

cimport cython

from iop_fast._hot.records cimport new_record
from iop_fast.edge.body cimport Body, apply_edits
from iop_fast.edge.edits cimport plan_edits
from iop_fast.edge.settings cimport ModelEntry, Served, Settings

cdef Py_ssize_t PIECE_BYTES


@cython.final
@cython.freelist(64)
cdef class Request:
    cdef readonly bytes id, boundary, method, path, target
    cdef readonly object surface, dialect, head, passed, principal, forwarded, cors
    cdef readonly bint is_metered

    @cython.locals(twin=Request)
    cpdef Request again(self, bytes id, head)
    cpdef new_scan(self)


@cython.final
cdef class Upload:
    cdef object _body
    cdef long long _credit, _handed

    cpdef bytes next_piece(self)
    cpdef go_on(self, link, run_id, long long granted)


@cython.locals(
    limit="Py_ssize_t", first=bytes, size="Py_ssize_t", edits=list,
    settings=Settings, entry=ModelEntry, served=Served,
)
cpdef tuple prepare_tunnel(Request request, Body body, scan, is_stream, model, runtime, tuple key)
cpdef list provider_fields(Request request, runtime)
