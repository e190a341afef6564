"""Plans: what admission knows of the configuration, and how it takes over a new one.

Theory of operation
===================

The catalog holds the part of a plan that is not a number of the ledger: which models there are, who may serve each (as
rows of the ledger, in the catalog's order), the order of the providers in the file, the queue's limits. Numbers and
switches of providers go into the ledger's rows.

A plan is *read* first: checked, translated into rows and put into a Staging, with all memory that taking it over needs.
That may raise and then nothing has changed (rows of new providers may have been made; they are in no plan and do
nothing). Then it is *committed*, which cannot fail and runs no Python code. While a plan is read, foreign code may run
(a mapping of the caller's, a finalizer) and may step; it must not reconfigure.

Objects of the plan before are compared by identity first: a plan that shares its ProviderSpecs (place for place) and
its mapping tuples with its predecessor costs a pointer comparison for each. That is sound because both are immutable
and because a row once given to a key stays with it. Health is the exception: a Node's report moves it away from what
the spec says, `planned_health` remembers that, and the plan's word is restored.

Models are rows too. A row goes back to the free ones when the model leaves the plan: its waiters have no candidate and
end in the same step, and nothing else names a model by row. A model that comes with the same plan gets another row.

After a commit Staging holds what was replaced, and frees it.
"""

cimport cython
from cpython.mem cimport PyMem_Free
from libc.string cimport memcmp, memcpy

from iop_fast._core.ledger cimport NONE, ProviderState
from iop_fast._core.memory cimport duplicate, zeroed


cdef bint has_long_slots(const ModelState* model, const ProviderState* providers) noexcept:
    cdef int32_t place
    for place in range(model.count):
        if providers[model.candidates[place]].long_capacity > 0:
            return True
    return False


@cython.final
cdef class Staging:

    def __dealloc__(self):
        cdef int32_t row
        PyMem_Free(self.order)
        PyMem_Free(self.touched)
        if self.is_new is not NULL:
            for row in range(self.model_count):
                if self.is_new[row]:
                    PyMem_Free(self.models[row].candidates)
        PyMem_Free(self.models)
        PyMem_Free(self.is_new)
        PyMem_Free(self.providers)


