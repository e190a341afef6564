"""C types of relay.py."""

cimport cython

from iop_fast.node.backends cimport Provider
from iop_fast.node.runs cimport Run, Table
from iop_fast.node.tunnel cimport TunnelRun


@cython.final
cdef class Relay(Table):
    cdef object _input_bytes_max, _loop, _router, _traces
    cdef list _on_idle, _unsaid
    cdef str _refusal
    cdef readonly dict runs

    cpdef accept(self)
    cpdef refuse(self, reason)
    @cython.locals(run=Run)
    cpdef stop_all(self, detail)
    cpdef when_idle(self, on_idle)
    @cython.locals(provider=Provider, run=TunnelRun)
    cpdef on_open(self, run_id, request)
    @cython.locals(provider=Provider)
    cpdef on_open_run(self, run_id, opening)
    cdef Provider _admitted(self, run_id, provider_id)
    cdef _enter(self, Run run, Provider provider)
    cpdef refuse_run(self, run_id, status, detail, refusal_status=*)
    @cython.locals(run=Run)
    cpdef on_body(self, run_id, bytes piece, bint complete)
    @cython.locals(run=Run)
    cpdef on_window(self, run_id, byte_count)
    @cython.locals(run=Run)
    cpdef on_cancel(self, run_id)
    @cython.locals(run=Run)
    cpdef on_frame_failed(self, run_id, error)
