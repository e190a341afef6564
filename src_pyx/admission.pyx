"""Admission policy. The contract stands in iop_fast/_core/admission.pyi.

Theory of operation
===================

Admission is the only caller of the ledger and of the wait queue. It stands at a *fixed point* between steps: no waiter
has a free live candidate, none is due, none is without a live candidate. Each step restores the fixed point:

    change    everything that the step changes, ended leases included
    expire    waiters whose deadline has come end EVICTED_TIMEOUT
    strand    waiters without a live candidate end EVICTED_UNAVAILABLE
    grant     free slots go to waiters in global order until nothing more can be granted
    deliver   owners are called

The first four are plain C on tables: no Python code runs in them, memory for them is reserved before they begin, and so
nothing can come between them: no grant before all changes are made (a sibling of a provider that dies with its Node
gets nothing), and no finalizer that would step in. Only `deliver` runs foreign code. An owner may call any step; that
step makes its own change, decides at once and leaves its decisions to the delivery that is running. So there is no
recursion, and an owner always sees a fixed point. What an owner raises is kept for the shell and its lease is given
back.

Which lines a step looks at: a change marks the lines that it can have affected (those of the providers that changed,
found by the queue's index); `strand` and `grant` look at marked lines only. That is enough because the others were at
the fixed point and their providers are as they were. A grant takes from one provider and frees nothing, so a line that
cannot be served is out for the rest of the step. Marked lines are worked off by a heap over their heads' sequences:
global order among those that can be served.

A release is the hot case and takes neither marks nor heap: only the freed provider has gained, so the waiter to serve
is the oldest head among its lines, and the provider is the only free candidate that this waiter has.

Class: a request labelled long is constrained while a catalog provider of its model has long slots (`has_long`); then it
needs a provider with long slots and takes one of them beside the normal one. The label stands in the line's key, the
constraint is read when it matters, so a refresh changes the class of those waiting by changing `has_long`.

Choice among the free live candidates: lowest in_flight, then lowest priority, then the oldest last grant, where never
is oldest and the catalog's order decides among those.

A refused step (a second release, a stale generation, a waiter that has ended) does nothing at all, not even expire.

How a plan is read and taken over stands in plans.pyx.
"""

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple, Protocol

cimport cython
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset

from iop_fast._core.ledger cimport (
    DURATION_BUCKETS,
    END_LOST,
    END_OPEN,
    END_RELEASED,
    LEASE_HELD,
    LINK_DRAINING,
    LINK_OFFLINE,
    LINK_READY,
    NONE,
    RATE_WINDOW_NS,
    Histogram,
    LeaseTable,
    ModelState,
    NodeState,
    ProviderMeter,
    ProviderState,
    drop_entry,
    free_entry,
)
from iop_fast._core.plans cimport Staging, allocated
from iop_fast._core.wait_queue cimport Line, ProviderLines, WaiterEntry


# A cimported type is no attribute of the module, and these two belong to its interface.
globals()["Lease"] = Lease
globals()["Waiter"] = Waiter


class Outcome(IntEnum):
    """How a request left admission."""

    GRANTED = 0
    REJECTED_QUEUE_FULL = 1
    REJECTED_UNAVAILABLE = 2
    EVICTED_TIMEOUT = 3
    EVICTED_UNAVAILABLE = 4
    EVICTED_CANCELLED = 5
    EVICTED_DRAINING = 6


cdef enum:
    GRANTED = 0
    REJECTED_QUEUE_FULL = 1
    REJECTED_UNAVAILABLE = 2
    EVICTED_TIMEOUT = 3
    EVICTED_UNAVAILABLE = 4
    EVICTED_CANCELLED = 5
    EVICTED_DRAINING = 6


cdef tuple OUTCOME_OF = tuple(Outcome)
cdef tuple LINK_NAMES = ("offline", "ready", "draining")

# Exceptions of owners that are kept until the shell takes them; the counter counts all.
cdef int32_t FAILURES_KEPT = 64
cdef int64_t RETRY_AFTER_MAX_S = 30


class Owner(Protocol):
    """The request behind a waiter."""

    def on_granted(self, lease):
        """Take over the lease."""

    def on_evicted(self, outcome):
        """The waiter left the queue without a lease."""


class ProviderSpec(NamedTuple):
    """One provider of a plan."""

    node_id: str
    provider_id: str
    capacity: int
    long_capacity: int
    priority: int
    enabled: bool
    healthy: bool
    can: int


class Plan(NamedTuple):
    """What admission needs of one configuration revision."""

    providers: Sequence[ProviderSpec]
    models: Mapping[str, Sequence[tuple[str, str]]]
    max_queue: int
    queue_timeout_ns: int


class SnapshotRow(NamedTuple):
    """One provider as it stands."""

    node_id: str
    provider_id: str
    link: str
    enabled: bool
    healthy: bool
    priority: int
    configured_capacity: int
    configured_long_capacity: int
    capacity: int
    long_capacity: int
    in_flight: int
    long_in_flight: int
    queued: int


