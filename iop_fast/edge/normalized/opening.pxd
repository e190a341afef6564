"""C types of opening.py."""

cimport cython

from iop_fast._hot.records cimport new_record
from iop_fast.edge.body cimport Body
from iop_fast.edge.settings cimport Settings
from iop_fast.edge.tunnel cimport Request, prepare_tunnel


@cython.locals(settings=Settings)
cpdef prepare_run(Request request, Body body, scan, model, runtime, tuple key, unix_time)
