"""The reading half of the frame codec, and dispatch; the contract stands in iop_fast/_hot/dispatch.pyi.

A message is walked with a cursor between `at` and `end`. Every reader takes both, returns the cursor behind what it
read, and NULL for bytes that are no protobuf; nothing is read at or behind `end`. Readers of a nested message get that
message's own end. A message is decoded whole before anything of it is delivered: a malformed one has no effect.

Fields are matched on number and wire type together, so a known number with another wire type is an unknown field, and
unknown fields are skipped: both as protobuf does. A field that occurs twice in a nested message counts the last time.
What the comments of runtime.proto forbid and protobuf allows, two bodies in one frame or two events in one RunEvent, is
refused.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, uint32_t, uint64_t

from iop_fast._hot.frame_fields cimport (
    CANCEL,
    CHOICE,
    DATA,
    EMBEDDING,
    EVENT_SIZE,
    FINISH,
    FIRST_SESSION,
    FIXED32,
    FIXED64,
    GROUP,
    GROUP_END,
    HEAD,
    HEADERS_MAX,
    LAST_SESSION,
    NO_BODY,
    REASONING,
    REQUEST_BODY,
    RUN_END,
    RUN_EVENT,
    RUN_REQUEST,
    SAID_NOTHING,
    SPAN,
    TAKEN,
    TEXT,
    TOOL_CALL,
    TUNNEL_REQUEST,
    VARINT,
    WINDOW,
)
from iop_fast._hot.records cimport new_record

from iop_fast._hot.frames import FrameError
from iop_fast.seams import (
    End,
    Head,
    RunEmbedding,
    RunFinish,
    RunOpening,
    RunReasoning,
    RunText,
    RunToolCall,
    TunnelRequest,
    Usage,
)

cdef extern from "Python.h":
    object PyUnicode_DecodeUTF8(const char *text, Py_ssize_t size, const char *errors)

ctypedef const unsigned char *Cursor

cdef enum:
    GROUP_DEPTH_MAX = 100      # upb's limit of nesting
    SPAN_MAX = 0x7FFFFFFF      # protobuf's limit of a length


# ---------------------------------------------------------------------------------------------------------------------
# Reading the wire format

cdef inline Cursor read_varint(Cursor at, Cursor end, uint64_t *value) noexcept nogil:
    cdef uint64_t got = 0
    cdef int shift = 0
    if at < end and at[0] < 0x80:       # fast path for one byte
        value[0] = at[0]
        return at + 1
    while at < end and shift < 70:
        got |= <uint64_t>(at[0] & 0x7F) << shift
        if at[0] < 0x80:
            value[0] = got
            return at + 1
        at += 1
        shift += 7
    return NULL


cdef inline Cursor read_tag(Cursor at, Cursor end, uint32_t *tag) noexcept nogil:
    """Read a field's number and wire type, number << 3 | type."""
    cdef uint64_t value = 0
    at = read_varint(at, end, &value)
    if at == NULL or value >> 32 or value < 8:
        return NULL
    tag[0] = <uint32_t>value
    return at


cdef inline Cursor read_span(Cursor at, Cursor end, Cursor *start) noexcept nogil:
    """Read a length; the bytes it counts go from `start` to the returned cursor."""
    cdef uint64_t size = 0
    at = read_varint(at, end, &size)
    if at == NULL or size > SPAN_MAX or <Py_ssize_t>size > end - at:
        return NULL
    start[0] = at
    return at + size


cdef Cursor skip_field(Cursor at, Cursor end, uint32_t tag, int depth) noexcept nogil:
    """Skip the value of an unknown field."""
    cdef uint64_t number
    cdef Cursor start
    cdef int kind = tag & 7
    if kind == VARINT:
        return read_varint(at, end, &number)
    if kind == SPAN:
        return read_span(at, end, &start)
    if kind == FIXED64:
        return at + 8 if end - at >= 8 else NULL
    if kind == FIXED32:
        return at + 4 if end - at >= 4 else NULL
    if kind == GROUP and depth < GROUP_DEPTH_MAX:
        return skip_group(at, end, tag + (GROUP_END - GROUP), depth + 1)
    return NULL


