"""The writing half of the frame codec; the contract stands in iop_fast/_hot/frames.pyi.

Sizes come first, then each entry is written into one bytes object. Defaults are left out and fields stand in the order
of their numbers, so an entry equals, byte for byte, what protobuf's own serializer makes of the frame.
"""

from array import array

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.tuple cimport PyTuple_Check, PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.stdint cimport int32_t, uint32_t, uint64_t
from libc.string cimport memcpy

from iop_fast._hot.frame_fields cimport (
    CANCEL,
    CHOICE,
    DATA,
    EMBEDDING,
    EVENT_SIZE,
    FINISH,
    HEAD,
    HEADERS_MAX,
    REASONING,
    REQUEST_BODY,
    RUN_END,
    RUN_EVENT,
    RUN_REQUEST,
    TAKEN,
    TEXT,
    TOOL_CALL,
    TUNNEL_REQUEST,
    WINDOW,
    Body,
    Said,
)
from iop_fast._hot.wire_format cimport (
    SPAN,
    VARINT,
    Place,
    bytes_field_size,
    number_field_size,
    put_bytes_field,
    put_number_field,
    put_varint,
    span_size,
    tag_of,
    varint_size,
)

from iop_fast.seams import End, Head, RunOpening, TunnelRequest

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL
    object PyUnicode_AsEncodedString(object text, const char *encoding, const char *errors)

MAX_HEADERS = HEADERS_MAX
EVENT_BYTES = EVENT_SIZE


class FrameError(ValueError):
    """A message is not a well-formed Batch: the peer is broken and its session must end."""


cdef bytes new_entry(uint64_t run_id, Body body, Py_ssize_t body_size, Place *body_at):
    """Make an entry for a run frame; `body_at` becomes the place of its body's `body_size` bytes."""
    cdef Py_ssize_t frame_size = number_field_size(run_id) + 2 + span_size(body_size)
    cdef bytes entry = PyBytes_FromStringAndSize(NULL, 1 + span_size(frame_size))
    cdef Place at = <Place>PyBytes_AS_STRING(entry)
    at[0] = tag_of(1, SPAN)
    at = put_varint(at + 1, frame_size)
    at = put_number_field(at, 1, run_id)
    at = put_varint(at, <uint64_t>body << 3 | SPAN)     # two bytes: run frames are 16 and up
    body_at[0] = put_varint(at, body_size)
    return entry


cdef inline Py_ssize_t size_of_octets(object value) except -1:
    if type(value) is not bytes:
        raise TypeError(f"expected bytes, got {type(value).__name__}")
    return PyBytes_GET_SIZE(value)


cdef inline Place put_octets(Place at, int number, object value):
    """`value` is bytes, checked by `size_of_octets`."""
    return put_bytes_field(at, number, PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value))


cdef inline Py_ssize_t header_size(object header) except -1:
    """Size of one Header message, without tag and length."""
    if not PyTuple_Check(header) or PyTuple_GET_SIZE(header) != 2:
        raise TypeError(f"expected a header as (name, value), got {type(header).__name__}")
    return (
        bytes_field_size(size_of_octets(<object>PyTuple_GET_ITEM(header, 0)))
        + bytes_field_size(size_of_octets(<object>PyTuple_GET_ITEM(header, 1)))
    )


cdef Py_ssize_t headers_size(list headers) except -1:
    """Size of the repeated field; afterwards every header is known to be a pair of bytes."""
    cdef Py_ssize_t size = 0
    cdef object header
    if len(headers) > HEADERS_MAX:
        raise ValueError(f"too many header fields: expected at most {HEADERS_MAX}, got {len(headers)}")
    for header in headers:
        size += 1 + span_size(header_size(header))
    return size


cdef Place put_headers(Place at, int number, list headers):
    """Write what `headers_size` has checked."""
    cdef object header, name, value
    cdef Py_ssize_t name_size, value_size, size
    for header in headers:
        name = <object>PyTuple_GET_ITEM(header, 0)
        value = <object>PyTuple_GET_ITEM(header, 1)
        name_size = PyBytes_GET_SIZE(name)
        value_size = PyBytes_GET_SIZE(value)
        size = bytes_field_size(name_size) + bytes_field_size(value_size)
        at[0] = tag_of(number, SPAN)
        if size >= 0x80 or name_size == 0 or value_size == 0:
            at = put_varint(at + 1, size)
            at = put_octets(at, 1, name)
            at = put_octets(at, 2, value)
            continue
        # fast path: every size is one byte, and nothing is left out
        at[1] = <unsigned char>size
        at[2] = tag_of(1, SPAN)
        at[3] = <unsigned char>name_size
        memcpy(at + 4, PyBytes_AS_STRING(name), name_size)
        at += 4 + name_size
        at[0] = tag_of(2, SPAN)
        at[1] = <unsigned char>value_size
        memcpy(at + 2, PyBytes_AS_STRING(value), value_size)
        at += 2 + value_size
    return at


