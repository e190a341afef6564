"""C types of usage.py."""

cimport cython

from iop_fast._hot.records cimport new_record
from iop_fast._hot.usage_scan cimport UsageScan, names_usage

cdef Py_ssize_t WHOLE_BYTES_MAX
cdef object COUNT_MAX
cdef bytes EVENTS, JSON
cdef tuple PLACES, SPELLINGS


cdef class UsageReader:
    cpdef feed(self, bytes data)
    cpdef result(self)


@cython.locals(content_type=bytes, name=bytes, value=bytes, size="Py_ssize_t")
cpdef UsageReader usage_reader(head)
@cython.locals(inner=dict)
cdef value_at(usage, tuple path)
@cython.locals(found=dict, spellings=tuple, path=tuple)
cpdef dict numbers_of(usage)
cpdef usage_of(dict numbers)
cpdef dict numbers_of_document(document)
cdef dict numbers_found(UsageScan scan)


@cython.final
cdef class DocumentUsage(UsageReader):
    cdef UsageScan _scan


@cython.final
cdef class StreamUsage(UsageReader):
    cdef dict _numbers
    cdef UsageScan _scan
    cdef bytes _prefix
    cdef bint _is_data, _skips_lf

    @cython.locals(position="Py_ssize_t", size="Py_ssize_t", end="Py_ssize_t")
    cdef _walk(self, bytes data)
    cdef bint _take_whole(self, bytes data) except -1
    cdef _take(self, bytes part)
    cdef _end_line(self)