cdef Cursor skip_group(Cursor at, Cursor end, uint32_t end_tag, int depth) noexcept nogil:
    """Skip the fields of an unknown group and the tag that ends it."""
    cdef uint32_t tag = 0
    while True:
        at = read_tag(at, end, &tag)
        if at == NULL or tag == end_tag:
            return at
        at = skip_field(at, end, tag, depth)
        if at == NULL:
            return NULL


cdef struct FrameView:
    Cursor at           # the whole frame
    Cursor end
    Py_ssize_t size     # of the entry: tag, length and frame
    uint64_t run_id
    uint32_t body       # a Body, NO_BODY when it has none that this build knows
    Cursor body_at
    Cursor body_end


cdef inline bint is_body(uint32_t tag) noexcept nogil:
    cdef uint32_t number = tag >> 3
    return (tag & 7) == SPAN and (
        FIRST_SESSION <= number <= LAST_SESSION or TUNNEL_REQUEST <= number <= CANCEL
    )


cdef bint read_frame(FrameView *frame) noexcept nogil:
    """Fill a view whose `at` and `end` are set; False when the bytes are no Frame."""
    cdef Cursor at = frame.at
    cdef Cursor end = frame.end
    cdef uint32_t tag = 0
    frame.run_id = 0
    frame.body = NO_BODY
    while at < end:
        at = read_tag(at, end, &tag)
        if at == NULL:
            return False
        if tag == (1 << 3 | VARINT):
            at = read_varint(at, end, &frame.run_id)
        elif is_body(tag):
            if frame.body != NO_BODY:
                return False
            frame.body = tag >> 3
            at = read_span(at, end, &frame.body_at)
            frame.body_end = at
        else:
            at = skip_field(at, end, tag, 0)
        if at == NULL:
            return False
    return True


# ---------------------------------------------------------------------------------------------------------------------
# Reading bodies. These raise FrameError.

cdef object malformed(str what):
    return FrameError(f"not a well-formed Batch: {what} is malformed")


cdef inline bytes octets(Cursor at, Cursor end):
    return PyBytes_FromStringAndSize(<const char *>at, end - at)


cdef str text(Cursor at, Cursor end, str what):
    try:
        return PyUnicode_DecodeUTF8(<const char *>at, end - at, NULL)
    except UnicodeDecodeError:
        raise FrameError(f"not a well-formed Batch: {what} is not UTF-8") from None


cdef int read_header(Cursor at, Cursor end, list headers) except -1:
    """Append one (name, value)."""
    cdef uint32_t tag = 0
    cdef Cursor start = NULL
    cdef bytes name = b""
    cdef bytes value = b""
    if len(headers) >= HEADERS_MAX:
        raise FrameError(f"too many header fields: expected at most {HEADERS_MAX}")
    while at < end:
        at = read_tag(at, end, &tag)
        if at == NULL:
            raise malformed("Header")
        if tag == (1 << 3 | SPAN):
            at = read_span(at, end, &start)
            if at != NULL:
                name = octets(start, at)
        elif tag == (2 << 3 | SPAN):
            at = read_span(at, end, &start)
            if at != NULL:
                value = octets(start, at)
        else:
            at = skip_field(at, end, tag, 0)
        if at == NULL:
            raise malformed("Header")
    headers.append((name, value))
    return 0


