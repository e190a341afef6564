"""Build an sdist, a wheel from it, and use the wheel where the checkout is not.

    scripts/package_check.py [--keep FOLDER]

The sdist must hold all that Git knows, and nothing that a build made; the wheel is built from the unpacked sdist in an
environment of its own and must hold the package, its interfaces and compiled modules, and neither sources nor tests. It
is then installed in an empty environment, and everything is run from another folder: help, check, schema, token, and
`iop up`, which must answer a request. About a minute. --keep leaves sdist and wheel there for later checks.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Collection, Mapping
from email import message_from_string
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 60.0
INSTALL_LIMIT_S = 900.0

BUILD_SDIST = "import sys; from setuptools import build_meta; print(build_meta.build_sdist(sys.argv[1]))"
# Nothing of these may stand in an sdist; Git leaves them out as well.
PRODUCTS = (".so", ".c", ".html", ".pyc")
# What Git knows and an sdist does not need: nothing.
NOT_IN_SDIST: Collection[str] = ()
# Files of the package that are not Python and belong into a wheel.
INTERFACES = (".pyi", ".pxd")


def main() -> None:
    """Build and use."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    options.add_argument("--keep", type=Path, help="leave the sdist and the wheel in this folder")
    keep = options.parse_args().keep
    with tempfile.TemporaryDirectory(prefix="iop-package-") as name:
        folder = Path(name)
        tracked = tracked_files()
        sdist = build_sdist(folder, tracked)
        check_sdist(sdist, tracked)
        wheel = build_wheel(folder, sdist)
        check_wheel(wheel, tracked)
        use(wheel, folder)
        if keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
            for file in (sdist, wheel):
                shutil.copy2(file, keep)
    print("package check: passed")


def run(words: list[str], folder: Path, environment: Mapping[str, str] | None = None) -> str:
    """Run a command to its end; its standard output, or an end of this program that shows what it said."""
    done = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, timeout=INSTALL_LIMIT_S, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def expect(holds: bool, what: str) -> None:
    """Fail with what does not hold."""
    if not holds:
        raise SystemExit(f"package check: {what}")


def tracked_files() -> set[str]:
    """Every file that Git knows."""
    return set(run(["git", "ls-files", "-z"], ROOT).split("\0")) - {""}


# The sdist.


def build_sdist(folder: Path, tracked: set[str]) -> Path:
    """Build it from a copy of what Git knows: what else lies in the checkout must not matter."""
    tree = folder / "tree"
    for name in tracked:
        target = tree / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)
    said = run([sys.executable, "-c", BUILD_SDIST, str(folder)], tree)
    return folder / said.split()[-1]


def check_sdist(sdist: Path, tracked: set[str]) -> None:
    """All of the sources, none of the products."""
    with tarfile.open(sdist) as archive:
        names = {str(PurePosixPath(*PurePosixPath(one.name).parts[1:])) for one in archive if one.isfile()}
    missing = sorted(tracked - names - set(NOT_IN_SDIST))
    expect(not missing, f"the sdist lacks {missing}")
    products = sorted(name for name in names - tracked if name.endswith(PRODUCTS))
    expect(not products, f"the sdist holds {products}")
    print(f"sdist: {sdist.name}, {len(names)} files, {sdist.stat().st_size / 1e6:.1f} MB")


# The wheel.


def build_wheel(folder: Path, sdist: Path) -> Path:
    """Build it from the sdist alone, with the build requirements that pyproject.toml names."""
    target = folder / "wheels"
    begun = time.monotonic()
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(target), str(sdist)]
    run(pip, folder)
    (wheel,) = target.iterdir()
    print(f"wheel: {wheel.name}, {wheel.stat().st_size / 1e6:.1f} MB, built in {time.monotonic() - begun:.0f} s")
    return wheel


