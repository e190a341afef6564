"""Lines of waiters and the order between them. The contract stands in iop_fast/_core/wait_queue.pyi.

Theory of operation
===================

The queue keeps who waits, in which line and in which order; it decides nothing. Admission is the only caller.

A *line* is the first-in-first-out list of the waiters that are equal in model, label (long or not), needs and excluded
provider: whatever can serve one of them can serve each. So only heads of lines are ever looked at. A line exists while
somebody waits in it; it is found by a hash of its key.

An *entry* is a row of a table and moves

    free -> waiting -> decided -> free

Waiting entries stand in their line and in one of two lists in global order, linked both ways, so that removal is O(1)
wherever they stand. Decided ones (granted or evicted, but their owner not called yet) stand in the list of decisions.
`Waiter` objects are the handles that owners keep; the table holds the one reference to the owner until delivery. All
links are row numbers, so that a copy of the queue is a copy of its memory.

Global order is the sequence number. Fresh waiters get ever higher ones and are appended at the tail. Re-admitted ones
keep the number they once got; they stand in a list of their own, as they are few: their place is searched there from
its tail, and no search ever walks over the waiters that came by the door. All waiters share one timeout, so deadlines
are in sequence order too and the next one is that of one of the two heads.

Which lines a provider can serve, oldest first, says the *index* (line_index.pyx), which also keeps the sequence of each
line's head. It is kept as lines come and go, and built anew, aside, when a plan changes a mapping, an ability or long
slots. Slots in use, liveness and capacity change without touching it.

*Marks* and the *heap* are scratch memory of one step: the lines that a step may have affected, each once, and those
among them that are worked off in global order of their heads. Both have room for every line at any time, so that a step
that has begun to decide never allocates.

Memory: a waiter takes 120 bytes here (its entry 48, the Waiter object 64, its place in the table 8), a line about 110
and 24 for each provider that can serve it.
"""

cimport cython
from cpython.mem cimport PyMem_Free
from libc.stdint cimport uint32_t
from libc.string cimport memset

from iop_fast._core.ledger cimport NONE
from iop_fast._core.line_index cimport LineHeap
from iop_fast._core.memory cimport doubled, duplicate, resized

cdef int32_t FIRST_CAPACITY = 16


cdef inline uint32_t line_hash(int32_t model, bint is_long, uint64_t needs, int32_t excluded) noexcept:
    cdef uint64_t mixed = needs ^ (<uint64_t>(<uint32_t>model) << 32) ^ (<uint32_t>excluded * <uint64_t>2 + is_long)
    mixed = (mixed ^ (mixed >> 31)) * <uint64_t>0x9E3779B97F4A7C15
    return <uint32_t>(mixed >> 32)


@cython.final
@cython.freelist(1024)
cdef class Waiter:

    def __init__(self):
        raise TypeError("a waiter is made by admission only")

    def __repr__(self):
        cdef str state = "waiting" if self.is_waiting else "ended"
        return f"<Waiter {state} sequence={self.sequence}>"


