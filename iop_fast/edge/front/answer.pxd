"""C types of answer.py."""

cimport cython

from iop_fast._hot.text cimport breaks_line, chunk_line, decimal
from iop_fast.edge.front.peer cimport Peer

cdef int UNDECIDED, NO_BODY, BY_LENGTH, BY_CHUNKS, BY_CLOSE
cdef int _LENGTH, _DATE, _CONNECTION
cdef list _STATUS_LINES

cpdef bytes length_line(long long length)


@cython.final
cdef class Answer:
    cdef Peer _connection
    cdef int _framing
    cdef bint _is_http10, _keeps, _without_body
    cdef long long _left
    cdef readonly bint is_open
    cdef public bint is_writable

    cpdef detach(self)
    @cython.locals(connection=Peer, size="Py_ssize_t", parts=list, block=bytes)
    cpdef send(self, head, pieces, bint end)
    cpdef abort(self)
    cdef _cut(self, Peer connection)
    cdef bint _add_body(self, list parts, pieces, Py_ssize_t size, bint end) except -1
    @cython.locals(
        status=int, parts=list, length="long long", left="long long", line=bytes, framing=int, keeps=bint,
        has_date=bint, asks_close=bint,
    )
    cdef bytes _make_head(self, Peer connection, head, Py_ssize_t size, bint end)
    @cython.locals(length="long long", has_date=bint, asks_close=bint, known_names=dict, name=bytes, value=bytes)
    cdef tuple _add_fields(self, list parts, list headers)
    cdef tuple _decide_framing(self, int status, long long length, Py_ssize_t size, bint end)
