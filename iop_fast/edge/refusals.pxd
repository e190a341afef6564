"""C types of refusals.py."""

cimport cython

from iop_fast.edge.settings cimport ModelEntry, Settings


@cython.locals(settings=Settings, entry=ModelEntry)
cpdef ModelEntry find_model(runtime, model)
@cython.locals(needs="long long")
cpdef needs_of(ModelEntry entry, surface, scan, body)
@cython.locals(can="long long")
cpdef bint is_supported(abilities, long long needs) except -1
