"""Compare the instructions that hot operations take, before and after a change: the admission core's, the Edge's.

    python -m benchmarks.core_guard [BASE]

The base is BASE, else the commit where this branch left the main one, else (on the main branch itself) HEAD when the
working tree differs from it, else HEAD's parent. Both sides are built by their own setup.py in build/guard, from
tracked files alone, and run under callgrind, which counts the same on a busy machine as on an idle one. Fails when an
operation takes more than GROWTH_MAX more. Figures are printed and not kept. Without valgrind, or without a base (a
first commit, a shallow clone, one that the operations do not run with), it says so and passes.

Two guards, each with trees of its own: the core's operations need the core alone; those of the Edge (a request with its
answer, a chunk of a stream) need every compiled module, which takes minutes the first time.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks import core_operations, edge_operations
from scripts.debug_tree import copy_tree

ROOT = Path(__file__).resolve().parent.parent
GROWTH_MAX = 0.03
MAIN_BRANCHES = ("origin/main", "main")

VALGRIND = ("valgrind", "--tool=callgrind", "--dump-before=getppid")

# setup.py of either side, with only the modules of the core.
CORE_BUILD = """
import runpy, sys
import Cython.Build as build
every = build.cythonize
build.cythonize = lambda modules, **options: every(
    [module for module in modules if module.name.startswith("iop_fast._core.")], **options)
sys.argv = ["setup.py", "--quiet", "build_ext", "--inplace"]
runpy.run_path("setup.py", run_name="__main__")
"""


class Guard(NamedTuple):
    """What is compared: `folder` holds both trees, `operations` is a file beside this one whose every operation runs
    `count` times, `build` builds what it needs."""

    folder: Path
    operations: str
    count: int
    build: Sequence[str]


CORE = Guard(ROOT / "build" / "guard", "core_operations.py", core_operations.COUNT, ("-c", CORE_BUILD))
EDGE = Guard(
    ROOT / "build" / "guard-edge",
    "edge_operations.py",
    edge_operations.COUNT,
    ("setup.py", "--quiet", "build_ext", "--inplace"),
)


def git(*arguments: str, root: Path = ROOT) -> str | None:
    """What git says, None when it refuses."""
    run = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    return run.stdout.strip() if run.returncode == 0 else None


def find_base(named: str | None, root: Path = ROOT) -> str | None:
    """The commit to compare the working tree with, None when there is none here."""
    if named is not None:
        return git("rev-parse", "--verify", "--quiet", f"{named}^{{commit}}", root=root)
    head = git("rev-parse", "--verify", "--quiet", "HEAD", root=root)
    if head is None:
        return None
    for branch in MAIN_BRANCHES:
        base = git("merge-base", "HEAD", branch, root=root)
        if base is not None and base != head:
            return base
    if git("status", "--porcelain", root=root):
        return head
    return git("rev-parse", "--verify", "--quiet", "HEAD^", root=root)


def unpack(commit: str, tree: Path) -> None:
    """Lay out a commit's files."""
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir(parents=True)
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x"], cwd=tree, input=archive, check=True)


def build(tree: Path, command: Sequence[str] = CORE.build) -> bool:
    """Build a tree in place; False, with what the compiler said on stderr, when that fails."""
    run = subprocess.run([sys.executable, *command], cwd=tree, capture_output=True, text=True, check=False)
    if run.returncode:
        print(run.stdout + run.stderr, file=sys.stderr)
    return run.returncode == 0


def count(tree: Path, guard: Guard) -> dict[str, float] | None:
    """Instructions of one operation each, under the package in `tree`; None when the operations do not run there."""
    operations = Path(__file__).with_name(guard.operations)
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    with tempfile.TemporaryDirectory(prefix="guard-") as scratch:
        out = Path(scratch) / "out"
        run = subprocess.run(
            [*VALGRIND, f"--callgrind-out-file={out}", sys.executable, str(operations)],
            cwd=scratch,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if run.returncode:
            print(run.stderr, file=sys.stderr)
            return None
        return {
            name: total_of(out.with_name(f"out.{2 * place + 2}")) / guard.count
            for place, name in enumerate(run.stdout.split())
        }


def total_of(dump: Path) -> int:
    """The instructions that a dump of callgrind sums up."""
    for line in dump.read_text().splitlines():
        if line.startswith("summary:"):
            return int(line.split()[1])
    raise SystemExit(f"guard: {dump.name} has no summary")


def report(before: dict[str, float], after: dict[str, float]) -> bool:
    """Print both sides; returns whether no operation has grown too much."""
    is_fine = True
    for name, instructions in after.items():
        growth = instructions / before[name] - 1
        is_fine &= growth <= GROWTH_MAX
        verdict = "" if growth <= GROWTH_MAX else f"  more than {GROWTH_MAX:.0%}"
        print(f"guard {name:20} {before[name]:9.1f} -> {instructions:9.1f} instructions {growth:+7.2%}{verdict}")
    return is_fine


def main(arguments: list[str]) -> int:
    if shutil.which("valgrind") is None:
        print("guard: valgrind is not installed: nothing is compared")
        return 0
    base = find_base(arguments[0] if arguments else None)
    if base is None or git("cat-file", "-e", f"{base}^{{tree}}") is None:
        print("guard: no base commit here (a first commit, or a shallow clone): nothing is compared")
        return 0
    print(f"guard: base {base[:12]}, change: the working tree")
    return 0 if all([compare(base, CORE), compare(base, EDGE)]) else 1


def compare(base: str, guard: Guard) -> bool:
    """Build both sides of a guard and compare them; False when an operation has grown too much, or cannot run."""
    before, after = guard.folder / base, guard.folder / "change"
    for stale in guard.folder.glob("*"):
        if stale not in (before, after):
            shutil.rmtree(stale)
    if not (before / "built").exists():
        unpack(base, before)
        if not build(before, guard.build):
            print(f"guard: the base {base[:12]} does not build here: {guard.operations} is not compared")
            return True
        (before / "built").touch()
    copy_tree(after)
    if not build(after, guard.build):
        return False
    changed = count(after, guard)
    if changed is None:
        return False
    known = count(before, guard)
    if known is None:
        print(f"guard: {guard.operations} does not run with the base {base[:12]}: nothing is compared")
        return True
    return report(known, changed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
