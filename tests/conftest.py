"""A typed module (a .py with a .pxd) runs as it was compiled, not as it stands: checked before the first test."""

from __future__ import annotations

from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "iop_fast"


def stale_modules() -> list[str]:
    """Typed modules whose compiled form is older than their source, or than the C types of any other: a module that is
    compiled for other types than those of its neighbour reads memory that is none of its own."""
    interfaces = [path for path in PACKAGE.rglob("*.pxd") if path.with_suffix(".py").exists()]
    typed = max((path.stat().st_mtime for path in interfaces), default=0.0)
    stale = []
    for source in (path.with_suffix(".py") for path in interfaces):
        written = max(source.stat().st_mtime, typed)
        if any(built.stat().st_mtime < written for built in source.parent.glob(f"{source.stem}.*.so")):
            stale.append(str(source.relative_to(PACKAGE)))
    return stale


def pytest_sessionstart(session: pytest.Session) -> None:
    """Refuse to test what would not be what stands there."""
    stale = stale_modules()
    if stale:
        raise pytest.UsageError(f"compiled before the last edit, run `make build`: {', '.join(stale)}")
