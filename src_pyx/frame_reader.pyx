"""The reading half of the frame codec; the contract stands in iop_fast/_hot/frame_reader.pxd.

A message is walked with a cursor; readers of a nested message get that message's own end (wire_format.pxd).

Fields are matched on number and wire type together, so a known number with another wire type is an unknown field, and
unknown fields are skipped: both as protobuf does. A field that occurs twice in a nested message counts the last time.
What the comments of runtime.proto forbid and protobuf allows, two bodies in one frame or two events in one RunEvent, is
refused.
"""

from libc.stdint cimport int32_t, uint32_t, uint64_t

from iop_fast._hot.frame_fields cimport (
    CANCEL,
    CHOICE,
    EMBEDDING,
    FINISH,
    FIRST_SESSION,
    HEADERS_MAX,
    LAST_SESSION,
    NO_BODY,
    REASONING,
    SAID_NOTHING,
    TEXT,
    TOOL_CALL,
    TUNNEL_REQUEST,
)
from iop_fast._hot.records cimport new_record
from iop_fast._hot.wire_format cimport FIXED32, SPAN, VARINT, Cursor, read_span, read_tag, read_varint, skip_field

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


cdef object malformed(str what):
    return FrameError(f"not a well-formed Batch: {what} is malformed")


# ---- frames ----------------------------------------------------------------------------------------------------------


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


cdef Cursor next_frame(Cursor at, Cursor end, FrameView *frame) except? NULL:
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


# ---- their bodies ----------------------------------------------------------------------------------------------------


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
