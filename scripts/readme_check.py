"""Run README's commands for a real fleet as they are written, in a folder of its own.

Its two configuration blocks become edge.yaml and node.yaml; only what README tells the reader to replace is replaced:
the token and its hash, and the Edge's host. The programs listen on the default ports, which must be free. `make up`,
`make test` and `make smoke` are run by other steps of CI.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
IOP = Path(sys.executable).parent / "iop"
LIMIT_S = 30.0


def blocks(kind: str) -> list[str]:
    """README's code blocks of one language."""
    return re.findall(rf"```{kind}\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)


def iop_lines() -> list[list[str]]:
    """Words of every line that runs `iop`; a leading NAME=... is left out, the token is in the environment."""
    lines = [shlex.split(line, comments=True) for text in blocks("sh") for line in text.splitlines()]
    plain = [[word for word in line if not re.fullmatch(r"[A-Z_]+=.*", word)] for line in lines]
    return [line for line in plain if line and line[0] == "iop"]


def write_files(folder: Path, digest: str) -> None:
    """The configurations as the reader has them after following README."""
    edge, node = blocks("yaml")
    (folder / "edge.yaml").write_text(re.sub(r"(token_hash_sha256:) \w+", rf"\1 {digest}", edge), encoding="utf-8")
    (folder / "node.yaml").write_text(node.replace("edge.example.net", "127.0.0.1"), encoding="utf-8")


def run(words: list[str], folder: Path, environment: dict[str, str]) -> str:
    """Run a command to its end and print what it printed."""
    done = subprocess.run(
        [IOP, *words[1:]], cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_S
    )
    print(f"$ {shlex.join(words)}\n{done.stdout}{done.stderr}", end="", flush=True)
    if done.returncode != 0:
        raise SystemExit(f"{shlex.join(words)} ended with {done.returncode}")
    return done.stdout


def start(words: list[str], folder: Path, environment: dict[str, str], event: str) -> subprocess.Popen[bytes]:
    """Start a program and wait until its log has the event."""
    log = folder / f"{words[1]}.log"
    with log.open("wb") as output:
        program = subprocess.Popen([IOP, *words[1:]], cwd=folder, env=environment, stdout=output, stderr=output)
    deadline = time.monotonic() + LIMIT_S
    while event not in log.read_text():
        if program.poll() is not None or time.monotonic() > deadline:
            program.kill()
            raise SystemExit(f"{shlex.join(words)} did not say {event}:\n{log.read_text()}")
        time.sleep(0.05)
    print(f"$ {shlex.join(words)} &  # {event}", flush=True)
    return program


def main() -> None:
    """Follow README from `iop token` to `iop status`."""
    lines = iop_lines()
    running: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory(prefix="iop-readme-") as name:
        folder = Path(name)
        environment = dict(os.environ)
        try:
            for words in lines:
                if words[1] == "token":
                    token, digest = (line.split()[1] for line in run(words, folder, environment).splitlines())
                    environment["IOP_NODE_TOKEN"] = token
                    write_files(folder, digest)
                elif words[1] in ("edge", "node"):
                    event = "edge_started" if words[1] == "edge" else "session_ready"
                    running.append(start(words, folder, environment, event))
                else:
                    run(words, folder, environment)
        finally:
            for program in reversed(running):
                program.terminate()
            codes = [program.wait(LIMIT_S) for program in running]
    if codes != [0, 0]:
        raise SystemExit(f"the programs ended with {codes}")
    print(f"README: {len(lines)} commands ran as written")


if __name__ == "__main__":
    main()