class MeterRow(NamedTuple):
    """What one provider has done since the start."""

    node_id: str
    provider_id: str
    wait_counts: tuple[int, ...]
    wait_sum_ns: int
    lease_counts: tuple[int, ...]
    lease_sum_ns: int


class Explanation(NamedTuple):
    """What would become of a request now."""

    position: int | None
    candidates: list[tuple[tuple[str, str], str]]


cdef tuple bucket_counts(const Histogram* histogram):
    cdef int32_t bucket
    return tuple([histogram.counts[bucket] for bucket in range(DURATION_BUCKETS)])


# Choice ---------------------------------------------------------------------------------------------------------------

cdef inline bint is_preferred(const ProviderState* one, const ProviderState* other) noexcept:
    """Whether `one` is taken before `other`, which stands before it in the catalog."""
    if one.in_flight != other.in_flight:
        return one.in_flight < other.in_flight
    if one.priority != other.priority:
        return one.priority < other.priority
    return one.last_grant < other.last_grant


cdef inline bint is_live_for(const ProviderState* provider, uint64_t needs, bint is_constrained) noexcept:
    return provider.is_live and provider.can & needs == needs and (not is_constrained or provider.long_capacity > 0)


cdef inline bint has_slot(const ProviderState* provider, bint is_constrained) noexcept:
    return provider.in_flight < provider.capacity and (
        not is_constrained or provider.long_in_flight < provider.long_capacity
    )


cdef void choose(
    Choice* choice,
    const ProviderState* providers,
    const ModelState* model,
    uint64_t needs,
    bint is_constrained,
    int32_t excluded,
) noexcept:
    """Walk the catalog once: most of what an admission costs."""
    cdef const ProviderState* best = NULL
    cdef const ProviderState* provider
    cdef int32_t place, index
    choice.provider = NONE
    choice.has_able = choice.has_live = False
    for place in range(model.count):
        index = model.candidates[place]
        provider = &providers[index]
        if provider.can & needs != needs:
            continue
        choice.has_able = True
        if not is_live_for(provider, needs, is_constrained) or index == excluded:
            continue
        choice.has_live = True
        if has_slot(provider, is_constrained) and (best is NULL or is_preferred(provider, best)):
            best = provider
            choice.provider = index


cdef void abandon_entry(LeaseTable* table, int32_t slot) noexcept:
    """An entry for which no Lease object could be made: held ones wait for `reclaim`."""
    if table.entries[slot].state == LEASE_HELD:
        drop_entry(table, slot)
    else:
        free_entry(table, slot)


