"""C types of settings.py."""

cimport cython


@cython.final
cdef class Served:
    cdef readonly str name
    cdef readonly bytes json


@cython.final
cdef class ModelEntry:
    cdef readonly str id
    cdef readonly dict served
    cdef readonly object abilities, generation
    cdef readonly bint has_normalized
    cdef readonly bytes page


@cython.final
cdef class Settings:
    cdef readonly dict models, routes
    cdef readonly frozenset normalized
    cdef readonly bint exposes_route
    cdef readonly long long long_threshold_tokens, body_bytes_max, run_window_bytes
