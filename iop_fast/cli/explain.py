"""`iop explain`: what would become of a request for a model now, provider by provider."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from iop_fast.cli.admin_options import EXIT_FOUND, admin_options, fetch, print_json
from iop_fast.cli.tables import say, table

DECISIONS = {
    "run": "would run at once",
    "wait": "would wait",
    "queue_full": "would be refused: the queue is full",
    "provider_unavailable": "would be refused: no provider of the model is available",
    "unsupported_by_model": "would be refused: no provider of the model can do it",
}


@click.command()
@click.argument("model")
@click.option("--tokens", type=click.IntRange(0), default=0, help="Estimated tokens of the request.")
@click.option("--api", help="The path that it comes by, /v1/chat/completions unless it is said.")
@click.option("--needs", help="Features that it needs, by comma: tools, images, audio, json_schema.")
@admin_options
def explain(
    model: str,
    tokens: int,
    api: str | None,
    needs: str | None,
    admin: str | None,
    config: Path | None,
    as_json: bool,
) -> None:
    """Say what would become of a request for MODEL now: which provider would take it, and why the others would not.

    Exit code 0 when it would run or wait, 1 when it would be refused.
    """
    answer = fetch(admin, config, "/explain", model=model, tokens=tokens, api=api, needs=needs)
    if as_json:
        print_json(answer)
    else:
        say(render(answer))
    if answer["decision"] not in ("run", "wait"):
        raise SystemExit(EXIT_FOUND)


def render(answer: dict[str, Any]) -> list[str]:
    """Lines for people."""
    line = f"a {answer['class']} request for {answer['model']} {DECISIONS[answer['decision']]}"
    if answer["decision"] == "wait":
        line += f", as number {answer['position']} of those who wait for the same providers"
    if answer["retry_after_s"] is not None:
        line += f"; a slot is likely to be free in {answer['retry_after_s']} s"
    rows = [
        [
            row["provider_id"],
            row["node_id"],
            row["served"],
            str(row["priority"]),
            f"{row['in_flight']}/{row['capacity']}",
            f"{row['long_in_flight']}/{row['long_capacity']}",
            str(row["queued"]),
            row["reason"],
        ]
        for row in answer["candidates"]
    ]
    titles = ["PROVIDER", "NODE", "SERVES", "PRIORITY", "RUNNING", "LONG", "QUEUED", "NOW"]
    lines = [line, "", *table(titles, rows)]
    if len(rows) < answer["candidates_total"]:
        lines.append(f"{answer['candidates_total'] - len(rows)} more")
    return lines
