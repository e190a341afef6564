"""What is counted of every request. The contract stands in iop_fast/_hot/meters.pyi.

One call a request, at its end: a dictionary by the four names that a request counts under, one by its model, one by its
provider, and arrays behind them. Names are interned strings of the configuration, so the lookups compare pointers; and
what the request before counted under is remembered, since most are of one kind.
"""

cimport cython
from libc.stdint cimport int32_t, int64_t

DURATION_BOUNDS_NS = tuple(
    int(seconds * 1_000_000_000)
    for seconds in (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 600)
)
SHORT_BOUNDS_NS = tuple(
    int(seconds * 1_000_000_000)
    for seconds in (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 10)
)


@cython.final
cdef class Histogram:

    def __cinit__(self, bounds_ns):
        cdef int32_t place
        self.bound_count = len(bounds_ns)
        if not 0 < self.bound_count <= BOUNDS_MAX:
            raise ValueError(f"expected 1 to {BOUNDS_MAX} bounds, got {self.bound_count}")
        for place in range(self.bound_count):
            self.bounds_ns[place] = bounds_ns[place]
            if place > 0 and self.bounds_ns[place] <= self.bounds_ns[place - 1]:
                raise ValueError("expected bounds that rise")

    @property
    def count(self):
        cdef int32_t place
        cdef int64_t count = 0
        for place in range(self.bound_count + 1):
            count += self.buckets[place]
        return count

    def observe(self, int64_t duration_ns):
        self.add(duration_ns)

    cdef void add(self, int64_t duration_ns) noexcept:
        cdef int32_t place = 0
        while place < self.bound_count and duration_ns > self.bounds_ns[place]:
            place += 1
        self.buckets[place] += 1
        self.sum_ns += duration_ns

    cdef void add_all(self, Histogram other) noexcept:
        """Add what another histogram of the same bounds counts."""
        cdef int32_t place
        for place in range(self.bound_count + 1):
            self.buckets[place] += other.buckets[place]
        self.sum_ns += other.sum_ns

    def counts(self):
        cdef int32_t place
        return tuple([self.buckets[place] for place in range(self.bound_count + 1)])


@cython.final
cdef class Cell:
    pass


@cython.final
cdef class ModelMeter:

    def __cinit__(self):
        self.normal_waits = Histogram(DURATION_BOUNDS_NS)
        self.long_waits = Histogram(DURATION_BOUNDS_NS)
        self.first_bytes = Histogram(DURATION_BOUNDS_NS)
        self.totals = Histogram(DURATION_BOUNDS_NS)


@cython.final
cdef class RequestMeters:

    def __cinit__(self):
        self.cells = {}
        self.model_meters = {}
        self.answers = {}
        self.overhead = Histogram(SHORT_BOUNDS_NS)

    cpdef int close(
        self, str model, str node_id, str provider_id, str outcome, bint is_long,
        int64_t queue_ns, int64_t ttfb_ns, int64_t answer_ns, int64_t total_ns, int64_t overhead_ns,
    ) except -1:
        cdef ModelMeter meter
        cdef Cell cell
        self.find(model, node_id, provider_id, outcome)
        self.last_cell.count += 1
        meter = self.last_meter
        if queue_ns >= 0:
            (meter.long_waits if is_long else meter.normal_waits).add(queue_ns)
        if ttfb_ns >= 0:
            meter.first_bytes.add(ttfb_ns)
        if total_ns >= 0:
            meter.totals.add(total_ns)
        if overhead_ns >= 0:
            self.overhead.add(overhead_ns)
        if answer_ns >= 0:
            cell = self.last_answers
            if cell is None:
                cell = self.last_answers = cell_of(self.answers, (node_id, provider_id))
            cell.count += 1
            cell.sum_ns += answer_ns
        return 0

    cdef int find(self, str model, str node_id, str provider_id, str outcome) except -1:
        """Have what counts under these names in `last_*`. Requests of one kind come one after the other."""
        cdef Cell cell
        cdef ModelMeter meter
        if (
            self.last_model is model and self.last_node is node_id and self.last_provider is provider_id
            and self.last_outcome is outcome and self.last_cell is not None
        ):
            return 0
        if model is None or node_id is None or provider_id is None or outcome is None:
            raise TypeError("expected names, got None")
        cell = cell_of(self.cells, (model, node_id, provider_id, outcome))
        meter = <ModelMeter>self.model_meters.get(model)
        if meter is None:
            meter = ModelMeter.__new__(ModelMeter)
            self.model_meters[model] = meter
        self.last_model = model
        self.last_node = node_id
        self.last_provider = provider_id
        self.last_outcome = outcome
        self.last_cell = cell
        self.last_meter = meter
        self.last_answers = None
        return 0

    def outcomes(self):
        cdef Cell cell
        return [(key, cell.count) for key, cell in self.cells.items()]

    def models(self):
        cdef ModelMeter meter
        return [
            (model, meter.normal_waits, meter.long_waits, meter.first_bytes, meter.totals)
            for model, meter in self.model_meters.items()
        ]

    def sums(self):
        cdef ModelMeter meter
        cdef Histogram waits = Histogram(DURATION_BOUNDS_NS)
        cdef Histogram first_bytes = Histogram(DURATION_BOUNDS_NS)
        cdef Histogram totals = Histogram(DURATION_BOUNDS_NS)
        for meter in self.model_meters.values():
            waits.add_all(meter.normal_waits)
            waits.add_all(meter.long_waits)
            first_bytes.add_all(meter.first_bytes)
            totals.add_all(meter.totals)
        return waits, first_bytes, totals

    def providers(self):
        cdef Cell cell
        return [(key, cell.count, cell.sum_ns) for key, cell in self.answers.items()]

    def forget(self, is_model, is_provider):
        self.cells = {
            key: cell for key, cell in self.cells.items() if is_model(key[0]) and is_provider((key[1], key[2]))
        }
        self.model_meters = {model: meter for model, meter in self.model_meters.items() if is_model(model)}
        self.answers = {key: cell for key, cell in self.answers.items() if is_provider(key)}
        self.last_cell = self.last_answers = None


cdef inline Cell cell_of(dict cells, tuple key):
    cdef Cell cell = <Cell>cells.get(key)
    if cell is None:
        cell = Cell.__new__(Cell)
        cells[key] = cell
    return cell
