"""gRPC's fork support is off before gRPC is imported, whatever is imported first."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[3] / "iop_fast"


def imported_modules(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def python(code: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GRPC_")}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)


def test_one_package_imports_grpc_and_the_one_around_it_sets_the_environment_first() -> None:
    users = {
        path.relative_to(PACKAGE).parts[:2]
        for path in PACKAGE.rglob("*.py")
        if any(name.split(".")[0] in ("grpc", "grpc_health") for name in imported_modules(path))
    }
    assert users == {("wire", "grpcio")}
    assert next(iter(imported_modules(PACKAGE / "wire" / "__init__.py"))) == "iop_fast.wire"
    assert "grpc" not in list(imported_modules(PACKAGE / "wire" / "grpc_env.py"))
    assert set(imported_modules(PACKAGE / "__init__.py")) <= {"__future__"}


@pytest.mark.parametrize("module", ["streams", "credentials", "health", "listening"])
def test_whatever_is_imported_first_the_environment_is_set_before_grpc(module: str) -> None:
    done = python(f"""
import builtins, os
load = builtins.__import__
def watch(name, *given, **options):
    if name.split(".")[0] == "grpc":
        assert os.environ.get("GRPC_ENABLE_FORK_SUPPORT") == "0", name
        print("seen")
    return load(name, *given, **options)
builtins.__import__ = watch
import iop_fast.wire.grpcio.{module}
""")
    assert done.returncode == 0, done.stderr
    assert "seen" in done.stdout


def test_an_earlier_import_of_grpc_is_refused() -> None:
    done = python("import grpc\nimport iop_fast.wire.transport")
    assert done.returncode != 0
    assert "GRPC_ENABLE_FORK_SUPPORT=0" in done.stderr


def test_setting_the_environment_does_not_import_grpc() -> None:
    done = python("import sys, iop_fast.wire.grpc_env\nassert 'grpc' not in sys.modules")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", ["edge.app", "node.app", "cli.main"])
def test_who_does_not_choose_grpcio_does_not_load_it(module: str) -> None:
    """It is 10 MB and seven threads."""
    done = python(f"import sys, iop_fast.{module}\nassert 'grpc' not in sys.modules")
    assert done.returncode == 0, done.stderr
