"""C types of usage.py."""

cimport cython


cdef object TOKENS_MAX

cpdef believable(usage)


@cython.final
cdef class UsageRow:
    cdef readonly object complete, partial, unknown
    cdef readonly object prompt_tokens, completion_tokens, cached_tokens, estimated_tokens, measured_tokens

    cpdef add(self, state, usage, estimated_tokens)


@cython.final
cdef class UsageBook:
    cdef readonly dict rows

    @cython.locals(row=UsageRow)
    cpdef book(self, principal, model, provider, state, usage, estimate)
