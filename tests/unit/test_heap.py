"""Freed memory stays with the program: counted by page faults, in a process of its own."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from iop_fast.heap import SET_BY

ROUNDS = 100
BLOCK_BYTES = 1 << 20
PROGRAM = f"""
import resource
from iop_fast.heap import keep_freed_memory
print(int(keep_freed_memory()))
blocks = [bytearray({BLOCK_BYTES}) for _ in range(4)]
del blocks
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range({ROUNDS}):
    blocks = [bytearray({BLOCK_BYTES}) for _ in range(4)]
    del blocks
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

needs_glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's allocator")


def run(**more: str) -> tuple[int, int]:
    """Whether memory is kept, and the page faults that blocks cost which are freed and made again."""
    environment = {name: value for name, value in os.environ.items() if name not in SET_BY} | more
    ran = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, check=True, timeout=60)
    is_kept, faults = map(int, ran.stdout.split())
    return is_kept, faults


@needs_glibc
def test_what_is_freed_is_used_again_without_the_system() -> None:
    is_kept, faults = run()
    assert is_kept
    # One for every page of a single round would be 1,024.
    assert faults < 4 * BLOCK_BYTES // 4096


@needs_glibc
@pytest.mark.parametrize("name", SET_BY)
def test_what_the_environment_says_stands(name: str) -> None:
    value = "glibc.malloc.mmap_threshold=131072" if name == "GLIBC_TUNABLES" else "131072"
    assert run(**{name: value})[0] == 0
