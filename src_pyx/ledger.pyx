"""Accounting: what each provider may run and what it runs. The contract stands in iop_fast/_core/ledger.pyi.

Theory of operation
===================

The ledger counts; it decides nothing. Who gets a slot is the business of admission, which is the only caller.

Providers and Nodes are rows of two tables, found by index in all compiled code and by key only when a plan or a Node's
report is read. A row is never removed and its index never given to another key: leases, lines and candidates name
providers by index, and a provider that leaves the plan and returns must find its leases and its place in the rotation.
The tables grow with the number of distinct keys that were ever configured; a change of the set of providers or Nodes
takes a restart, so that number is the size of the configuration.

Lease entries live in a table of their own, in memory that is counted by the ledger and by every Lease object, so that
a Lease may outlive its ledger. An entry is

    FREE   chained in the list of free entries
    HELD   counted in its provider's in_flight (and long_in_flight when it took a long slot) and chained in the list of
           its Node; the only state in which a slot is taken
    LOST   ended by the loss of its Node while a Lease object (or a decision on its way to an owner) still names it;
           counted nowhere

and moves FREE -> HELD -> FREE (released, reclaimed) or FREE -> HELD -> LOST -> FREE. The list of a Node holds exactly
the HELD entries of the Node's providers: all of them are of its current session, because the end of a session empties
the list in the same step.

A Lease object holds C fields only: a Cython class with a freelist loses its finalizer after the first recycling when it
has a Python field. The finalizer may run at any allocation, in the middle of whatever runs then, so it touches nothing
but the lease table: a held entry goes onto the list of the dropped and keeps its slot until admission reclaims it.

Meters run along: how long the granted had waited and how long leases lasted, per provider, and how many ended in this
and the last window of ten seconds, for estimates. They decide nothing.

Invariants: I1 and I3 of the design: in_flight and long_in_flight of a provider equal its HELD entries (with a long
slot); they never fall below 0 and never rise above capacity (`take` refuses), so that a provider above its capacity can
only fall. I2: an entry leaves HELD once.
"""

cimport cython
from cpython.mem cimport PyMem_Free
from libc.string cimport memset

from iop_fast._core.memory cimport doubled, duplicate, resized, zeroed


cdef int32_t FIRST_CAPACITY = 64

# Upper bounds of the histograms' buckets, inclusive: what an operator tells apart, from "at once" to "ten minutes".
DURATION_BOUNDS_NS = tuple(
    int(seconds * 1_000_000_000)
    for seconds in (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 600)
)
cdef int64_t[DURATION_BUCKETS] BOUNDS_NS
BOUNDS_NS[DURATION_BUCKETS - 1] = <int64_t>(<uint64_t>-1 >> 1)
for place in range(DURATION_BUCKETS - 1):
    BOUNDS_NS[place] = DURATION_BOUNDS_NS[place]
del place


# Meters ---------------------------------------------------------------------------------------------------------------

cdef inline void observe(Histogram* histogram, int64_t duration_ns) noexcept:
    cdef int32_t bucket = 0
    while duration_ns > BOUNDS_NS[bucket]:
        bucket += 1
    histogram.counts[bucket] += 1
    histogram.sum_ns += duration_ns


