"""A compiled call pair that does nothing: what calling submit and release costs before they do anything."""

from libc.stdint cimport int64_t, uint64_t


cdef class EmptyPair:

    def submit(self, int64_t now_ns, owner, str model, bint long, uint64_t needs):
        return None

    def release(self, int64_t now_ns, lease):
        return True
