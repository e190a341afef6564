"""What admission counts: how requests came, how they left, and what went wrong. It decides nothing.

Admission writes the fields itself, in the middle of its steps; here they are read, copied and given room.
"""

cimport cython
from cpython.mem cimport PyMem_Free
from libc.string cimport memcpy, memset

from iop_fast._core.memory cimport resized

from iop_fast._core.records import Outcome


OUTCOME_OF = tuple(Outcome)


@cython.final
cdef class Tally:

    def __dealloc__(self):
        PyMem_Free(self.outcomes_of)

    cdef int reserve_models(self, int32_t count) except -1:
        if count > self.model_capacity:
            count = max(count, 2 * self.model_capacity)
            self.outcomes_of = <ModelOutcomes*>resized(self.outcomes_of, count, sizeof(ModelOutcomes))
            self.model_capacity = count
        return 0

    cdef void begin_model(self, int32_t model) noexcept:
        memset(&self.outcomes_of[model], 0, sizeof(ModelOutcomes))

    cdef dict counters(self):
        cdef dict counts = {"submitted": self.submitted, "readmitted": self.readmitted}
        cdef int32_t outcome
        for outcome in range(OUTCOMES):
            counts[OUTCOME_OF[outcome].name.lower()] = self.outcomes[outcome]
        counts["double_release"] = self.double_releases
        counts["reclaimed"] = self.reclaimed
        counts["callback_failed"] = self.callbacks_failed
        return counts

    cdef dict by_model(self, dict names):
        cdef dict counts = {}
        cdef int32_t model, outcome
        for name, model in names.items():
            counts[name] = tuple([self.outcomes_of[model].counts[outcome] for outcome in range(OUTCOMES)])
        return counts

    cdef Tally copy(self):
        cdef Tally twin = Tally.__new__(Tally)
        twin.outcomes = self.outcomes
        twin.submitted = self.submitted
        twin.readmitted = self.readmitted
        twin.double_releases = self.double_releases
        twin.reclaimed = self.reclaimed
        twin.callbacks_failed = self.callbacks_failed
        twin.reserve_models(self.model_capacity)
        if self.model_capacity > 0:
            memcpy(twin.outcomes_of, self.outcomes_of, self.model_capacity * sizeof(ModelOutcomes))
        return twin
