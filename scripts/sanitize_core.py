"""Build the modules of src_pyx under AddressSanitizer and UndefinedBehaviorSanitizer, and run what drives them.

    python scripts/sanitize_core.py [STEPS] [SEED]

A copy of the tree in build/sanitize for each compiler; it is $CC, gcc by default. Python's allocator is replaced by
malloc, so that each table of the core and each piece of bytes stands between red zones. The random run of STEPS steps
verifies all invariants of the core after each of them; the other modules read and write what strangers send, and run
under their own tests, the property tests of bytes and those of front and link. Typed modules run as Python here. Leaks
are not looked for (the interpreter leaves some): `make soak-refs` does.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.debug_tree import copy_tree  # noqa: E402

TARGETS = ROOT / "build" / "sanitize"
FLAGS = "-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -g -Wno-error"
# Cython calls a constructor without arguments with the address NULL + 0.
CLANG_FLAGS = "-shared-libasan -fno-sanitize=pointer-overflow"
PRELOADS = {"gcc": ("libasan.so", "libubsan.so"), "clang": ("libclang_rt.asan-x86_64.so",)}

# setup.py, with only the modules of src_pyx. Optimized further they compile twice as long.
BUILD = """
import runpy, sys
import Cython.Build as build
every = build.cythonize
def written_in_cython(modules, **options):
    chosen = [module for module in modules if module.sources[0].endswith(".pyx")]
    for module in chosen:
        module.extra_compile_args = ["-O1", "-g"]
    return every(chosen, **options)
build.cythonize = written_in_cython
sys.argv = ["setup.py", "--quiet", "build_ext", "--inplace"]
runpy.run_path("setup.py", run_name="__main__")
"""

# Freed memory is held back for a while, so that a late access is seen: 256 MB of it would look like a leak to the test
# that watches the process's size.
ASAN = "detect_leaks=0:abort_on_error=1:quarantine_size_mb=8"

# What drives them. Of the property tests those of bytes; hypothesis draws the same number of examples as elsewhere.
TESTS = (
    "tests/unit/core",
    "tests/unit/hot",
    "tests/unit/edge/front",
    "tests/unit/wire",
    "tests/property/test_chunks_property.py",
    "tests/property/test_fields_property.py",
    "tests/property/test_frames.py",
    "tests/property/test_front_splits.py",
    "tests/property/test_known_heads.py",
    "tests/property/test_multipart.py",
    "tests/property/test_outbox_order.py",
    "tests/property/test_plain_answers.py",
    "tests/property/test_plain_bytes.py",
    "tests/property/test_scan.py",
)


def preloads(compiler: str) -> str:
    """The runtimes that must be there before the interpreter starts: it was not built with them."""
    kind = "clang" if "clang" in Path(compiler).name else "gcc"
    found = []
    for name in PRELOADS[kind]:
        run = subprocess.run([compiler, f"-print-file-name={name}"], check=True, capture_output=True, text=True)
        path = Path(run.stdout.strip())
        if path.is_absolute():
            found.append(str(path))
    if not found:
        raise SystemExit(f"sanitize: {compiler} has no sanitizer runtime")
    return " ".join(found)


def main(arguments: list[str]) -> int:
    compiler = os.environ.get("CC", "gcc")
    if shutil.which(compiler) is None:
        raise SystemExit(f"sanitize: no compiler {compiler!r}; name another by CC=")
    flags = f"{FLAGS} {CLANG_FLAGS}" if "clang" in Path(compiler).name else FLAGS
    os.environ.update(CC=compiler, CFLAGS=flags, LDFLAGS=flags)
    target = TARGETS / Path(compiler).name
    copy_tree(target)
    subprocess.run([sys.executable, "-c", BUILD], cwd=target, check=True)
    environment = {
        **os.environ,
        "PYTHONPATH": str(target),
        "PYTHONMALLOC": "malloc",
        "LD_PRELOAD": preloads(compiler),
        "ASAN_OPTIONS": ASAN,
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    steps = arguments[0] if arguments else "20000"
    # Everything takes several times as long here.
    commands = (
        ["-m", "pytest", "-q", "--capture=no", "-p", "no:cacheprovider", "--timeout=1200", *TESTS],
        ["-m", "tests.soak.core", steps, *arguments[1:2]],
    )
    for command in commands:
        run = subprocess.run([sys.executable, *command], cwd=target, env=environment, check=False)
        if run.returncode:
            return 1
    print(f"sanitize: {compiler} found nothing")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
