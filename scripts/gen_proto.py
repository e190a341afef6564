"""Generate iop_fast/wire/runtime_pb2.py and its .pyi from proto/iop/runtime.proto (`make proto`).

`--check` compares instead of writing and exits 1 when the committed files are stale. The generated module is told its
real import path: protoc derives `iop.runtime_pb2` from the file's place under proto/, the package has it in
iop_fast.wire. There is no *_pb2_grpc file: the one method is registered as a generic handler that passes bytes.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tempfile
from importlib import resources
from pathlib import Path

from scripts.generated import ROOT, write_or_check

SOURCE = "iop/runtime.proto"
TARGET = ROOT / "iop_fast" / "wire"
MODULE = "iop_fast.wire.runtime_pb2"


def generate(out: Path) -> dict[str, str]:
    """Run protoc into the empty directory `out` and return file name -> text as it is to be committed."""
    plugin = Path(sysconfig.get_path("scripts")) / "protoc-gen-mypy"
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            f"--proto_path={ROOT / 'proto'}",
            f"--proto_path={resources.files('grpc_tools') / '_proto'}",
            f"--plugin=protoc-gen-mypy={plugin}",
            f"--python_out={out}",
            f"--mypy_out={out}",
            SOURCE,
        ],
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise SystemExit(f"protoc failed with status {done.returncode}:\n{done.stderr}")
    files = {path.name: path.read_text("utf-8") for path in sorted((out / "iop").iterdir())}
    return {name: with_import_path(text) for name, text in files.items()}


def with_import_path(text: str) -> str:
    """Name the module by the path it is imported under."""
    return text.replace("'iop.runtime_pb2'", f"'{MODULE}'")


def main(arguments: list[str]) -> int:
    """Write the files, or say which of them are stale."""
    with tempfile.TemporaryDirectory() as out:
        files = generate(Path(out))
    return write_or_check({TARGET / name: text for name, text in files.items()}, arguments, "make proto")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
