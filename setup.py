"""The compiled modules and one debug switch; everything else is in pyproject.toml.

`IOP_DEBUG=1` builds with line tracing (coverage of the .pyx), annotate reports and C asserts. It leaves the typed
modules as the Python that they are.
"""

import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

DEBUG = os.environ.get("IOP_DEBUG", "0") == "1"
PROCESSES = os.cpu_count() or 1

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
    "iop_fast._core.scan_faults": "src_pyx/scan_faults.pyx",
    "iop_fast._core.scan_keys": "src_pyx/scan_keys.pyx",
    "iop_fast._core.scan_roles": "src_pyx/scan_roles.pyx",
    "iop_fast._core.scan_machine": "src_pyx/scan_machine.pyx",
    "iop_fast._core.scan": "src_pyx/scan.pyx",
    "iop_fast._core.form_heads": "src_pyx/form_heads.pyx",
    "iop_fast._core.multipart": "src_pyx/multipart.pyx",
    "iop_fast._hot.ages": "src_pyx/ages.pyx",
    "iop_fast._hot.chunks": "src_pyx/chunks.pyx",
    "iop_fast._hot.frame_reader": "src_pyx/frame_reader.pyx",
    "iop_fast._hot.dispatch": "src_pyx/dispatch.pyx",
    "iop_fast._hot.fields": "src_pyx/fields.pyx",
    "iop_fast._hot.frames": "src_pyx/frames.pyx",
    "iop_fast._hot.heads": "src_pyx/heads.pyx",
    "iop_fast._hot.meters": "src_pyx/meters.pyx",
    "iop_fast._hot.plain_chunks": "src_pyx/plain_chunks.pyx",
    "iop_fast._hot.records": "src_pyx/records.pyx",
    "iop_fast._hot.text": "src_pyx/text.pyx",
    "iop_fast._hot.usage_scan": "src_pyx/usage_scan.pyx",
}

# Python modules of the hot path of Edge and Node that are compiled too, with the C types in the .pxd beside each.
TYPED = [
    "iop_fast.wire.http2.call",
    "iop_fast.wire.http2.connection",
    "iop_fast.wire.http2.life",
    "iop_fast.wire.http2.peer",
    "iop_fast.wire.outbox",
    "iop_fast.edge.access_line",
    "iop_fast.edge.answers",
    "iop_fast.edge.auth",
    "iop_fast.edge.body",
    "iop_fast.edge.books",
    "iop_fast.edge.edits",
    "iop_fast.edge.exchange",
    "iop_fast.edge.gate",
    "iop_fast.edge.lines",
    "iop_fast.edge.link_runs",
    "iop_fast.edge.normalized.opening",
    "iop_fast.edge.record",
    "iop_fast.edge.refusals",
    "iop_fast.edge.reply",
    "iop_fast.edge.service",
    "iop_fast.edge.settings",
    "iop_fast.edge.state",
    "iop_fast.edge.tunnel",
    "iop_fast.edge.usage",
    "iop_fast.edge.front.shared",
    "iop_fast.edge.front.head",
    "iop_fast.edge.front.peer",
    "iop_fast.edge.front.answer",
    "iop_fast.edge.front.connection",
    "iop_fast.node.backends",
    "iop_fast.node.relay",
    "iop_fast.node.runs",
    "iop_fast.node.tunnel",
    "iop_fast.node.usage",
    "iop_fast.node.adapters.http_client",
    "iop_fast.node.adapters.http_rules",
    "iop_fast.node.adapters.openai_compat",
    "iop_fast.node.adapters.plain_answer",
    "iop_fast.node.adapters.plain_pool",
    "iop_fast.node.adapters.plain_run",
    "iop_fast.node.adapters.upload",
    "iop_fast.node.adapters.watchdog",
]

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

# They mean what the interpreter would make of them; their C types come from the .pxd alone.
TYPED_DIRECTIVES = {"language_level": "3", "binding": True, "embedsignature": False, "annotation_typing": False}
TYPED_C = Path("build/typed")
# A C method that is taken as a value loses its object in translation: gcc sees it, and Python code does not need it.
TYPED_FLAGS = ["-O2", "-g0", "-Werror=incompatible-pointer-types"]

# Line tracing with coverage's C tracer; sys.monitoring is not supported by Cython's coverage plug-in.
MACROS = [("CYTHON_TRACE", "1"), ("CYTHON_TRACE_NOGIL", "1"), ("CYTHON_USE_SYS_MONITORING", "0")] if DEBUG else []


# gcc clears small objects by `rep stos`, whose start costs more than the whole of libc's memset.
# Some interpreters ask for debug information, which is two thirds of a module's size: -g0 leaves it out.
FLAGS = ["-O0", "-g"] if DEBUG else ["-O3", "-g0", "-fno-builtin-memset"]


def forget_stale(c_file: Path, *interfaces: Path) -> None:
    """A module's own .pxd is no dependency that cythonize sees: without its C file it is translated anew."""
    written = max((interface.stat().st_mtime for interface in interfaces if interface.exists()), default=0.0)
    if c_file.exists() and written > c_file.stat().st_mtime:
        c_file.unlink()


def compiled() -> list[Extension]:
    """The modules of src_pyx."""
    for name, source in MODULES.items():
        forget_stale(Path(source).with_suffix(".c"), Path(*name.split(".")).with_suffix(".pxd"))
    return cythonize(
        [Extension(name, [source], define_macros=MACROS, extra_compile_args=FLAGS) for name, source in MODULES.items()],
        compiler_directives=DIRECTIVES,
        annotate=DEBUG,
        force=DEBUG,
        nthreads=PROCESSES,
    )


def typed() -> list[Extension]:
    """The Python modules that are compiled as well. They share their types, so another .pxd makes all of them anew."""
    sources = {name: Path(*name.split(".")).with_suffix(".py") for name in TYPED}
    interfaces = [source.with_suffix(".pxd") for source in sources.values()]
    for source in sources.values():
        forget_stale((TYPED_C / source).with_suffix(".c"), *interfaces)
    return cythonize(
        [Extension(name, [str(source)], extra_compile_args=TYPED_FLAGS) for name, source in sources.items()],
        compiler_directives=TYPED_DIRECTIVES,
        build_dir=str(TYPED_C),
        nthreads=PROCESSES,
    )


# Translating starts processes, which may read this file again.
if __name__ == "__main__":
    setup(
        ext_modules=[*compiled(), *([] if DEBUG else typed())],
        options={"build_ext": {"parallel": PROCESSES}},
    )