cdef object read_tunnel_request(Cursor at, Cursor end):
    cdef uint32_t tag = 0
    cdef uint64_t number = 0
    cdef Cursor start = NULL
    cdef str provider_id = "", model = ""
    cdef bytes method = b"", path = b"", body = b""
    cdef list headers = []
    cdef bint complete = False, stream = False, caller_authorized = False
    cdef uint64_t body_length = 0
    while at < end:
        at = read_tag(at, end, &tag)
        if at == NULL:
            raise malformed("ProviderTunnelRequest")
        if tag == (6 << 3 | VARINT):
            at = read_varint(at, end, &number)
            complete = number != 0
        elif tag == (7 << 3 | VARINT):
            at = read_varint(at, end, &body_length)
        elif tag == (9 << 3 | VARINT):
            at = read_varint(at, end, &number)
            stream = number != 0
        elif tag == (10 << 3 | VARINT):
            at = read_varint(at, end, &number)
            caller_authorized = number != 0
        elif (tag & 7) != SPAN or tag >> 3 > 8:
            at = skip_field(at, end, tag, 0)
        else:
            at = read_span(at, end, &start)
            if at == NULL:
                raise malformed("ProviderTunnelRequest")
            if tag >> 3 == 1:
                provider_id = text(start, at, "provider_id")
            elif tag >> 3 == 2:
                method = octets(start, at)
            elif tag >> 3 == 3:
                path = octets(start, at)
            elif tag >> 3 == 4:
                read_header(start, at, headers)
            elif tag >> 3 == 5:
                body = octets(start, at)
            elif tag >> 3 == 8:
                model = text(start, at, "model")
        if at == NULL:
            raise malformed("ProviderTunnelRequest")
    return new_record(
        TunnelRequest,
        (provider_id, method, path, headers, body, complete, body_length, model, stream, caller_authorized),
    )


cdef object read_run_request(Cursor at, Cursor end):
    cdef uint32_t tag = 0
    cdef uint64_t number = 0
    cdef Cursor start = NULL
    cdef str provider_id = "", model = ""
    cdef int32_t kind = 0
    cdef bytes body = b"", traceparent = b""
    cdef bint stream = False, complete = False
    cdef uint64_t body_length = 0
    while at < end:
        at = read_tag(at, end, &tag)
        if at == NULL:
            raise malformed("RunRequest")
        if tag == (3 << 3 | VARINT):
            at = read_varint(at, end, &number)
            kind = <int32_t>number
        elif tag == (6 << 3 | VARINT):
            at = read_varint(at, end, &number)
            stream = number != 0
        elif tag == (9 << 3 | VARINT):
            at = read_varint(at, end, &number)
            complete = number != 0
        elif tag == (10 << 3 | VARINT):
            at = read_varint(at, end, &body_length)
        elif tag == (1 << 3 | SPAN):
            at = read_span(at, end, &start)
            if at != NULL:
                provider_id = text(start, at, "provider_id")
        elif tag == (2 << 3 | SPAN):
            at = read_span(at, end, &start)
            if at != NULL:
                model = text(start, at, "model")
        elif tag == (8 << 3 | SPAN):
            at = read_span(at, end, &start)
            if at != NULL:
                body = octets(start, at)
        elif tag == (11 << 3 | SPAN):
            at = read_span(at, end, &start)
            if at != NULL:
                traceparent = octets(start, at)
        else:
            at = skip_field(at, end, tag, 0)
        if at == NULL:
            raise malformed("RunRequest")
    return new_record(RunOpening, (provider_id, model, kind, stream, body, complete, body_length, traceparent))


cdef tuple read_request_body(Cursor at, Cursor end):
    """Return (piece, complete)."""
    cdef uint32_t tag = 0
    cdef uint64_t number = 0
    cdef Cursor start = NULL
    cdef bytes piece = b""
    cdef bint complete = False
    while at < end:
        at = read_tag(at, end, &tag)
        if at == NULL:
            raise malformed("RequestBody")
        if tag == (1 << 3 | SPAN):
            at = read_span(at, end, &start)
            if at != NULL:
                piece = octets(start, at)
        elif tag == (2 << 3 | VARINT):
            at = read_varint(at, end, &number)
            complete = number != 0
        else:
            at = skip_field(at, end, tag, 0)
        if at == NULL:
            raise malformed("RequestBody")
    return (piece, complete)


