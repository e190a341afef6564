"""C types of record.py."""

from iop_fast.edge.reply cimport Reply
from iop_fast.edge.tunnel cimport Request


cdef class Record:
    cdef readonly Request request
    cdef readonly Reply reply
    cdef public str model, node_id, provider_id, outcome
    cdef public object clamped, ended_in, usage
    cdef public long long began_ns, bytes_in, estimated_tokens, granted_ns, head_ns, queue_ns, sent_ns
    cdef public bint is_long, is_sent, is_taken

    cdef _begin_record(self, Request request, Reply reply, long long began_ns)
