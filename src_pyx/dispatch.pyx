"""Dispatch: what a message brings is handed to the runs and the session. The contract stands in
iop_fast/_hot/dispatch.pyi.

A message is decoded whole before anything of it is delivered: a malformed one has no effect.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport uint32_t, uint64_t

from iop_fast._hot.frame_fields cimport (
    CANCEL,
    DATA,
    EVENT_SIZE,
    FIRST_SESSION,
    HEAD,
    LAST_SESSION,
    REQUEST_BODY,
    RUN_END,
    RUN_EVENT,
    RUN_REQUEST,
    TAKEN,
    TUNNEL_REQUEST,
    WINDOW,
)
from iop_fast._hot.frame_reader cimport (
    FrameView,
    check_empty,
    next_frame,
    octets,
    read_end,
    read_event,
    read_head,
    read_request_body,
    read_run_request,
    read_tunnel_request,
    read_window,
)
from iop_fast._hot.wire_format cimport Cursor

from iop_fast._hot.frames import FrameError


@cython.final
@cython.freelist(64)
@cython.internal
cdef class Answer:
    """What one message brought for one run."""

    cdef uint64_t number    # the run id
    cdef object run_id
    cdef object run
    cdef bint taken
    cdef object head
    cdef list data
    cdef list said          # None without an event
    cdef Py_ssize_t said_bytes
    cdef object end
    cdef uint64_t granted
    cdef object fault       # the FrameError of frames that no answer has, or not in this order

    cdef int add(self, FrameView *frame) except -1:
        """Take one more frame of the run."""
        cdef uint64_t byte_count
        if self.end is not None:
            return 0        # the run is over: a frame for a run that is not known any more
        if frame.body == DATA:
            if frame.body_at != frame.body_end:
                self.data.append(octets(frame.body_at, frame.body_end))
        elif frame.body == HEAD:
            if self.head is not None or self.data:
                self.fault = FrameError(f"run {self.run_id}: a head stands behind the answer's beginning")
            self.head = read_head(frame.body_at, frame.body_end)
        elif frame.body == RUN_EVENT:
            self.add_event(frame)
        elif frame.body == RUN_END:
            self.end = read_end(frame.body_at, frame.body_end)
        elif frame.body == TAKEN:
            check_empty(frame.body_at, frame.body_end, "Taken")
            self.taken = True
        else:
            read_window(frame.body_at, frame.body_end, &byte_count)
            self.granted = self.granted + byte_count if byte_count <= ~self.granted else ~<uint64_t>0
        return 0

    cdef int add_event(self, FrameView *frame) except -1:
        cdef object event = read_event(frame.body_at, frame.body_end)
        if self.said is None:
            self.said = []
        if event is not None:
            self.said.append(event)
        self.said_bytes += frame.size + EVENT_SIZE
        return 0

    cdef bint has_answer(self):
        return self.taken or self.head is not None or self.end is not None or len(self.data) > 0

    cdef int deliver(self, dict runs, side) except -1:
        """Call the run, unless it left the table while the message was delivered; drop it when it ended."""
        if runs.get(self.run_id) is not self.run:
            return 0
        try:
            if self.fault is not None:
                raise self.fault
            if self.granted:
                self.run.on_window(self.granted)
            if self.said is not None:
                if self.head is not None or self.data:
                    raise FrameError(f"run {self.run_id}: an event stands beside a tunnel's answer")
                self.run.on_events(self.taken, self.said, self.said_bytes, self.end)
            elif self.has_answer():
                self.run.on_answer(self.taken, self.head, self.data, self.end)
        except Exception as error:
            side.on_frame_failed(self.run_id, error)
        if self.end is not None and runs.get(self.run_id) is self.run:
            del runs[self.run_id]
        return 0


cdef inline Answer new_answer(uint64_t number, object run_id, object run):
    cdef Answer answer = Answer.__new__(Answer)
    answer.number = number
    answer.run_id = run_id
    answer.run = run
    answer.data = []
    return answer


cdef inline bint is_session(uint32_t body) noexcept nogil:
    return FIRST_SESSION <= body <= LAST_SESSION


cdef inline bint is_answer(uint32_t body) noexcept nogil:
    return TAKEN <= body <= WINDOW


cdef list gather(bytes message, dict runs, Py_ssize_t *frame_count):
    """Decode a Node's message into what is to be delivered: an Answer each, or the bytes of a session frame."""
    cdef Cursor at = <Cursor>PyBytes_AS_STRING(message)
    cdef Cursor end = at + PyBytes_GET_SIZE(message)
    cdef FrameView frame
    cdef list deliveries = []
    cdef dict answers = {}
    cdef object run_id, found, run
    cdef Answer last = None
    while True:
        at = next_frame(at, end, &frame)
        if at == NULL:
            return deliveries
        frame_count[0] += 1
        if is_session(frame.body):
            deliveries.append(octets(frame.at, frame.end))
            continue
        if not is_answer(frame.body):
            continue        # nothing that an Edge is sent, or of a later version
        if last is None or last.number != frame.run_id:     # the frames of a run often stand one after the other
            run_id = frame.run_id
            found = answers.get(run_id)
            if found is None:
                run = runs.get(run_id)
                if run is None:
                    continue
                found = new_answer(frame.run_id, run_id, run)
                answers[run_id] = found
                deliveries.append(found)
            last = <Answer>found
        last.add(&frame)


