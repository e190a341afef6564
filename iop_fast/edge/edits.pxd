"""C types of edits.py."""

cimport cython

from iop_fast._hot.records cimport new_record
from iop_fast.edge.body cimport Body


cpdef tuple plan_edits(spans, Body body, bytes served, bytes path, policy)
@cython.locals(start="Py_ssize_t", end="Py_ssize_t")
cpdef list model_edits(spans, Body body, bytes served)
