"""`iop runs`: what runs where, since when, how far it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from iop_fast.cli.admin_options import admin_options, fetch, print_json
from iop_fast.cli.tables import say, seconds, table


@click.command()
@click.option("--limit", type=click.IntRange(0, 500), default=50, show_default=True, help="Rows, the oldest first.")
@admin_options
def runs(limit: int, admin: str | None, config: Path | None, as_json: bool) -> None:
    """Show what runs where, the oldest first.

    IN is the estimate of the request's tokens, OUT what has gone to its client of the answer, in bytes: a provider
    reports its tokens when it is done.
    """
    answer = fetch(admin, config, "/runs", limit=limit)
    if as_json:
        print_json(answer)
        return
    say(render(answer))


def render(answer: dict[str, Any]) -> list[str]:
    """Lines for people."""
    rows = [
        [
            row["provider_id"],
            row["node_id"],
            row["model"],
            row["class"],
            row["principal"],
            seconds(row["age_ms"]),
            row["state"],
            str(row["estimated_tokens"]),
            str(row["bytes_out"]),
            row["request"],
        ]
        for row in answer["runs"]
    ]
    titles = ["PROVIDER", "NODE", "MODEL", "CLASS", "PRINCIPAL", "SINCE", "STATE", "IN", "OUT", "REQUEST"]
    lines = table(titles, rows) if rows else []
    if len(rows) < answer["total"]:
        return [*lines, f"{answer['total'] - len(rows)} more"]
    return lines or ["nothing runs"]
