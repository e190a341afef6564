"""Admission policy. The contract stands in iop_fast/_core/admission.pyi.

No other compiled code uses this class, so it has no .pxd, and what is called at each request can be inline.

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

A refused step (a second release, a stale generation, a waiter that has ended) does nothing at all, not even expire.

How expire, strand and grant find whom they concern stands in settlement.pyx, how a plan is read and taken over in
plans.pyx, who of several candidates is taken in choice.pyx. What is counted (tally.pyx), read out (readouts.pyx) and
asserted (verification.pyx) stands apart too.
"""

cimport cython
from cpython.mem cimport PyMem_Free
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from iop_fast._core.choice cimport Choice
from iop_fast._core.ledger cimport (
    END_LOST,
    END_OPEN,
    END_RELEASED,
    LEASE_HELD,
    LINK_DRAINING,
    LINK_OFFLINE,
    LINK_READY,
    NONE,
    Lease,
    Ledger,
    NodeState,
    abandon_entry,
    free_entry,
)
from iop_fast._core.memory cimport zeroed
from iop_fast._core.plans cimport Catalog, Staging, choose_for
from iop_fast._core.readouts cimport Readouts
from iop_fast._core.settlement cimport Settlement
from iop_fast._core.tally cimport (
    EVICTED_CANCELLED,
    EVICTED_DRAINING,
    EVICTED_TIMEOUT,
    EVICTED_UNAVAILABLE,
    GRANTED,
    OUTCOME_OF,
    REJECTED_QUEUE_FULL,
    REJECTED_UNAVAILABLE,
    Tally,
    count_end,
)
from iop_fast._core.verification cimport Verification
from iop_fast._core.wait_queue cimport Waiter, WaiterEntry, WaitQueue

from iop_fast._core.records import (  # no-cython-lint
    Explanation, LineRow, MeterRow, Outcome, Owner,  # no-cython-lint: the module's interface
    Plan, ProviderSpec, SnapshotRow, WaiterRow,  # no-cython-lint: as above
)

# These belong to it too, and a cimported type is no attribute of the module.
globals()["Lease"] = Lease
globals()["Waiter"] = Waiter

