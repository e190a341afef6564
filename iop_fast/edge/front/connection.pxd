"""C types of connection.py."""

cimport cython

from iop_fast._hot.records cimport item
from iop_fast._hot.text cimport part
from iop_fast.edge.front.answer cimport Answer
from iop_fast.edge.front.head cimport HeadParser, KnownHead, find_head
from iop_fast.edge.front.peer cimport Peer
from iop_fast.edge.front.shared cimport Shared

cdef int HEAD, BODY, SERVING, DRAINING, CLOSING, CLOSED


@cython.final
cdef class LengthDecoder:
    cdef readonly Py_ssize_t consumed, left

    cpdef bytes feed(self, data)


@cython.final
cdef class Connection(Peer):
    cdef Answer _answer
    cdef bint _awaits_continue, _has_dropped, _is_starting, _keeps_alive, _waits_turn
    cdef Py_ssize_t _body_bytes, _body_mark, _scanned
    cdef KnownHead _known
    cdef object _buffer, _decoder, _receiver

    cdef _cut(self, bint is_ended_by_close)
    cdef _tell_writable(self, receiver)
    @cython.locals(state=int)
    cpdef data_received(self, data)
    @cython.locals(front=Shared)
    cdef bint _has_turn(self, Py_ssize_t size) except -1
    cdef _start_requests(self)
    @cython.locals(front=Shared, size="Py_ssize_t", known=KnownHead, block=bytes)
    cdef bint _start_request(self) except -1
    cdef _await_head(self, Py_ssize_t scanned)
    @cython.locals(front=Shared, parser=HeadParser, answer=Answer, size="Py_ssize_t")
    cdef _open(self, head, rest)
    @cython.locals(front=Shared, answer=Answer)
    cdef _open_unread(self, head, Answer answer, rest)
    cdef _take_body(self, data)
    cdef _complete_body(self, receiver, piece, rest)
    cdef _keep(self, data)
    cdef _append(self, data)
    cdef _drain(self, data)
    cdef tuple _too_large(self)
    cdef _drop_request(self)
