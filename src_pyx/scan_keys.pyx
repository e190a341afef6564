"""Top-level keys of a JSON body; the contract stands in iop_fast/_core/scan_keys.pxd."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint32_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy

from iop_fast._core.scan_faults cimport FAULT_DUPLICATE, FAULT_MEMORY, FAULT_SPELLING, NO_FAULT, Fault
from iop_fast._core.scan_names cimport is_other_spelling, same


cdef Fault add_key(KeyTable *top, const uint8_t *text, uint32_t length) noexcept:
    cdef uint32_t hash_ = 2166136261U   # FNV-1a
    cdef uint32_t at
    cdef int index
    cdef Key *key
    for at in range(length):
        hash_ = (hash_ ^ text[at]) * 16777619
    for index in range(top.count):
        key = &top.keys[index]
        if key.hash == hash_ and key.length == length and memcmp(top.store + key.at, text, length) == 0:
            return FAULT_DUPLICATE
    if is_other_spelling(text, length):
        return FAULT_SPELLING
    key = &top.keys[top.count]
    key.at = top.used
    key.length = length
    key.hash = hash_
    key.value_start = 0
    key.value_end = 0
    top.count += 1
    return save_text(top, text, length)


cdef Fault save_text(KeyTable *top, const uint8_t *text, uint32_t length) noexcept:
    cdef uint32_t size = top.size
    cdef uint8_t *grown
    while top.used + length > size:
        size *= 2
    if size != top.size:
        grown = <uint8_t *>realloc(NULL if top.store == top.first_store else top.store, size)
        if grown == NULL:
            return FAULT_MEMORY
        if top.store == top.first_store:
            memcpy(grown, top.store, top.used)
        top.store = grown
        top.size = size
    memcpy(top.store + top.used, text, length)
    top.used += length
    return NO_FAULT


cdef int find_key(KeyTable *top, bytes wanted) noexcept:
    cdef int index
    for index in range(top.count):
        if same(
            top.store + top.keys[index].at, top.keys[index].length, PyBytes_AS_STRING(wanted), PyBytes_GET_SIZE(wanted)
        ):
            return index
    return -1


cdef str key_text(KeyTable *top, int index):
    cdef Key *key = &top.keys[index]
    return (<char *>top.store)[key.at:key.at + key.length].decode("utf-8", "replace")


cdef void free_keys(KeyTable *top) noexcept:
    if top.store != top.first_store:
        free(top.store)
