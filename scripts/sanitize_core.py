"""Build the admission core under AddressSanitizer and UndefinedBehaviorSanitizer, and run its walks under them.

    python scripts/sanitize_core.py [STEPS] [SEED]

A copy of the tree in build/sanitize for each compiler; it is $CC, gcc by default. Python's allocator is replaced by
malloc, so that each table of the core stands between red zones. The random run of STEPS steps verifies all invariants
after each of them. Leaks are not looked for here (the interpreter leaves some): `make soak-refs` does.
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

# setup.py, with only the modules of the core.
BUILD = """
import runpy, sys
import Cython.Build as build
every = build.cythonize
build.cythonize = lambda modules, **options: every(
    [module for module in modules if module.name.startswith("iop_fast._core.")], **options)
sys.argv = ["setup.py", "--quiet", "build_ext", "--inplace"]
runpy.run_path("setup.py", run_name="__main__")
"""


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
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    steps = arguments[0] if arguments else "20000"
    commands = (
        ["-m", "pytest", "-q", "--capture=no", "-p", "no:cacheprovider", "tests/unit/core"],
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
