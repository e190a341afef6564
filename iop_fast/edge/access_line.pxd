"""C types of access_line.py."""

cimport cython

from iop_fast._hot.records cimport item
from iop_fast._hot.text cimport Block, Stamp
from iop_fast.edge.record cimport Record
from iop_fast.edge.reply cimport Reply
from iop_fast.edge.tunnel cimport Request

cdef long long NS_PER_MS


@cython.final
cdef class AccessLines:
    cdef bytes _middle, _start
    cdef dict _names
    cdef Block _line
    cdef Stamp _stamp

    @cython.locals(line=Block)
    cpdef bytes render(self, Record record, str end, str usage_state, long long now_ns)
    @cython.locals(line=Block, reply=Reply, began_ns="long long")
    cdef _put_outcome(self, Record record, str end, long long now_ns)
    @cython.locals(key=tuple, names=bytes)
    cdef bytes _names_of(self, Record record)
