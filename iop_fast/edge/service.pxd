"""C types of service.py."""

cimport cython

from iop_fast._hot.records cimport item
from iop_fast.edge.auth cimport FieldTable, identify
from iop_fast.edge.exchange cimport Exchange
from iop_fast.edge.state cimport EdgeState
from iop_fast.edge.tunnel cimport Request


@cython.final
cdef class Answered:
    cpdef on_body(self, piece)


@cython.final
cdef class EdgeService:
    cdef EdgeState _edge
    cdef object _cors, _models

    @cython.locals(exchange=Exchange)
    cpdef open(self, head, downstream)
    @cython.locals(edge=EdgeState, table=FieldTable, before=Request)
    cdef _decide(self, head, bytes request_id)
    @cython.locals(made=tuple)
    cdef Request _before(self, head)
    cdef _decide_tunnel(self, surface, head, fields, bytes request_id, principal)