def check_wheel(wheel: Path, tracked: set[str]) -> None:
    """The package whole, compiled for this interpreter, and nothing beside it."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata_name,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        metadata = message_from_string(archive.read(metadata_name).decode())
    info = PurePosixPath(metadata_name).parts[0]
    ours = {name for name in names if not name.startswith(f"{info}/")}
    wanted = {name for name in tracked if name.startswith("iop_fast/")}
    expect(not wanted - ours, f"the wheel lacks {sorted(wanted - ours)}")
    compiled = {name for name in ours - wanted if name.endswith(".so")}
    expect(not ours - wanted - compiled, f"the wheel holds {sorted(ours - wanted - compiled)}")
    modules = {PurePosixPath(name).name.split(".")[0] for name in compiled}
    sources = {PurePosixPath(name).stem for name in tracked if name.startswith("src_pyx/") and name.endswith(".pyx")}
    expect(sources <= modules, f"the wheel has no compiled {sorted(sources - modules)}")
    check_metadata(metadata, wheel)


def check_metadata(metadata: Mapping[str, str], wheel: Path) -> None:
    """What an index shows of it; the version is that of the package."""
    version = re.search(r'__version__ = "(.+)"', (ROOT / "iop_fast" / "__init__.py").read_text())
    assert version is not None
    expect(metadata["Version"] == version[1], f"the wheel's version is {metadata['Version']}, expected {version[1]}")
    expect(wheel.name.startswith(f"iop_fast-{version[1]}-cp3"), f"the wheel is called {wheel.name}")
    expect(metadata["Requires-Python"] == ">=3.11", f"it takes Python {metadata['Requires-Python']}")
    expect(bool(metadata["Summary"]), "it has no summary")
    expect(metadata["Description-Content-Type"] == "text/markdown", "its description is not README.md")


# Its use.


def use(wheel: Path, folder: Path) -> None:
    """Install it in an empty environment and run what a newcomer runs, from a folder without the checkout."""
    venv, elsewhere = folder / "venv", folder / "elsewhere"
    elsewhere.mkdir()
    run([sys.executable, "-m", "venv", str(venv)], folder)
    run([str(venv / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", str(wheel)], folder)
    environment = {"PATH": f"{venv}/bin:/usr/bin:/bin", "HOME": str(elsewhere), "LANG": "C.UTF-8"}
    iop = str(venv / "bin" / "iop")
    run([str(venv / "bin" / "pip"), "check"], elsewhere)
    expect("iop" in run([iop, "--version"], elsewhere, environment), "iop --version does not name the program")
    expect("Commands:" in run([iop, "--help"], elsewhere, environment), "iop --help names no commands")
    for kind in ("edge", "node"):
        schema = run([iop, "schema", kind], elsewhere, environment)
        expect(schema == (ROOT / "configs" / f"{kind}.schema.json").read_text(), f"iop schema {kind} is another one")
        shutil.copy2(ROOT / "configs" / f"{kind}.yaml", elsewhere)
        run([iop, "check", f"{kind}.yaml"], elsewhere, environment)
    run([iop, "token"], elsewhere, environment)
    answer_one_request(iop, elsewhere, environment)
    print("use: help, check, schema, token, and iop up answered a request")


def answer_one_request(iop: str, folder: Path, environment: Mapping[str, str]) -> None:
    """`iop up` with what is there, which is the built-in echo model."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    port, link, admin = (one.getsockname()[1] for one in held)
    for one in held:
        one.close()
    ports = ["--port", str(port), "--link-port", str(link), "--admin-port", str(admin)]
    log = folder / "up.log"
    with log.open("wb") as output:
        process = subprocess.Popen([iop, "up", *ports], cwd=folder, env=environment, stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + LIMIT_S
        while "ready: model echo" not in log.read_text():
            expect(process.poll() is None and time.monotonic() < deadline, f"iop up did not start:\n{log.read_text()}")
            time.sleep(0.05)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
        body = json.dumps({"model": "echo", "messages": [{"role": "user", "content": "hello"}]})
        connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
        said = json.load(connection.getresponse())["choices"][0]["message"]["content"]
        expect(said == "hello", f"the echo model said {said!r}")
        run([iop, "status", "--admin", f"127.0.0.1:{admin}"], folder, environment)
        process.send_signal(signal.SIGINT)
        expect(process.wait(LIMIT_S) == 0, f"iop up ended with {process.returncode}:\n{log.read_text()}")
    finally:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGTERM)
            process.wait(LIMIT_S)


if __name__ == "__main__":
    main()
