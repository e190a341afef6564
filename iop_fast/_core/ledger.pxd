"""C interface of the ledger; what it means stands in src_pyx/ledger.pyx."""

cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t


cdef enum:
    NONE = -1  # the index of nothing: no provider, no waiter, no line, no lease


cdef enum:
    DURATION_BUCKETS = 16  # 15 upper bounds and the rest
    RATE_WINDOW_NS = 10_000_000_000


cdef enum LinkState:
    LINK_OFFLINE
    LINK_READY
    LINK_DRAINING


cdef enum LeaseState:
    LEASE_FREE
    LEASE_HELD
    LEASE_LOST


cdef enum LeaseEnd:
    END_OPEN                # the entry in the table says whether it is held
    END_RELEASED
    END_LOST


cdef struct ProviderState:
    # Read for every candidate of every request.
    int32_t in_flight
    int32_t open_slots      # capacity while it is live, else 0
    int32_t capacity
    int32_t long_in_flight
    int32_t long_capacity
    uint64_t can
    int64_t last_grant      # place of its last grant in the sequence of all grants; 0 = never
    int32_t priority
    uint8_t is_live         # in the plan, enabled, healthy, link ready and capacity > 0
    # Behind `is_live`.
    uint8_t is_planned
    uint8_t is_enabled
    uint8_t is_healthy
    uint8_t planned_health  # `healthy` as the plan gave it; `is_healthy` moves with the Node's reports
    int32_t node
    int32_t next_of_node    # providers of one Node form a list
    int32_t plan_mark       # last plan (attempt) that listed it
    int32_t model_mark      # last mapping that listed it, to find doubles


cdef struct Histogram:
    int64_t counts[DURATION_BUCKETS]
    int64_t sum_ns


cdef struct ProviderMeter:
    Histogram waits         # from enqueue to grant
    Histogram leases        # from grant to end, however it ended
    int64_t window_end_ns   # lease ends are counted per window of RATE_WINDOW_NS, aligned to multiples of it
    int64_t ends
    int64_t ends_before     # of the window before


cdef struct NodeState:
    int64_t generation      # of the current session, or of the last one while offline
    uint8_t link
    int32_t first_provider
    int32_t first_lease     # leases held on its providers form a list


cdef struct ModelState:
    int32_t* candidates     # providers that the catalog maps to the model, in file order
    int32_t count
    uint8_t has_long        # one of them has long slots: its long requests are constrained
    int32_t plan_mark


cdef struct LeaseEntry:
    int64_t lease_id
    int64_t generation
    int64_t granted_at_ns
    int32_t provider
    int32_t node_previous
    int32_t node_next       # list of the Node; chains the free entries too
    int32_t dropped_previous
    int32_t dropped_next    # list of the dropped
    uint8_t state
    uint8_t took_long
    uint8_t is_dropped


cdef struct LeaseTable:
    int64_t references      # the ledger and every Lease object
    int64_t last_lease_id
    LeaseEntry* entries
    int32_t capacity
    int32_t used
    int32_t first_free
    int32_t first_dropped
    int32_t last_dropped
    int32_t dropped         # held entries whose Lease object is gone


@cython.final
cdef class Lease:
    cdef LeaseTable* table
    cdef int32_t slot
    cdef int32_t provider
    cdef uint8_t ended      # a LeaseEnd
    cdef uint8_t was_readmitted
    cdef readonly bint took_long
    cdef readonly bint is_long
    cdef readonly int64_t lease_id
    cdef readonly int64_t generation
    cdef readonly int64_t sequence
    cdef readonly int64_t enqueued_at_ns
    cdef readonly int64_t granted_at_ns


@cython.final
cdef class Ledger:
    cdef ProviderState* providers
    cdef ProviderMeter* meters      # by provider
    cdef int32_t meter_capacity
    cdef int32_t provider_count
    cdef int32_t provider_capacity
    cdef NodeState* nodes
    cdef int32_t node_count
    cdef int32_t node_capacity
    cdef LeaseTable* table
    cdef int64_t grants
    cdef list keys          #: list[tuple[str, str]], by provider
    cdef dict key_index     #: dict[tuple[str, str], int]
    cdef list node_ids      #: list[str], by node
    cdef dict node_index    #: dict[str, int]

    cdef int32_t intern_node(self, str node_id) except -1
    cdef int32_t intern_provider(self, tuple key) except -1
    cdef int32_t find_node(self, str node_id) except -2
    cdef int32_t current_node(self, str node_id, int64_t generation) except -2
    cdef list read_health(self, int32_t row, object healthy)
    cdef void update_live(self, int32_t provider) noexcept
    cdef int reserve_leases(self, int64_t wanted) except -1
    cdef int32_t take(self, int32_t provider, bint takes_long, int64_t now_ns, int64_t enqueued_at_ns) except -1
    cdef Lease take_lease(
        self, int32_t provider, bint takes_long, int64_t now_ns, bint is_long, int64_t sequence, int64_t enqueued_at_ns
    )
    cdef Lease make_lease(self, int32_t slot, bint is_long, int64_t sequence, int64_t enqueued_at_ns)
    cdef int end_held(self, int32_t slot, int64_t now_ns) except -1
    cdef int32_t end_dropped(self, int64_t now_ns) except -2
    cdef int lose_leases(self, int32_t node, int64_t now_ns) except -1
    cdef int64_t recent_ends(self, int32_t provider, int64_t now_ns) noexcept
    cdef Ledger copy(self)
    cdef int verify(self) except -1


cdef void free_entry(LeaseTable* table, int32_t slot) noexcept
cdef void drop_entry(LeaseTable* table, int32_t slot) noexcept
cdef void abandon_entry(LeaseTable* table, int32_t slot) noexcept
