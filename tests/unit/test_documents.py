"""Links between the project's documents lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted(
    path for folder in (ROOT, ROOT / "docs", ROOT / "configs", ROOT / "benchmarks") for path in folder.glob("*.md")
)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_to_a_file_leads_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
        if not re.match(r"\w+:", target):
            assert (path.parent / target).exists(), f"{path.name} links {target}"


def test_documents_were_found() -> None:
    assert {"README.md", "ARCHITECTURE.md", "REFERENCE.md"} <= {path.name for path in DOCUMENTS}
