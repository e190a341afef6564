"""Named tuples without their class's Python; the contract stands in iop_fast/_hot/records.pyi."""

from cpython.object cimport PyTypeObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_Check, PyTuple_GET_ITEM, PyTuple_GET_SIZE, PyTuple_SET_ITEM

cdef extern from "Python.h":
    object allocate "PyType_GenericAlloc"(PyTypeObject *kind, Py_ssize_t count)
    ctypedef struct TypeWithBase "PyTypeObject":
        PyTypeObject *tp_base

cdef extern from *:
    """
    /* From 3.14 on a tuple keeps its hash, -1 until there is one; memory of its type's own begins as zeros. */
    #if PY_VERSION_HEX >= 0x030E0000
    #define FORGET_HASH(record) (((PyTupleObject *)(record))->ob_hash = -1)
    #else
    #define FORGET_HASH(record) ((void)(record))
    #endif
    """
    void forget_hash "FORGET_HASH"(object record)


cdef object TUPLE = tuple


cpdef object new_record(type kind, tuple values):
    cdef Py_ssize_t place
    cdef object record, value
    # A class with anything between it and tuple could have state of its own, and tuple itself is made otherwise.
    if (<TypeWithBase *>kind).tp_base != <PyTypeObject *>TUPLE:
        raise TypeError(f"expected a named tuple, got {kind.__name__}")
    record = allocate(<PyTypeObject *>kind, PyTuple_GET_SIZE(values))
    forget_hash(record)
    for place in range(PyTuple_GET_SIZE(values)):
        value = <object>PyTuple_GET_ITEM(values, place)
        Py_INCREF(value)    # which PyTuple_SET_ITEM takes over
        PyTuple_SET_ITEM(record, place, value)
    return record


cpdef object item(record, Py_ssize_t place):
    if not PyTuple_Check(record) or not 0 <= place < PyTuple_GET_SIZE(record):
        raise TypeError(f"expected a record with a value {place}, got {type(record).__name__}")
    return <object>PyTuple_GET_ITEM(record, place)
