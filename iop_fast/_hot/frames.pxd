"""C interface of the writing half of the frame codec, as far as other compiled code calls it; see frames.pyi."""

from libc.stdint cimport uint64_t

cpdef bytes encode_tunnel_request(uint64_t run_id, request)