@cython.final
cdef class WaitQueue:

    def __cinit__(self):
        self.index = LineIndex.__new__(LineIndex)
        self.waiters = []
        self.first_free = self.first_free_line = NONE
        self.first_decided = self.last_decided = NONE
        self.fresh.head = self.fresh.tail = NONE
        self.readmitted.head = self.readmitted.tail = NONE
        self.mark = 1

    def __dealloc__(self):
        PyMem_Free(self.lines)
        PyMem_Free(self.entries)
        PyMem_Free(self.buckets)
        PyMem_Free(self.marked)
        PyMem_Free(self.heap)

    # Room: the only methods that allocate; none changes what the queue says.

    cdef int reserve_entry(self) except -1:
        cdef int32_t slot, first = self.entry_capacity, wanted
        if self.first_free != NONE:
            return 0
        wanted = doubled(first, FIRST_CAPACITY)
        self.waiters.extend([None] * (wanted - len(self.waiters)))
        self.entries = <WaiterEntry*>resized(self.entries, wanted, sizeof(WaiterEntry))
        self.entry_capacity = wanted
        for slot in range(wanted - 1, first - 1, -1):
            self.entries[slot].is_used = False
            self.entries[slot].order_next = self.first_free
            self.first_free = slot
        return 0

    cdef int reserve_line(self) except -1:
        cdef int32_t row, bucket, first = self.line_capacity, wanted
        if self.first_free_line != NONE:
            return 0
        wanted = doubled(first, FIRST_CAPACITY)
        self.marked = <int32_t*>resized(self.marked, wanted, sizeof(int32_t))
        self.heap = <int32_t*>resized(self.heap, wanted, sizeof(int32_t))
        self.buckets = <int32_t*>resized(self.buckets, wanted, sizeof(int32_t))
        self.index.reserve_lines(wanted)
        self.lines = <Line*>resized(self.lines, wanted, sizeof(Line))
        memset(self.lines + first, 0, (wanted - first) * sizeof(Line))
        self.line_capacity = wanted
        self.bucket_mask = wanted - 1
        memset(self.buckets, 0xFF, wanted * sizeof(int32_t))
        for row in range(first):
            bucket = self.bucket_of(row)
            self.lines[row].chain_next = self.buckets[bucket]
            self.buckets[bucket] = row
        for row in range(wanted - 1, first - 1, -1):
            self.lines[row].chain_next = self.first_free_line
            self.first_free_line = row
        return 0

    cdef int32_t bucket_of(self, int32_t row) noexcept:
        cdef Line* line = &self.lines[row]
        return line_hash(line.model, line.is_long, line.needs, line.excluded) & self.bucket_mask

    # Lines.

    cdef int32_t find_line(self, int32_t model, bint is_long, uint64_t needs, int32_t excluded) noexcept:
        cdef int32_t row
        cdef Line* line
        if self.line_count == 0:
            return NONE
        row = self.buckets[line_hash(model, is_long, needs, excluded) & self.bucket_mask]
        while row != NONE:
            line = &self.lines[row]
            if line.model == model and line.needs == needs and line.is_long == is_long and line.excluded == excluded:
                return row
            row = line.chain_next
        return NONE

    cdef int32_t open_line(
        self, int32_t model, bint is_long, uint64_t needs, int32_t excluded, int64_t sequence,
        const ModelState* catalog, const ProviderState* providers,
    ) except -1:
        """The row of a line, made when there is none. A new one must get the waiter of that sequence at once: an empty
        line is none."""
        cdef int32_t row = self.find_line(model, is_long, needs, excluded)
        cdef int32_t bucket
        cdef Line* line
        if row != NONE:
            return row
        self.reserve_line()
        row = self.first_free_line
        line = &self.lines[row]
        self.index.link(row, sequence, is_long, needs, excluded, catalog, providers)
        line.model = model
        line.is_long = is_long
        line.needs = needs
        line.excluded = excluded
        line.waiting = 0
        line.head = line.tail = NONE
        line.mark = 0
        self.first_free_line = line.chain_next
        bucket = self.bucket_of(row)
        line.chain_next = self.buckets[bucket]
        self.buckets[bucket] = row
        self.line_count += 1
        return row

    cdef void close_line(self, int32_t row) noexcept:
        cdef Line* line = &self.lines[row]
        cdef int32_t* link = &self.buckets[self.bucket_of(row)]
        while link[0] != row:
            link = &self.lines[link[0]].chain_next
        link[0] = line.chain_next
        self.index.unlink(row)
        line.chain_next = self.first_free_line
        self.first_free_line = row
        self.line_count -= 1

    # Waiters.

    cdef void enqueue(self, Waiter waiter, int32_t row, bint is_readmitted) noexcept:
        """Put a waiter into an open line; `reserve_entry` came before."""
        cdef int32_t slot = self.first_free
        cdef WaiterEntry* entry = &self.entries[slot]
        self.first_free = entry.order_next
        waiter.slot = slot
        waiter.is_waiting = True
        self.waiters[slot] = waiter
        entry.sequence = waiter.sequence
        entry.enqueued_at_ns = waiter.enqueued_at_ns
        entry.line = row
        entry.lease = NONE
        entry.is_readmitted = is_readmitted
        entry.is_long = self.lines[row].is_long
        entry.is_used = True
        self.insert_into_line(slot)
        self.insert_into_order(slot, &self.readmitted if is_readmitted else &self.fresh)

    cdef void insert_into_line(self, int32_t slot) noexcept:
        cdef WaiterEntry* entry = &self.entries[slot]
        cdef Line* line = &self.lines[entry.line]
        cdef int32_t before = line.tail
        while before != NONE and self.entries[before].sequence > entry.sequence:
            before = self.entries[before].line_previous
        entry.line_previous = before
        if before == NONE:
            entry.line_next = line.head
            line.head = slot
            if entry.line_next != NONE:
                self.index.lower_head(entry.line, entry.sequence)
        else:
            entry.line_next = self.entries[before].line_next
            self.entries[before].line_next = slot
        if entry.line_next == NONE:
            line.tail = slot
        else:
            self.entries[entry.line_next].line_previous = slot
        line.waiting += 1

    cdef void insert_into_order(self, int32_t slot, OrderList* order) noexcept:
        cdef WaiterEntry* entry = &self.entries[slot]
        cdef int32_t before = order.tail
        while before != NONE and self.entries[before].sequence > entry.sequence:
            before = self.entries[before].order_previous
        entry.order_previous = before
        if before == NONE:
            entry.order_next = order.head
            order.head = slot
        else:
            entry.order_next = self.entries[before].order_next
            self.entries[before].order_next = slot
        if entry.order_next == NONE:
            order.tail = slot
        else:
            self.entries[entry.order_next].order_previous = slot
        order.count += 1

    cdef void unlink(self, int32_t slot) noexcept:
        """Take a waiter out of its line and of the order. Closes the line when it was the last one."""
        cdef WaiterEntry* entry = &self.entries[slot]
        cdef Line* line = &self.lines[entry.line]
        cdef OrderList* order = &self.readmitted if entry.is_readmitted else &self.fresh
        if entry.line_next == NONE:
            line.tail = entry.line_previous
        else:
            self.entries[entry.line_next].line_previous = entry.line_previous
        if entry.line_previous == NONE:
            line.head = entry.line_next
            if line.head != NONE:
                self.index.raise_head(entry.line, self.entries[line.head].sequence)
        else:
            self.entries[entry.line_previous].line_next = entry.line_next
        line.waiting -= 1
        if line.waiting == 0:
            self.close_line(entry.line)
        if entry.order_next == NONE:
            order.tail = entry.order_previous
        else:
            self.entries[entry.order_next].order_previous = entry.order_previous
        if entry.order_previous == NONE:
            order.head = entry.order_next
        else:
            self.entries[entry.order_previous].order_next = entry.order_next
        order.count -= 1
        entry.line = NONE

    cdef void decide(self, int32_t slot, uint8_t outcome, int32_t lease) noexcept:
        """End a waiter; its owner hears of it when the decision is popped."""
        cdef WaiterEntry* entry = &self.entries[slot]
        cdef object waiter = self.waiters[slot]
        self.unlink(slot)
        if waiter is not None:
            (<Waiter>waiter).is_waiting = False
        entry.outcome = outcome
        entry.lease = lease
        entry.order_next = NONE
        if self.last_decided == NONE:
            self.first_decided = slot
        else:
            self.entries[self.last_decided].order_next = slot
        self.last_decided = slot

    cdef int32_t pop_decided(self) noexcept:
        cdef int32_t slot = self.first_decided
        if slot != NONE:
            self.first_decided = self.entries[slot].order_next
            if self.first_decided == NONE:
                self.last_decided = NONE
        return slot

    cdef Waiter give_up_entry(self, int32_t slot):
        """Free the entry of a waiter that is in no list any more; return the waiter (None in a copy)."""
        cdef Waiter waiter = self.waiters[slot]
        self.waiters[slot] = None
        self.entries[slot].is_used = False
        self.entries[slot].order_next = self.first_free
        self.first_free = slot
        return waiter

    cdef int32_t oldest(self) noexcept:
        """The waiter with the lowest sequence, NONE when nobody waits."""
        if self.readmitted.head == NONE:
            return self.fresh.head
        if self.fresh.head == NONE:
            return self.readmitted.head
        if self.entries[self.readmitted.head].sequence < self.entries[self.fresh.head].sequence:
            return self.readmitted.head
        return self.fresh.head

    # Scratch of one step.

    cdef void unmark_all(self) noexcept:
        self.marked_count = 0
        self.mark += 1

    cdef void mark_line(self, int32_t row) noexcept:
        if self.lines[row].mark != self.mark:
            self.lines[row].mark = self.mark
            self.marked[self.marked_count] = row
            self.marked_count += 1

    cdef void mark_provider(self, int32_t provider) noexcept:
        """Mark the lines that a provider may serve."""
        self.mark_heap(self.index.heap_of(provider, False))
        self.mark_heap(self.index.heap_of(provider, True))

    cdef void mark_heap(self, LineHeap* heap) noexcept:
        cdef int32_t place
        for place in range(heap.count):
            self.mark_line(heap.refs[place].line)

    cdef void mark_all(self) noexcept:
        cdef int32_t row
        for row in range(self.line_capacity):
            if self.lines[row].waiting > 0:
                self.mark_line(row)

    cdef inline int64_t head_sequence(self, int32_t row) noexcept:
        return self.index.lines[row].head_sequence

    cdef void heap_push(self, int32_t row) noexcept:
        cdef int32_t place = self.heap_count, parent
        cdef int64_t sequence = self.head_sequence(row)
        self.heap_count += 1
        while place > 0:
            parent = (place - 1) >> 1
            if self.head_sequence(self.heap[parent]) <= sequence:
                break
            self.heap[place] = self.heap[parent]
            place = parent
        self.heap[place] = row

    cdef void heap_settle(self) noexcept:
        """Put the top, whose head sequence has risen, to where it belongs."""
        cdef int32_t place = 0, child, row = self.heap[0]
        cdef int64_t sequence = self.head_sequence(row)
        while True:
            child = 2 * place + 1
            if child >= self.heap_count:
                break
            if (
                child + 1 < self.heap_count
                and self.head_sequence(self.heap[child + 1]) < self.head_sequence(self.heap[child])
            ):
                child += 1
            if self.head_sequence(self.heap[child]) >= sequence:
                break
            self.heap[place] = self.heap[child]
            place = child
        self.heap[place] = row

    cdef void heap_drop(self) noexcept:
        """Remove the top."""
        self.heap_count -= 1
        if self.heap_count > 0:
            self.heap[0] = self.heap[self.heap_count]
            self.heap_settle()

    # Plans and copies.

    cdef LineIndex build_index(self, const ModelState* models, const ProviderState* providers, int32_t provider_count):
        """The index of the waiting lines under other models and providers. Changes nothing."""
        cdef LineIndex index = LineIndex.__new__(LineIndex)
        cdef int32_t row
        cdef Line* line
        index.reserve_providers(provider_count)
        index.reserve_lines(self.line_capacity)
        for row in range(self.line_capacity):
            line = &self.lines[row]
            if line.waiting > 0:
                index.link(
                    row, self.head_sequence(row), line.is_long, line.needs, line.excluded, &models[line.model],
                    providers,
                )
        return index

    cdef WaitQueue copy(self):
        """An independent queue with the same waiters, without their owners and without decisions."""
        cdef WaitQueue twin = WaitQueue.__new__(WaitQueue)
        cdef int32_t slot
        twin.waiters = [None] * self.entry_capacity
        twin.entries = <WaiterEntry*>duplicate(self.entries, self.entry_capacity, sizeof(WaiterEntry))
        twin.entry_capacity = self.entry_capacity
        twin.marked = <int32_t*>duplicate(self.marked, self.line_capacity, sizeof(int32_t))
        twin.heap = <int32_t*>duplicate(self.heap, self.line_capacity, sizeof(int32_t))
        twin.buckets = <int32_t*>duplicate(self.buckets, self.line_capacity, sizeof(int32_t))
        twin.lines = <Line*>duplicate(self.lines, self.line_capacity, sizeof(Line))
        twin.line_capacity = self.line_capacity
        twin.index = self.index.copy()
        twin.first_free = self.first_free
        twin.first_free_line = self.first_free_line
        twin.line_count = self.line_count
        twin.bucket_mask = self.bucket_mask
        twin.fresh = self.fresh
        twin.readmitted = self.readmitted
        twin.mark = self.mark
        twin.first_decided = self.first_decided
        twin.last_decided = self.last_decided
        slot = twin.pop_decided()
        while slot != NONE:
            twin.give_up_entry(slot)
            slot = twin.pop_decided()
        return twin

    cdef int verify(self) except -1:
        """Assert that lines, order, index and table tell the same story; O(entries + lines x candidates)."""
        cdef int32_t row, slot, waiting = 0, lines = 0
        for row in range(self.line_capacity):
            is_indexed = self.index.lines[row].members is not NULL
            assert is_indexed == (self.lines[row].waiting > 0), "I4: a line is not indexed, or one that is gone"
            if self.lines[row].waiting == 0:
                continue
            lines += 1
            waiting += self.verify_line(row)
        assert lines == self.line_count, f"I7: {lines} lines, counted {self.line_count}"
        assert waiting == self.fresh.count + self.readmitted.count, f"I7: {waiting} in lines, not as many in order"
        self.verify_order(&self.fresh, False)
        self.verify_order(&self.readmitted, True)
        self.index.verify()
        for slot in range(self.entry_capacity):
            if self.entries[slot].is_used and self.entries[slot].line != NONE:
                waiting -= 1
        assert waiting == 0, "I7: a waiter is in no line or in two"
        return 0

    cdef int32_t verify_line(self, int32_t row) except -1:
        cdef Line* line = &self.lines[row]
        cdef int32_t slot = line.head, previous = NONE, count = 0
        cdef int64_t sequence = -1
        assert self.find_line(line.model, line.is_long, line.needs, line.excluded) == row, "I5: two lines of one kind"
        assert self.head_sequence(row) == self.entries[line.head].sequence, "I5: stale head sequence"
        while slot != NONE:
            assert self.entries[slot].line == row and self.entries[slot].line_previous == previous, "I7: broken line"
            assert self.entries[slot].sequence > sequence, "I5: a line is out of order"
            sequence = self.entries[slot].sequence
            previous = slot
            slot = self.entries[slot].line_next
            count += 1
        assert line.tail == previous and count == line.waiting, "I7: broken line"
        return count

    cdef int verify_order(self, OrderList* order, bint is_readmitted) except -1:
        cdef int32_t slot = order.head, previous = NONE, count = 0
        cdef int64_t sequence = -1, enqueued_at_ns = 0
        while slot != NONE:
            assert self.entries[slot].order_previous == previous, "I5: broken order"
            assert self.entries[slot].is_readmitted == is_readmitted, "I6: counted in the wrong list"
            assert self.entries[slot].sequence > sequence, "I5: the order is not by sequence"
            assert previous == NONE or self.entries[slot].enqueued_at_ns >= enqueued_at_ns, "I5: times out of order"
            sequence = self.entries[slot].sequence
            enqueued_at_ns = self.entries[slot].enqueued_at_ns
            previous = slot
            slot = self.entries[slot].order_next
            count += 1
        assert order.tail == previous and order.count == count, "I5: broken order"
        return 0