cdef void turn_window(ProviderMeter* meter, int64_t now_ns) noexcept:
    """Begin the window that `now_ns` is in. Time is never negative."""
    cdef int64_t window_ns = RATE_WINDOW_NS
    cdef int64_t end_ns = (now_ns // window_ns + 1) * window_ns
    meter.ends_before = meter.ends if meter.window_end_ns == end_ns - window_ns else 0
    meter.ends = 0
    meter.window_end_ns = end_ns


# Lease table ----------------------------------------------------------------------------------------------------------

cdef LeaseTable* new_table() except NULL:
    cdef LeaseTable* table = <LeaseTable*>zeroed(1, sizeof(LeaseTable))
    table.references = 1
    table.first_free = NONE
    table.first_dropped = NONE
    table.last_dropped = NONE
    return table


cdef inline void forget_table(LeaseTable* table) noexcept:
    table.references -= 1
    if table.references == 0:
        PyMem_Free(table.entries)
        PyMem_Free(table)


cdef void free_entry(LeaseTable* table, int32_t slot) noexcept:
    """Return an entry that is counted nowhere to the free ones."""
    cdef LeaseEntry* entry = &table.entries[slot]
    entry.state = LEASE_FREE
    entry.node_next = table.first_free
    table.first_free = slot
    table.used -= 1


cdef void drop_entry(LeaseTable* table, int32_t slot) noexcept:
    """Take over a held entry whose Lease object is gone."""
    cdef LeaseEntry* entry = &table.entries[slot]
    entry.is_dropped = True
    entry.dropped_next = NONE
    entry.dropped_previous = table.last_dropped
    if table.last_dropped == NONE:
        table.first_dropped = slot
    else:
        table.entries[table.last_dropped].dropped_next = slot
    table.last_dropped = slot
    table.dropped += 1


cdef void abandon_entry(LeaseTable* table, int32_t slot) noexcept:
    """An entry for which no Lease object could be made: held ones wait for `reclaim`."""
    if table.entries[slot].state == LEASE_HELD:  # pragma: no cover - no tracer survives it; test_out_of_memory does
        drop_entry(table, slot)  # pragma: no cover
    else:
        free_entry(table, slot)  # pragma: no cover


cdef void undrop_entry(LeaseTable* table, int32_t slot) noexcept:
    cdef LeaseEntry* entry = &table.entries[slot]
    if entry.dropped_previous == NONE:
        table.first_dropped = entry.dropped_next
    else:
        table.entries[entry.dropped_previous].dropped_next = entry.dropped_next
    if entry.dropped_next == NONE:
        table.last_dropped = entry.dropped_previous
    else:
        table.entries[entry.dropped_next].dropped_previous = entry.dropped_previous
    entry.is_dropped = False
    table.dropped -= 1


@cython.final
@cython.freelist(1024)
cdef class Lease:

    def __init__(self):
        raise TypeError("a lease is made by admission only")

    def __dealloc__(self):
        cdef LeaseEntry* entry
        if self.table is NULL:
            return
        if self.ended == END_OPEN:
            entry = &self.table.entries[self.slot]
            if entry.state == LEASE_HELD:
                drop_entry(self.table, self.slot)
            else:
                free_entry(self.table, self.slot)
        forget_table(self.table)

    @property
    def is_held(self):
        return self.ended == END_OPEN and self.table is not NULL and self.table.entries[self.slot].state == LEASE_HELD

    def __repr__(self):
        cdef str state = "held" if self.is_held else "ended"
        return f"<Lease {self.lease_id} {state} generation={self.generation} sequence={self.sequence}>"


# Ledger ---------------------------------------------------------------------------------------------------------------

cdef void* grown(void* rows, int32_t* capacity, size_t row_size) except NULL:
    """Double a table, at least to FIRST_CAPACITY rows."""
    cdef int32_t wanted = doubled(capacity[0], FIRST_CAPACITY)
    cdef void* moved = resized(rows, wanted, row_size)
    capacity[0] = wanted
    return moved


# Slots ----------------------------------------------------------------------------------------------------------------

cdef int refuse_grant(Ledger ledger, str what, int32_t provider) except -1:
    raise AssertionError(f"{what} on {ledger.keys[provider]}")  # pragma: no cover - a bug of ours


cdef inline int32_t take(
    Ledger ledger, int32_t provider, bint takes_long, int64_t now_ns, int64_t enqueued_at_ns
) except -1:
    """Take a slot; the caller has reserved an entry and tested that the slot is free."""
    cdef LeaseTable* table = ledger.table
    cdef ProviderState* row = &ledger.providers[provider]
    cdef NodeState* node = &ledger.nodes[row.node]
    cdef int32_t slot = table.first_free
    cdef LeaseEntry* entry
    if row.in_flight >= row.open_slots or slot == NONE:
        refuse_grant(ledger, "I1: grant without a free live slot", provider)  # pragma: no cover - a bug of ours
    if takes_long and row.long_in_flight >= row.long_capacity:
        refuse_grant(ledger, "I3: long grant without a free long slot", provider)  # pragma: no cover - a bug of ours
    entry = &table.entries[slot]
    table.first_free = entry.node_next
    table.used += 1
    table.last_lease_id += 1
    entry.lease_id = table.last_lease_id
    entry.granted_at_ns = now_ns
    entry.generation = node.generation
    entry.provider = provider
    entry.state = LEASE_HELD
    entry.took_long = takes_long
    entry.is_dropped = False
    entry.node_previous = NONE
    entry.node_next = node.first_lease
    if node.first_lease != NONE:
        table.entries[node.first_lease].node_previous = slot
    node.first_lease = slot
    row.in_flight += 1
    row.long_in_flight += takes_long
    ledger.grants += 1
    row.last_grant = ledger.grants
    observe(&ledger.meters[provider].waits, now_ns - enqueued_at_ns)
    return slot


cdef inline void name_lease(
    Ledger ledger, Lease lease, int32_t slot, bint is_long, int64_t sequence, int64_t enqueued_at_ns
) noexcept:
    cdef LeaseEntry* entry = &ledger.table.entries[slot]
    lease.table = ledger.table
    ledger.table.references += 1
    lease.slot = slot
    lease.provider = entry.provider
    lease.took_long = entry.took_long
    lease.is_long = is_long
    lease.lease_id = entry.lease_id
    lease.generation = entry.generation
    lease.sequence = sequence
    lease.enqueued_at_ns = enqueued_at_ns
    lease.granted_at_ns = entry.granted_at_ns


cdef int refuse_return(Ledger ledger, int32_t slot) except -1:
    lease_id = ledger.table.entries[slot].lease_id  # pragma: no cover - a bug of ours
    raise AssertionError(f"I1 or I2: lease {lease_id} ended twice, or was never counted")  # pragma: no cover


cdef inline int give_back(Ledger ledger, int32_t slot, int64_t now_ns) except -1:
    """End a held entry: free what it took. The entry itself is left to the caller."""
    cdef LeaseTable* table = ledger.table
    cdef LeaseEntry* entry = &table.entries[slot]
    cdef ProviderState* row = &ledger.providers[entry.provider]
    cdef ProviderMeter* meter = &ledger.meters[entry.provider]
    if entry.state != LEASE_HELD or row.in_flight <= 0 or row.long_in_flight < entry.took_long:
        refuse_return(ledger, slot)  # pragma: no cover - a bug of ours
    row.in_flight -= 1
    row.long_in_flight -= entry.took_long
    observe(&meter.leases, now_ns - entry.granted_at_ns)
    if now_ns >= meter.window_end_ns:
        turn_window(meter, now_ns)
    meter.ends += 1
    if entry.node_previous == NONE:
        ledger.nodes[row.node].first_lease = entry.node_next
    else:
        table.entries[entry.node_previous].node_next = entry.node_next
    if entry.node_next != NONE:
        table.entries[entry.node_next].node_previous = entry.node_previous
    entry.state = LEASE_LOST
    return 0


@cython.final
cdef class Ledger:

    def __cinit__(self):
        self.keys = []
        self.key_index = {}
        self.node_ids = []
        self.node_index = {}
        self.table = new_table()

    def __dealloc__(self):
        PyMem_Free(self.providers)
        PyMem_Free(self.meters)
        PyMem_Free(self.nodes)
        if self.table is not NULL:
            forget_table(self.table)

    cdef int32_t find_node(self, str node_id) except -2:
        return self.node_index.get(node_id, NONE)

    cdef int32_t current_node(self, str node_id, int64_t generation) except -2:
        """The row of a Node whose session of this generation is up, else NONE."""
        cdef int32_t row = self.find_node(node_id)
        if row == NONE or self.nodes[row].generation != generation:
            return NONE
        return NONE if self.nodes[row].link == LINK_OFFLINE else row

    cdef list read_health(self, int32_t row, object healthy):
        """The reported health of the Node's providers as numbers, 2 * provider + healthy; unknown ids are left out."""
        cdef list reported = []
        cdef int32_t provider = self.nodes[row].first_provider
        cdef object word
        while provider != NONE:
            word = healthy.get(self.keys[provider][1])
            if word is not None:
                reported.append(2 * provider + bool(word))
            provider = self.providers[provider].next_of_node
        return reported

    cdef int32_t intern_node(self, str node_id) except -1:
        cdef int32_t node = self.find_node(node_id)
        if node != NONE:
            return node
        if self.node_count == self.node_capacity:
            self.nodes = <NodeState*>grown(self.nodes, &self.node_capacity, sizeof(NodeState))
        node = self.node_count
        del self.node_ids[node:]  # what an attempt left that ran out of memory
        self.node_ids.append(node_id)
        self.node_index[node_id] = node
        self.nodes[node].generation = -1
        self.nodes[node].link = LINK_OFFLINE
        self.nodes[node].first_provider = NONE
        self.nodes[node].first_lease = NONE
        self.node_count += 1
        return node

    cdef int32_t intern_provider(self, tuple key) except -1:
        """The row of a key, made when it is new: idle, in no plan, able to do nothing."""
        cdef int32_t provider = self.key_index.get(key, NONE)
        cdef int32_t node
        cdef ProviderState* row
        if provider != NONE:
            return provider
        node = self.intern_node(key[0])
        if self.provider_count == self.provider_capacity:
            self.meters = <ProviderMeter*>grown(self.meters, &self.meter_capacity, sizeof(ProviderMeter))
            self.providers = <ProviderState*>grown(self.providers, &self.provider_capacity, sizeof(ProviderState))
        provider = self.provider_count
        del self.keys[provider:]  # what an attempt left that ran out of memory
        self.keys.append(key)
        self.key_index[key] = provider
        row = &self.providers[provider]
        memset(row, 0, sizeof(ProviderState))
        memset(&self.meters[provider], 0, sizeof(ProviderMeter))
        row.node = node
        row.next_of_node = self.nodes[node].first_provider
        self.nodes[node].first_provider = provider
        self.provider_count += 1
        return provider

    cdef void update_live(self, int32_t provider) noexcept:
        cdef ProviderState* row = &self.providers[provider]
        row.is_live = (
            row.is_planned
            and row.is_enabled
            and row.is_healthy
            and row.capacity > 0
            and self.nodes[row.node].link == LINK_READY
        )
        row.open_slots = row.capacity if row.is_live else 0

    cdef int reserve_leases(self, int64_t wanted) except -1:
        """Make sure that `wanted` more leases can be taken without allocating."""
        cdef LeaseTable* table = self.table
        cdef int32_t first, slot
        while table.used + wanted > table.capacity:
            first = table.capacity
            table.entries = <LeaseEntry*>grown(table.entries, &table.capacity, sizeof(LeaseEntry))
            for slot in range(table.capacity - 1, first - 1, -1):
                table.entries[slot].state = LEASE_FREE
                table.entries[slot].node_next = table.first_free
                table.first_free = slot
        return 0

    cdef int32_t take(self, int32_t provider, bint takes_long, int64_t now_ns, int64_t enqueued_at_ns) except -1:
        """Take a slot for a waiter; its Lease is made later."""
        return take(self, provider, takes_long, now_ns, enqueued_at_ns)

    cdef Lease take_lease(
        self, int32_t provider, bint takes_long, int64_t now_ns, bint is_long, int64_t sequence, int64_t enqueued_at_ns
    ):
        """Take a slot and return its Lease at once."""
        cdef Lease lease = Lease.__new__(Lease)  # first: memory may run out, and then nothing has changed
        name_lease(
            self, lease, take(self, provider, takes_long, now_ns, enqueued_at_ns), is_long, sequence, enqueued_at_ns
        )
        return lease

    cdef Lease make_lease(self, int32_t slot, bint is_long, int64_t sequence, int64_t enqueued_at_ns):
        """The one Lease of an entry, HELD or LOST."""
        cdef Lease lease = Lease.__new__(Lease)
        name_lease(self, lease, slot, is_long, sequence, enqueued_at_ns)
        return lease

    cdef int end_held(self, int32_t slot, int64_t now_ns) except -1:
        """End a held lease whose Lease object knows of it or is gone."""
        give_back(self, slot, now_ns)
        free_entry(self.table, slot)
        return 0

    cdef int32_t end_dropped(self, int64_t now_ns) except -2:
        """Give back the lease that was dropped first; return its provider, or NONE when none was dropped."""
        cdef int32_t slot = self.table.first_dropped
        if slot == NONE:
            return NONE
        undrop_entry(self.table, slot)
        self.end_held(slot, now_ns)
        return self.table.entries[slot].provider

    cdef int lose_leases(self, int32_t node, int64_t now_ns) except -1:
        """End all leases of a Node's session. Entries that a Lease object names stay, as LOST, until it is gone."""
        cdef int32_t slot
        while self.nodes[node].first_lease != NONE:
            slot = self.nodes[node].first_lease
            give_back(self, slot, now_ns)
            if self.table.entries[slot].is_dropped:
                undrop_entry(self.table, slot)
                free_entry(self.table, slot)
        return 0

    cdef int64_t recent_ends(self, int32_t provider, int64_t now_ns) noexcept:
        """Lease ends of about the last window, times RATE_WINDOW_NS: all of this one, and of the one before the share
        that lies less than a window back."""
        cdef ProviderMeter* meter = &self.meters[provider]
        if now_ns >= meter.window_end_ns:
            turn_window(meter, now_ns)
        return meter.ends * <int64_t>RATE_WINDOW_NS + meter.ends_before * (meter.window_end_ns - now_ns)

    cdef Ledger copy(self):
        """An independent ledger with equal counts, without Lease objects."""
        cdef Ledger twin = Ledger.__new__(Ledger)
        cdef LeaseTable* table
        twin.keys = self.keys.copy()
        twin.key_index = self.key_index.copy()
        twin.node_ids = self.node_ids.copy()
        twin.node_index = self.node_index.copy()
        twin.grants = self.grants
        twin.providers = <ProviderState*>duplicate(self.providers, self.provider_count, sizeof(ProviderState))
        twin.meters = <ProviderMeter*>duplicate(self.meters, self.provider_count, sizeof(ProviderMeter))
        twin.provider_count = twin.provider_capacity = twin.meter_capacity = self.provider_count
        twin.nodes = <NodeState*>duplicate(self.nodes, self.node_count, sizeof(NodeState))
        twin.node_count = twin.node_capacity = self.node_count
        table = twin.table
        table.entries = <LeaseEntry*>duplicate(self.table.entries, self.table.capacity, sizeof(LeaseEntry))
        table.last_lease_id = self.table.last_lease_id
        table.capacity = self.table.capacity
        table.used = self.table.used
        table.first_free = self.table.first_free
        table.first_dropped = self.table.first_dropped
        table.last_dropped = self.table.last_dropped
        table.dropped = self.table.dropped
        return twin

    cdef int verify(self) except -1:
        """I1, I2 and I3 against the lease table; O(providers + leases)."""
        cdef list held = [0] * self.provider_count
        cdef list held_long = [0] * self.provider_count
        cdef int32_t slot, node, provider, dropped = 0, used = 0
        cdef LeaseEntry* entry
        for slot in range(self.table.capacity):
            entry = &self.table.entries[slot]
            used += entry.state != LEASE_FREE
            if entry.state == LEASE_HELD:
                held[entry.provider] += 1
                held_long[entry.provider] += entry.took_long
                dropped += entry.is_dropped
        assert used == self.table.used, f"I2: {used} entries in use, counted {self.table.used}"
        assert dropped == self.table.dropped, f"I2: {dropped} dropped leases, counted {self.table.dropped}"
        for provider in range(self.provider_count):
            key = self.keys[provider]
            row = self.providers[provider]
            assert row.in_flight == held[provider], f"I1: {key} counts {row.in_flight}, holds {held[provider]}"
            assert row.long_in_flight == held_long[provider], f"I3: {key} counts {row.long_in_flight} long"
            assert row.in_flight >= row.long_in_flight >= 0, f"I3: {key} has more long leases than leases"
        for node in range(self.node_count):
            slot = self.nodes[node].first_lease
            while slot != NONE:
                entry = &self.table.entries[slot]
                assert entry.state == LEASE_HELD and self.providers[entry.provider].node == node, "I2: list of a Node"
                held[entry.provider] -= 1
                slot = entry.node_next
            assert self.nodes[node].first_lease == NONE or self.nodes[node].link != LINK_OFFLINE, "I2: held offline"
        assert not any(held), "I2: a held lease is in no Node's list"
        return 0
