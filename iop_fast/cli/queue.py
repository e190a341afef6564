"""`iop queue`: who waits, in order, and why not now."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from iop_fast.cli.admin_options import admin_options, fetch, print_json
from iop_fast.cli.tables import say, seconds, table


@click.command()
@click.option("--limit", type=click.IntRange(0, 500), default=20, show_default=True, help="Rows of each list.")
@admin_options
def queue(limit: int, admin: str | None, config: Path | None, as_json: bool) -> None:
    """Show who waits, in the order of the queue, and what stands between each and a slot."""
    answer = fetch(admin, config, "/queue", limit=limit)
    if as_json:
        print_json(answer)
        return
    say(render(answer))


def render(answer: dict[str, Any]) -> list[str]:
    """Lines for people: the waiters, and all of them by line where not every one is shown."""
    timeout = f"timeout {seconds(answer['timeout_ms'])}" if answer["timeout_ms"] else "no timeout"
    oldest = f", oldest {seconds(answer['oldest_ms'])}" if answer["waiting"] else ""
    lines = [f"{answer['waiting']} of {answer['max_queue']} waiting{oldest}, {timeout}"]
    rows = [
        [
            str(row["place"]),
            seconds(row["age_ms"]),
            row["model"],
            row["class"],
            row["principal"],
            row["request"],
            row["why"] + (", once more" if row["is_readmitted"] else ""),
        ]
        for row in answer["waiters"]
    ]
    if rows:
        lines += ["", *table(["#", "AGE", "MODEL", "CLASS", "PRINCIPAL", "REQUEST", "PROVIDERS"], rows)]
    if len(rows) < answer["waiting"]:
        lines += ["", f"{answer['waiting'] - len(rows)} more; those that are alike, by line:", ""]
        alike = [
            [row["model"], row["class"], str(row["waiting"]), seconds(row["oldest_ms"]), ", ".join(row["needs"])]
            for row in answer["lines"]
        ]
        lines += table(["MODEL", "CLASS", "WAITING", "OLDEST", "NEEDS"], alike)
        if len(alike) < answer["lines_total"]:
            lines.append(f"{answer['lines_total'] - len(alike)} more lines")
    return lines
