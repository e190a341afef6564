"""What admission says of itself: snapshot, meters, estimates, explanations, who waits. Nothing here changes a decision.

The queue's marks and heap serve as scratch: they mean nothing between steps.
"""

cimport cython
from libc.stdint cimport uint8_t

from iop_fast._core.choice cimport Choice, choose, has_slot, is_live_for
from iop_fast._core.ledger cimport (
    DURATION_BUCKETS,
    LINK_DRAINING,
    LINK_OFFLINE,
    NONE,
    RATE_WINDOW_NS,
    Histogram,
    ProviderMeter,
    ProviderState,
)
from iop_fast._core.wait_queue cimport Line, Waiter, WaiterEntry

from iop_fast._core.records import Explanation, LineRow, MeterRow, SnapshotRow, WaiterRow

cdef tuple LINK_NAMES = ("offline", "ready", "draining")
cdef int64_t RETRY_AFTER_MAX_S = 30


cdef tuple bucket_counts(const Histogram* histogram):
    cdef int32_t bucket
    return tuple([histogram.counts[bucket] for bucket in range(DURATION_BUCKETS)])


@cython.final
cdef class Readouts:

    def __cinit__(self, Ledger ledger not None, WaitQueue queue not None, Catalog catalog not None):
        self.ledger = ledger
        self.queue = queue
        self.catalog = catalog

    cdef ModelState* model(self, str name) except NULL:
        return &self.catalog.models[<int32_t>self.catalog.names[name]]

    cdef int32_t live_candidates(self, str name, bint is_long, uint64_t needs) except -1:
        cdef ModelState* model = self.model(name)
        cdef int32_t place, count = 0
        for place in range(model.count):
            count += is_live_for(&self.ledger.providers[model.candidates[place]], needs, is_long and model.has_long)
        return count

    # Providers --------------------------------------------------------------------------------------------------------

    cdef list snapshot(self):
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
        if self.ledger.providers[provider].capacity == 0:
            return 0
        return self.waiting_in(self.queue.index.heap_of(provider, False)) + self.waiting_in(
            self.queue.index.heap_of(provider, True)
        )

    cdef int64_t waiting_in(self, const LineHeap* heap) noexcept:
        cdef int64_t waiting = 0
        cdef int32_t place
        for place in range(heap.count):
            waiting += self.queue.lines[heap.refs[place].line].waiting
        return waiting

    cdef list meters(self):
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

    # Requests that would come now -------------------------------------------------------------------------------------

    cdef object retry_after_s(self, str name, int64_t now_ns):
        cdef ModelState* model = self.model(name)
        cdef int32_t place
        recent = 0  # lease ends times the window: a Python number, thousands of busy providers overflow 64 bits
        for place in range(model.count):
            if self.ledger.providers[model.candidates[place]].is_live:
                recent += self.ledger.recent_ends(model.candidates[place], now_ns)
        if recent == 0:
            return RETRY_AFTER_MAX_S
        window_ns = <object><int64_t>RATE_WINDOW_NS
        waits_s = -(-(1 + self.competing(model, 0, False)) * window_ns * window_ns // (recent * 1_000_000_000))
        return max(1, min(RETRY_AFTER_MAX_S, waits_s))

    cdef int64_t competing(self, const ModelState* model, uint64_t needs, bint is_constrained) noexcept:
        """Waiters for whom a live candidate of a request of this kind is eligible too."""
        cdef int32_t place, provider
        cdef int64_t waiting = 0
        self.queue.unmark_all()
        for place in range(model.count):
            provider = model.candidates[place]
            if is_live_for(&self.ledger.providers[provider], needs, is_constrained):
                self.queue.mark_provider(provider)
        for place in range(self.queue.marked_count):
            waiting += self.queue.lines[self.queue.marked[place]].waiting
        return waiting

    cdef object explain(self, str name, bint is_long, uint64_t needs):
        cdef ModelState* model = self.model(name)
        cdef bint is_constrained = is_long and model.has_long
        cdef int32_t place
        cdef Choice choice
        choose(&choice, self.ledger.providers, model, needs, is_constrained, NONE)
        position = 0 if choice.provider != NONE else None
        if choice.has_live and position is None:
            position = 1 + self.competing(model, needs, is_constrained)
        candidates = []
        for place in range(model.count):
            verdict = self.verdict(model.candidates[place], needs, is_constrained)
            if model.candidates[place] == choice.provider:
                verdict = "taken_next"
            candidates.append((self.ledger.keys[model.candidates[place]], verdict))
        return Explanation(position, candidates)

    cdef str verdict(self, int32_t provider, uint64_t needs, bint is_constrained):
        """What stands between a provider and a request, the most lasting reason first."""
        cdef ProviderState* row = &self.ledger.providers[provider]
        cdef uint8_t link = self.ledger.nodes[row.node].link
        if row.can & needs != needs:
            return "cannot"
        if not row.is_enabled:
            return "disabled"
        if link == LINK_OFFLINE:
            return "node_offline"  # its health is not known
        if not row.is_healthy:
            return "unhealthy"
        if link == LINK_DRAINING:
            return "draining"
        if row.in_flight >= row.capacity:
            return "full"
        return "free" if has_slot(row, is_constrained) else "no_long_slot"

    cdef dict verdicts(self, str name, bint is_long, uint64_t needs):
        """How many of a model's providers each verdict stands between and a request."""
        cdef ModelState* model = self.model(name)
        cdef bint is_constrained = is_long and model.has_long
        cdef dict counts = {}
        cdef int32_t place
        for place in range(model.count):
            verdict = self.verdict(model.candidates[place], needs, is_constrained)
            counts[verdict] = counts.get(verdict, 0) + 1
        return counts

    # Who waits --------------------------------------------------------------------------------------------------------

    cdef dict waiting_by_model(self):
        cdef dict counts = {}
        cdef int32_t row
        cdef Line* line
        cdef dict names = self.model_names()
        for row in range(self.queue.line_capacity):
            line = &self.queue.lines[row]
            if line.waiting > 0:
                name = names[line.model]
                normal, long = counts.get(name, (0, 0))
                counts[name] = (normal, long + line.waiting) if line.is_long else (normal + line.waiting, long)
        return counts

    cdef list lines(self, int32_t limit):
        cdef list rows = []
        cdef int32_t row
        cdef dict names = self.model_names()
        self.queue.heap_count = 0
        for row in range(self.queue.line_capacity):
            if self.queue.lines[row].waiting > 0:
                self.queue.heap_push(row)
        while self.queue.heap_count > 0 and len(rows) < limit:
            rows.append(self.line_row(self.queue.heap[0], names))
            self.queue.heap_drop()
        self.queue.heap_count = 0
        return rows

    cdef object line_row(self, int32_t row, dict names):
        cdef Line* line = &self.queue.lines[row]
        return LineRow(
            names[line.model],
            bool(line.is_long),
            line.needs,
            self.key_of(line.excluded),
            line.waiting,
            self.queue.entries[line.head].enqueued_at_ns,
        )

    cdef list waiters(self, int32_t limit):
        cdef list rows = []
        cdef int32_t slot, fresh = self.queue.fresh.head, readmitted = self.queue.readmitted.head
        cdef WaiterEntry* entries = self.queue.entries
        cdef dict names = self.model_names()
        while len(rows) < limit and (fresh != NONE or readmitted != NONE):
            if fresh == NONE or (readmitted != NONE and entries[readmitted].sequence < entries[fresh].sequence):
                slot, readmitted = readmitted, entries[readmitted].order_next
            else:
                slot, fresh = fresh, entries[fresh].order_next
            rows.append(self.waiter_row(slot, names))
        return rows

    cdef object waiter_row(self, int32_t slot, dict names):
        cdef WaiterEntry* entry = &self.queue.entries[slot]
        cdef Line* line = &self.queue.lines[entry.line]
        return WaiterRow(
            (<Waiter>self.queue.waiters[slot]).owner,
            names[line.model],
            bool(line.is_long),
            line.needs,
            self.key_of(line.excluded),
            entry.enqueued_at_ns,
            bool(entry.is_readmitted),
        )

    cdef dict model_names(self):
        """Names by row. A row keeps no name; who waits, waits for a model of the plan."""
        return {row: name for name, row in self.catalog.names.items()}

    cdef object key_of(self, int32_t provider):
        return None if provider == NONE else self.ledger.keys[provider]
