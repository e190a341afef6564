"""The reading half of the frame codec: a Batch is walked frame by frame, and bodies become what iop_fast.seams names.

All of it raises FrameError (of frames.pyi) for bytes that are no protobuf. `at` and `end` bound a body, as its
FrameView says.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint32_t, uint64_t

from iop_fast._hot.wire_format cimport Cursor

cdef struct FrameView:
    Cursor at           # the whole frame
    Cursor end
    Py_ssize_t size     # of the entry: tag, length and frame
    uint64_t run_id
    uint32_t body       # a Body, NO_BODY when it has none that this build knows
    Cursor body_at
    Cursor body_end


cdef inline bytes octets(Cursor at, Cursor end):
    return PyBytes_FromStringAndSize(<const char *>at, end - at)


# Read the next frame of a Batch; NULL without an exception when there is none left.
cdef Cursor next_frame(Cursor at, Cursor end, FrameView *frame) except? NULL

# What an Edge sends to a Node.
cdef object read_tunnel_request(Cursor at, Cursor end)
cdef object read_run_request(Cursor at, Cursor end)
cdef tuple read_request_body(Cursor at, Cursor end)

# What a Node sends to an Edge. An event is None when it is one of a later version.
cdef object read_head(Cursor at, Cursor end)
cdef object read_event(Cursor at, Cursor end)
cdef object read_end(Cursor at, Cursor end)

# What both send.
cdef int read_window(Cursor at, Cursor end, uint64_t *byte_count) except -1
cdef int check_empty(Cursor at, Cursor end, str what) except -1
