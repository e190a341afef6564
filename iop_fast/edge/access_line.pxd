"""C types of access_line.py."""

cimport cython

from iop_fast._hot.text cimport decimal
from iop_fast.edge.record cimport Record
from iop_fast.edge.reply cimport Reply
from iop_fast.edge.tunnel cimport Request

cdef long long NS_PER_MS


@cython.final
cdef class AccessLines:
    cdef bytes _middle
    cdef dict _names

    @cython.locals(request=Request, reply=Reply, began_ns="long long", parts=list)
    cpdef bytes render(self, Record record, str end, str usage_state, long long now_ns)
    @cython.locals(request=Request, key=tuple)
    cdef bytes _names_of(self, Record record)
