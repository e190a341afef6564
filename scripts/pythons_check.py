"""Build, install and try the package with every CPython from 3.11 on that is here.

    python -m scripts.pythons_check [VERSION ...]

Interpreters are looked for on the path, in pyenv's folder and as the system's own. For each one (or those of the named
versions) a wheel is built from the sdist and installed in an empty environment, and a part of the tests runs against
it, away from the sources: core, codec, configuration, Edge and Node in one process, and `iop up` as a user starts it.
Warnings are errors, as in all tests. One to three minutes an interpreter.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from scripts.package_check import ROOT, build_sdist, check_wheel, run, tracked_files

OLDEST = (3, 11)
TESTS = (
    "tests/unit/core",
    "tests/unit/hot",
    "tests/unit/config",
    "tests/unit/edge",
    "tests/unit/node",
    "tests/unit/test_notify.py",
    "tests/property/test_scan.py",
    "tests/integration/test_edge_app.py",
    "tests/integration/test_node_app.py",
    "tests/integration/test_up.py",
)
# These look at the sources of the package.
NOT_AWAY = ("tests/unit/edge/test_error_table.py", "tests/unit/edge/test_failures.py")
# What these tests import; the ranges stand in pyproject.toml.
TOOLS = ("hypothesis", "jsonschema", "pytest", "pytest-timeout")
# Parts of the sdist that tests read.
READ = (
    "tests",
    "configs",
    "docs",
    "proto",
    "scripts",
    "deploy",
    "benchmarks",
    "pyproject.toml",
    "README.md",
    "Makefile",
)

SAY = "import platform, sys; print(platform.python_implementation(), *sys.version_info[:3])"


class Interpreter(NamedTuple):
    """One CPython."""

    path: Path
    version: tuple[int, int, int]

    def __str__(self) -> str:
        return f"{'.'.join(map(str, self.version))} ({self.path})"


def candidates() -> Iterator[Path]:
    """Every program that may be a Python."""
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        yield from sorted(Path(folder).glob("python3*"))
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from sorted(pyenv.glob("versions/*/bin/python3"))
    yield Path("/usr/bin/python3")


def interpreters() -> list[Interpreter]:
    """Those that are new enough, each once, the oldest first."""
    found: dict[Path, Interpreter] = {}
    for path in candidates():
        if re.fullmatch(r"python3(\.\d+)?", path.name) is None or path.parent.name == "shims":
            continue
        if not path.exists() or path.resolve() in found or (path.parent.parent / "pyvenv.cfg").exists():
            continue
        said = subprocess.run([path, "-c", SAY], capture_output=True, text=True, check=False)
        name, *numbers = said.stdout.split() or [""]
        if name == "CPython" and tuple(map(int, numbers)) >= OLDEST:
            found[path.resolve()] = Interpreter(path, tuple(map(int, numbers)))  # type: ignore[arg-type]
    return sorted(found.values(), key=lambda one: one.version)


def tools() -> list[str]:
    """The requirements of the tests, as pyproject.toml states them."""
    group = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]["dev"]
    return [line for line in group if re.split(r"[<>=]", line)[0] in TOOLS]


def check(interpreter: Interpreter, source: Path, tracked: set[str], folder: Path) -> tuple[bool, str]:
    """Build, install, test; return whether all passed, and what pytest closed with."""
    build, venv = folder / "build", folder / "venv"
    for made in (build, venv):
        run([str(interpreter.path), "-m", "venv", str(made)], folder)
        run([str(made / "bin" / "pip"), "install", "--quiet", "--upgrade", "pip>=25.1"], folder)
    wheels = folder / "wheels"
    run([str(build / "bin" / "pip"), "wheel", "--quiet", "--no-deps", "--wheel-dir", str(wheels), str(source)], folder)
    (wheel,) = wheels.iterdir()
    check_wheel(wheel, tracked)
    run([str(venv / "bin" / "pip"), "install", "--quiet", f"{wheel}[otel]", *tools()], folder)
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    for name in READ:
        copy = shutil.copytree if (source / name).is_dir() else shutil.copy2
        copy(source / name, elsewhere / name)
    environment = {**os.environ, "PATH": f"{venv}/bin:{os.environ['PATH']}"}
    left_out = [f"--ignore={name}" for name in NOT_AWAY]
    command = [str(venv / "bin" / "python"), "-m", "pytest", "-q", "-p", "no:cacheprovider", *left_out, *TESTS]
    done = subprocess.run(command, cwd=elsewhere, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(f"{done.stdout[-6000:]}{done.stderr[-2000:]}")
    return done.returncode == 0, done.stdout.strip().splitlines()[-1]


def main() -> None:
    """Check all, or those that are named."""
    wanted = sys.argv[1:]
    found = [one for one in interpreters() if not wanted or any(has_version(one, version) for version in wanted)]
    if not found:
        raise SystemExit(f"no CPython {' or '.join(wanted) or '3.11 or newer'} is here")
    with tempfile.TemporaryDirectory(prefix="iop-pythons-") as name:
        folder = Path(name)
        tracked = tracked_files()
        sdist = build_sdist(folder, tracked)
        with tarfile.open(sdist) as archive:
            archive.extractall(folder / "source", filter="data")
        (source,) = (folder / "source").iterdir()
        failed = []
        for number, interpreter in enumerate(found):
            begun = time.monotonic()
            own = folder / f"of-{number}"
            own.mkdir()
            passed, said = check(interpreter, source, tracked, own)
            failed += [] if passed else [str(interpreter)]
            print(f"{interpreter}: {said}; {time.monotonic() - begun:.0f} s in all", flush=True)
            shutil.rmtree(own)
            shutil.rmtree(source / "build", ignore_errors=True)
    if failed:
        raise SystemExit(f"the tests failed with {', '.join(failed)}")


def has_version(interpreter: Interpreter, version: str) -> bool:
    """True when "3.12" or "3.12.1" names it."""
    return ".".join(map(str, interpreter.version)).startswith(version)


if __name__ == "__main__":
    main()
