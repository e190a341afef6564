"""Run the commands of docs/*.md as they are written, beside a fleet of their own.

    python -m scripts.docs_check

The convention: a ```sh block is run by bash, with errors ending it; the blocks in the order of the documents, in one
folder. One that cannot be run here has the line `<!-- not run: WHY -->` directly above it; a unit test holds that its
`iop` and `make` commands exist all the same. There are `iop` on the path, edge.yaml and node.yaml, an Edge that runs
from them on the default ports with `observe` on 8090, and a Node that serves the model echo. A ```haproxy block is
checked by haproxy.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
LIMIT_S = 30.0
TOKEN = "the-token-of-these-checks"

EDGE = """\
observe: {listen: "127.0.0.1:8090"}
models:
  - {id: echo, providers: {n1-echo: echo}}
nodes:
  - id: n1
    token_hash_sha256: HASH
    providers: [{id: n1-echo, type: native, profile: echo, models: [echo], capacity: 4}]
"""
NODE = """\
id: n1
edge: {address: "127.0.0.1:8081"}
token_env: IOP_NODE_TOKEN
"""
HAPROXY = """\
defaults
    mode http
    timeout connect 1s
    timeout client 10m
    timeout server 10m
frontend clients
    bind 127.0.0.1:8088
    default_backend iop
"""

FENCE = re.compile(r"^(?:<!-- not run: (?P<why>[^\n]+) -->\n)?```(?P<kind>sh|haproxy)\n(?P<text>.*?)^```$", re.M | re.S)
# Folders that a user has.
HOME_FOLDERS = (".config/fish/completions", ".local/share/bash-completion/completions", ".zfunc")


class Block(NamedTuple):
    """One block of a document. `why` says why it is not run, "" for one that is."""

    document: str
    kind: str
    text: str
    why: str


def blocks() -> list[Block]:
    """Every block of every document."""
    return [
        Block(path.name, found["kind"], found["text"], found["why"] or "")
        for path in sorted((ROOT / "docs").glob("*.md"))
        for found in FENCE.finditer(path.read_text(encoding="utf-8"))
    ]


@contextmanager
def fleet(folder: Path) -> Iterator[dict[str, str]]:
    """An Edge and a Node from edge.yaml and node.yaml in `folder`; the environment of the blocks."""
    (folder / "edge.yaml").write_text(EDGE.replace("HASH", hashlib.sha256(TOKEN.encode()).hexdigest()))
    (folder / "node.yaml").write_text(NODE)
    for name in HOME_FOLDERS:
        (folder / name).mkdir(parents=True)
    environment = {**os.environ, "HOME": str(folder), "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    environment["IOP_NODE_TOKEN"] = TOKEN
    running = []
    try:
        for kind in ("edge", "node"):
            with (folder / f"{kind}.log").open("wb") as log:
                command = [BIN / "iop", kind, "-c", f"{kind}.yaml"]
                running.append(subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log))
            wait_for(["iop", "probe", "--live"], folder, environment)
        wait_for(["iop", "probe"], folder, environment)
        yield environment
    finally:
        for process in reversed(running):
            process.terminate()
        for process in running:
            process.wait(LIMIT_S)


def wait_for(command: list[str], folder: Path, environment: dict[str, str]) -> None:
    """Run a command until it ends well."""
    deadline = time.monotonic() + LIMIT_S
    command = [str(BIN / command[0]), *command[1:]]
    while subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=False).returncode != 0:
        if time.monotonic() > deadline:
            logs = "".join(path.read_text() for path in folder.glob("*.log"))
            raise SystemExit(f"{' '.join(command)} did not end well within {LIMIT_S} s\n{logs}")
        time.sleep(0.05)


def run(block: Block, folder: Path, environment: dict[str, str]) -> None:
    """Run one block; print it, and what it said when it fails."""
    command = ["bash", "-euo", "pipefail", "-c", block.text]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    if done.returncode != 0:
        raise SystemExit(
            f"docs/{block.document}: a block ended with {done.returncode}:\n{block.text}\n{done.stdout}{done.stderr}"
        )


def check_haproxy(block: Block, folder: Path) -> None:
    """Have haproxy read a block; servers are addresses, so nothing is looked up."""
    file = folder / "haproxy.cfg"
    file.write_text(HAPROXY + block.text)
    done = subprocess.run(["haproxy", "-c", "-f", file], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode != 0:
        raise SystemExit(f"docs/{block.document}: haproxy refuses\n{block.text}\n{done.stderr}")


def main() -> None:
    """Run all of them."""
    made = blocks()
    if shutil.which("haproxy") is None:
        raise SystemExit("docs check: haproxy expected (Debian's haproxy)")
    with tempfile.TemporaryDirectory(prefix="iop-docs-") as name:
        folder = Path(name)
        with fleet(folder) as environment:
            for block in made:
                if block.kind == "haproxy":
                    check_haproxy(block, folder)
                elif not block.why:
                    run(block, folder, environment)
    ran = [block for block in made if not block.why]
    print(f"docs: {len(ran)} blocks ran as written, {len(made) - len(ran)} say why they are not run")


if __name__ == "__main__":
    main()