@cython.final
cdef class Admission:

    def __cinit__(self):
        self.ledger = Ledger.__new__(Ledger)
        self.queue = WaitQueue.__new__(WaitQueue)
        self.catalog = Catalog.__new__(Catalog, self.ledger, self.queue)
        self.failures = []

    def __dealloc__(self):
        free(self.outcomes_of)

    def __init__(self, plan, *, int64_t now_ns=0, bint verify=False):
        self.now_ns = now_ns
        self.is_verifying = verify
        self.reconfigure(now_ns, plan)

    # Steps of requests ------------------------------------------------------------------------------------------------

    cpdef object submit(self, int64_t now_ns, object owner, str model, bint long, uint64_t needs):
        cdef Arrival arrival
        arrival.model = self.catalog.names[model]
        arrival.is_long = long
        arrival.needs = needs
        arrival.excluded = NONE
        arrival.is_readmitted = False
        return self.admit(now_ns, owner, &arrival)

    def readmit(self, int64_t now_ns, owner, str model, uint64_t needs, Lease ended not None):
        cdef Arrival arrival
        self.check_own(ended)
        if ended.is_held:
            raise ValueError(f"lease {ended.lease_id} is held: only an ended one can be re-admitted")
        if ended.was_readmitted:
            raise ValueError(f"lease {ended.lease_id} was re-admitted before")
        self.begin(now_ns)
        ended.was_readmitted = True
        arrival.model = self.catalog.names.get(model, NONE)
        arrival.is_long = ended.is_long
        arrival.needs = needs
        arrival.excluded = ended.provider
        arrival.is_readmitted = True
        arrival.sequence = ended.sequence
        arrival.enqueued_at_ns = ended.enqueued_at_ns
        return self.admit(now_ns, owner, &arrival)

    cdef object admit(self, int64_t now_ns, object owner, Arrival* arrival):
        cdef Waiter waiter = None
        cdef Choice choice
        if self.ledger.table.used + self.queue.fresh.count + self.queue.readmitted.count >= self.ledger.table.capacity:
            self.ledger.reserve_leases(self.queue.fresh.count + self.queue.readmitted.count + 1)
        self.choose_for(&choice, arrival)
        if choice.provider == NONE and choice.has_live:
            waiter = self.make_waiter(owner)
            self.choose_for(&choice, arrival)  # allocating may have run a finalizer that stepped
        if not choice.has_able and not arrival.is_readmitted:
            raise ValueError(f"no provider of the model can do the needs {arrival.needs:#x}")
        self.begin(now_ns)
        try:
            self.expire()
            return self.arrive(arrival, &choice, waiter)
        finally:
            self.finish()

    cdef void choose_for(self, Choice* choice, const Arrival* arrival) noexcept:
        cdef ModelState* model
        cdef bint is_constrained
        if arrival.model == NONE:
            choice.provider = NONE
            choice.has_able = choice.has_live = False
            return
        model = &self.catalog.models[arrival.model]
        is_constrained = arrival.is_long and model.has_long
        choose(choice, self.ledger.providers, model, arrival.needs, is_constrained, arrival.excluded)

    cdef Waiter make_waiter(self, object owner):
        """Make room for one more waiter."""
        cdef Waiter waiter = Waiter.__new__(Waiter)
        waiter.owner = owner
        self.queue.reserve_entry()
        return waiter

    cdef object arrive(self, Arrival* arrival, const Choice* choice, Waiter waiter):
        """Grant, refuse or enqueue: the one place where a request enters."""
        if not arrival.is_readmitted:
            arrival.sequence = self.last_sequence + 1
            arrival.enqueued_at_ns = self.now_ns
        elif self.is_due(arrival.enqueued_at_ns):
            return self.refuse(arrival, EVICTED_TIMEOUT)
        if choice.provider != NONE:
            return self.grant_arrival(arrival, choice.provider)
        if not choice.has_live:
            return self.refuse(arrival, EVICTED_UNAVAILABLE if arrival.is_readmitted else REJECTED_UNAVAILABLE)
        if not arrival.is_readmitted and self.queue.fresh.count >= self.catalog.queue_limit:
            return self.refuse(arrival, REJECTED_QUEUE_FULL)
        waiter.sequence = arrival.sequence
        waiter.enqueued_at_ns = arrival.enqueued_at_ns
        self.queue.enqueue(waiter, self.line_for(arrival), arrival.is_readmitted)
        self.count_arrival(arrival)
        return waiter

    cdef int32_t line_for(self, const Arrival* arrival) except -1:
        return self.queue.open_line(
            arrival.model, arrival.is_long, arrival.needs, arrival.excluded,
            &self.catalog.models[arrival.model], self.ledger.providers,
        )

    cdef void count_arrival(self, const Arrival* arrival) noexcept:
        if arrival.is_readmitted:
            self.readmitted += 1
        else:
            self.submitted += 1
            self.last_sequence = arrival.sequence

    cdef object refuse(self, const Arrival* arrival, int outcome):
        self.count_arrival(arrival)
        self.count_end(arrival.model, outcome)
        return OUTCOME_OF[outcome]

    cdef Lease grant_arrival(self, const Arrival* arrival, int32_t provider):
        cdef bint takes_long = arrival.is_long and self.catalog.models[arrival.model].has_long
        cdef int32_t slot
        cdef Lease lease
        if self.is_verifying:
            self.verify_choice(arrival.model, arrival.is_long, arrival.needs, arrival.excluded, provider)
        slot = self.ledger.take(provider, takes_long, self.now_ns, arrival.enqueued_at_ns)
        try:
            lease = self.ledger.make_lease(slot, arrival.is_long, arrival.sequence, arrival.enqueued_at_ns)
        except MemoryError:
            self.ledger.end_held(slot, self.now_ns)
            raise
        self.count_arrival(arrival)
        self.count_end(arrival.model, GRANTED)
        return lease

    cpdef bint release(self, int64_t now_ns, Lease lease) except -1:
        cdef int32_t provider
        self.check_own(lease)
        if lease.ended != END_OPEN:
            self.double_releases += lease.ended == END_RELEASED
            return False
        if self.ledger.table.entries[lease.slot].state != LEASE_HELD:
            lease.ended = END_LOST
            free_entry(self.ledger.table, lease.slot)
            return False
        self.begin(now_ns)
        provider = lease.provider
        self.ledger.end_held(lease.slot, now_ns)
        lease.ended = END_RELEASED
        if self.queue.line_count > 0:
            self.expire()
            self.grant_freed(provider)
        self.finish()
        return True

    cpdef bint cancel(self, int64_t now_ns, Waiter waiter) except -1:
        cdef object _owner
        if waiter is None:
            raise TypeError("cancel: expected a Waiter, got None")
        if not waiter.is_waiting:
            return False
        if waiter.slot >= self.queue.entry_capacity or self.queue.waiters[waiter.slot] is not waiter:
            raise ValueError("the waiter belongs to another queue")
        self.begin(now_ns)
        self.count_end(self.queue.lines[self.queue.entries[waiter.slot].line].model, EVICTED_CANCELLED)
        self.queue.unlink(waiter.slot)
        self.queue.give_up_entry(waiter.slot)
        waiter.is_waiting = False
        _owner = waiter.owner  # its last reference may go only after the step
        waiter.owner = None
        self.expire()
        self.finish()
        return True

    def tick(self, int64_t now_ns):
        self.begin(now_ns)
        self.expire()
        self.finish()

    def drain(self, int64_t now_ns):
        cdef int32_t slot
        self.begin(now_ns)
        slot = self.queue.oldest()
        while slot != NONE:
            self.evict(slot, EVICTED_DRAINING)
            slot = self.queue.oldest()
        self.finish()

    def reclaim(self, int64_t now_ns):
        cdef int32_t provider, count = self.ledger.table.dropped, place = 0
        cdef int32_t* ended
        if count == 0:
            return []
        self.begin(now_ns)
        ended = <int32_t*>allocated(count, sizeof(int32_t))
        try:
            self.queue.unmark_all()
            provider = self.ledger.end_dropped(now_ns)
            while provider != NONE:
                self.queue.mark_provider(provider)
                ended[place] = provider
                place += 1
                provider = self.ledger.end_dropped(now_ns)
            self.reclaimed += count
            self.settle()
            keys = [self.ledger.keys[ended[place]] for place in range(count)]
        finally:
            free(ended)
        self.finish()
        return keys

    # Steps of Nodes ---------------------------------------------------------------------------------------------------

    def node_ready(self, int64_t now_ns, str node_id, int64_t generation, healthy):
        cdef int32_t row = self.ledger.intern_node(node_id)
        cdef list reported = self.read_health(row, healthy)
        cdef NodeState* node = &self.ledger.nodes[row]
        if generation <= node.generation:
            return False
        self.begin(now_ns)
        if node.link != LINK_OFFLINE:
            self.ledger.lose_leases(row, now_ns)  # the session before this one ends here, whoever says so later
        node.generation = generation
        self.queue.unmark_all()
        self.take_health(reported)
        self.set_link(row, LINK_READY)
        self.settle()
        self.finish()
        return True

    def node_draining(self, int64_t now_ns, str node_id, int64_t generation):
        cdef int32_t row = self.current_node(node_id, generation)
        if row == NONE:
            return False
        self.begin(now_ns)
        self.queue.unmark_all()
        self.set_link(row, LINK_DRAINING)
        self.settle()
        self.finish()
        return True

    def node_down(self, int64_t now_ns, str node_id, int64_t generation):
        cdef int32_t row = self.current_node(node_id, generation)
        if row == NONE:
            return False
        self.begin(now_ns)
        self.ledger.lose_leases(row, now_ns)
        self.queue.unmark_all()
        self.set_link(row, LINK_OFFLINE)
        self.settle()
        self.finish()
        return True

    def health(self, int64_t now_ns, str node_id, int64_t generation, healthy):
        cdef int32_t row = self.current_node(node_id, generation)
        cdef list reported
        if row == NONE:
            return False
        reported = self.read_health(row, healthy)
        if self.current_node(node_id, generation) == NONE:
            return False
        self.begin(now_ns)
        self.queue.unmark_all()
        self.take_health(reported)
        self.settle()
        self.finish()
        return True

    cdef int32_t current_node(self, str node_id, int64_t generation) except -2:
        """The row of a Node whose session of this generation is up, else NONE."""
        cdef int32_t row = self.ledger.find_node(node_id)
        if row == NONE or self.ledger.nodes[row].generation != generation:
            return NONE
        return NONE if self.ledger.nodes[row].link == LINK_OFFLINE else row

    cdef list read_health(self, int32_t row, object healthy):
        """The reported health of the Node's providers as numbers, 2 * provider + healthy; unknown ids are left out."""
        cdef list reported = []
        cdef int32_t provider = self.ledger.nodes[row].first_provider
        cdef object word
        while provider != NONE:
            word = healthy.get(self.ledger.keys[provider][1])
            if word is not None:
                reported.append(2 * provider + bool(word))
            provider = self.ledger.providers[provider].next_of_node
        return reported

    cdef int take_health(self, list reported) except -1:
        cdef int32_t coded, provider
        for coded in reported:
            provider = coded >> 1
            if self.ledger.providers[provider].is_healthy != (coded & 1):
                self.ledger.providers[provider].is_healthy = coded & 1
                self.ledger.update_live(provider)
                self.queue.mark_provider(provider)
        return 0

    cdef void set_link(self, int32_t row, uint8_t link) noexcept:
        cdef int32_t provider = self.ledger.nodes[row].first_provider
        self.ledger.nodes[row].link = link
        while provider != NONE:
            self.ledger.update_live(provider)
            self.queue.mark_provider(provider)
            provider = self.ledger.providers[provider].next_of_node

    # The parts of a step ----------------------------------------------------------------------------------------------

    cdef inline int begin(self, int64_t now_ns) except -1:
        if now_ns < self.now_ns:
            self.refuse_time(now_ns)
        self.now_ns = now_ns
        return 0

    cdef int refuse_time(self, int64_t now_ns) except -1:
        raise ValueError(f"time never falls: expected at least {self.now_ns} ns, got {now_ns}")

    cdef bint is_due(self, int64_t enqueued_at_ns) noexcept:
        return self.catalog.queue_timeout_ns > 0 and self.now_ns - enqueued_at_ns >= self.catalog.queue_timeout_ns

    cdef inline void expire(self) noexcept:
        if self.queue.line_count > 0 and self.catalog.queue_timeout_ns > 0:
            self.expire_due()

    cdef void expire_due(self) noexcept:
        cdef int32_t slot = self.queue.oldest()
        while slot != NONE and self.is_due(self.queue.entries[slot].enqueued_at_ns):
            self.evict(slot, EVICTED_TIMEOUT)
            slot = self.queue.oldest()

    cdef void evict(self, int32_t slot, uint8_t outcome) noexcept:
        self.count_end(self.queue.lines[self.queue.entries[slot].line].model, outcome)
        self.queue.decide(slot, outcome, NONE)

    cdef inline void count_end(self, int32_t model, int outcome) noexcept:
        self.outcomes[outcome] += 1
        if model != NONE:
            self.outcomes_of[model].counts[outcome] += 1

    cdef int settle(self) except -1:
        """Bring the marked lines to the fixed point."""
        self.expire()
        if self.queue.marked_count > 0:
            self.strand_marked()
            self.grant_marked()
        return 0

    cdef void strand_marked(self) noexcept:
        cdef WaitQueue queue = self.queue
        cdef int32_t place, row
        cdef Choice choice
        queue.heap_count = 0
        for place in range(queue.marked_count):
            row = queue.marked[place]
            if queue.lines[row].waiting > 0:
                self.choose_for_line(&choice, row)
                if not choice.has_live:
                    queue.heap_push(row)
        while queue.heap_count > 0:
            row = queue.heap[0]
            self.evict(queue.lines[row].head, EVICTED_UNAVAILABLE)
            self.restore_heap(row)

    cdef int grant_marked(self) except -1:
        cdef WaitQueue queue = self.queue
        cdef int32_t place, row
        cdef Choice choice
        for place in range(queue.marked_count):
            row = queue.marked[place]
            if queue.lines[row].waiting > 0:
                queue.heap_push(row)
        while queue.heap_count > 0:
            row = queue.heap[0]
            self.choose_for_line(&choice, row)
            if choice.provider == NONE:
                queue.heap_drop()
            else:
                self.grant_head(row, choice.provider)
                self.restore_heap(row)
        return 0

    cdef void restore_heap(self, int32_t row) noexcept:
        """The line on top has lost its head."""
        if self.queue.lines[row].waiting > 0:
            self.queue.heap_settle()
        else:
            self.queue.heap_drop()

    cdef void choose_for_line(self, Choice* choice, int32_t row) noexcept:
        cdef Line* line = &self.queue.lines[row]
        cdef ModelState* model = &self.catalog.models[line.model]
        cdef bint is_constrained = line.is_long and model.has_long
        choose(choice, self.ledger.providers, model, line.needs, is_constrained, line.excluded)

    cdef int grant_head(self, int32_t row, int32_t provider) except -1:
        cdef Line* line = &self.queue.lines[row]
        cdef int32_t lease, slot = line.head
        cdef bint takes_long
        if self.is_verifying:
            self.verify_turn(row)
            self.verify_choice(line.model, line.is_long, line.needs, line.excluded, provider)
        takes_long = line.is_long and self.catalog.models[line.model].has_long
        lease = self.ledger.take(provider, takes_long, self.now_ns, self.queue.entries[slot].enqueued_at_ns)
        self.count_end(line.model, GRANTED)
        self.queue.decide(slot, GRANTED, lease)
        return 0

    cdef int grant_freed(self, int32_t provider) except -1:
        """Grant what one provider has gained to the oldest heads among its lines."""
        cdef ProviderState* row = &self.ledger.providers[provider]
        cdef int32_t line
        while row.is_live and row.in_flight < row.capacity:
            line = self.oldest_line(provider)
            if line == NONE:
                break
            self.grant_head(line, provider)
        return 0

    cdef int32_t oldest_line(self, int32_t provider) noexcept:
        cdef ProviderState* row = &self.ledger.providers[provider]
        cdef ProviderLines* lines = &self.queue.of_provider[provider]
        cdef bint has_long_slot = row.long_in_flight < row.long_capacity
        cdef int64_t sequence = 0
        cdef int32_t place, best = NONE
        cdef Line* line
        for place in range(lines.count):
            line = &self.queue.lines[lines.refs[place].line]
            if best != NONE and line.head_sequence > sequence:
                continue
            if line.is_long and not has_long_slot and self.catalog.models[line.model].has_long:
                continue
            best = lines.refs[place].line
            sequence = line.head_sequence
        return best

    cdef inline int finish(self) except -1:
        if self.is_verifying:
            self.verify()
        if self.queue.first_decided != NONE and not self.is_delivering:
            self.deliver()
        return 0

    # Delivery ---------------------------------------------------------------------------------------------------------

    cdef int deliver(self) except -1:
        cdef int32_t slot
        cdef WaiterEntry entry
        cdef Waiter waiter
        cdef object owner
        self.is_delivering = True
        try:
            slot = self.queue.pop_decided()
            while slot != NONE:
                entry = self.queue.entries[slot]
                waiter = self.queue.give_up_entry(slot)
                if waiter is not None:
                    owner = waiter.owner
                    waiter.owner = None
                    if entry.outcome == GRANTED:
                        self.deliver_grant(owner, &entry)
                    else:
                        self.deliver_eviction(owner, OUTCOME_OF[entry.outcome])
                slot = self.queue.pop_decided()
        finally:
            self.is_delivering = False
        return 0

    cdef int deliver_grant(self, object owner, const WaiterEntry* entry) except -1:
        cdef Lease lease = None
        try:
            lease = self.ledger.make_lease(entry.lease, entry.is_long, entry.sequence, entry.enqueued_at_ns)
            owner.on_granted(lease)
        except BaseException as failure:
            self.keep_failure(failure)
            if lease is None:
                abandon_entry(self.ledger.table, entry.lease)
            elif lease.ended == END_OPEN:
                self.release(self.now_ns, lease)
        return 0

    cdef int deliver_eviction(self, object owner, object outcome) except -1:
        try:
            owner.on_evicted(outcome)
        except BaseException as failure:
            self.keep_failure(failure)
        return 0

    cdef int keep_failure(self, object failure) except -1:
        self.callbacks_failed += 1
        if len(self.failures) < FAILURES_KEPT:
            self.failures.append(failure)
        return 0

    # Plans ------------------------------------------------------------------------------------------------------------

    def reconfigure(self, int64_t now_ns, plan):
        cdef Staging staging = self.catalog.read(plan)
        self.reserve_outcomes(staging.model_count)
        self.begin(now_ns)
        self.catalog.commit(staging)
        for row in staging.new_rows:
            memset(&self.outcomes_of[<int32_t>row], 0, sizeof(ModelOutcomes))
        if self.queue.line_count > 0:
            self.queue.unmark_all()
            self.queue.mark_all()
            self.settle()
        self.overhang = max(0, self.queue.fresh.count - self.catalog.queue_limit)
        self.finish()

    cdef int reserve_outcomes(self, int32_t count) except -1:
        cdef ModelOutcomes* moved
        if count > self.outcome_capacity:
            count = max(count, 2 * self.outcome_capacity)
            moved = <ModelOutcomes*>realloc(self.outcomes_of, count * sizeof(ModelOutcomes))
            if moved is NULL:
                raise MemoryError()
            self.outcomes_of = moved
            self.outcome_capacity = count
        return 0

    # Read-outs --------------------------------------------------------------------------------------------------------

    cdef int check_own(self, Lease lease) except -1:
        if lease is None:
            raise TypeError("expected a Lease, got None")
        if lease.table is not self.ledger.table:
            raise ValueError(f"lease {lease.lease_id} belongs to another ledger")
        return 0

    @property
    def next_deadline_ns(self):
        cdef int32_t slot = self.queue.oldest()
        if slot == NONE or self.catalog.queue_timeout_ns == 0:
            return 0
        return self.queue.entries[slot].enqueued_at_ns + self.catalog.queue_timeout_ns

    @property
    def has_dropped(self):
        return self.ledger.table.dropped > 0

    @property
    def waiting(self):
        return self.queue.fresh.count + self.queue.readmitted.count

    @property
    def max_queue(self):
        return self.catalog.queue_limit

    def provider_key(self, Lease lease not None):
        self.check_own(lease)
        return self.ledger.keys[lease.provider]

    def live_candidates(self, str model, bint long, uint64_t needs):
        cdef ModelState* row = &self.catalog.models[<int32_t>self.catalog.names[model]]
        cdef int32_t place, count = 0
        for place in range(row.count):
            count += is_live_for(&self.ledger.providers[row.candidates[place]], needs, long and row.has_long)
        return count

    def snapshot(self):
        return [self.snapshot_row(self.catalog.order[place]) for place in range(self.catalog.order_count)]

    cdef object snapshot_row(self, int32_t provider):
        cdef ProviderState* row = &self.ledger.providers[provider]
        cdef uint8_t link = self.ledger.nodes[row.node].link
        cdef bint is_online = link != LINK_OFFLINE
        cdef tuple key = self.ledger.keys[provider]
        return SnapshotRow(
            key[0],
            key[1],
            LINK_NAMES[link],
            bool(row.is_enabled),
            bool(row.is_healthy),
            row.priority,
            row.capacity,
            row.long_capacity,
            row.capacity if is_online else 0,
            row.long_capacity if is_online else 0,
            row.in_flight if is_online else 0,
            row.long_in_flight if is_online else 0,
            self.pressure(provider) if is_online else 0,
        )

    cdef int64_t pressure(self, int32_t provider) noexcept:
        """Waiters for which a provider is eligible, live or not."""
        cdef ProviderLines* lines = &self.queue.of_provider[provider]
        cdef int64_t queued = 0
        cdef int32_t place
        for place in range(lines.count):
            if self.is_eligible(provider, lines.refs[place].line):
                queued += self.queue.lines[lines.refs[place].line].waiting
        return queued

    cdef bint is_eligible(self, int32_t provider, int32_t row) noexcept:
        """Whether a provider has the kinds of slots that a line of its index takes, full or not."""
        cdef ProviderState* state = &self.ledger.providers[provider]
        cdef Line* line = &self.queue.lines[row]
        if state.capacity == 0:
            return False
        return state.long_capacity > 0 or not (line.is_long and self.catalog.models[line.model].has_long)

    def counters(self):
        counts = {"submitted": self.submitted, "readmitted": self.readmitted}
        for outcome in OUTCOME_OF:
            counts[outcome.name.lower()] = self.outcomes[<int>outcome]
        counts["double_release"] = self.double_releases
        counts["reclaimed"] = self.reclaimed
        counts["callback_failed"] = self.callbacks_failed
        return counts

    def model_outcomes(self):
        cdef int32_t row, outcome
        counts = {}
        for name, row in self.catalog.names.items():
            counts[name] = tuple([self.outcomes_of[row].counts[outcome] for outcome in range(OUTCOMES)])
        return counts

    def meters(self):
        return [self.meter_row(self.catalog.order[place]) for place in range(self.catalog.order_count)]

    cdef object meter_row(self, int32_t provider):
        cdef ProviderMeter* meter = &self.ledger.meters[provider]
        cdef tuple key = self.ledger.keys[provider]
        return MeterRow(
            key[0],
            key[1],
            bucket_counts(&meter.waits),
            meter.waits.sum_ns,
            bucket_counts(&meter.leases),
            meter.leases.sum_ns,
        )

    def retry_after_s(self, str model):
        cdef ModelState* row = &self.catalog.models[<int32_t>self.catalog.names[model]]
        cdef int32_t place
        recent = 0  # lease ends times the window: a Python number, thousands of busy providers overflow 64 bits
        for place in range(row.count):
            if self.ledger.providers[row.candidates[place]].is_live:
                recent += self.ledger.recent_ends(row.candidates[place], self.now_ns)
        if recent == 0:
            return RETRY_AFTER_MAX_S
        window_ns = <object><int64_t>RATE_WINDOW_NS
        waits_s = -(-(1 + self.competing(row, 0, False)) * window_ns * window_ns // (recent * 1_000_000_000))
        return max(1, min(RETRY_AFTER_MAX_S, waits_s))

    cdef int64_t competing(self, const ModelState* model, uint64_t needs, bint is_constrained):
        """Waiters for whom a live candidate of a request of this kind is eligible too."""
        cdef WaitQueue queue = self.queue
        cdef ProviderLines* lines
        cdef int32_t place, provider, line
        cdef int64_t waiting = 0
        queue.unmark_all()
        for place in range(model.count):
            provider = model.candidates[place]
            if is_live_for(&self.ledger.providers[provider], needs, is_constrained):
                lines = &queue.of_provider[provider]
                for line in range(lines.count):
                    if self.is_eligible(provider, lines.refs[line].line):
                        queue.mark_line(lines.refs[line].line)
        for place in range(queue.marked_count):
            waiting += queue.lines[queue.marked[place]].waiting
        return waiting

    def explain(self, str model, bint long, uint64_t needs):
        cdef int32_t row = self.catalog.names[model]
        cdef ModelState* state = &self.catalog.models[row]
        cdef bint is_constrained = long and state.has_long
        cdef int32_t place
        cdef Choice choice
        choose(&choice, self.ledger.providers, state, needs, is_constrained, NONE)
        position = 0 if choice.provider != NONE else None
        if choice.has_live and position is None:
            position = 1 + self.competing(state, needs, is_constrained)
        candidates = []
        for place in range(state.count):
            verdict = self.verdict(state.candidates[place], needs, is_constrained)
            if state.candidates[place] == choice.provider:
                verdict = "taken_next"
            candidates.append((self.ledger.keys[state.candidates[place]], verdict))
        return Explanation(position, candidates)

    cdef str verdict(self, int32_t provider, uint64_t needs, bint is_constrained):
        """What stands between a provider and a request, the most lasting reason first."""
        cdef ProviderState* row = &self.ledger.providers[provider]
        cdef uint8_t link = self.ledger.nodes[row.node].link
        if row.can & needs != needs:
            return "cannot"
        if not row.is_enabled:
            return "disabled"
        if not row.is_healthy:
            return "unhealthy"
        if link != LINK_READY:
            return "draining" if link == LINK_DRAINING else "node_offline"
        if row.in_flight >= row.capacity:
            return "full"
        return "free" if has_slot(row, is_constrained) else "no_long_slot"

    def take_failures(self):
        cdef list failures = self.failures
        self.failures = []
        return failures

    def copy(self):
        cdef Admission twin = Admission.__new__(Admission)
        twin.ledger = self.ledger.copy()
        twin.queue = self.queue.copy()
        twin.catalog = self.catalog.copy(twin.ledger, twin.queue)
        twin.now_ns = self.now_ns
        twin.last_sequence = self.last_sequence
        twin.is_verifying = self.is_verifying
        twin.overhang = self.overhang
        twin.outcomes = self.outcomes
        twin.submitted = self.submitted
        twin.readmitted = self.readmitted
        twin.double_releases = self.double_releases
        twin.reclaimed = self.reclaimed
        twin.callbacks_failed = self.callbacks_failed
        twin.reserve_outcomes(self.catalog.model_count)
        if self.catalog.model_count > 0:
            memcpy(twin.outcomes_of, self.outcomes_of, self.catalog.model_count * sizeof(ModelOutcomes))
        return twin

    # Verification -----------------------------------------------------------------------------------------------------

    cpdef verify(self):
        cdef int32_t row
        cdef ModelState* model
        cdef int64_t ended = 0
        self.ledger.verify()
        self.queue.verify()
        for row in range(OUTCOMES):
            ended += self.outcomes[row]
        assert self.submitted + self.readmitted == ended + self.waiting, "I10: requests in and out do not add up"
        self.overhang = min(self.overhang, max(0, self.queue.fresh.count - self.catalog.queue_limit))
        assert self.queue.fresh.count <= self.catalog.queue_limit + self.overhang, "I6: more waiters than max_queue"
        for row in range(self.ledger.provider_count):
            self.verify_provider(row)
        for row in range(self.catalog.model_count):
            model = &self.catalog.models[row]
            assert model.has_long == self.catalog.has_long_slots(model), "I8: stale class of a model"
        for row in range(self.queue.line_capacity):
            if self.queue.lines[row].waiting > 0:
                self.verify_line(row)

    cdef int verify_provider(self, int32_t provider) except -1:
        cdef ProviderState* row = &self.ledger.providers[provider]
        cdef uint8_t was_live = row.is_live
        self.ledger.update_live(provider)
        assert row.is_live == was_live, f"I8: stale liveness of {self.ledger.keys[provider]}"
        return 0

    cdef int verify_line(self, int32_t row) except -1:
        cdef Line* line = &self.queue.lines[row]
        cdef ModelState* model = &self.catalog.models[line.model]
        cdef Choice choice
        cdef int32_t place, able = 0
        self.choose_for_line(&choice, row)
        assert choice.has_live, f"I8: waiter {line.head_sequence} has no live candidate"
        assert choice.provider == NONE, f"I4: waiter {line.head_sequence} has a free live candidate"
        assert not self.is_due(self.queue.entries[line.head].enqueued_at_ns), "I7: a waiter is past its deadline"
        for place in range(model.count):
            able += (
                model.candidates[place] != line.excluded
                and self.ledger.providers[model.candidates[place]].can & line.needs == line.needs
            )
        assert able == line.member_count, "I4: the index misses a provider of a line"
        return 0

    cdef int verify_choice(
        self, int32_t model, bint is_long, uint64_t needs, int32_t excluded, int32_t chosen
    ) except -1:
        """I9: no free live candidate stands before the chosen one."""
        cdef ModelState* row = &self.catalog.models[model]
        cdef bint is_constrained = is_long and row.has_long
        cdef ProviderState* provider
        cdef int32_t place
        cdef list free_live = []
        for place in range(row.count):
            provider = &self.ledger.providers[row.candidates[place]]
            if row.candidates[place] != excluded and is_live_for(provider, needs, is_constrained):
                if has_slot(provider, is_constrained):
                    rank = (provider.in_flight, provider.priority, provider.last_grant, place)
                    free_live.append((rank, row.candidates[place]))
        assert free_live and min(free_live)[1] == chosen, f"I9: granted {self.ledger.keys[chosen]} out of {free_live}"
        return 0

    cdef int verify_turn(self, int32_t row) except -1:
        """I5: no older waiter could be served at this moment."""
        cdef int32_t other
        cdef Choice choice
        for other in range(self.queue.line_capacity):
            if (
                self.queue.lines[other].waiting > 0
                and self.queue.lines[other].head_sequence < self.queue.lines[row].head_sequence
            ):
                self.choose_for_line(&choice, other)
                assert choice.provider == NONE, "I5: a waiter overtook an older one"
        return 0
