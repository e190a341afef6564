"""C types of usage.py."""

cimport cython

from iop_fast._hot.records cimport item


cdef object TOKENS_MAX

cpdef believable(usage)
cpdef str usage_state(bint is_whole, usage)


@cython.final
cdef class UsageRow:
    cdef readonly long long complete, partial, unknown
    cdef readonly long long prompt_tokens, completion_tokens, cached_tokens, estimated_tokens, measured_tokens

    @cython.locals(prompt_tokens="long long")
    cpdef add(self, str state, usage, long long estimated_tokens)


@cython.final
cdef class UsageBook:
    cdef readonly dict rows

    @cython.locals(row=UsageRow, key=tuple)
    cpdef book(self, principal, str model, tuple provider, str state, usage, long long estimate)
