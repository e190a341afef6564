"""C types of openai_compat.py."""

cimport cython


@cython.final
cdef class OpenAICompatUpstream:
    cdef object _client, _timeouts

    cpdef start(self, request, sink)
