"""Bringing the core back to its fixed point: expire, strand, grant.

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
"""

cimport cython

from iop_fast._core.choice cimport Choice
from iop_fast._core.ledger cimport NONE, ProviderState
from iop_fast._core.plans cimport choose_for
from iop_fast._core.tally cimport EVICTED_TIMEOUT, EVICTED_UNAVAILABLE, GRANTED, count_end
from iop_fast._core.wait_queue cimport Line


@cython.final
cdef class Settlement:

    def __cinit__(
        self, Ledger ledger not None, WaitQueue queue not None, Catalog catalog not None, Tally tally not None,
        Verification verification not None,
    ):
        self.ledger = ledger
        self.queue = queue
        self.catalog = catalog
        self.tally = tally
        self.verification = verification

    cdef void expire(self, int64_t now_ns) noexcept:
        if self.queue.line_count > 0 and self.catalog.queue_timeout_ns > 0:
            self.expire_due(now_ns)

    cdef void expire_due(self, int64_t now_ns) noexcept:
        cdef int32_t slot = self.queue.oldest()
        while slot != NONE and self.catalog.is_due(self.queue.entries[slot].enqueued_at_ns, now_ns):
            self.evict(slot, EVICTED_TIMEOUT)
            slot = self.queue.oldest()

    cdef void evict(self, int32_t slot, uint8_t outcome) noexcept:
        count_end(self.tally, self.queue.lines[self.queue.entries[slot].line].model, outcome)
        self.queue.decide(slot, outcome, NONE)

    cdef int settle(self, int64_t now_ns) except -1:
        """Bring the marked lines to the fixed point."""
        self.expire(now_ns)
        if self.queue.marked_count > 0:
            self.strand_marked()
            self.grant_marked(now_ns)
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

    cdef int grant_marked(self, int64_t now_ns) except -1:
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
                self.grant_head(row, choice.provider, now_ns)
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
        choose_for(choice, self.catalog, line.model, line.is_long, line.needs, line.excluded)

    cdef int grant_head(self, int32_t row, int32_t provider, int64_t now_ns) except -1:
        cdef Line* line = &self.queue.lines[row]
        cdef int32_t lease, slot = line.head
        cdef bint takes_long
        if self.is_verifying:
            self.verification.verify_turn(row)
            self.verification.verify_choice(line.model, line.is_long, line.needs, line.excluded, provider)
        takes_long = line.is_long and self.catalog.models[line.model].has_long
        lease = self.ledger.take(provider, takes_long, now_ns, self.queue.entries[slot].enqueued_at_ns)
        count_end(self.tally, line.model, GRANTED)
        self.queue.decide(slot, GRANTED, lease)
        return 0

    cdef int grant_freed(self, int32_t provider, int64_t now_ns) except -1:
        """Grant what one provider has gained to the oldest heads among its lines."""
        cdef ProviderState* row = &self.ledger.providers[provider]
        cdef int32_t line
        while row.in_flight < row.open_slots:
            line = self.queue.index.oldest(provider, row.long_in_flight < row.long_capacity)
            if line == NONE:
                break
            self.grant_head(line, provider, now_ns)
        return 0
