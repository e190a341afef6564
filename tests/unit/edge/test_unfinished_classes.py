"""C classes know no abstract methods: what a base class leaves to its subclass raises there, and must stand here."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

EDGE = Path(__file__).resolve().parents[3] / "iop_fast" / "edge"
PAIRS = [
    ("front/peer.py", "Peer", "front/connection.py", "Connection"),
    ("front/shared.py", "Shared", "front/listener.py", "Front"),
    ("link_runs.py", "LinkRuns", "link.py", "NodeLink"),
]


def classes(path: Path) -> dict[str, ast.ClassDef]:
    return {one.name: one for one in ast.parse(path.read_text()).body if isinstance(one, ast.ClassDef)}


def methods(one: ast.ClassDef) -> dict[str, ast.FunctionDef]:
    return {method.name: method for method in one.body if isinstance(method, ast.FunctionDef)}


def left_open(one: ast.ClassDef) -> set[str]:
    """Methods that do nothing but raise NotImplementedError."""
    return {name for name, method in methods(one).items() if "NotImplementedError" in ast.unparse(method)}


@pytest.mark.parametrize(("file", "base", "sub_file", "sub"), PAIRS)
def test_the_one_subclass_says_what_its_base_leaves_open(file: str, base: str, sub_file: str, sub: str) -> None:
    missing = left_open(classes(EDGE / file)[base])
    assert missing
    subclass = classes(EDGE / sub_file)[sub]
    assert [ast.unparse(one) for one in subclass.bases] == [base]
    assert missing <= set(methods(subclass))


def test_no_other_class_leaves_anything_open() -> None:
    known = {base for _, base, _, _ in PAIRS}
    for path in EDGE.rglob("*.py"):
        for name, one in classes(path).items():
            assert name in known or not left_open(one), f"{path.name}: {name}"
