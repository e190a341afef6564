"""C types of plain_run.py."""

cimport cython

from iop_fast._hot.records cimport new_record
from iop_fast.node.adapters.plain_answer cimport Answer
from iop_fast.node.adapters.plain_pool cimport PlainConnection, PlainPool
from iop_fast.node.adapters.upload cimport Upload

cdef object OK, CANCELLED, FAILED


@cython.final
cdef class PlainRun:
    cdef Answer _answer
    cdef PlainConnection _connection
    cdef PlainPool _pool
    cdef Upload _upload
    cdef bytes _block
    cdef Py_ssize_t _first_bytes
    cdef object _dialing, _health, _loop, _method, _sink, _timeouts, _verdict
    cdef bint _has_body, _has_retried, _is_over, _is_paused, _is_taken, _is_written

    cpdef start(self)
    cpdef feed(self, bytes piece, bint complete)
    cpdef pause(self)
    cpdef resume(self)
    cpdef cancel(self)
    cdef _dial(self)
    cdef _connect_failed(self, reason, bint is_own=*)
    cpdef on_connected(self, PlainConnection connection)
    cdef _ask(self, PlainConnection connection)
    cpdef on_writable(self)
    @cython.locals(upload=Upload, piece=bytes)
    cdef _pump(self, PlainConnection connection)
    cdef _note_whole(self, PlainConnection connection)
    cdef _note_taken(self)
    cpdef on_bytes(self, bytes data)
    cpdef on_eof(self)
    cpdef on_lost(self)
    cpdef on_silent(self, limit_ms)
    @cython.locals(answer=Answer, body=bytes, had_head=bint)
    cdef _take(self, bytes data)
    cdef bint _begin_answer(self, head) except -1
    cdef bint _can_send_again(self) except -1
    @cython.locals(connection=PlainConnection, is_sent=bint)
    cdef _end_answered(self)
    cdef _stop(self, verdict)
    cdef _finish(self, end)
    cdef _fail(self, error)


cpdef upstream_error(str detail)
