"""Incremental scan of a JSON request body; the contract stands in iop_fast/_core/scan.pyi.

This is the face of it: the memory of a scan, its read-outs, and the ScanError that a fault becomes once, in `feed` or
`finish`. The grammar stands in scan_machine.pyx, what is counted in scan_roles.pyx.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t
from libc.stdlib cimport free, malloc

from iop_fast._core.json_string cimport UNITS_PER_TOKEN
from iop_fast._core.scan_faults cimport FAULT_EMPTY, FAULT_INCOMPLETE, KEY_LIMIT, NO_FAULT, error_of
from iop_fast._core.scan_keys cimport Key, find_key, free_keys, key_text
from iop_fast._core.scan_machine cimport AT_END, AT_START, Machine, run
from iop_fast._core.scan_roles cimport (
    AUDIO_BIT,
    FILES_BIT,
    IMAGES_BIT,
    JSON_SCHEMA_BIT,
    REMOTE_MEDIA_BIT,
    TEXT_ROOM,
    TOKENS_PER_AUDIO,
    TOKENS_PER_FILE,
    TOKENS_PER_IMAGE,
    TOKENS_PER_MESSAGE,
    TOKENS_PER_VIDEO,
    TOOLS_BIT,
    Frame,
)

from iop_fast._core.json_string import estimate_tokens  # no-cython-lint: a part of the interface
from iop_fast._core.scan_faults import ScanError  # no-cython-lint: a part of the interface

FEATURE_TOOLS = TOOLS_BIT
FEATURE_IMAGES = IMAGES_BIT
FEATURE_AUDIO = AUDIO_BIT
FEATURE_JSON_SCHEMA = JSON_SCHEMA_BIT
FEATURE_REMOTE_MEDIA = REMOTE_MEDIA_BIT
FEATURE_FILES = FILES_BIT

MESSAGE_TOKENS = TOKENS_PER_MESSAGE
IMAGE_TOKENS = TOKENS_PER_IMAGE
AUDIO_TOKENS = TOKENS_PER_AUDIO
VIDEO_TOKENS = TOKENS_PER_VIDEO
FILE_TOKENS = TOKENS_PER_FILE

cdef enum:
    DEPTH_LIMIT = 1024
    ROOM_DEPTH = 128
    ROOM_STORE = 512
    SPARE_ROOMS_MAX = 32

# What nearly every scan works in. Rooms of scans that are over are kept for the next ones: a request would pay four
# times for the allocator's large blocks.
cdef struct Room:
    Key keys[KEY_LIMIT]
    Frame frames[ROOM_DEPTH]
    uint8_t text[TEXT_ROOM]
    uint8_t store[ROOM_STORE]

cdef Room *spare_rooms[SPARE_ROOMS_MAX]
cdef int spare_room_count = 0


cdef Room *take_room() noexcept:
    global spare_room_count
    if spare_room_count > 0:
        spare_room_count -= 1
        return spare_rooms[spare_room_count]
    return <Room *>malloc(sizeof(Room))


cdef void give_room(Room *room) noexcept:
    global spare_room_count
    if spare_room_count < SPARE_ROOMS_MAX:
        spare_rooms[spare_room_count] = room
        spare_room_count += 1
    else:
        free(room)


@cython.final
@cython.no_gc
cdef class BodyScan:
    cdef Machine _machine
    cdef Room *_room
    cdef bint _is_finished

    def __cinit__(self, int max_depth=128):
        if not 1 <= max_depth <= DEPTH_LIMIT:
            raise ValueError(f"max_depth: expected 1..{DEPTH_LIMIT}, got {max_depth}")
        self._machine.max_depth = max_depth
        self._machine.model_key = -1
        self._room = take_room()
        if self._room == NULL:
            raise MemoryError
        self._machine.frames = self._room.frames
        if max_depth > ROOM_DEPTH:
            self._machine.frames = <Frame *>malloc(max_depth * sizeof(Frame))
            if self._machine.frames == NULL:
                raise MemoryError
        self._machine.top.keys = self._room.keys
        self._machine.top.store = self._machine.top.first_store = self._room.store
        self._machine.top.size = ROOM_STORE
        self._machine.string.kept = self._room.text

    def __dealloc__(self):
        if self._room == NULL:
            return
        if self._machine.frames != self._room.frames:
            free(self._machine.frames)
        free_keys(&self._machine.top)
        give_room(self._room)

    # -- for callers --

    def feed(self, piece):
        cdef Py_buffer view
        self._check_alive()
        if PyBytes_CheckExact(piece):
            run(&self._machine, <const uint8_t *>PyBytes_AS_STRING(piece), PyBytes_GET_SIZE(piece))
        else:
            PyObject_GetBuffer(piece, &view, PyBUF_SIMPLE)
            try:
                run(&self._machine, <const uint8_t *>view.buf, view.len)
            finally:
                PyBuffer_Release(&view)
        if self._machine.fault != NO_FAULT:
            raise self._error()

    def finish(self):
        self._check_alive()
        if self._machine.state != AT_END:
            self._machine.fault = FAULT_EMPTY if self._machine.state == AT_START else FAULT_INCOMPLETE
            self._machine.fault_at = self._machine.base
            raise self._error()
        self._is_finished = True

    @property
    def model(self):
        cdef Machine *m = &self._machine
        self._check_finished()
        if m.model_key < 0:
            return None
        return (<char *>m.top.store)[m.model_at:m.model_at + m.model_length].decode()

    @property
    def model_span(self):
        cdef Machine *m = &self._machine
        self._check_finished()
        if m.model_key < 0:
            return (0, 0)
        return (m.top.keys[m.model_key].value_start, m.top.keys[m.model_key].value_end)

    @property
    def stream(self):
        self._check_finished()
        return self._machine.is_stream

    @property
    def features(self):
        self._check_finished()
        return self._machine.found.features

    @property
    def estimated_tokens(self):
        self._check_finished()
        return (self._machine.found.units + UNITS_PER_TOKEN - 1) // UNITS_PER_TOKEN

    @property
    def value_count(self):
        self._check_finished()
        return self._machine.value_count

    @property
    def input_value_count(self):
        self._check_finished()
        return self._machine.input_value_count

    @property
    def top_level_keys(self):
        self._check_finished()
        return [key_text(&self._machine.top, index) for index in range(self._machine.top.count)]

    @property
    def insert_at(self):
        self._check_finished()
        return self._machine.insert_at

    def value_span(self, str key):
        cdef int index
        self._check_finished()
        index = find_key(&self._machine.top, key.encode("utf-8", "surrogatepass"))
        if index < 0:
            return None
        return (self._machine.top.keys[index].value_start, self._machine.top.keys[index].value_end)

    # -- errors --

    cdef int _check_alive(self) except -1:
        if self._machine.fault != NO_FAULT or self._is_finished:
            raise RuntimeError("the scan is over: it was finished or has raised")
        return 0

    cdef int _check_finished(self) except -1:
        if not self._is_finished:
            raise RuntimeError("the scan is not finished")
        return 0

    cdef object _error(self):
        cdef Machine *m = &self._machine
        cdef str key = (<char *>m.string.kept)[:m.string.length].decode("utf-8", "replace")
        return error_of(m.fault, key, m.fault_at)