@cython.final
cdef class Catalog:

    def __cinit__(self, Ledger ledger not None, WaitQueue queue not None):
        self.ledger = ledger
        self.queue = queue
        self.names = {}
        self.mappings = []
        self.specs = ()

    def __dealloc__(self):
        cdef int32_t row
        for row in range(self.model_count):
            PyMem_Free(self.models[row].candidates)
        PyMem_Free(self.models)
        PyMem_Free(self.order)

    # Reading ----------------------------------------------------------------------------------------------------------

    cdef Staging read(self, object plan):
        cdef Staging staging
        if self.is_reading:
            raise RuntimeError("reconfigure called while a plan is being read")
        self.is_reading = True
        try:
            staging = self.stage(plan)
        finally:
            self.is_reading = False
        return staging

    cdef Staging stage(self, object plan):
        cdef Staging staging = Staging.__new__(Staging)
        self.plan_mark += 1
        staging.new_rows = []
        staging.queue_limit = plan.max_queue
        staging.queue_timeout_ns = plan.queue_timeout_ns
        if staging.queue_limit < 0 or staging.queue_timeout_ns < 0:
            raise ValueError(f"expected a queue limit and timeout of 0 or more, got {plan.max_queue!r}, "
                             f"{plan.queue_timeout_ns!r}")
        self.stage_providers(staging, tuple(plan.providers))
        self.stage_models(staging, plan.models)
        self.check_candidates(staging)
        self.queue.index.reserve_providers(self.ledger.provider_count)
        if self.queue.line_count > 0 and (staging.changes_mapping or staging.changes_can or staging.changes_long):
            self.stage_index(staging)
        return staging

    cdef int stage_providers(self, Staging staging, tuple specs) except -1:
        cdef int32_t place, provider, count = <int32_t>len(specs)
        cdef bint is_same
        cdef ProviderState* row
        cdef object spec
        staging.specs = specs
        staging.order = <int32_t*>zeroed(count, sizeof(int32_t))
        staging.order_count = count
        staging.touched = <StagedProvider*>zeroed(count, sizeof(StagedProvider))
        for place in range(count):
            spec = specs[place]
            is_same = place < self.order_count and self.specs[place] is spec
            provider = self.order[place] if is_same else self.ledger.intern_provider((spec[0], spec[1]))
            row = &self.ledger.providers[provider]
            if row.plan_mark == self.plan_mark:
                raise ValueError(f"provider {self.ledger.keys[provider]} stands twice in the plan")
            row.plan_mark = self.plan_mark
            staging.kept += row.is_planned
            staging.order[place] = provider
            if not is_same or row.is_healthy != row.planned_health:
                self.stage_spec(staging, provider, spec)
        return 0

    cdef int stage_spec(self, Staging staging, int32_t provider, object spec) except -1:
        cdef ProviderState* row = &self.ledger.providers[provider]
        cdef StagedProvider* staged = &staging.touched[staging.touched_count]
        staged.provider = provider
        staged.capacity = spec[2]
        staged.long_capacity = spec[3]
        staged.priority = spec[4]
        staged.is_enabled = bool(spec[5])
        staged.is_healthy = bool(spec[6])
        staged.can = spec[7]
        if staged.capacity < 0 or staged.long_capacity < 0:
            raise ValueError(f"provider {self.ledger.keys[provider]}: expected capacities of 0 or more, got "
                             f"{staged.capacity} and {staged.long_capacity}")
        staging.changes_can |= staged.can != row.can
        staging.changes_long |= staged.long_capacity != row.long_capacity
        staging.touched_count += not (
            row.is_planned
            and staged.capacity == row.capacity
            and staged.long_capacity == row.long_capacity
            and staged.priority == row.priority
            and staged.is_enabled == row.is_enabled
            and staged.is_healthy == row.is_healthy == row.planned_health
            and staged.can == row.can
        )
        return 0

    cdef int stage_models(self, Staging staging, object models) except -1:
        cdef list changed = []
        cdef int32_t row, kept = 0, count
        cdef object name, mapping
        count = self.model_count + <int32_t>len(models)
        staging.models = <ModelState*>zeroed(count, sizeof(ModelState))
        staging.is_new = <uint8_t*>zeroed(count, sizeof(uint8_t))
        staging.model_count = self.model_count
        if self.model_count > 0:
            memcpy(staging.models, self.models, self.model_count * sizeof(ModelState))
        for name, mapping in models.items():
            row = self.names.get(name, NONE)
            if row == NONE:
                changed.append((name, mapping))
                continue
            staging.models[row].plan_mark = self.plan_mark
            kept += 1
            if type(mapping) is not tuple or mapping is not self.mappings[row]:
                changed.append((name, mapping))
        staging.names = self.names
        staging.mappings = self.mappings
        if changed or kept < len(self.names):
            staging.names = self.names.copy()
            staging.mappings = self.mappings.copy()
            self.stage_removals(staging)
            for name, mapping in changed:
                self.stage_model(staging, name, mapping)
        return 0

    cdef int stage_removals(self, Staging staging) except -1:
        cdef int32_t row
        for name, row in self.names.items():
            if staging.models[row].plan_mark != self.plan_mark:
                del staging.names[name]
                staging.mappings[row] = None
                staging.models[row].candidates = NULL
                staging.models[row].count = 0
                staging.is_new[row] = True
                staging.changes_mapping = True
        return 0

    cdef int stage_model(self, Staging staging, str name, object mapping) except -1:
        cdef int32_t row = staging.names.get(name, NONE), count = <int32_t>len(mapping), place = 0
        cdef int32_t* candidates = <int32_t*>zeroed(count, sizeof(int32_t))
        cdef ModelState* model
        cdef int32_t provider
        try:
            self.model_mark += 1
            for key in mapping:
                provider = self.ledger.key_index.get(tuple(key), NONE)
                if provider == NONE or self.ledger.providers[provider].plan_mark != self.plan_mark:
                    raise ValueError(f"model {name!r} names provider {key!r}, which is not in the plan")
                if self.ledger.providers[provider].model_mark == self.model_mark:
                    raise ValueError(f"model {name!r} names provider {key!r} twice")
                self.ledger.providers[provider].model_mark = self.model_mark
                candidates[place] = provider
                place += 1
            if row == NONE:
                row = self.stage_row(staging)
                staging.names[name] = row
                staging.new_rows.append(row)
        except BaseException:
            PyMem_Free(candidates)
            raise
        model = &staging.models[row]
        staging.mappings[row] = mapping
        if model.count == count and memcmp(model.candidates, candidates, count * sizeof(int32_t)) == 0:
            PyMem_Free(candidates)  # another object that says the same
            candidates = model.candidates
        else:
            staging.is_new[row] = True
            staging.changes_mapping = True
        model.candidates = candidates
        model.count = count
        model.plan_mark = self.plan_mark
        return 0

    cdef int32_t stage_row(self, Staging staging) except -1:
        """A row for a new model: one that was free before this plan, else one more."""
        while staging.free_row < self.model_count:
            staging.free_row += 1
            if self.mappings[staging.free_row - 1] is None:
                return staging.free_row - 1
        staging.mappings.append(None)
        staging.model_count += 1
        return staging.model_count - 1

    cdef int check_candidates(self, Staging staging) except -1:
        """Mappings that were taken over unread may name a provider that has left."""
        cdef int32_t row, place
        if staging.kept == self.order_count:
            return 0
        for row in range(staging.model_count):
            for place in range(staging.models[row].count):
                if self.ledger.providers[staging.models[row].candidates[place]].plan_mark != self.plan_mark:
                    key = self.ledger.keys[staging.models[row].candidates[place]]
                    raise ValueError(f"a model names provider {key!r}, which is not in the plan")
        return 0

    cdef int stage_index(self, Staging staging) except -1:
        """Build the index of lines for the plan: on copies of what it will change."""
        cdef int32_t row, place
        cdef StagedProvider* staged
        staging.providers = <ProviderState*>duplicate(
            self.ledger.providers, self.ledger.provider_count, sizeof(ProviderState)
        )
        for place in range(staging.touched_count):
            staged = &staging.touched[place]
            staging.providers[staged.provider].can = staged.can
            staging.providers[staged.provider].long_capacity = staged.long_capacity
        for row in range(staging.model_count):
            staging.models[row].has_long = has_long_slots(&staging.models[row], staging.providers)
        staging.index = self.queue.build_index(staging.models, staging.providers, self.ledger.provider_count)
        return 0

    # Taking over ------------------------------------------------------------------------------------------------------

    cdef void commit(self, Staging staging) noexcept:  # commitment point
        cdef int32_t place
        cdef ProviderState* row
        for place in range(staging.touched_count):
            self.apply_spec(&staging.touched[place])
        if staging.kept < self.order_count:
            for place in range(self.order_count):
                row = &self.ledger.providers[self.order[place]]
                if row.plan_mark != self.plan_mark:
                    row.is_planned = False
                    self.ledger.update_live(self.order[place])
        self.order, staging.order = staging.order, self.order
        self.order_count = staging.order_count
        self.models, staging.models = staging.models, self.models
        self.model_count, staging.model_count = staging.model_count, self.model_count
        self.specs, staging.specs = staging.specs, self.specs
        self.names, staging.names = staging.names, self.names
        self.mappings, staging.mappings = staging.mappings, self.mappings
        self.queue_limit = staging.queue_limit
        self.queue_timeout_ns = staging.queue_timeout_ns
        if staging.changes_long or staging.changes_mapping:
            self.update_has_long()
        if staging.index is not None:
            self.queue.index, staging.index = staging.index, self.queue.index

    cdef void apply_spec(self, const StagedProvider* staged) noexcept:
        cdef ProviderState* row = &self.ledger.providers[staged.provider]
        row.capacity = staged.capacity
        row.long_capacity = staged.long_capacity
        row.priority = staged.priority
        row.is_enabled = staged.is_enabled
        row.is_healthy = staged.is_healthy
        row.planned_health = staged.is_healthy
        row.can = staged.can
        row.is_planned = True
        self.ledger.update_live(staged.provider)

    cdef void update_has_long(self) noexcept:
        cdef int32_t row
        for row in range(self.model_count):
            self.models[row].has_long = has_long_slots(&self.models[row], self.ledger.providers)

    cdef bint is_due(self, int64_t enqueued_at_ns, int64_t now_ns) noexcept:
        """Whether the deadline of a waiter has come."""
        return self.queue_timeout_ns > 0 and now_ns - enqueued_at_ns >= self.queue_timeout_ns

    cdef Catalog copy(self, Ledger ledger, WaitQueue queue):
        """The same catalog over copies of its ledger and queue."""
        cdef Catalog twin = Catalog.__new__(Catalog, ledger, queue)
        cdef int32_t row
        twin.models = <ModelState*>zeroed(self.model_count, sizeof(ModelState))
        for row in range(self.model_count):
            twin.models[row] = self.models[row]
            twin.models[row].candidates = NULL
        twin.model_count = self.model_count
        for row in range(self.model_count):
            twin.models[row].candidates = <int32_t*>duplicate(
                self.models[row].candidates, self.models[row].count, sizeof(int32_t)
            )
        twin.order = <int32_t*>duplicate(self.order, self.order_count, sizeof(int32_t))
        twin.order_count = self.order_count
        twin.names = self.names  # both are replaced, never changed
        twin.mappings = self.mappings
        twin.specs = self.specs
        twin.plan_mark = self.plan_mark
        twin.model_mark = self.model_mark
        twin.overhang = self.overhang
        twin.queue_limit = self.queue_limit
        twin.queue_timeout_ns = self.queue_timeout_ns
        return twin
