"""C interface of plans; what it means stands in src_pyx/plans.pyx."""

cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from iop_fast._core.choice cimport Choice, choose
from iop_fast._core.ledger cimport Ledger, ModelState, ProviderState
from iop_fast._core.line_index cimport LineIndex
from iop_fast._core.wait_queue cimport WaitQueue


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
    cdef ProviderState* providers   # as the plan will make them, when the index must be built anew
    cdef LineIndex index
    cdef list new_rows              #: list[int], rows that models new in this plan got
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
cdef class Catalog:
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
    cdef int64_t overhang           # waiters above queue_limit that a lowering left; for I6
    cdef bint is_reading

    cdef Staging read(self, object plan)
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
    cdef bint is_due(self, int64_t enqueued_at_ns, int64_t now_ns) noexcept
    cdef Catalog copy(self, Ledger ledger, WaitQueue queue)


cdef bint has_long_slots(const ModelState* model, const ProviderState* providers) noexcept


cdef inline void choose_for(
    Choice* choice, Catalog catalog, int32_t model, bint is_long, uint64_t needs, int32_t excluded
) noexcept:
    """Choose for a request of a model. Here, since every request comes by."""
    cdef const ModelState* row = &catalog.models[model]
    choose(choice, catalog.ledger.providers, row, needs, is_long and row.has_long, excluded)