def dispatch_edge(bytes message not None, dict runs not None, side):
    cdef Py_ssize_t frame_count = 0
    cdef object delivery
    for delivery in gather(message, runs, &frame_count):
        if type(delivery) is Answer:
            (<Answer>delivery).deliver(runs, side)
        else:
            side.on_control(delivery)
    return frame_count


cdef list decode_for_node(bytes message, Py_ssize_t *frame_count):
    """Decode an Edge's message into (body, run_id, what): what is to be delivered, in order."""
    cdef Cursor at = <Cursor>PyBytes_AS_STRING(message)
    cdef Cursor end = at + PyBytes_GET_SIZE(message)
    cdef FrameView frame
    cdef list deliveries = []
    cdef uint64_t byte_count = 0
    cdef object what
    while True:
        at = next_frame(at, end, &frame)
        if at == NULL:
            return deliveries
        frame_count[0] += 1
        if frame.body == REQUEST_BODY:
            what = read_request_body(frame.body_at, frame.body_end)
        elif frame.body == RUN_REQUEST:
            what = read_run_request(frame.body_at, frame.body_end)
        elif frame.body == TUNNEL_REQUEST:
            what = read_tunnel_request(frame.body_at, frame.body_end)
        elif frame.body == WINDOW:
            read_window(frame.body_at, frame.body_end, &byte_count)
            what = byte_count
        elif frame.body == CANCEL:
            check_empty(frame.body_at, frame.body_end, "CancelRequest")
            what = None
        elif is_session(frame.body):
            what = octets(frame.at, frame.end)
        else:
            continue        # nothing that a Node is sent, or of a later version
        deliveries.append((frame.body, frame.run_id, what))


def dispatch_node(bytes message not None, side):
    cdef Py_ssize_t frame_count = 0
    cdef uint32_t body
    cdef object run_id, what
    for body, run_id, what in decode_for_node(message, &frame_count):
        if is_session(body):
            side.on_control(what)
            continue
        try:
            if body == REQUEST_BODY:
                side.on_body(run_id, what[0], what[1])
            elif body == WINDOW:
                side.on_window(run_id, what)
            elif body == TUNNEL_REQUEST:
                side.on_open(run_id, what)
            elif body == RUN_REQUEST:
                side.on_open_run(run_id, what)
            else:
                side.on_cancel(run_id)
        except Exception as error:
            side.on_frame_failed(run_id, error)
    return frame_count
