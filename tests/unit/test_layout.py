"""The shape of the tree is held here: who may import whom, what seam code may not touch, how large a room may be."""

from __future__ import annotations

import ast
import importlib
import importlib.machinery
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "iop_fast"

# What each part may import of ours. `seams` and `errors` are leaves that everyone may import.
ALLOWED = {
    "_core": {"_core"},
    "seams": set(),
    "errors": set(),
    "logs": set(),
    "notify": {"logs"},
    "considerate": set(),
    "heap": set(),
    "metrics": {"_hot", "considerate"},
    "config": {"config"},
    "tracing": {"config", "logs", "considerate", "tracing"},
    "wire": {"config", "wire"},
    "_hot": {"_core", "wire", "_hot"},
    "edge": {"_core", "_hot", "config", "wire", "edge", "logs", "notify", "considerate", "heap", "metrics", "tracing"},
    "node": {"_core", "_hot", "config", "wire", "node", "logs", "notify", "considerate", "heap", "metrics", "tracing"},
    "cli": {"_core", "_hot", "config", "wire", "edge", "node", "cli", "logs"},
}
LEAVES = {"seams", "errors"}

# Modules that the simulation runs on a virtual loop. They reach the world through iop_fast.seams alone.
SEAM_MODULES = [
    "edge/exchange.py",
    "edge/gate.py",
    "edge/health.py",
    "edge/link.py",
    "edge/link_runs.py",
    "edge/links.py",
    "edge/pushes.py",
    "edge/reconcile.py",
    "edge/registration.py",
    "edge/ages.py",
    "edge/service.py",
    "edge/traces.py",
    "node/session.py",
    "node/relay.py",
    "node/traces.py",
    "tracing/context.py",
    "wire/liveness.py",
    "wire/outbox.py",
]
FORBIDDEN_MODULES = {"time", "random", "threading", "uvloop", "concurrent", "socket", "secrets", "os"}
FORBIDDEN_CALLS = {
    "asyncio.sleep": "use loop.call_at (asyncio.sleep(0) alone is allowed)",
    "asyncio.timeout": "supervise by loop.call_at from outside",
    "asyncio.wait_for": "supervise by loop.call_at from outside",
    "asyncio.to_thread": "no threads behind the seams",
}

MODULE_LINES_MAX = 600
FUNCTION_LINES_MAX = 80


def modules() -> list[Path]:
    """Every hand-written module of the package."""
    return sorted(path for path in PACKAGE.rglob("*.py") if "_pb2" not in path.name)


def part_of(path: Path) -> str:
    """The part of the package that a module belongs to: its first folder, or its own name."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_names(tree: ast.AST) -> Iterator[str]:
    """Dotted names of everything that a module imports, wherever the import stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports are not used here"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_part_imports_only_what_stands_below_it(path: Path) -> None:
    part = part_of(path)
    if part == "__init__":
        return
    for name in imported_names(ast.parse(path.read_text())):
        parts = name.split(".")
        if parts[0] == "iop_fast" and len(parts) > 1 and parts[1] != "__version__":
            assert parts[1] in ALLOWED[part] | LEAVES, f"{part} may not import {name}"


@pytest.mark.parametrize("name", SEAM_MODULES)
def test_seam_code_reaches_the_world_through_its_doors_alone(name: str) -> None:
    tree = ast.parse((PACKAGE / name).read_text())
    for imported in imported_names(tree):
        if imported == "random.Random":  # a type for the injected generator
            continue
        assert imported.split(".")[0] not in FORBIDDEN_MODULES, f"{name} imports {imported}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called == "asyncio.sleep" and ast.unparse(node.args[0]) == "0":
                continue
            assert called not in FORBIDDEN_CALLS, f"{name}:{node.lineno} {called}: {FORBIDDEN_CALLS[called]}"
            assert not called.endswith("run_in_executor"), f"{name}:{node.lineno}: no executor behind the seams"
        if isinstance(node, ast.For | ast.comprehension):
            assert not isinstance(node.iter, ast.Set | ast.SetComp), f"{name}: iteration over a set is not ordered"
            assert not (isinstance(node.iter, ast.Call) and ast.unparse(node.iter.func) in {"set", "frozenset"})


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_rooms_stay_small(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= MODULE_LINES_MAX, "would two rooms be clearer than one?"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            assert lines <= FUNCTION_LINES_MAX, f"{node.name} has {lines} lines"


def test_every_compiled_module_has_an_interface_and_is_the_one_imported() -> None:
    sources = {path.stem for path in (ROOT / "src_pyx").glob("*.pyx")}
    for stem in sources:
        homes = [folder for folder in ("_core", "_hot") if (PACKAGE / folder / f"{stem}.pyi").exists()]
        assert len(homes) == 1, f"src_pyx/{stem}.pyx has no interface in _core or _hot"
        module = importlib.import_module(f"iop_fast.{homes[0]}.{stem}")
        assert module.__file__ is not None
        assert module.__file__.endswith(tuple(importlib.machinery.EXTENSION_SUFFIXES))


def typed_modules() -> list[Path]:
    """Python modules that are compiled too: those with a .pxd beside them."""
    return sorted(path for path in modules() if path.with_suffix(".pxd").exists())


@pytest.mark.parametrize("path", typed_modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_typed_module_runs_as_it_stands(path: Path) -> None:
    """Compiled, and from the source that is there; the traced build alone runs it as Python."""
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    assert f'"{name}"' in (ROOT / "setup.py").read_text()
    origin = importlib.import_module(name).__file__
    assert origin is not None
    if origin == str(path):
        assert ROOT.parent.name == "build", "not compiled: make build"
        return
    assert origin.endswith(tuple(importlib.machinery.EXTENSION_SUFFIXES))
    written = max(path.stat().st_mtime, path.with_suffix(".pxd").stat().st_mtime)
    assert written <= Path(origin).stat().st_mtime, "older than its source: make build"
