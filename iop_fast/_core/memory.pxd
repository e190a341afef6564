"""C interface of the core's memory; what it means stands in src_pyx/memory.pyx."""

from libc.stdint cimport int32_t, int64_t


cdef int32_t doubled(int32_t capacity, int32_t least) except -1
cdef void* resized(void* rows, int64_t count, size_t row_size) except NULL
cdef void* zeroed(int64_t count, size_t row_size) except NULL
cdef void* duplicate(const void* rows, int64_t count, size_t row_size) except NULL
