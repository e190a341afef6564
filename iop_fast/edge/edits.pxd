"""C types of edits.py."""

cimport cython


cpdef tuple plan_edits(spans, text_at, bytes served, bytes path, policy)
@cython.locals(start="Py_ssize_t", end="Py_ssize_t")
cpdef list model_edits(spans, text_at, bytes served)
