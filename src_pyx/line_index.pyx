"""Which lines each provider can serve, oldest first. Part of the wait queue.

Theory of operation
===================

For each provider the index holds the lines that it is eligible for, full or not, live or not: the catalog maps the
line's model to it, it can do the line's needs, is not excluded, and has long slots if the line is constrained. So a
release looks at lines of the freed provider only. Each line knows its places there (its *memberships*), so that it can
leave when its last waiter does, at O(candidates of the model).

A provider's lines stand in two heaps by the sequence of the line's head: unconstrained lines, and constrained ones,
which are out altogether while no long slot is free. So the oldest line that a freed slot can serve is one of two tops,
however many lines wait.

The heaps are *lazy*. When a line loses its head, its new one is younger, and the line should sink in the heap of each
of its members; most of them will not be asked before it has changed again. So only `head_sequence` of the line moves,
and a ref keeps the sequence that it had: a bound from below. `top` corrects the ref on top until it is true; everything
below it stands no better than it claims, so that one is the oldest. Each change of a head costs each member one
correction at most. The other direction, a re-admitted request that becomes the head of its line, is rare and corrected
at once in all heaps.

Whether a line is constrained depends on long slots of its model's providers: a plan that changes any, or a mapping, or
an ability, gets an index built anew, aside, which takes the place of this one as a whole.

Invariants: a ref's sequence never is above its line's head sequence, nor below that of its parent in the heap.
"""

cimport cython
from cpython.mem cimport PyMem_Free
from libc.string cimport memset

from iop_fast._core.ledger cimport NONE
from iop_fast._core.memory cimport doubled, duplicate, resized


cdef inline bint is_member(
    int32_t provider, const ProviderState* row, uint64_t needs, int32_t excluded, bint is_constrained
) noexcept:
    return provider != excluded and row.can & needs == needs and (not is_constrained or row.long_capacity > 0)


cdef int reserve_ref(LineHeap* heap) except -1:
    cdef int32_t wanted
    if heap.count == heap.capacity:
        wanted = doubled(heap.capacity, 4)
        heap.refs = <LineRef*>resized(heap.refs, wanted, sizeof(LineRef))
        heap.capacity = wanted
    return 0


