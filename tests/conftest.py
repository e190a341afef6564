"""A typed module (a .py with a .pxd) runs as it was compiled, not as it stands: checked before the first test."""

from __future__ import annotations

from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "iop_fast"


def stale_modules() -> list[str]:
    """Typed modules whose compiled form is older than their source."""
    stale = []
    for interface in PACKAGE.rglob("*.pxd"):
        source = interface.with_suffix(".py")
        if not source.exists():
            continue
        written = max(source.stat().st_mtime, interface.stat().st_mtime)
        if any(built.stat().st_mtime < written for built in source.parent.glob(f"{source.stem}.*.so")):
            stale.append(str(source.relative_to(PACKAGE)))
    return stale


def pytest_sessionstart(session: pytest.Session) -> None:
    """Refuse to test what would not be what stands there."""
    stale = stale_modules()
    if stale:
        raise pytest.UsageError(f"compiled before the last edit, run `make build`: {', '.join(stale)}")
