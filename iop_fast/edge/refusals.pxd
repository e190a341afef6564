"""C types of refusals.py."""


cpdef find_model(runtime, model)
cpdef needs_of(entry, surface, scan, body)
