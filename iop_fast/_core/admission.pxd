"""C interface of admission; what it means stands in src_pyx/admission.pyx."""

cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from iop_fast._core.ledger cimport Lease, Ledger, ModelState
from iop_fast._core.wait_queue cimport LineIndex, Waiter, WaiterEntry, WaitQueue


cdef enum:
    OUTCOMES = 7


cdef struct Choice:
    int32_t provider        # the free live candidate to take, NONE when none is free
    bint has_able           # the catalog has a provider that can do the needs
    bint has_live           # there is a live candidate, free or not


cdef struct Arrival:
    int64_t sequence
    int64_t enqueued_at_ns
    uint64_t needs
    int32_t model           # NONE for a model that has left the plan
    int32_t excluded
    bint is_long
    bint is_readmitted


cdef struct StagedProvider:
    int32_t provider
    int32_t capacity
    int32_t long_capacity
    int32_t priority
    uint8_t is_enabled
    uint8_t is_healthy
    uint64_t can


@cython.final
cdef class Staging:
    """A plan read and checked, not committed yet."""
    cdef int32_t* order             # providers in file order
    cdef int32_t order_count
    cdef StagedProvider* touched    # those that differ from what stands in the ledger
    cdef int32_t touched_count
    cdef ModelState* models         # rows of the new catalog; unchanged ones share their candidates with the old
    cdef uint8_t* is_new            # rows whose candidates belong to this staging
    cdef int32_t model_count
    cdef uint64_t* can              # by provider, when the index must be built anew
    cdef LineIndex index
    cdef int32_t free_row           # rows below it are known to be taken
    cdef int32_t kept               # providers that the plan before had too
    cdef bint changes_mapping
    cdef bint changes_can
    cdef bint changes_long
    cdef int64_t queue_limit
    cdef int64_t queue_timeout_ns
    cdef tuple specs
    cdef dict names
    cdef list mappings


@cython.final
cdef class Admission:
    cdef Ledger ledger
    cdef WaitQueue queue
    cdef ModelState* models
    cdef int32_t model_count
    cdef dict names                 #: dict[str, int], the models of the plan
    cdef list mappings              #: list[Sequence[key] | None], by model, as the plan gave them
    cdef tuple specs                #: tuple[ProviderSpec, ...], by place in the plan
    cdef int32_t* order             # providers by place in the plan
    cdef int32_t order_count
    cdef int32_t plan_mark
    cdef int32_t model_mark
    cdef int64_t queue_limit
    cdef int64_t queue_timeout_ns
    cdef int64_t now_ns
    cdef int64_t last_sequence
    cdef bint is_verifying
    cdef bint is_delivering
    cdef bint is_planning
    cdef int64_t overhang           # waiters above queue_limit that a lowering left; for I6
    cdef int64_t outcomes[OUTCOMES]
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
    cdef Staging stage(self, object plan)
    cdef int stage_providers(self, Staging staging, tuple specs) except -1
    cdef int stage_spec(self, Staging staging, int32_t provider, object spec) except -1
    cdef int stage_models(self, Staging staging, object models) except -1
    cdef int stage_removals(self, Staging staging) except -1
    cdef int stage_model(self, Staging staging, str name, object mapping) except -1
    cdef int32_t stage_row(self, Staging staging) except -1
    cdef int check_candidates(self, Staging staging) except -1
    cdef int stage_index(self, Staging staging) except -1
    cdef void commit(self, Staging staging) noexcept
    cdef void apply_spec(self, const StagedProvider* staged) noexcept
    cdef void update_has_long(self) noexcept
    cdef bint has_long_slots(self, const ModelState* model) noexcept
    cdef int check_own(self, Lease lease) except -1
    cdef object snapshot_row(self, int32_t provider)
    cdef int64_t pressure(self, int32_t provider) noexcept
    cdef int verify_provider(self, int32_t provider) except -1
    cdef int verify_line(self, int32_t row) except -1
    cdef int verify_choice(
        self, int32_t model, bint is_long, uint64_t needs, int32_t excluded, int32_t chosen
    ) except -1
    cdef int verify_turn(self, int32_t row) except -1
