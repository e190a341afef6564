"""C interface of the verification; what it means stands in src_pyx/verification.pyx."""

cimport cython
from libc.stdint cimport int32_t, int64_t, uint64_t

from iop_fast._core.choice cimport Choice
from iop_fast._core.ledger cimport Ledger
from iop_fast._core.plans cimport Catalog
from iop_fast._core.tally cimport Tally
from iop_fast._core.wait_queue cimport WaitQueue


@cython.final
cdef class Verification:
    cdef Ledger ledger
    cdef WaitQueue queue
    cdef Catalog catalog
    cdef Tally tally

    cdef int verify(self, int64_t now_ns) except -1
    cdef int verify_counts(self) except -1
    cdef int verify_provider(self, int32_t provider) except -1
    cdef int verify_model(self, int32_t row) except -1
    cdef int verify_line(self, int32_t row, int64_t now_ns) except -1
    cdef int verify_choice(
        self, int32_t model, bint is_long, uint64_t needs, int32_t excluded, int32_t chosen
    ) except -1
    cdef int verify_turn(self, int32_t row) except -1
    cdef void choose_for_line(self, Choice* choice, int32_t row) noexcept