cdef inline list as_list(object headers):
    return <list>headers if type(headers) is list else list(headers)


cpdef bytes encode_tunnel_request(uint64_t run_id, request):
    if type(request) is not TunnelRequest:
        raise TypeError(f"expected a TunnelRequest, got {type(request).__name__}")
    cdef object method = <object>PyTuple_GET_ITEM(request, 1)
    cdef object path = <object>PyTuple_GET_ITEM(request, 2)
    cdef list headers = as_list(<object>PyTuple_GET_ITEM(request, 3))
    cdef bint complete = <object>PyTuple_GET_ITEM(request, 5)
    cdef uint64_t body_length = <object>PyTuple_GET_ITEM(request, 6)
    cdef bint stream = <object>PyTuple_GET_ITEM(request, 8)
    cdef bint caller_authorized = <object>PyTuple_GET_ITEM(request, 9)
    cdef Py_ssize_t provider_size, model_size
    cdef const char *provider = PyUnicode_AsUTF8AndSize(<object>PyTuple_GET_ITEM(request, 0), &provider_size)
    cdef const char *model = PyUnicode_AsUTF8AndSize(<object>PyTuple_GET_ITEM(request, 7), &model_size)
    cdef Py_buffer body
    cdef Py_ssize_t size
    cdef Place at
    cdef bytes entry
    PyObject_GetBuffer(<object>PyTuple_GET_ITEM(request, 4), &body, PyBUF_SIMPLE)
    try:
        size = (
            bytes_field_size(provider_size)
            + bytes_field_size(size_of_octets(method))
            + bytes_field_size(size_of_octets(path))
            + headers_size(headers)
            + bytes_field_size(body.len)
            + number_field_size(complete)
            + number_field_size(body_length)
            + bytes_field_size(model_size)
            + number_field_size(stream)
            + number_field_size(caller_authorized)
        )
        entry = new_entry(run_id, TUNNEL_REQUEST, size, &at)
        at = put_bytes_field(at, 1, provider, provider_size)
        at = put_octets(at, 2, method)
        at = put_octets(at, 3, path)
        at = put_headers(at, 4, headers)
        at = put_bytes_field(at, 5, body.buf, body.len)
        at = put_number_field(at, 6, complete)
        at = put_number_field(at, 7, body_length)
        at = put_bytes_field(at, 8, model, model_size)
        at = put_number_field(at, 9, stream)
        put_number_field(at, 10, caller_authorized)
        return entry
    finally:
        PyBuffer_Release(&body)


def encode_run_request(uint64_t run_id, opening not None):
    if type(opening) is not RunOpening:
        raise TypeError(f"expected a RunOpening, got {type(opening).__name__}")
    cdef int32_t kind = <object>PyTuple_GET_ITEM(opening, 2)
    cdef uint64_t wide_kind = <uint64_t><long long>kind     # a negative enum travels sign-extended
    cdef bint stream = <object>PyTuple_GET_ITEM(opening, 3)
    cdef bint complete = <object>PyTuple_GET_ITEM(opening, 5)
    cdef uint64_t body_length = <object>PyTuple_GET_ITEM(opening, 6)
    cdef object traceparent = <object>PyTuple_GET_ITEM(opening, 7)
    cdef Py_ssize_t provider_size, model_size
    cdef const char *provider = PyUnicode_AsUTF8AndSize(<object>PyTuple_GET_ITEM(opening, 0), &provider_size)
    cdef const char *model = PyUnicode_AsUTF8AndSize(<object>PyTuple_GET_ITEM(opening, 1), &model_size)
    cdef Py_buffer body
    cdef Py_ssize_t size
    cdef Place at
    cdef bytes entry
    PyObject_GetBuffer(<object>PyTuple_GET_ITEM(opening, 4), &body, PyBUF_SIMPLE)
    try:
        size = (
            bytes_field_size(provider_size)
            + bytes_field_size(model_size)
            + number_field_size(wide_kind)
            + number_field_size(stream)
            + bytes_field_size(body.len)
            + number_field_size(complete)
            + number_field_size(body_length)
            + bytes_field_size(size_of_octets(traceparent))
        )
        entry = new_entry(run_id, RUN_REQUEST, size, &at)
        at = put_bytes_field(at, 1, provider, provider_size)
        at = put_bytes_field(at, 2, model, model_size)
        at = put_number_field(at, 3, wide_kind)
        at = put_number_field(at, 6, stream)
        at = put_bytes_field(at, 8, body.buf, body.len)
        at = put_number_field(at, 9, complete)
        at = put_number_field(at, 10, body_length)
        put_octets(at, 11, traceparent)
        return entry
    finally:
        PyBuffer_Release(&body)


