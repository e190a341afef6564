"""The top-level keys of a JSON body: each of them once, and where its value stands. The decoded text of the keys, and
that of the model, stands in one store.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t

from iop_fast._core.scan_faults cimport Fault

cdef struct Key:
    uint32_t at          # of its bytes, in the store
    uint32_t length
    uint32_t hash
    int64_t value_start
    int64_t value_end    # 0 while the value is read

cdef struct KeyTable:
    Key *keys            # KEY_LIMIT of them, the owner's
    int count
    uint8_t *store       # the owner's `first_store`, until that is too small
    uint8_t *first_store
    uint32_t used
    uint32_t size

# Add a key whose value is to come: refuse it the second time and in other letters.
cdef Fault add_key(KeyTable *top, const uint8_t *text, uint32_t length) noexcept

# Put a text at the end of the store: NO_FAULT or FAULT_MEMORY.
cdef Fault save_text(KeyTable *top, const uint8_t *text, uint32_t length) noexcept

# The place of a key, -1 without one.
cdef int find_key(KeyTable *top, bytes wanted) noexcept

# A key as text; what is a lone surrogate shows as U+FFFD.
cdef str key_text(KeyTable *top, int index)

cdef void free_keys(KeyTable *top) noexcept
