"""C types of auth.py."""

cimport cython

from iop_fast._hot.records cimport new_record


@cython.final
cdef class FieldTable:
    cdef readonly dict _known
    cdef dict _meanings
    cdef object _private

    @cython.locals(known=dict, passed=list, marked=list, field=tuple, bits=int)
    cpdef sort(self, fields)
    cdef _learn(self, bytes name)


cdef int PRIVATE, AUTHORIZATION, API_KEY, PROVIDER_TOKEN


@cython.locals(authorizations=int, keys=int, tokens=list, value=bytes, bits=int)
cpdef read_token(marked)
cpdef identify(marked, principals, is_required)
