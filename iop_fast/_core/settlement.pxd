"""C interface of the settlement; what it means stands in src_pyx/settlement.pyx."""

cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t

from iop_fast._core.choice cimport Choice
from iop_fast._core.ledger cimport Ledger
from iop_fast._core.plans cimport Catalog
from iop_fast._core.tally cimport Tally
from iop_fast._core.verification cimport Verification
from iop_fast._core.wait_queue cimport WaitQueue


@cython.final
cdef class Settlement:
    cdef Ledger ledger
    cdef WaitQueue queue
    cdef Catalog catalog
    cdef Tally tally
    cdef Verification verification
    cdef bint is_verifying

    cdef void expire(self, int64_t now_ns) noexcept
    cdef void expire_due(self, int64_t now_ns) noexcept
    cdef void evict(self, int32_t slot, uint8_t outcome) noexcept
    cdef int settle(self, int64_t now_ns) except -1
    cdef void strand_marked(self) noexcept
    cdef int grant_marked(self, int64_t now_ns) except -1
    cdef void restore_heap(self, int32_t row) noexcept
    cdef void choose_for_line(self, Choice* choice, int32_t row) noexcept
    cdef int grant_head(self, int32_t row, int32_t provider, int64_t now_ns) except -1
    cdef int grant_freed(self, int32_t provider, int64_t now_ns) except -1
