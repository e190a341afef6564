"""C interface of the choice among candidates; what it means stands in src_pyx/choice.pyx."""

from libc.stdint cimport int32_t, uint64_t

from iop_fast._core.ledger cimport ModelState, ProviderState


cdef struct Choice:
    int32_t provider        # the free live candidate to take, NONE when none is free
    bint has_able           # the catalog has a provider that can do the needs
    bint has_live           # there is a live candidate, free or not


cdef bint is_live_for(const ProviderState* provider, uint64_t needs, bint is_constrained) noexcept
cdef bint has_slot(const ProviderState* provider, bint is_constrained) noexcept
cdef void choose(
    Choice* choice,
    const ProviderState* providers,
    const ModelState* model,
    uint64_t needs,
    bint is_constrained,
    int32_t excluded,
) noexcept
