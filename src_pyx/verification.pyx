"""The invariants I1 to I10 of the core, asserted from the state itself: slowly, trusting nothing kept by the way.

`verify` is for a fixed point, after a step. `verify_choice` and `verify_turn` are for the moment of a grant: nobody
stands before the chosen provider (I9), nor before the waiter (I5).
"""

cimport cython

from iop_fast._core.choice cimport has_slot, is_live_for
from iop_fast._core.ledger cimport NONE, ModelState, ProviderState
from iop_fast._core.plans cimport choose_for, has_long_slots
from iop_fast._core.tally cimport OUTCOMES
from iop_fast._core.wait_queue cimport Line


@cython.final
cdef class Verification:

    def __cinit__(
        self, Ledger ledger not None, WaitQueue queue not None, Catalog catalog not None, Tally tally not None
    ):
        self.ledger = ledger
        self.queue = queue
        self.catalog = catalog
        self.tally = tally

    cdef int verify(self, int64_t now_ns) except -1:
        cdef int32_t row
        self.ledger.verify()
        self.queue.verify()
        self.verify_counts()
        for row in range(self.ledger.provider_count):
            self.verify_provider(row)
        for row in range(self.catalog.model_count):
            self.verify_model(row)
        for row in range(self.queue.line_capacity):
            if self.queue.lines[row].waiting > 0:
                self.verify_line(row, now_ns)
        return 0

    cdef int verify_counts(self) except -1:
        cdef Catalog catalog = self.catalog
        cdef int32_t outcome
        cdef int64_t ended = 0, fresh = self.queue.fresh.count
        for outcome in range(OUTCOMES):
            ended += self.tally.outcomes[outcome]
        assert self.tally.submitted + self.tally.readmitted == ended + fresh + self.queue.readmitted.count, (
            "I10: requests in and out do not add up"
        )
        catalog.overhang = min(catalog.overhang, max(0, fresh - catalog.queue_limit))
        assert fresh <= catalog.queue_limit + catalog.overhang, "I6: more waiters than max_queue"
        return 0

    cdef int verify_provider(self, int32_t provider) except -1:
        cdef ProviderState* row = &self.ledger.providers[provider]
        cdef bint was_live = row.is_live
        cdef int32_t open_slots = row.open_slots
        self.ledger.update_live(provider)
        is_true = row.is_live == was_live and row.open_slots == open_slots
        assert is_true, f"I8: stale liveness of {self.ledger.keys[provider]}"
        return 0

    cdef int verify_model(self, int32_t row) except -1:
        cdef ModelState* model = &self.catalog.models[row]
        assert model.has_long == has_long_slots(model, self.ledger.providers), "I8: stale class of a model"
        return 0

    cdef int verify_line(self, int32_t row, int64_t now_ns) except -1:
        cdef Line* line = &self.queue.lines[row]
        cdef ModelState* model = &self.catalog.models[line.model]
        cdef bint is_constrained = line.is_long and model.has_long
        cdef ProviderState* provider
        cdef Choice choice
        cdef int32_t place, eligible = 0
        self.choose_for_line(&choice, row)
        assert choice.has_live, f"I8: waiter {self.queue.head_sequence(row)} has no live candidate"
        assert choice.provider == NONE, f"I4: waiter {self.queue.head_sequence(row)} has a free live candidate"
        is_due = self.catalog.is_due(self.queue.entries[line.head].enqueued_at_ns, now_ns)
        assert not is_due, "I7: a waiter is overdue"
        for place in range(model.count):
            provider = &self.ledger.providers[model.candidates[place]]
            eligible += (
                model.candidates[place] != line.excluded
                and provider.can & line.needs == line.needs
                and (not is_constrained or provider.long_capacity > 0)
            )
        assert eligible == self.queue.index.lines[row].member_count, "I4: the index misses a provider of a line"
        assert is_constrained == self.queue.index.lines[row].is_constrained, "I4: a line is indexed in the wrong class"
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
            if self.queue.lines[other].waiting > 0 and self.queue.head_sequence(other) < self.queue.head_sequence(row):
                self.choose_for_line(&choice, other)
                assert choice.provider == NONE, "I5: a waiter overtook an older one"
        return 0

    cdef void choose_for_line(self, Choice* choice, int32_t row) noexcept:
        cdef Line* line = &self.queue.lines[row]
        choose_for(choice, self.catalog, line.model, line.is_long, line.needs, line.excluded)
