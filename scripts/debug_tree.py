"""Build a traced copy of the tree in build/debug: line tracing, C asserts, annotate reports.

A copy, so that the release build of the working tree is never replaced by a slow one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "build" / "debug"


def tracked_files() -> list[str]:
    """Files of the working tree that git tracks, or would (new and not ignored)."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return [name for name in listing.split("\0") if name and (ROOT / name).is_file()]


def copy_tree(target: Path) -> None:
    """Make the copy equal to the working tree, keeping time stamps, so that only what changed is rebuilt."""
    wanted = set(tracked_files())
    target.mkdir(parents=True, exist_ok=True)
    for stale in target.rglob("*"):
        name = str(stale.relative_to(target))
        if stale.is_file() and stale.suffix in {".py", ".pyx", ".pxd", ".pyi"} and name not in wanted:
            stale.unlink()
    for name in wanted:
        source, copy = ROOT / name, target / name
        if not copy.exists() or copy.stat().st_mtime_ns != source.stat().st_mtime_ns:
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, copy)


def main() -> None:
    """Copy, then build in place with the debug switch."""
    copy_tree(TARGET)
    subprocess.run(
        [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"],
        cwd=TARGET,
        check=True,
        env={**os.environ, "IOP_DEBUG": "1"},
    )
    print(f"debug build in {TARGET.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
