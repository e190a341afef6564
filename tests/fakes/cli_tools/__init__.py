"""Command line tools with every bad habit: programs for tests of the cli adapter.

Each module is run as a program, `python -I -S FILE`, so it imports nothing but the standard library. `tool` names one.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent


def tool(name: str, *arguments: str) -> list[str]:
    """Return the command of a tool."""
    return [sys.executable, "-I", "-S", str(HERE / f"{name}.py"), *arguments]
