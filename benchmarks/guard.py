"""Compare the instructions that hot operations take, before and after a change: in the core, the Edge, the Node.

    python -m benchmarks.guard [BASE]

The base is BASE, else the commit where this branch left the main one, else (on the main branch itself) HEAD when the
working tree differs from it, else HEAD's parent. Either side is built by its own setup.py in build/guard, from tracked
files alone; the files beside this one whose names end in `_operations.py` run under callgrind with both packages, which
counts nearly the same on a busy machine as on an idle one. Fails when an operation takes more than GROWTH_MAX more, one
that copies bodies BULK_GROWTH_MAX; before it says so it counts both sides again, in another order of hashes, and takes
the lower counts. Figures are printed and not kept. Without valgrind, or without a base (a first commit, a shallow
clone), it says so and passes; so it does for operations that do not run with the base's package.

The trees stay in build/guard. Files whose content differs are written anew, the others keep their times, so that
setup.py makes anew what a change touches; the tree of the base begins as a copy of the other one. A tree that another
interpreter, compiler or setup.py has made, or whose build did not end, is thrown away. Compiles by ccache where it is.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

from scripts.debug_tree import tracked_files

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "guard"
GROWTH_MAX = 0.03
# A block that grows is copied or not, by what lies behind it in the heap: equal code differs by 7 %, a copy is 14 %.
BULK_GROWTH_MAX = 0.10
BULK = ("_64k_", "_large_", "_upload_")
HASH_SEEDS = ("0", "1", "2")
MAIN_BRANCHES = ("origin/main", "main")

BUILD = ("setup.py", "--quiet", "build_ext", "--inplace")
VALGRIND = ("valgrind", "--tool=callgrind", "--dump-before=getppid")
# What a file of operations says of itself: how often each of them runs.
COUNT = "import runpy, sys; print(runpy.run_path(sys.argv[1])['COUNT'])"
MARK = ".made-by"
SOURCES = frozenset({".py", ".pyx", ".pxd", ".pyi"})

Counts = Mapping[str, float]
"""Instructions of one operation each, by name."""


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


def files_of(commit: str, root: Path = ROOT) -> dict[str, bytes]:
    """The files of a commit."""
    archive = subprocess.run(["git", "archive", commit], cwd=root, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as content:
        opened = {member.name: content.extractfile(member) for member in content if member.isfile()}
        return {name: file.read() for name, file in opened.items() if file is not None}


def working_files() -> dict[str, bytes]:
    """The files of the working tree."""
    return {name: (ROOT / name).read_bytes() for name in tracked_files()}


def compiling() -> dict[str, str]:
    """The environment of a build."""
    return ({"CC": "ccache cc"} if shutil.which("ccache") else {}) | os.environ


def made_by(files: Mapping[str, bytes]) -> bytes:
    """What a build depends on besides the modules' sources."""
    settings = [compiling().get(name) for name in ("CC", "CFLAGS", "LDFLAGS")]
    return repr([sys.version, version("cython"), version("setuptools"), *settings]).encode() + files["setup.py"]


def lay_out(tree: Path, files: Mapping[str, bytes], like: Path | None = None) -> None:
    """Make a tree hold these files, with what was built there, or in the tree `like`, where that is of use still."""
    wanted = made_by(files)
    if not is_of(tree, wanted):
        shutil.rmtree(tree, ignore_errors=True)
        if like is not None and is_of(like, wanted):
            shutil.copytree(like, tree)
    tree.mkdir(parents=True, exist_ok=True)
    (tree / MARK).unlink(missing_ok=True)
    for path in tree.rglob("*"):
        if path.suffix in SOURCES and path.is_file() and str(path.relative_to(tree)) not in files:
            path.unlink()
    for name, content in files.items():
        path = tree / name
        if not path.is_file() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def is_of(tree: Path, wanted: bytes) -> bool:
    """Whether a tree was built to its end, and by what would build it now."""
    mark = tree / MARK
    return mark.is_file() and mark.read_bytes() == wanted


def build(tree: Path, files: Mapping[str, bytes]) -> bool:
    """Build a tree in place; False, with what the compiler said on stderr, when that fails."""
    command = [sys.executable, *BUILD]
    run = subprocess.run(command, cwd=tree, env=compiling(), capture_output=True, text=True, check=False)
    if run.returncode:
        print(run.stdout + run.stderr, file=sys.stderr)
        return False
    (tree / MARK).write_bytes(made_by(files))
    return True


def operations() -> list[Path]:
    """The files whose operations are counted."""
    return sorted(Path(__file__).parent.glob("*_operations.py"))


