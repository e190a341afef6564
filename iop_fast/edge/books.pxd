"""C types of books.py."""

cimport cython

from iop_fast._hot.meters cimport RequestMeters
from iop_fast.edge.access_line cimport AccessLines
from iop_fast.edge.lines cimport LineWriter
from iop_fast.edge.record cimport Record
from iop_fast.edge.tunnel cimport Request
from iop_fast.edge.usage cimport UsageBook, usage_state

cdef long long NS_PER_MS


cdef class Books:
    cdef object _render
    cdef AccessLines _lines
    cdef public LineWriter access, usage_log
    cdef public dict counters
    cdef public RequestMeters meters
    cdef public object traces
    cdef public UsageBook usage

    cpdef count(self, str name)
    @cython.locals(request=Request, state=str, provider=tuple, is_metered=bint)
    cpdef close(self, Record record, long long now_ns)
    @cython.locals(head_ns="long long", queue_ns="long long")
    cdef _measure(self, Record record, long long now_ns)


cpdef str end_state(Record record)
cpdef dict access_fields(Record record, str state, long long now_ns)
