"""C interface of admission; what it means stands in src_pyx/admission.pyx."""

cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from iop_fast._core.ledger cimport Lease, Ledger, ModelState
from iop_fast._core.plans cimport Catalog
from iop_fast._core.wait_queue cimport Waiter, WaiterEntry, WaitQueue


cdef enum:
    OUTCOMES = 7


cdef struct Choice:
    int32_t provider        # the free live candidate to take, NONE when none is free
    bint has_able           # the catalog has a provider that can do the needs
    bint has_live           # there is a live candidate, free or not


cdef struct ModelOutcomes:
    int64_t counts[OUTCOMES]


cdef struct Arrival:
    int64_t sequence
    int64_t enqueued_at_ns
    uint64_t needs
    int32_t model           # NONE for a model that has left the plan
    int32_t excluded
    bint is_long
    bint is_readmitted


@cython.final
cdef class Admission:
    cdef Ledger ledger
    cdef WaitQueue queue
    cdef Catalog catalog
    cdef int64_t now_ns
    cdef int64_t last_sequence
    cdef bint is_verifying
    cdef bint is_delivering
    cdef int64_t overhang           # waiters above queue_limit that a lowering left; for I6
    cdef int64_t outcomes[OUTCOMES]
    cdef ModelOutcomes* outcomes_of     # by model
    cdef int32_t outcome_capacity
    cdef int64_t submitted
    cdef int64_t readmitted
    cdef int64_t double_releases
    cdef int64_t reclaimed
    cdef int64_t callbacks_failed
    cdef list failures              #: list[BaseException]

    cpdef object submit(self, int64_t now_ns, object owner, str model, bint long, uint64_t needs)
    cpdef bint release(self, int64_t now_ns, Lease lease) except -1
    cpdef bint cancel(self, int64_t now_ns, Waiter waiter) except -1
    cpdef verify(self)

    cdef object admit(self, int64_t now_ns, object owner, Arrival* arrival)
    cdef void choose_for(self, Choice* choice, const Arrival* arrival) noexcept
    cdef Waiter make_waiter(self, object owner)
    cdef object arrive(self, Arrival* arrival, const Choice* choice, Waiter waiter)
    cdef int32_t line_for(self, const Arrival* arrival) except -1
    cdef void count_arrival(self, const Arrival* arrival) noexcept
    cdef object refuse(self, const Arrival* arrival, int outcome)
    cdef Lease grant_arrival(self, const Arrival* arrival, int32_t provider)
    cdef int32_t current_node(self, str node_id, int64_t generation) except -2
    cdef list read_health(self, int32_t row, object healthy)
    cdef int take_health(self, list reported) except -1
    cdef void set_link(self, int32_t row, uint8_t link) noexcept
    cdef int begin(self, int64_t now_ns) except -1
    cdef int refuse_time(self, int64_t now_ns) except -1
    cdef bint is_due(self, int64_t enqueued_at_ns) noexcept
    cdef void expire(self) noexcept
    cdef void expire_due(self) noexcept
    cdef void evict(self, int32_t slot, uint8_t outcome) noexcept
    cdef void count_end(self, int32_t model, int outcome) noexcept
    cdef int settle(self) except -1
    cdef void strand_marked(self) noexcept
    cdef int grant_marked(self) except -1
    cdef void restore_heap(self, int32_t row) noexcept
    cdef int finish(self) except -1
    cdef void choose_for_line(self, Choice* choice, int32_t row) noexcept
    cdef int grant_head(self, int32_t row, int32_t provider) except -1
    cdef int grant_freed(self, int32_t provider) except -1
    cdef int32_t oldest_line(self, int32_t provider) noexcept
    cdef int deliver(self) except -1
    cdef int deliver_grant(self, object owner, const WaiterEntry* entry) except -1
    cdef int deliver_eviction(self, object owner, object outcome) except -1
    cdef int keep_failure(self, object failure) except -1
    cdef int check_own(self, Lease lease) except -1
    cdef int reserve_outcomes(self, int32_t count) except -1
    cdef object meter_row(self, int32_t provider)
    cdef int64_t competing(self, const ModelState* model, uint64_t needs, bint is_constrained)
    cdef str verdict(self, int32_t provider, uint64_t needs, bint is_constrained)
    cdef object snapshot_row(self, int32_t provider)
    cdef bint is_eligible(self, int32_t provider, int32_t row) noexcept
    cdef int64_t pressure(self, int32_t provider) noexcept
    cdef int verify_provider(self, int32_t provider) except -1
    cdef int verify_line(self, int32_t row) except -1
    cdef int verify_choice(
        self, int32_t model, bint is_long, uint64_t needs, int32_t excluded, int32_t chosen
    ) except -1
    cdef int verify_turn(self, int32_t row) except -1
