"""The choice among the candidates of a request: who is live, who is free, who is taken.

Lowest in_flight, then lowest priority, then the oldest last grant, where never is oldest and the catalog's order
decides among those. The walk over the catalog is most of what an admission costs. So `open_slots` of a provider says in
one number whether it is live and how far it may be filled, the tests stand in the order in which they fail, and who is
live is asked only when nobody is free.
"""

from libc.stdint cimport INT32_MAX, int64_t

from iop_fast._core.ledger cimport NONE


cdef bint is_live_for(const ProviderState* provider, uint64_t needs, bint is_constrained) noexcept:
    return provider.is_live and provider.can & needs == needs and (not is_constrained or provider.long_capacity > 0)


cdef bint has_slot(const ProviderState* provider, bint is_constrained) noexcept:
    return provider.in_flight < provider.capacity and (
        not is_constrained or provider.long_in_flight < provider.long_capacity
    )


cdef int32_t first_free(
    const ProviderState* providers, const ModelState* model, uint64_t needs, bint is_constrained, int32_t excluded
) noexcept:
    """The free live candidate to take, NONE without any."""
    cdef const ProviderState* provider
    cdef const int32_t* candidates = model.candidates
    cdef int32_t place, index, chosen = NONE, count = model.count
    cdef int32_t in_flight = INT32_MAX, priority = 0
    cdef int64_t last_grant = 0
    for place in range(count):
        index = candidates[place]
        provider = &providers[index]
        if provider.in_flight >= provider.open_slots or provider.in_flight > in_flight:
            continue
        if provider.in_flight == in_flight and (
            provider.priority > priority or (provider.priority == priority and provider.last_grant >= last_grant)
        ):
            continue
        if provider.can & needs != needs or index == excluded:
            continue
        if is_constrained and provider.long_in_flight >= provider.long_capacity:
            continue
        chosen = index
        in_flight = provider.in_flight
        priority = provider.priority
        last_grant = provider.last_grant
    return chosen


cdef void look(
    Choice* choice,
    const ProviderState* providers,
    const ModelState* model,
    uint64_t needs,
    bint is_constrained,
    int32_t excluded,
) noexcept:
    """Find out why nobody is free."""
    cdef int32_t place, index
    choice.has_able = choice.has_live = False
    for place in range(model.count):
        index = model.candidates[place]
        if providers[index].can & needs == needs:
            choice.has_able = True
            if index != excluded and is_live_for(&providers[index], needs, is_constrained):
                choice.has_live = True
                break


cdef void choose(
    Choice* choice,
    const ProviderState* providers,
    const ModelState* model,
    uint64_t needs,
    bint is_constrained,
    int32_t excluded,
) noexcept:
    choice.provider = first_free(providers, model, needs, is_constrained, excluded)
    if choice.provider == NONE:
        look(choice, providers, model, needs, is_constrained, excluded)
    else:
        choice.has_able = choice.has_live = True
