"""Age-ordered lists; the contract stands in iop_fast/_hot/ages.pyi.

The list is a dict by handle. A dict keeps the order of insertion, deletes in O(1) without a search and links no two
items to each other, so that nothing here keeps a finished object alive or makes a reference cycle.
"""

cimport cython

from iop_fast import logs

log = logs.get("iop_fast.edge.ages")


@cython.final
cdef class AgeList:

    def __init__(self, Clock clock not None, long long limit_ns, on_expired):
        if limit_ns <= 0:
            raise ValueError(f"limit_ns must be positive, got {limit_ns}")
        self.clock = clock
        self.limit_ns = limit_ns
        self.on_expired = on_expired
        self.entries = {}

    def __class_getitem__(cls, item):
        return cls

    cpdef long long add(self, item) except -1:
        self.last_handle += 1
        self.entries[self.last_handle] = (self.clock.now_ns(), item)
        return self.last_handle

    cpdef int remove(self, long long handle) except -1:
        self.entries.pop(handle, None)
        return 0

    def sweep(self, long long now_ns):
        cdef long long latest_start_ns = now_ns - self.limit_ns
        cdef int expired = 0
        cdef list due = []
        cdef tuple entry
        # Handles are collected first: taking the first key of a dict again and again walks over all that were deleted.
        for handle, entry in self.entries.items():
            if <long long>entry[0] > latest_start_ns:
                break
            due.append(handle)
        for handle in due:
            entry = self.entries.pop(handle, None)
            if entry is None:
                continue
            expired += 1
            try:
                self.on_expired(entry[1])
            except Exception as error:
                log.failure("expiry_failed", error)
        return expired

    def items(self):
        return [entry[1] for entry in self.entries.values()]

    def __len__(self):
        return len(self.entries)
