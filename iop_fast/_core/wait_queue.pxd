"""C interface of the wait queue; what it means stands in src_pyx/wait_queue.pyx."""

cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from iop_fast._core.ledger cimport ModelState, ProviderState
from iop_fast._core.line_index cimport LineHeap, LineIndex


cdef struct WaiterEntry:
    int64_t sequence
    int64_t enqueued_at_ns
    int32_t line            # NONE once decided
    int32_t line_previous
    int32_t line_next
    int32_t order_previous
    int32_t order_next      # global order; chains the decided and the free entries too
    int32_t lease           # slot of the lease of a granted one
    uint8_t outcome
    uint8_t is_readmitted
    uint8_t is_long
    uint8_t is_used


cdef struct Line:
    uint64_t needs
    int32_t model
    int32_t excluded
    int32_t head
    int32_t tail
    int32_t waiting         # 0 = this row is free
    int32_t chain_next      # lines of one hash bucket; chains the free rows too
    uint64_t mark           # of the step that marked it last
    uint8_t is_long


cdef struct OrderList:
    int32_t head
    int32_t tail
    int32_t count


@cython.final
cdef class Waiter:
    cdef object owner
    cdef int32_t slot
    cdef readonly bint is_waiting
    cdef readonly int64_t sequence
    cdef readonly int64_t enqueued_at_ns


@cython.final
cdef class WaitQueue:
    cdef WaiterEntry* entries
    cdef int32_t entry_capacity
    cdef int32_t first_free
    cdef list waiters       #: list[Waiter | None], by entry
    cdef Line* lines
    cdef int32_t line_capacity
    cdef int32_t first_free_line
    cdef int32_t line_count
    cdef int32_t* buckets
    cdef int32_t bucket_mask
    cdef LineIndex index
    cdef OrderList fresh
    cdef OrderList readmitted
    cdef int32_t first_decided
    cdef int32_t last_decided
    cdef int32_t* marked
    cdef int32_t marked_count
    cdef uint64_t mark
    cdef int32_t* heap
    cdef int32_t heap_count

    cdef int reserve_entry(self) except -1
    cdef int reserve_line(self) except -1
    cdef int32_t bucket_of(self, int32_t row) noexcept
    cdef int32_t find_line(self, int32_t model, bint is_long, uint64_t needs, int32_t excluded) noexcept
    cdef int32_t open_line(
        self, int32_t model, bint is_long, uint64_t needs, int32_t excluded, int64_t sequence,
        const ModelState* catalog, const ProviderState* providers,
    ) except -1
    cdef void close_line(self, int32_t row) noexcept
    cdef void insert_into_line(self, int32_t slot) noexcept
    cdef void insert_into_order(self, int32_t slot, OrderList* order) noexcept
    cdef void mark_line(self, int32_t row) noexcept
    cdef int32_t verify_line(self, int32_t row) except -1
    cdef int verify_order(self, OrderList* order, bint is_readmitted) except -1
    cdef void enqueue(self, Waiter waiter, int32_t line, bint is_readmitted) noexcept
    cdef void decide(self, int32_t slot, uint8_t outcome, int32_t lease) noexcept
    cdef void unlink(self, int32_t slot) noexcept
    cdef int32_t pop_decided(self) noexcept
    cdef Waiter give_up_entry(self, int32_t slot)
    cdef int32_t oldest(self) noexcept
    cdef void unmark_all(self) noexcept
    cdef void mark_provider(self, int32_t provider) noexcept
    cdef void mark_heap(self, LineHeap* heap) noexcept
    cdef void mark_all(self) noexcept
    cdef int64_t head_sequence(self, int32_t row) noexcept
    cdef void heap_push(self, int32_t line) noexcept
    cdef void heap_settle(self) noexcept
    cdef void heap_drop(self) noexcept
    cdef LineIndex build_index(self, const ModelState* models, const ProviderState* providers, int32_t provider_count)
    cdef WaitQueue copy(self)
    cdef int verify(self) except -1