def encode_request_body(uint64_t run_id, piece not None, bint complete):
    cdef Py_buffer source
    cdef Place at
    cdef bytes entry
    PyObject_GetBuffer(piece, &source, PyBUF_SIMPLE)
    try:
        entry = new_entry(run_id, REQUEST_BODY, bytes_field_size(source.len) + number_field_size(complete), &at)
        at = put_bytes_field(at, 1, source.buf, source.len)
        put_number_field(at, 2, complete)
        return entry
    finally:
        PyBuffer_Release(&source)


def encode_taken(uint64_t run_id):
    cdef Place at
    return new_entry(run_id, TAKEN, 0, &at)


def encode_head(uint64_t run_id, head not None):
    if type(head) is not Head:
        raise TypeError(f"expected a Head, got {type(head).__name__}")
    cdef uint32_t status = <object>PyTuple_GET_ITEM(head, 0)
    cdef object reason = <object>PyTuple_GET_ITEM(head, 1)
    cdef list headers = as_list(<object>PyTuple_GET_ITEM(head, 2))
    cdef Py_ssize_t size = (
        number_field_size(status) + bytes_field_size(size_of_octets(reason)) + headers_size(headers)
    )
    cdef Place at
    cdef bytes entry = new_entry(run_id, HEAD, size, &at)
    at = put_number_field(at, 1, status)
    at = put_octets(at, 2, reason)
    put_headers(at, 3, headers)
    return entry


