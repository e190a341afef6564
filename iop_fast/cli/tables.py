"""Columns of text, and times in them. What others wrote is shown, never obeyed by a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import click


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as their widest cell, two spaces apart."""
    rows = [[plain(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in [titles, *rows]) for column in range(len(titles))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in [titles, *rows])
    return [line.rstrip() for line in lines]


def plain(text: str) -> str:
    """Write out what a terminal would obey or hide, as \\x1b: control characters, line ends, marks of direction."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def say(lines: Iterable[str]) -> None:
    """Print lines for people."""
    click.echo("\n".join(map(plain, lines)))


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
