"""C interface of the meters; the contract stands in meters.pyi."""

cimport cython
from libc.stdint cimport int32_t, int64_t


cdef enum:
    BOUNDS_MAX = 24


@cython.final
cdef class Histogram:
    cdef int64_t bounds_ns[BOUNDS_MAX]
    cdef int64_t buckets[BOUNDS_MAX + 1]
    cdef int32_t bound_count
    cdef readonly int64_t sum_ns

    cdef void add(self, int64_t duration_ns) noexcept
    cdef void add_all(self, Histogram other) noexcept


@cython.final
cdef class Cell:
    """A count, and for providers a sum."""

    cdef int64_t count
    cdef int64_t sum_ns


@cython.final
cdef class ModelMeter:
    cdef Histogram normal_waits
    cdef Histogram long_waits
    cdef Histogram first_bytes
    cdef Histogram totals


@cython.final
cdef class RequestMeters:
    cdef dict cells             #: dict[tuple[str, str, str, str], Cell]
    cdef dict model_meters      #: dict[str, ModelMeter]
    cdef dict answers           #: dict[tuple[str, str], Cell]
    cdef readonly Histogram overhead
    # What the last request counted under: none while `last_cell` is None.
    cdef str last_model, last_node, last_provider, last_outcome
    cdef Cell last_cell, last_answers
    cdef ModelMeter last_meter

    cpdef int close(
        self, str model, str node_id, str provider_id, str outcome, bint is_long,
        int64_t queue_ns, int64_t ttfb_ns, int64_t answer_ns, int64_t total_ns, int64_t overhead_ns,
    ) except -1
    cdef int find(self, str model, str node_id, str provider_id, str outcome) except -1