def encode_data(uint64_t run_id, data not None):
    cdef Py_buffer source
    cdef Place at
    cdef bytes entry
    if type(data) is bytes:     # fast path for what a transport delivers
        entry = new_entry(run_id, DATA, PyBytes_GET_SIZE(data), &at)
        memcpy(at, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
        return entry
    PyObject_GetBuffer(data, &source, PyBUF_SIMPLE)
    try:
        entry = new_entry(run_id, DATA, source.len, &at)
        memcpy(at, source.buf, source.len)
        return entry
    finally:
        PyBuffer_Release(&source)


cdef struct Utf8:
    const char *at
    Py_ssize_t size


cdef object read_utf8(object said, Utf8 *utf8):
    """Fill a view of a text's UTF-8, lone surrogates as question marks; it lives as long as what is returned."""
    cdef bytes replaced
    if type(said) is not str:
        raise TypeError(f"expected str, got {type(said).__name__}")
    try:
        utf8.at = PyUnicode_AsUTF8AndSize(said, &utf8.size)
        return said
    except UnicodeEncodeError:
        replaced = PyUnicode_AsEncodedString(said, "utf-8", "replace")
        utf8.at = PyBytes_AS_STRING(replaced)
        utf8.size = PyBytes_GET_SIZE(replaced)
        return replaced


cdef inline Py_ssize_t choice_field_size(uint32_t choice) noexcept nogil:
    return 2 + varint_size(choice) if choice else 0


cdef inline void put_choice(Place at, uint32_t choice) noexcept nogil:
    """The last field of an event; its tag takes two bytes."""
    if choice:
        put_varint(put_varint(at, CHOICE << 3 | VARINT), choice)


cdef bytes encode_said(uint64_t run_id, Said kind, object said, uint32_t choice):
    """Encode an event that is one text. It is there when empty too: a member of a oneof has presence."""
    cdef Utf8 utf8
    cdef object _kept = read_utf8(said, &utf8)
    cdef Place at
    cdef bytes entry = new_entry(run_id, RUN_EVENT, 1 + span_size(utf8.size) + choice_field_size(choice), &at)
    at[0] = tag_of(kind, SPAN)
    at = put_varint(at + 1, utf8.size)
    memcpy(at, utf8.at, utf8.size)
    put_choice(at + utf8.size, choice)
    return entry


def encode_text(uint64_t run_id, text not None, uint32_t choice=0):
    return encode_said(run_id, TEXT, text, choice)


def encode_reasoning(uint64_t run_id, text not None, uint32_t choice=0):
    return encode_said(run_id, REASONING, text, choice)


def encode_finish(uint64_t run_id, reason not None, uint32_t choice=0):
    return encode_said(run_id, FINISH, reason, choice)


def encode_tool_call(
    uint64_t run_id,
    uint32_t call_index,
    call_id not None,
    name not None,
    arguments not None,
    uint32_t choice=0,
):
    cdef Utf8 id_utf8, name_utf8, arguments_utf8
    cdef object _kept = (
        read_utf8(call_id, &id_utf8), read_utf8(name, &name_utf8), read_utf8(arguments, &arguments_utf8)
    )
    cdef Py_ssize_t size = (
        number_field_size(call_index)
        + bytes_field_size(id_utf8.size)
        + bytes_field_size(name_utf8.size)
        + bytes_field_size(arguments_utf8.size)
    )
    cdef Place at
    cdef bytes entry = new_entry(run_id, RUN_EVENT, 1 + span_size(size) + choice_field_size(choice), &at)
    at[0] = tag_of(TOOL_CALL, SPAN)
    at = put_varint(at + 1, size)
    at = put_number_field(at, 1, call_index)
    at = put_bytes_field(at, 2, id_utf8.at, id_utf8.size)
    at = put_bytes_field(at, 3, name_utf8.at, name_utf8.size)
    at = put_bytes_field(at, 4, arguments_utf8.at, arguments_utf8.size)
    put_choice(at, choice)
    return entry


cdef inline object as_floats(object values):
    return values if type(values) is array and values.typecode == "f" else array("f", values)


def encode_embedding(uint64_t run_id, values not None, uint32_t choice=0):
    cdef object floats = as_floats(values)
    cdef Py_buffer source
    cdef Py_ssize_t size
    cdef Place at
    cdef bytes entry
    PyObject_GetBuffer(floats, &source, PyBUF_SIMPLE)
    try:
        size = bytes_field_size(source.len)
        entry = new_entry(run_id, RUN_EVENT, 1 + span_size(size) + choice_field_size(choice), &at)
        at[0] = tag_of(EMBEDDING, SPAN)
        at = put_varint(at + 1, size)
        at = put_bytes_field(at, 1, source.buf, source.len)
        put_choice(at, choice)
        return entry
    finally:
        PyBuffer_Release(&source)


def encode_end(uint64_t run_id, end not None):
    if type(end) is not End:
        raise TypeError(f"expected an End, got {type(end).__name__}")
    cdef int32_t status = <object>PyTuple_GET_ITEM(end, 0)
    cdef object said = <object>PyTuple_GET_ITEM(end, 1)
    if type(said) is not str:
        raise TypeError(f"expected str, got {type(said).__name__}")
    # A run's end must reach the Edge whatever an operating system put into an error text.
    cdef bytes detail = (<str>said).encode("utf-8", "replace")
    cdef object usage = <object>PyTuple_GET_ITEM(end, 2)
    cdef uint64_t prompt = 0, completion = 0, cached = 0
    cdef Py_ssize_t usage_size = 0
    cdef uint64_t wide_status = <uint64_t><long long>status     # a negative enum travels sign-extended
    cdef uint32_t refusal_status = <object>PyTuple_GET_ITEM(end, 3)
    cdef Py_ssize_t size = number_field_size(wide_status) + bytes_field_size(PyBytes_GET_SIZE(detail))
    size += number_field_size(refusal_status)
    if usage is not None:
        prompt, completion, cached = usage
        usage_size = number_field_size(prompt) + number_field_size(completion) + number_field_size(cached)
        size += 1 + span_size(usage_size)
    cdef Place at
    cdef bytes entry = new_entry(run_id, RUN_END, size, &at)
    at = put_number_field(at, 1, wide_status)
    at = put_octets(at, 2, detail)
    if usage is not None:
        at[0] = tag_of(3, SPAN)
        at = put_varint(at + 1, usage_size)
        at = put_number_field(at, 1, prompt)
        at = put_number_field(at, 2, completion)
        at = put_number_field(at, 3, cached)
    put_number_field(at, 4, refusal_status)
    return entry


def encode_window(uint64_t run_id, uint64_t byte_count):
    cdef Place at
    cdef bytes entry = new_entry(run_id, WINDOW, number_field_size(byte_count), &at)
    put_number_field(at, 1, byte_count)
    return entry


def encode_cancel(uint64_t run_id):
    cdef Place at
    return new_entry(run_id, CANCEL, 0, &at)


def encode_frame(bytes frame not None):
    cdef Py_ssize_t size = PyBytes_GET_SIZE(frame)
    cdef bytes entry = PyBytes_FromStringAndSize(NULL, 1 + span_size(size))
    cdef Place at = <Place>PyBytes_AS_STRING(entry)
    at[0] = tag_of(1, SPAN)
    at = put_varint(at + 1, size)
    memcpy(at, PyBytes_AS_STRING(frame), size)
    return entry
