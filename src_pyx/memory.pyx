"""Memory of the core's tables: the one place where it is had, and where running out of it is told.

It comes from Python's allocator, so that whatever watches or starves that one (tracemalloc, a sanitizer by
PYTHONMALLOC=malloc, a test) sees the core as well. All of it is given back by PyMem_Free. Empty tables have memory too:
at least one row, so that NULL always means that there is none.
"""

from cpython.mem cimport PyMem_Calloc, PyMem_Malloc, PyMem_Realloc
from libc.string cimport memcpy

cdef int32_t ROWS_MAX = 1_000_000_000  # rows are numbered by int32


cdef int32_t doubled(int32_t capacity, int32_t least) except -1:
    """The next capacity of a table."""
    if capacity > ROWS_MAX:
        raise MemoryError()  # pragma: no cover - such a table needs 100 GB before it gets here
    return max(least, capacity * 2)


cdef void* resized(void* rows, int64_t count, size_t row_size) except NULL:
    """Rows moved to where `count` of them have room; when that fails they stay as they are."""
    cdef void* moved = PyMem_Realloc(rows, max(1, count) * row_size)
    if moved is NULL:
        raise MemoryError()  # pragma: no cover - no tracer survives it; test_out_of_memory does
    return moved


cdef void* zeroed(int64_t count, size_t row_size) except NULL:
    cdef void* rows = PyMem_Calloc(max(1, count), row_size)
    if rows is NULL:
        raise MemoryError()  # pragma: no cover - as above
    return rows


cdef void* duplicate(const void* rows, int64_t count, size_t row_size) except NULL:
    cdef void* twin = PyMem_Malloc(max(1, count) * row_size)
    if twin is NULL:
        raise MemoryError()  # pragma: no cover - as above
    if count > 0:
        memcpy(twin, rows, count * row_size)
    return twin