cdef object read_head(Cursor at, Cursor end):
    cdef uint32_t tag = 0
    cdef uint64_t number = 0
    cdef Cursor start = NULL
    cdef uint32_t status = 0
    cdef bytes reason = b""
    cdef list headers = []
    while at < end:
        at = read_tag(at, end, &tag)
        if at == NULL:
            raise malformed("ResponseHead")
        if tag == (1 << 3 | VARINT):
            at = read_varint(at, end, &number)
            status = <uint32_t>number
        elif tag == (2 << 3 | SPAN):
            at = read_span(at, end, &start)
            if at != NULL:
                reason = octets(start, at)
        elif tag == (3 << 3 | SPAN):
            at = read_span(at, end, &start)
            if at != NULL:
                read_header(start, at, headers)
        else:
            at = skip_field(at, end, tag, 0)
        if at == NULL:
            raise malformed("ResponseHead")
    return new_record(Head, (status, reason, headers))


cdef object read_tool_call(Cursor at, Cursor end, uint32_t choice):
    cdef uint32_t tag = 0
    cdef uint64_t number = 0
    cdef Cursor start = NULL
    cdef uint32_t call_index = 0
    cdef str call_id = "", name = "", arguments = ""
    while at < end:
        at = read_tag(at, end, &tag)
        if at == NULL:
            raise malformed("ToolCallDelta")
        if tag == (1 << 3 | VARINT):
            at = read_varint(at, end, &number)
            call_index = <uint32_t>number
        elif (tag & 7) != SPAN or not 2 <= tag >> 3 <= 4:
            at = skip_field(at, end, tag, 0)
        else:
            at = read_span(at, end, &start)
            if at == NULL:
                raise malformed("ToolCallDelta")
            if tag >> 3 == 2:
                call_id = text(start, at, "id")
            elif tag >> 3 == 3:
                name = text(start, at, "name")
            else:
                arguments = text(start, at, "arguments")
        if at == NULL:
            raise malformed("ToolCallDelta")
    return new_record(RunToolCall, (call_index, call_id, name, arguments, choice))


cdef object read_embedding(Cursor at, Cursor end, uint32_t choice):
    """Values come packed, in one run or several, or one by one: protobuf takes all of these."""
    cdef uint32_t tag = 0
    cdef Cursor start = NULL
    cdef bytes values = b""
    while at < end:
        at = read_tag(at, end, &tag)
        if at == NULL:
            raise malformed("Embedding")
        if tag == (1 << 3 | SPAN):
            at = read_span(at, end, &start)
            if at == NULL or (at - start) % 4:
                raise malformed("Embedding")
            values = values + octets(start, at) if values else octets(start, at)
        elif tag == (1 << 3 | FIXED32) and end - at >= 4:
            values = values + octets(at, at + 4)
            at += 4
        else:
            at = skip_field(at, end, tag, 0)
        if at == NULL:
            raise malformed("Embedding")
    return new_record(RunEmbedding, (values, choice))


cdef object read_event(Cursor at, Cursor end):
    """Read one event of a normalized run; None for one of a later version. The choice stands behind what was said."""
    cdef uint32_t tag = 0
    cdef uint64_t number = 0
    cdef Cursor said_at = NULL
    cdef Cursor said_end = NULL
    cdef uint32_t kind = SAID_NOTHING
    cdef uint32_t choice = 0
    while at < end:
        at = read_tag(at, end, &tag)
        if at == NULL:
            raise malformed("RunEvent")
        if tag == (CHOICE << 3 | VARINT):
            at = read_varint(at, end, &number)
            choice = <uint32_t>number
        elif (tag & 7) == SPAN and TEXT <= tag >> 3 <= FINISH:
            if kind != SAID_NOTHING:
                raise FrameError("not a well-formed Batch: two events stand in one RunEvent")
            kind = tag >> 3
            at = said_end = read_span(at, end, &said_at)
        else:
            at = skip_field(at, end, tag, 0)
        if at == NULL:
            raise malformed("RunEvent")
    if kind == TEXT:
        return new_record(RunText, (text(said_at, said_end, "text"), choice))
    if kind == TOOL_CALL:
        return read_tool_call(said_at, said_end, choice)
    if kind == REASONING:
        return new_record(RunReasoning, (text(said_at, said_end, "reasoning"), choice))
    if kind == EMBEDDING:
        return read_embedding(said_at, said_end, choice)
    if kind == FINISH:
        return new_record(RunFinish, (text(said_at, said_end, "finish_reason"), choice))
    return None


