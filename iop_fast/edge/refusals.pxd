"""C types of refusals.py."""

cimport cython


cpdef find_model(runtime, model)
@cython.locals(needs="long long")
cpdef needs_of(entry, surface, scan, body)
@cython.locals(can="long long")
cpdef bint is_supported(abilities, long long needs) except -1
