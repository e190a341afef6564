"""C classes know no abstract methods: what a base class leaves to its subclass raises there, and must stand here."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "iop_fast"
PAIRS = [
    ("edge/front/peer.py", "Peer", "edge/front/connection.py", "Connection"),
    ("edge/front/shared.py", "Shared", "edge/front/listener.py", "Front"),
    ("edge/link_runs.py", "LinkRuns", "edge/link.py", "NodeLink"),
    ("node/runs.py", "Table", "node/relay.py", "Relay"),
    ("node/runs.py", "Run", "node/tunnel.py", "TunnelRun"),
    ("node/runs.py", "Run", "node/normalized.py", "NormalizedRun"),
    ("node/usage.py", "UsageReader", "node/usage.py", "DocumentUsage"),
    ("node/usage.py", "UsageReader", "node/usage.py", "StreamUsage"),
]


def classes(path: Path) -> dict[str, ast.ClassDef]:
    return {one.name: one for one in ast.parse(path.read_text()).body if isinstance(one, ast.ClassDef)}


def methods(one: ast.ClassDef) -> dict[str, ast.FunctionDef]:
    return {method.name: method for method in one.body if isinstance(method, ast.FunctionDef)}


def left_open(one: ast.ClassDef) -> set[str]:
    """Methods that do nothing but raise NotImplementedError."""
    return {name for name, method in methods(one).items() if "NotImplementedError" in ast.unparse(method)}


@pytest.mark.parametrize(("file", "base", "sub_file", "sub"), PAIRS)
def test_a_subclass_says_what_its_base_leaves_open(file: str, base: str, sub_file: str, sub: str) -> None:
    missing = left_open(classes(PACKAGE / file)[base])
    assert missing
    subclass = classes(PACKAGE / sub_file)[sub]
    assert [ast.unparse(one) for one in subclass.bases] == [base]
    assert missing <= set(methods(subclass))


def test_no_other_class_leaves_anything_open() -> None:
    known = {base for _, base, _, _ in PAIRS}
    for path in (path for part in ("edge", "node") for path in (PACKAGE / part).rglob("*.py")):
        for name, one in classes(path).items():
            assert name in known or not left_open(one), f"{path.name}: {name}"
