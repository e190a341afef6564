cdef class Clock:
    cpdef long long now_ns(self) except -1
