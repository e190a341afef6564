"""C types of answer.py."""

cimport cython

from iop_fast._hot.fields cimport number_at
from iop_fast._hot.records cimport item
from iop_fast._hot.text cimport Block
from iop_fast.edge.front.peer cimport Peer

cdef int UNDECIDED, NO_BODY, BY_LENGTH, BY_CHUNKS, BY_CLOSE
cdef int HAS_DATE, ASKS_CLOSE, STATUS_MIN, STATUS_MAX, LENGTH_DIGITS_MAX
cdef object _LENGTH, _DATE, _CONNECTION
cdef list _STATUS_LINES
cdef Block _written


@cython.final
@cython.freelist(64)
cdef class Answer:
    cdef Peer _connection
    cdef int _framing
    cdef bint _is_http10, _keeps, _without_body
    cdef long long _left
    cdef readonly bint is_open
    cdef public bint is_writable

    cpdef detach(self)
    @cython.locals(connection=Peer, size="Py_ssize_t", block=bytes)
    cpdef send(self, head, pieces, bint end)
    cpdef abort(self)
    cdef _cut(self, Peer connection)
    @cython.locals(framing=int, last=bytes)
    cdef bytes _frame(self, pieces, Py_ssize_t size, bint end)
    @cython.locals(status=int, length="long long", left="long long", flags=int, framing=int, keeps=bint)
    cdef _write_head(self, Peer connection, head, Py_ssize_t size, bint end)
    @cython.locals(length="long long", flags=int, field=tuple, value=bytes, names=dict)
    cdef tuple _write_fields(self, list headers)
    cdef tuple _decide_framing(self, int status, long long length, Py_ssize_t size, bint end)
