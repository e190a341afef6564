"""C types of outbox.py."""

cimport cython

from iop_fast._core.clock cimport Clock as CoreClock


cdef Py_ssize_t BATCH_BYTES, MAX_MESSAGE_BYTES, TURN_BYTES


@cython.final
@cython.freelist(64)
cdef class _Entry:
    cdef bytes data
    cdef bint can_wait
    cdef object on_sent
    cdef _Entry next


@cython.final
@cython.freelist(64)
cdef class _Run:
    cdef long long deficit
    cdef _Entry first, last
    cdef object run_id
    cdef bint is_dropped, is_in_turns


@cython.final
cdef class _Message:
    cdef readonly list opened, pieces
    cdef readonly Py_ssize_t size

    cdef bint has_room(self, Py_ssize_t size) except -1
    cdef add(self, bytes entry)


cdef class Outbox:
    cdef CoreClock _clock
    cdef dict _runs
    cdef object _control, _prompt, _turns
    cdef object _loop, _on_closed, _on_low, _stream, _task, _timer, _traffic, _waiter
    cdef bint _is_closed
    cdef long long _low_bytes, _next_start_ns, _pace_ns, _urgent
    cdef readonly bint is_writing
    cdef readonly long long messages_written, queued_bytes

    cpdef send_control(self, bytes entry)
    cpdef send_run(self, run_id, bytes entry, bint bulk=*)
    cpdef send_patient(self, run_id, bytes entry)
    cpdef send_open(self, run_id, bytes entry, on_sent)
    @cython.locals(run=_Run)
    cpdef bint withdraw(self, run_id) except -1
    @cython.locals(run=_Run, entry=_Entry, following=_Entry)
    cpdef drop_run(self, run_id)
    cdef _look_if_low(self)
    cpdef close(self)
    @cython.locals(run=_Run, entry=_Entry)
    cdef _send(self, run_id, bytes data, bint is_bulk, on_sent, bint is_patient=*)
    cdef bint _is_held_back(self) except -1
    @cython.locals(message=_Message)
    cdef _Message _fill(self)
    cdef bint _fill_control(self, _Message message) except -1
    @cython.locals(run=_Run)
    cdef bint _fill_prompt(self, _Message message) except -1
    @cython.locals(run=_Run, size="Py_ssize_t")
    cdef _fill_turns(self, _Message message)
    @cython.locals(entry=_Entry)
    cdef _take_head(self, _Run run, _Message message)


cpdef int check_size(bytes entry) except -1
