"""C types of books.py."""

from iop_fast.edge.access_line cimport AccessLines
from iop_fast.edge.lines cimport LineWriter
from iop_fast.edge.record cimport Record
from iop_fast.edge.usage cimport UsageBook

cdef long long NS_PER_MS


cdef class Books:
    cdef object _render
    cdef AccessLines _lines
    cdef public LineWriter access, usage_log
    cdef public dict counters
    cdef public object meters, traces
    cdef public UsageBook usage

    cpdef count(self, str name)
    cpdef close(self, Record record, long long now_ns)
    cdef _measure(self, Record record, long long now_ns)


cpdef str end_state(Record record)
cpdef dict access_fields(Record record, str usage_state, long long now_ns)
