"""An sdist holds everything that it is built from, and nothing that was built."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[2]
# Compiled modules and caches stay behind. The C files come along: with them nothing has to be cythonized again.
LEFT_OUT = shutil.ignore_patterns("*.so", "__pycache__")
BUILD = "import sys; from setuptools import build_meta; print(build_meta.build_sdist(sys.argv[1]))"


def test_an_sdist_holds_the_sources_and_no_product(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for name in ("iop_fast", "src_pyx"):
        shutil.copytree(ROOT / name, tree / name, ignore=LEFT_OUT)
    for name in ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md"):
        shutil.copy2(ROOT / name, tree)
    build = [sys.executable, "-c", BUILD, str(tmp_path)]
    made = subprocess.run(build, cwd=tree, capture_output=True, text=True, timeout=100, check=False)
    assert made.returncode == 0, made.stderr
    with tarfile.open(tmp_path / made.stdout.split()[-1]) as archive:
        names = {str(PurePosixPath(*PurePosixPath(name).parts[1:])) for name in archive.getnames()}
    sources = {"setup.py", "pyproject.toml"}
    for pattern in (
        "src_pyx/*.pyx",
        "iop_fast/**/*.py",
        "iop_fast/**/*.pyi",
        "iop_fast/**/*.pxd",
        "iop_fast/**/py.typed",
        "iop_fast/edge/dashboard/*",
    ):
        found = {str(path.relative_to(ROOT)) for path in ROOT.glob(pattern)}
        assert found, pattern
        sources |= found
    assert sources - names == set()
    assert [name for name in names - sources if name.endswith((".c", ".so", ".html"))] == []
