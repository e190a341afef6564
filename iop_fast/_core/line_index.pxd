"""C interface of the index of lines; what it means stands in src_pyx/line_index.pyx."""

cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from iop_fast._core.ledger cimport ModelState, ProviderState


cdef struct LineRef:
    int64_t sequence        # of the line's head, or of an earlier one: never above it
    int32_t line
    int32_t member          # place of the provider among the line's members


cdef struct LineHeap:
    LineRef* refs
    int32_t count
    int32_t capacity


cdef struct Membership:
    int32_t provider
    int32_t place           # of the line in the provider's heap


cdef struct IndexedLine:
    int64_t head_sequence
    Membership* members     # NULL = the line is not in the index
    int32_t member_count
    uint8_t is_constrained


@cython.final
cdef class LineIndex:
    cdef IndexedLine* lines
    cdef int32_t line_capacity
    cdef LineHeap* heaps            # by provider: of the unconstrained lines, of the constrained ones
    cdef int32_t provider_capacity

    cdef int reserve_providers(self, int32_t count) except -1
    cdef int reserve_lines(self, int32_t count) except -1
    cdef int link(
        self, int32_t line, int64_t sequence, bint is_long, uint64_t needs, int32_t excluded,
        const ModelState* model, const ProviderState* providers,
    ) except -1
    cdef void unlink(self, int32_t line) noexcept
    cdef void raise_head(self, int32_t line, int64_t sequence) noexcept
    cdef void lower_head(self, int32_t line, int64_t sequence) noexcept
    cdef LineHeap* heap_of(self, int32_t provider, bint is_constrained) noexcept
    cdef int32_t oldest(self, int32_t provider, bint has_long_slot) noexcept
    cdef int32_t top(self, LineHeap* heap) noexcept
    cdef void put(self, LineHeap* heap, int32_t place, LineRef ref) noexcept
    cdef void float_up(self, LineHeap* heap, int32_t place, LineRef ref) noexcept
    cdef void sink(self, LineHeap* heap, int32_t place, LineRef ref) noexcept
    cdef LineIndex copy(self)
    cdef int verify(self) except -1
    cdef int verify_heap(self, int32_t provider, bint is_constrained) except -1
