"""C interface of the tally; what it means stands in src_pyx/tally.pyx."""

cimport cython
from libc.stdint cimport int32_t, int64_t


cdef enum:
    GRANTED = 0
    REJECTED_QUEUE_FULL = 1
    REJECTED_UNAVAILABLE = 2
    EVICTED_TIMEOUT = 3
    EVICTED_UNAVAILABLE = 4
    EVICTED_CANCELLED = 5
    EVICTED_DRAINING = 6
    OUTCOMES = 7


cdef struct ModelOutcomes:
    int64_t counts[OUTCOMES]


@cython.final
cdef class Tally:
    cdef int64_t outcomes[OUTCOMES]
    cdef ModelOutcomes* outcomes_of     # by model
    cdef int32_t model_capacity
    cdef int64_t submitted
    cdef int64_t readmitted
    cdef int64_t double_releases
    cdef int64_t reclaimed
    cdef int64_t callbacks_failed

    cdef int reserve_models(self, int32_t count) except -1
    cdef void begin_model(self, int32_t model) noexcept
    cdef dict counters(self)
    cdef dict by_model(self, dict names)
    cdef Tally copy(self)


cdef inline void count_end(Tally tally, int32_t model, int outcome) noexcept:
    """A request has left admission; `model` is -1 when it has left the plan."""
    tally.outcomes[outcome] += 1
    if model >= 0:
        tally.outcomes_of[model].counts[outcome] += 1


cdef tuple OUTCOME_OF       #: tuple[Outcome, ...], by number
