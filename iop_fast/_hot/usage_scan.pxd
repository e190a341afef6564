"""C interface of the usage scan; the contract stands in usage_scan.pyi."""

cimport cython

ctypedef const unsigned char *Cursor

cdef enum:
    KEY_MAX = 8         # of "response", the longest name that means something

cdef enum Place:
    TOP
    RESPONSE
    MESSAGE


@cython.final
cdef class UsageScan:
    cdef readonly dict found
    cdef bint _in_string
    cdef bint _escaped          # a backslash ended the last piece
    cdef bint _colon            # one followed the key
    cdef long long _depth
    cdef long long _until       # the depth at which the captured object ends
    cdef Place _parent          # whose object is open at depth 2
    cdef int _key_size          # of the last string, as long as it may be a name that means something; else NO_KEY
    cdef char[KEY_MAX] _key
    cdef bytearray _captured

    cpdef feed(self, bytes data)
    cdef Cursor _walk_string(self, Cursor at, Cursor end) noexcept
    cdef void _add_to_key(self, Cursor start, Cursor end) noexcept
    cdef bint _is_key(self, const char *name, int size) noexcept
    cdef bint _open(self, unsigned char mark) except -1
    cdef bint _close(self) noexcept
    cdef int _capture(self, Cursor start, Cursor end) except -1
    cdef int _keep(self, Cursor start, Cursor end) except -1


cpdef bint names_usage(bytes data) except -1
