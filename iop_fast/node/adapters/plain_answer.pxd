"""C types of plain_answer.py."""

cimport cython

from iop_fast._hot.heads cimport find_head_end, read_plain_head
from iop_fast._hot.plain_chunks cimport PlainChunks
from iop_fast._hot.records cimport new_record

cdef long long CHUNKED, UNTIL_CLOSE


@cython.final
cdef class Answer:
    cdef bytes _buffer, _reason
    cdef PlainChunks _chunks
    cdef list _fields, _pieces
    cdef bint _has_filler, _is_bodiless
    cdef long long _left
    cdef object _parser
    cdef Py_ssize_t _seen_bytes
    cdef readonly bint can_keep, is_broken, is_complete
    cdef readonly object head

    cpdef bint has_begun(self) except -1
    @cython.locals(left="long long")
    cpdef bytes feed(self, bytes data)
    cpdef bint feed_end(self) except -1
    cpdef close(self)
    @cython.locals(searched="Py_ssize_t", found="Py_ssize_t", end="Py_ssize_t")
    cdef bytes _feed_head(self, bytes data)
    @cython.locals(read=tuple)
    cdef bint _read_plain(self, bytes data, Py_ssize_t end) except -1
    cdef _parse_head(self, bytes block)
    cdef _new_parser(self)
    cdef _body_length(self, int status)
    @cython.locals(chunks=PlainChunks, body=bytes)
    cdef bytes _feed_chunks(self, bytes data)
    cdef _begin_parser(self, bint has_filler)
    @cython.locals(pieces=list)
    cdef bytes _parse_chunks(self, bytes data)
