"""C interface of the read-outs; what they mean stands in src_pyx/readouts.pyx."""

cimport cython
from libc.stdint cimport int32_t, int64_t, uint64_t

from iop_fast._core.ledger cimport Ledger, ModelState
from iop_fast._core.line_index cimport LineHeap
from iop_fast._core.plans cimport Catalog
from iop_fast._core.wait_queue cimport WaiterEntry, WaitQueue


@cython.final
cdef class Readouts:
    cdef Ledger ledger
    cdef WaitQueue queue
    cdef Catalog catalog

    cdef ModelState* model(self, str name) except NULL
    cdef int32_t live_candidates(self, str name, bint is_long, uint64_t needs) except -1
    cdef list snapshot(self)
    cdef object snapshot_row(self, int32_t provider)
    cdef int64_t pressure(self, int32_t provider) noexcept
    cdef int64_t waiting_in(self, const LineHeap* heap) noexcept
    cdef list meters(self)
    cdef object meter_row(self, int32_t provider)
    cdef object retry_after_s(self, str name, int64_t now_ns)
    cdef int64_t competing(self, const ModelState* model, uint64_t needs, bint is_constrained) noexcept
    cdef object explain(self, str name, bint is_long, uint64_t needs)
    cdef str verdict(self, int32_t provider, uint64_t needs, bint is_constrained)
    cdef dict verdicts(self, str name, bint is_long, uint64_t needs)
    cdef dict waiting_by_model(self)
    cdef list lines(self, int32_t limit)
    cdef object line_row(self, int32_t row, dict names)
    cdef list waiters(self, int32_t limit)
    cdef object waiter_row(self, int32_t slot, dict names)
    cdef dict model_names(self)
    cdef object key_of(self, int32_t provider)