# Exceptions of owners that are kept until the shell takes them; the counter counts all.
cdef int32_t FAILURES_KEPT = 64


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
    cdef Tally tally
    cdef Readouts readouts
    cdef Verification verification
    cdef Settlement settlement
    cdef int64_t now_ns
    cdef int64_t last_sequence
    cdef bint is_delivering
    cdef list failures      #: list[BaseException]

    def __cinit__(self):
        self.ledger = Ledger.__new__(Ledger)
        self.queue = WaitQueue.__new__(WaitQueue)
        self.catalog = Catalog.__new__(Catalog, self.ledger, self.queue)
        self.tally = Tally.__new__(Tally)
        self.failures = []
        self.make_rooms()

    cdef int make_rooms(self) except -1:
        self.readouts = Readouts.__new__(Readouts, self.ledger, self.queue, self.catalog)
        self.verification = Verification.__new__(
            Verification, self.ledger, self.queue, self.catalog, self.tally
        )
        self.settlement = Settlement.__new__(
            Settlement, self.ledger, self.queue, self.catalog, self.tally, self.verification
        )
        return 0

    def __init__(self, plan, *, int64_t now_ns=0, bint verify=False):
        self.now_ns = now_ns
        self.settlement.is_verifying = verify
        self.reconfigure(now_ns, plan)

    # Steps of requests ------------------------------------------------------------------------------------------------

    def submit(self, int64_t now_ns, owner, str model, bint long, uint64_t needs):
        cdef Arrival arrival
        cdef Choice choice
        cdef Lease lease
        arrival.model = self.catalog.names[model]
        arrival.is_long = long
        arrival.needs = needs
        arrival.excluded = NONE
        arrival.is_readmitted = False
        self.choose_for_arrival(&choice, &arrival)
        if choice.provider == NONE:
            return self.admit(now_ns, owner, &arrival, &choice)
        self.reserve_lease()
        self.begin(now_ns)
        try:
            self.settlement.expire(now_ns)
            self.place_last(&arrival)
            lease = self.grant_arrival(&arrival, choice.provider)
        finally:
            self.finish()
        return lease

    def readmit(self, int64_t now_ns, owner, str model, uint64_t needs, Lease ended not None):
        cdef Arrival arrival
        cdef Choice choice
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
        self.choose_for_arrival(&choice, &arrival)
        return self.admit(now_ns, owner, &arrival, &choice)

    cdef object admit(self, int64_t now_ns, object owner, Arrival* arrival, Choice* choice):
        cdef Waiter waiter = None
        cdef object result
        if choice.provider == NONE and choice.has_live:
            waiter = self.make_waiter(owner)
            self.choose_for_arrival(choice, arrival)  # allocating may have run a finalizer that stepped
        if not choice.has_able and not arrival.is_readmitted:
            raise ValueError(f"no provider of the model can do the needs {arrival.needs:#x}")
        self.reserve_lease()
        self.begin(now_ns)
        try:
            self.settlement.expire(now_ns)
            result = self.arrive(arrival, choice, waiter)
        finally:
            self.finish()
        return result

    cdef inline void choose_for_arrival(self, Choice* choice, const Arrival* arrival) noexcept:
        if arrival.model == NONE:
            choice.provider = NONE
            choice.has_able = choice.has_live = False
        else:
            choose_for(choice, self.catalog, arrival.model, arrival.is_long, arrival.needs, arrival.excluded)

    cdef inline int reserve_lease(self) except -1:
        """Make sure that all who wait, and one more, can be granted without allocating. Runs no foreign code."""
        cdef int32_t waiting = self.queue.fresh.count + self.queue.readmitted.count
        if self.ledger.table.used + waiting >= self.ledger.table.capacity:
            self.ledger.reserve_leases(waiting + 1)
        return 0

    cdef inline void place_last(self, Arrival* arrival) noexcept:
        arrival.sequence = self.last_sequence + 1
        arrival.enqueued_at_ns = self.now_ns

    cdef Waiter make_waiter(self, object owner):
        """Make room for one more waiter."""
        cdef Waiter waiter = Waiter.__new__(Waiter)
        waiter.owner = owner
        self.queue.reserve_entry()
        return waiter

    cdef object arrive(self, Arrival* arrival, const Choice* choice, Waiter waiter):
        """Grant, refuse or enqueue: the one place where a request enters."""
        if not arrival.is_readmitted:
            self.place_last(arrival)
        elif self.catalog.is_due(arrival.enqueued_at_ns, self.now_ns):
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
            arrival.model, arrival.is_long, arrival.needs, arrival.excluded, arrival.sequence,
            &self.catalog.models[arrival.model], self.ledger.providers,
        )

    cdef inline void count_arrival(self, const Arrival* arrival) noexcept:
        if arrival.is_readmitted:
            self.tally.readmitted += 1
        else:
            self.tally.submitted += 1
            self.last_sequence = arrival.sequence

    cdef object refuse(self, const Arrival* arrival, int outcome):
        self.count_arrival(arrival)
        count_end(self.tally, arrival.model, outcome)
        return OUTCOME_OF[outcome]

    cdef inline Lease grant_arrival(self, const Arrival* arrival, int32_t provider):
        cdef bint takes_long = arrival.is_long and self.catalog.models[arrival.model].has_long
        cdef Lease lease
        if self.settlement.is_verifying:
            self.verification.verify_choice(
                arrival.model, arrival.is_long, arrival.needs, arrival.excluded, provider
            )
        lease = self.ledger.take_lease(
            provider, takes_long, self.now_ns, arrival.is_long, arrival.sequence, arrival.enqueued_at_ns
        )
        self.count_arrival(arrival)
        count_end(self.tally, arrival.model, GRANTED)
        return lease

    def release(self, int64_t now_ns, Lease lease):
        return self.end_lease(now_ns, lease)

    cdef inline bint end_lease(self, int64_t now_ns, Lease lease) except -1:
        cdef int32_t provider
        self.check_own(lease)
        if lease.ended != END_OPEN:
            self.tally.double_releases += lease.ended == END_RELEASED
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
            self.settlement.expire(now_ns)
            self.settlement.grant_freed(provider, now_ns)
        self.finish()
        return True

    def cancel(self, int64_t now_ns, Waiter waiter):
        cdef object _owner
        if waiter is None:
            raise TypeError("cancel: expected a Waiter, got None")
        if not waiter.is_waiting:
            return False
        if waiter.slot >= self.queue.entry_capacity or self.queue.waiters[waiter.slot] is not waiter:
            raise ValueError("the waiter belongs to another queue")
        self.begin(now_ns)
        count_end(self.tally, self.queue.lines[self.queue.entries[waiter.slot].line].model, EVICTED_CANCELLED)
        self.queue.unlink(waiter.slot)
        self.queue.give_up_entry(waiter.slot)
        waiter.is_waiting = False
        _owner = waiter.owner  # its last reference may go only after the step
        waiter.owner = None
        self.settlement.expire(now_ns)
        self.finish()
        return True

    def tick(self, int64_t now_ns):
        self.begin(now_ns)
        self.settlement.expire(now_ns)
        self.finish()

    def drain(self, int64_t now_ns):
        cdef int32_t slot
        self.begin(now_ns)
        slot = self.queue.oldest()
        while slot != NONE:
            self.settlement.evict(slot, EVICTED_DRAINING)
            slot = self.queue.oldest()
        self.finish()

    def reclaim(self, int64_t now_ns):
        cdef int32_t provider, count = self.ledger.table.dropped, place = 0
        cdef int32_t* ended
        if count == 0:
            return []
        self.begin(now_ns)
        ended = <int32_t*>zeroed(count, sizeof(int32_t))
        try:
            self.queue.unmark_all()
            provider = self.ledger.end_dropped(now_ns)
            while provider != NONE:
                self.queue.mark_provider(provider)
                ended[place] = provider
                place += 1
                provider = self.ledger.end_dropped(now_ns)
            self.tally.reclaimed += count
            self.settlement.settle(now_ns)
            keys = [self.ledger.keys[ended[place]] for place in range(count)]
        finally:
            PyMem_Free(ended)
        self.finish()
        return keys

    # Steps of Nodes ---------------------------------------------------------------------------------------------------

    def node_ready(self, int64_t now_ns, str node_id, int64_t generation, healthy):
        cdef int32_t row = self.ledger.intern_node(node_id)
        cdef list reported = self.ledger.read_health(row, healthy)
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
        self.settlement.settle(now_ns)
        self.finish()
        return True

    def node_draining(self, int64_t now_ns, str node_id, int64_t generation):
        cdef int32_t row = self.ledger.current_node(node_id, generation)
        if row == NONE:
            return False
        self.begin(now_ns)
        self.queue.unmark_all()
        self.set_link(row, LINK_DRAINING)
        self.settlement.settle(now_ns)
        self.finish()
        return True

    def node_down(self, int64_t now_ns, str node_id, int64_t generation):
        cdef int32_t row = self.ledger.current_node(node_id, generation)
        if row == NONE:
            return False
        self.begin(now_ns)
        self.ledger.lose_leases(row, now_ns)
        self.queue.unmark_all()
        self.set_link(row, LINK_OFFLINE)
        self.settlement.settle(now_ns)
        self.finish()
        return True

    def health(self, int64_t now_ns, str node_id, int64_t generation, healthy):
        cdef int32_t row = self.ledger.current_node(node_id, generation)
        cdef list reported
        if row == NONE:
            return False
        reported = self.ledger.read_health(row, healthy)
        if self.ledger.current_node(node_id, generation) == NONE:
            return False
        self.begin(now_ns)
        self.queue.unmark_all()
        self.take_health(reported)
        self.settlement.settle(now_ns)
        self.finish()
        return True

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

    cdef inline int finish(self) except -1:
        if self.settlement.is_verifying:
            self.verification.verify(self.now_ns)
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
                abandon_entry(self.ledger.table, entry.lease)  # pragma: no cover - as there
            elif lease.ended == END_OPEN:
                self.end_lease(self.now_ns, lease)
        return 0

    cdef int deliver_eviction(self, object owner, object outcome) except -1:
        try:
            owner.on_evicted(outcome)
        except BaseException as failure:
            self.keep_failure(failure)
        return 0

    cdef int keep_failure(self, object failure) except -1:
        self.tally.callbacks_failed += 1
        if len(self.failures) < FAILURES_KEPT:
            self.failures.append(failure)
        return 0

    # Plans ------------------------------------------------------------------------------------------------------------

    def reconfigure(self, int64_t now_ns, plan):
        cdef Staging staging = self.catalog.read(plan)
        self.tally.reserve_models(staging.model_count)
        self.begin(now_ns)
        self.catalog.commit(staging)
        for row in staging.new_rows:
            self.tally.begin_model(row)
        if self.queue.line_count > 0:
            self.queue.unmark_all()
            self.queue.mark_all()
            self.settlement.settle(now_ns)
        self.catalog.overhang = max(0, self.queue.fresh.count - self.catalog.queue_limit)
        self.finish()

    # Read-outs --------------------------------------------------------------------------------------------------------

    cdef inline int check_own(self, Lease lease) except -1:
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
    def is_quiet(self):
        return self.queue.line_count == 0 and self.ledger.table.dropped == 0 and not self.failures

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
        return self.readouts.live_candidates(model, long, needs)

    def snapshot(self):
        return self.readouts.snapshot()

    def meters(self):
        return self.readouts.meters()

    def retry_after_s(self, str model):
        return self.readouts.retry_after_s(model, self.now_ns)

    def explain(self, str model, bint long, uint64_t needs):
        return self.readouts.explain(model, long, needs)

    def verdicts(self, str model, bint long, uint64_t needs):
        return self.readouts.verdicts(model, long, needs)

    @property
    def line_count(self):
        return self.queue.line_count

    def waiting_by_model(self):
        return self.readouts.waiting_by_model()

    def lines(self, int32_t limit):
        return self.readouts.lines(limit)

    def waiters(self, int32_t limit):
        return self.readouts.waiters(limit)

    @property
    def oldest_enqueued_at_ns(self):
        cdef int32_t slot = self.queue.oldest()
        return None if slot == NONE else self.queue.entries[slot].enqueued_at_ns

    def counters(self):
        return self.tally.counters()

    def model_outcomes(self):
        return self.tally.by_model(self.catalog.names)

    def take_failures(self):
        cdef list failures = self.failures
        self.failures = []
        return failures

    def copy(self):
        cdef Admission twin = Admission.__new__(Admission)
        twin.ledger = self.ledger.copy()
        twin.queue = self.queue.copy()
        twin.catalog = self.catalog.copy(twin.ledger, twin.queue)
        twin.tally = self.tally.copy()
        twin.make_rooms()
        twin.now_ns = self.now_ns
        twin.last_sequence = self.last_sequence
        twin.settlement.is_verifying = self.settlement.is_verifying
        return twin

    def verify(self):
        self.verification.verify(self.now_ns)