@cython.final
cdef class LineIndex:

    def __dealloc__(self):
        cdef int32_t row
        for row in range(self.line_capacity):
            PyMem_Free(self.lines[row].members)
        for row in range(2 * self.provider_capacity):
            PyMem_Free(self.heaps[row].refs)
        PyMem_Free(self.lines)
        PyMem_Free(self.heaps)

    cdef int reserve_providers(self, int32_t count) except -1:
        cdef int32_t first = self.provider_capacity
        if count > first:
            count = max(count, first * 2)
            self.heaps = <LineHeap*>resized(self.heaps, 2 * <int64_t>count, sizeof(LineHeap))
            memset(self.heaps + 2 * first, 0, 2 * <int64_t>(count - first) * sizeof(LineHeap))
            self.provider_capacity = count
        return 0

    cdef int reserve_lines(self, int32_t count) except -1:
        cdef int32_t first = self.line_capacity
        if count > first:
            self.lines = <IndexedLine*>resized(self.lines, count, sizeof(IndexedLine))
            memset(self.lines + first, 0, (count - first) * sizeof(IndexedLine))
            self.line_capacity = count
        return 0

    # Lines come and go ------------------------------------------------------------------------------------------------

    cdef int link(
        self, int32_t line, int64_t sequence, bint is_long, uint64_t needs, int32_t excluded,
        const ModelState* model, const ProviderState* providers,
    ) except -1:
        """Take a line in, whose head has that sequence. Changes nothing when it raises."""
        cdef IndexedLine* row = &self.lines[line]
        cdef bint is_constrained = is_long and model.has_long
        cdef int32_t place, provider
        cdef LineHeap* heap
        cdef LineRef ref
        row.members = <Membership*>resized(NULL, model.count, sizeof(Membership))
        row.member_count = 0
        row.is_constrained = is_constrained
        row.head_sequence = ref.sequence = sequence
        ref.line = line
        try:
            for place in range(model.count):
                provider = model.candidates[place]
                if is_member(provider, &providers[provider], needs, excluded, is_constrained):
                    heap = self.heap_of(provider, is_constrained)
                    reserve_ref(heap)
                    ref.member = row.member_count
                    row.members[row.member_count].provider = provider
                    row.member_count += 1
                    heap.count += 1
                    self.float_up(heap, heap.count - 1, ref)
        except MemoryError:  # pragma: no cover - no tracer survives it; test_out_of_memory does
            self.unlink(line)  # pragma: no cover
            raise  # pragma: no cover
        return 0

    cdef void unlink(self, int32_t line) noexcept:
        """Take a line out: the last ref of each heap moves into its place."""
        cdef IndexedLine* row = &self.lines[line]
        cdef LineHeap* heap
        cdef LineRef last
        cdef int32_t member, place
        for member in range(row.member_count):
            heap = self.heap_of(row.members[member].provider, row.is_constrained)
            place = row.members[member].place
            heap.count -= 1
            last = heap.refs[heap.count]
            if place == heap.count:
                continue
            if last.sequence < heap.refs[place].sequence:
                self.float_up(heap, place, last)
            else:
                self.sink(heap, place, last)
        PyMem_Free(row.members)
        row.members = NULL
        row.member_count = 0

    cdef void raise_head(self, int32_t line, int64_t sequence) noexcept:
        """The line has lost its head."""
        self.lines[line].head_sequence = sequence

    cdef void lower_head(self, int32_t line, int64_t sequence) noexcept:
        """The line has got a head before the one it had."""
        cdef IndexedLine* row = &self.lines[line]
        cdef LineHeap* heap
        cdef LineRef ref
        cdef int32_t member
        row.head_sequence = ref.sequence = sequence
        ref.line = line
        for member in range(row.member_count):
            heap = self.heap_of(row.members[member].provider, row.is_constrained)
            ref.member = member
            if heap.refs[row.members[member].place].sequence > sequence:
                self.float_up(heap, row.members[member].place, ref)

    # Heaps ------------------------------------------------------------------------------------------------------------

    cdef inline LineHeap* heap_of(self, int32_t provider, bint is_constrained) noexcept:
        return &self.heaps[2 * <int64_t>provider + is_constrained]

    cdef int32_t oldest(self, int32_t provider, bint has_long_slot) noexcept:
        """The line with the oldest head that a slot of the provider can serve, NONE without any."""
        cdef int32_t line = self.top(self.heap_of(provider, False)), other
        if has_long_slot:
            other = self.top(self.heap_of(provider, True))
            if line == NONE or (other != NONE and self.lines[other].head_sequence < self.lines[line].head_sequence):
                return other
        return line

    cdef int32_t top(self, LineHeap* heap) noexcept:
        cdef LineRef ref
        if heap.count == 0:
            return NONE
        ref = heap.refs[0]
        while ref.sequence < self.lines[ref.line].head_sequence:
            ref.sequence = self.lines[ref.line].head_sequence
            self.sink(heap, 0, ref)
            ref = heap.refs[0]
        return ref.line

    cdef inline void put(self, LineHeap* heap, int32_t place, LineRef ref) noexcept:
        heap.refs[place] = ref
        self.lines[ref.line].members[ref.member].place = place

    cdef void float_up(self, LineHeap* heap, int32_t place, LineRef ref) noexcept:
        """Put `ref` where it belongs at or above `place`, whose content is given up."""
        cdef int32_t parent
        while place > 0:
            parent = (place - 1) >> 1
            if heap.refs[parent].sequence <= ref.sequence:
                break
            self.put(heap, place, heap.refs[parent])
            place = parent
        self.put(heap, place, ref)

    cdef void sink(self, LineHeap* heap, int32_t place, LineRef ref) noexcept:
        """Put `ref` where it belongs at or below `place`, whose content is given up."""
        cdef int32_t child = 2 * place + 1
        while child < heap.count:
            if child + 1 < heap.count and heap.refs[child + 1].sequence < heap.refs[child].sequence:
                child += 1
            if heap.refs[child].sequence >= ref.sequence:
                break
            self.put(heap, place, heap.refs[child])
            place = child
            child = 2 * place + 1
        self.put(heap, place, ref)

    # Copies and checks ------------------------------------------------------------------------------------------------

    cdef LineIndex copy(self):
        cdef LineIndex twin = LineIndex.__new__(LineIndex)
        cdef int32_t row
        cdef LineHeap* heap
        twin.reserve_providers(self.provider_capacity)
        twin.reserve_lines(self.line_capacity)
        for row in range(self.line_capacity):
            if self.lines[row].members is not NULL:
                twin.lines[row] = self.lines[row]
                twin.lines[row].members = NULL
                twin.lines[row].members = <Membership*>duplicate(
                    self.lines[row].members, self.lines[row].member_count, sizeof(Membership)
                )
        for row in range(2 * self.provider_capacity):
            heap = &self.heaps[row]
            if heap.count > 0:
                twin.heaps[row].refs = <LineRef*>duplicate(heap.refs, heap.count, sizeof(LineRef))
                twin.heaps[row].count = twin.heaps[row].capacity = heap.count
        return twin

    cdef int verify(self) except -1:
        cdef int32_t provider, line, refs = 0
        for provider in range(self.provider_capacity):
            refs += self.verify_heap(provider, False) + self.verify_heap(provider, True)
        for line in range(self.line_capacity):
            refs -= self.lines[line].member_count
        assert refs == 0, f"I4: the heaps have {refs} refs more than the lines have members"
        return 0

    cdef int verify_heap(self, int32_t provider, bint is_constrained) except -1:
        cdef LineHeap* heap = self.heap_of(provider, is_constrained)
        cdef int32_t place
        cdef LineRef* ref
        cdef IndexedLine* line
        for place in range(heap.count):
            ref = &heap.refs[place]
            line = &self.lines[ref.line]
            assert line.members is not NULL, "I4: the index names a line that is gone"
            assert line.is_constrained == is_constrained, "I4: a line is in a heap of the other kind"
            assert line.members[ref.member].provider == provider, "I4: index and line disagree"
            assert line.members[ref.member].place == place, "I4: index and line disagree"
            assert ref.sequence <= line.head_sequence, "I5: a line is older than its place says"
            assert place == 0 or heap.refs[(place - 1) >> 1].sequence <= ref.sequence, "I5: heap out of order"
        return heap.count
