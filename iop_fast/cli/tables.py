"""Columns of text, and times in them."""

from __future__ import annotations

from collections.abc import Sequence


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as their widest cell, two spaces apart."""
    widths = [max(len(row[column]) for row in [titles, *rows]) for column in range(len(titles))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in [titles, *rows])
    return [line.rstrip() for line in lines]


def seconds(milliseconds: float) -> str:
    """Write a duration as one looks at it: 0.25 s, 12.1 s, 3 min 5 s, 2 h 10 min."""
    whole = int(milliseconds // 1000)
    if milliseconds < 1_000:
        return f"{milliseconds / 1000:.2f} s"
    if whole < 60:
        return f"{milliseconds / 1000:.1f} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
