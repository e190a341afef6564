"""The link by the library grpcio. Imported only where it is chosen, and the only place that imports grpc: that costs a
process 10 MB and seven threads.

What it needs of the process environment is set by `iop_fast.wire`, which is imported before it.
"""
