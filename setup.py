"""The compiled modules and one debug switch; everything else is in pyproject.toml.

`IOP_DEBUG=1` builds with line tracing (coverage of the .pyx), annotate reports and C asserts.
"""

import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

DEBUG = os.environ.get("IOP_DEBUG", "0") == "1"

MODULES = {
    "iop_fast._core.clock": "src_pyx/clock.pyx",
    "iop_fast._core.memory": "src_pyx/memory.pyx",
    "iop_fast._core.ledger": "src_pyx/ledger.pyx",
    "iop_fast._core.choice": "src_pyx/choice.pyx",
    "iop_fast._core.line_index": "src_pyx/line_index.pyx",
    "iop_fast._core.wait_queue": "src_pyx/wait_queue.pyx",
    "iop_fast._core.plans": "src_pyx/plans.pyx",
    "iop_fast._core.tally": "src_pyx/tally.pyx",
    "iop_fast._core.readouts": "src_pyx/readouts.pyx",
    "iop_fast._core.verification": "src_pyx/verification.pyx",
    "iop_fast._core.settlement": "src_pyx/settlement.pyx",
    "iop_fast._core.admission": "src_pyx/admission.pyx",
    "iop_fast._core.json_string": "src_pyx/json_string.pyx",
    "iop_fast._core.scan_names": "src_pyx/scan_names.pyx",
    "iop_fast._core.scan": "src_pyx/scan.pyx",
    "iop_fast._core.multipart": "src_pyx/multipart.pyx",
    "iop_fast._hot.chunks": "src_pyx/chunks.pyx",
    "iop_fast._hot.fields": "src_pyx/fields.pyx",
    "iop_fast._hot.frames": "src_pyx/frames.pyx",
    "iop_fast._hot.meters": "src_pyx/meters.pyx",
}

DIRECTIVES = {
    "language_level": "3",
    "binding": True,
    "embedsignature": False,
    "boundscheck": DEBUG,
    "wraparound": False,
    "initializedcheck": False,
    "cdivision": True,
    "linetrace": DEBUG,
}

# Line tracing with coverage's C tracer; sys.monitoring is not supported by Cython's coverage plug-in.
MACROS = [("CYTHON_TRACE", "1"), ("CYTHON_TRACE_NOGIL", "1"), ("CYTHON_USE_SYS_MONITORING", "0")] if DEBUG else []


# gcc clears small objects by `rep stos`, whose start costs more than the whole of libc's memset.
FLAGS = ["-O0", "-g"] if DEBUG else ["-O3", "-fno-builtin-memset"]


def interface_is_newer() -> bool:
    """A module's own .pxd is no dependency that cythonize sees: rebuild all when any is newer than any .c."""
    made = [path.stat().st_mtime for path in Path("src_pyx").glob("*.c")]
    interfaces = [path.stat().st_mtime for path in Path("iop_fast").rglob("*.pxd")]
    return not made or any(stamp > min(made) for stamp in interfaces)


setup(
    ext_modules=cythonize(
        [Extension(name, [source], define_macros=MACROS, extra_compile_args=FLAGS) for name, source in MODULES.items()],
        compiler_directives=DIRECTIVES,
        annotate=DEBUG,
        force=DEBUG or interface_is_newer(),
    )
)