cdef int read_usage(Cursor at, Cursor end, uint64_t *counts) except -1:
    """Read a Usage into three counts, fields 1 to 3."""
    cdef uint32_t tag = 0
    while at < end:
        at = read_tag(at, end, &tag)
        if at == NULL:
            raise malformed("Usage")
        if (tag & 7) == VARINT and 1 <= tag >> 3 <= 3:
            at = read_varint(at, end, &counts[(tag >> 3) - 1])
        else:
            at = skip_field(at, end, tag, 0)
        if at == NULL:
            raise malformed("Usage")
    return 0


cdef object read_end(Cursor at, Cursor end):
    cdef uint32_t tag = 0
    cdef uint64_t number = 0
    cdef uint64_t[3] counts = [0, 0, 0]
    cdef bint has_usage = False
    cdef Cursor start = NULL
    cdef int32_t status = 0
    cdef uint32_t refusal_status = 0
    cdef str detail = ""
    while at < end:
        at = read_tag(at, end, &tag)
        if at == NULL:
            raise malformed("RunEnd")
        if tag == (1 << 3 | VARINT):
            at = read_varint(at, end, &number)
            status = <int32_t>number
        elif tag == (2 << 3 | SPAN):
            at = read_span(at, end, &start)
            if at != NULL:
                detail = text(start, at, "detail")
        elif tag == (3 << 3 | SPAN):
            at = read_span(at, end, &start)
            if at != NULL:
                has_usage = True
                read_usage(start, at, counts)
        elif tag == (4 << 3 | VARINT):
            at = read_varint(at, end, &number)
            refusal_status = <uint32_t>number
        else:
            at = skip_field(at, end, tag, 0)
        if at == NULL:
            raise malformed("RunEnd")
    usage = new_record(Usage, (counts[0], counts[1], counts[2])) if has_usage else None
    return new_record(End, (status, detail, usage, refusal_status))


cdef int read_window(Cursor at, Cursor end, uint64_t *byte_count) except -1:
    cdef uint32_t tag = 0
    byte_count[0] = 0
    while at < end:
        at = read_tag(at, end, &tag)
        if at == NULL:
            raise malformed("WindowUpdate")
        if tag == (1 << 3 | VARINT):
            at = read_varint(at, end, byte_count)
        else:
            at = skip_field(at, end, tag, 0)
        if at == NULL:
            raise malformed("WindowUpdate")
    return 0


cdef int check_empty(Cursor at, Cursor end, str what) except -1:
    """A message without fields may still hold those of a later version."""
    cdef uint32_t tag = 0
    while at < end:
        at = read_tag(at, end, &tag)
        if at != NULL:
            at = skip_field(at, end, tag, 0)
        if at == NULL:
            raise malformed(what)
    return 0


# ---------------------------------------------------------------------------------------------------------------------
# Dispatch

cdef Cursor next_frame(Cursor at, Cursor end, FrameView *frame) except? NULL:
    """Read the next frame of a Batch; NULL without an exception when there is none left."""
    cdef uint32_t tag = 0
    cdef Cursor start
    while at < end:
        start = at
        at = read_tag(at, end, &tag)
        if at == NULL:
            raise malformed("Batch")
        if tag == (1 << 3 | SPAN):
            at = read_span(at, end, &frame.at)
            if at == NULL:
                raise malformed("Batch")
            frame.end = at
            frame.size = at - start
            if not read_frame(frame):
                raise malformed("Frame")
            return at
        at = skip_field(at, end, tag, 0)
        if at == NULL:
            raise malformed("Batch")
    return NULL


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
