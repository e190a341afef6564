"""What the C library does with memory that a program gives back."""

from __future__ import annotations

import ctypes
import os

# Parameters of glibc's mallopt(3).
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
# Larger blocks come from the system one by one and go back when they are freed.
OWN_BLOCK_BYTES = 4 << 20
# So much freed memory at the heap's end is kept.
KEPT_BYTES = 32 << 20
# With these, whoever starts the program has said it himself.
SET_BY = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep_freed_memory() -> bool:
    """Keep what bodies and messages leave, for the next ones; False where the C library is not glibc's or was set up
    by the environment.

    glibc gives a freed block of 128 KiB, or as much at the heap's end, back to the system at once, and the next one
    costs a page fault for each 4 KiB: more than all the work on it (1 MiB uploads took the Edge 2.0 ms, now 1.2).
    """
    if any(name in os.environ for name in SET_BY):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, OWN_BLOCK_BYTES) and mallopt(M_TRIM_THRESHOLD, KEPT_BYTES))