def count(tree: Path, file: Path, seed: str = HASH_SEEDS[0]) -> Counts | None:
    """Count a file's operations under the package in `tree`; None, with the reason on stderr, when they do not run."""
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    with tempfile.TemporaryDirectory(prefix="guard-") as scratch:

        def run(*command: str) -> list[str] | None:
            """The words that a program prints."""
            ran = subprocess.run(
                command, cwd=scratch, env=environment, capture_output=True, text=True, errors="replace", check=False
            )
            if ran.returncode:
                print(ran.stderr, file=sys.stderr)
            return None if ran.returncode else ran.stdout.split()

        times = run(sys.executable, "-c", COUNT, str(file))
        if times is None:
            return None
        out = Path(scratch) / "out"
        names = run(*VALGRIND, f"--callgrind-out-file={out}", sys.executable, str(file))
        if names is None:
            return None
        dumps = {name: out.with_name(f"out.{2 * place + 2}") for place, name in enumerate(names)}
        return {name: total_of(dump) / int(times[0]) for name, dump in dumps.items()}


def total_of(dump: Path) -> int:
    """The instructions that a dump of callgrind sums up."""
    for line in dump.read_text().splitlines():
        if line.startswith("summary:"):
            return int(line.split()[1])
    raise SystemExit(f"guard: {dump.name} has no summary")


def growth_max(name: str) -> float:
    """By how much an operation may grow."""
    return BULK_GROWTH_MAX if any(part in f"{name}_" for part in BULK) else GROWTH_MAX


def grown(before: Counts, after: Counts) -> list[str]:
    """The operations that have grown too much."""
    return [name for name, instructions in after.items() if instructions / before[name] - 1 > growth_max(name)]


def report(before: Counts, after: Counts) -> list[str]:
    """Print both sides; returns the operations that have grown too much."""
    failed = grown(before, after)
    for name, instructions in after.items():
        growth = instructions / before[name] - 1
        print(f"guard {name:20} {before[name]:9.1f} -> {instructions:9.1f} instructions {growth:+7.2%}", end="")
        print(f"  FAILED: more than {growth_max(name):+.0%}" if name in failed else "")
    return failed


def count_both(before: Path, after: Path, file: Path) -> tuple[Counts | None, Counts | None]:
    """Count a file's operations under both trees, side by side; again, for the lower counts, while one has grown."""
    lowest: tuple[Counts | None, Counts | None] = (None, None)
    for seed in HASH_SEEDS:
        with ThreadPoolExecutor(2) as sides:
            old, new = sides.map(lambda tree, seed=seed: count(tree, file, seed), (before, after))
        if old is None or new is None:
            return old, new
        was, now = lower(lowest[0], old), lower(lowest[1], new)
        lowest = was, now
        if not grown(was, now):
            break
    return lowest


def lower(known: Counts | None, counted: Counts) -> Counts:
    """The lower count of each operation."""
    return counted if known is None else {name: min(value, known[name]) for name, value in counted.items()}


def compared(before: Path, after: Path, files: Sequence[Path]) -> int:
    """Count all operations under both trees and report; returns the exit code."""
    failed: list[str] = []
    for file in files:
        was, now = count_both(before, after, file)
        if now is None:
            failed.append(file.name)
            print(f"guard {file.name} FAILED: it does not run with the change")
        elif was is None:
            print(f"guard {file.name} does not run with the base: not compared")
        else:
            failed += report(was, now)
    print(f"guard: {', '.join(failed)} FAILED" if failed else "guard: nothing takes more than it may")
    return 1 if failed else 0


def timed(what: str, work: Callable[[], bool]) -> bool:
    """Do something that takes a while, and say for how long it took."""
    began = time.monotonic()
    is_done = work()
    print(f"guard: {what} built in {time.monotonic() - began:.0f} s" if is_done else f"guard: {what} does not build")
    return is_done


def main(arguments: list[str]) -> int:
    """Build both sides, compare."""
    if shutil.which("valgrind") is None:
        print("guard: valgrind is not installed: nothing is compared")
        return 0
    base = find_base(arguments[0] if arguments else None)
    if base is None or git("cat-file", "-e", f"{base}^{{tree}}") is None:
        print("guard: no base commit here (a first commit, or a shallow clone): nothing is compared")
        return 0
    print(f"guard: base {git('show', '--no-patch', '--format=%h (%s)', base)}, change: the working tree")
    before, after = FOLDER / "base", FOLDER / "change"
    old, new = files_of(base), working_files()
    lay_out(after, new)
    if not timed("the change", lambda: build(after, new)):
        return 1
    lay_out(before, old, like=after)
    if not timed("the base", lambda: build(before, old)):
        print("guard: nothing is compared")
        return 0
    return compared(before, after, operations())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
