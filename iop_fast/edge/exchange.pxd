"""C types of exchange.py."""

cimport cython

from iop_fast._core.ledger cimport Lease
from iop_fast._hot.ages cimport AgeList
from iop_fast._hot.records cimport item
from iop_fast._hot.text cimport decimal
from iop_fast.edge.answers cimport own_fields
from iop_fast.edge.body cimport Body
from iop_fast.edge.record cimport Record
from iop_fast.edge.reply cimport Reply
from iop_fast.edge.settings cimport ModelEntry, Settings
from iop_fast.edge.state cimport EdgeState
from iop_fast.edge.tunnel cimport Request, Upload
from iop_fast.edge.usage cimport believable

cdef object RECEIVING, QUEUED, DISPATCHED, STREAMING, CANCELLING, DONE
cdef int RUN_OK
cdef int SUBMITTED, GRANTED, READMITTED, ANSWERED, ABANDONED, FINISHED
cdef tuple NEXT
cdef long long NO_HANDLE, NS_PER_MS


@cython.final
cdef class Exchange(Record):
    cdef EdgeState _edge
    cdef readonly Body _body
    cdef object _first_verdict, _needs, _run_id, _runtime, _scan, _state
    cdef readonly object _lease, _link, _waiter
    cdef long long _overdraft, _age
    cdef Settings _settings
    cdef Upload _upload
    cdef AgeList _ages

    @cython.locals(at=int)
    cdef _move(self, int event)
    cpdef begin(self)
    cpdef on_body(self, piece)
    cpdef on_body_complete(self)
    cpdef on_client_gone(self)
    cpdef on_writable(self)
    cpdef on_granted(self, lease)
    cpdef on_evicted(self, outcome)
    @cython.locals(entry=ModelEntry)
    cdef _admit(self)
    cdef _admit_again(self, verdict)
    cdef _take_decision(self, decision)
    @cython.locals(edge=EdgeState)
    cdef _dispatch(self, Lease lease)
    cpdef on_sent(self, message_number)
    cpdef on_window(self, byte_count)
    cpdef on_answer(self, taken, head, data, end)
    cdef _take_answer(self, head, data, end)
    cdef _pass_on(self, head, data, bint is_whole)
    cdef bint _is_whole(self, head, end) except -1
    cdef bint _is_in_order(self, head, data) except -1
    cdef _take_bad_end(self, end)
    @cython.locals(takes_event=bint, request=Request)
    cdef bint _begin_answer(self, head, data, bint is_whole) except -1
    @cython.locals(settings=Settings)
    cdef list _route(self)
    @cython.locals(reply=Reply, window="long long", owed="long long")
    cdef _renew_window(self)
    cdef _leave(self, str outcome)
    cdef _note_wait(self, waiter)
    cdef _release(self)
    cdef _watch(self, AgeList ages)
    cdef _drop_sent_body(self)
    cdef _drop_body(self)
    cpdef finish(self, str outcome)
