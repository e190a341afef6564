"""C types of opening.py."""

from iop_fast.edge.tunnel cimport Request, prepare_tunnel


cpdef prepare_run(Request request, body, scan, model, runtime, tuple key, unix_time)
