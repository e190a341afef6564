"""`iop logs`: what a running Edge logs, and how much of it."""

from __future__ import annotations

from pathlib import Path

import click

from iop_fast.cli.admin_client import post_json
from iop_fast.cli.admin_options import admin_of, admin_options, ask, fetch, print_json
from iop_fast.cli.tables import say, table

LEVELS = ["debug", "info", "warning", "error"]


@click.group()
def logs() -> None:
    """Show and change what a running Edge logs. A restart takes the levels of the file again."""


@logs.command("levels")
@admin_options
def show_levels(admin: str | None, config: Path | None, as_json: bool) -> None:
    """Show the level of each logger; those with one of their own are marked."""
    answer = fetch(admin, config, "/logs")
    if as_json:
        print_json(answer)
        return
    rows = [
        [row["logger"] or "(everything)", row["level"], "own" if row["is_own"] else ""] for row in answer["loggers"]
    ]
    say(table(["LOGGER", "LEVEL", ""], rows))


@logs.command("level")
@click.argument("level", type=click.Choice([*LEVELS, "default"]))
@click.argument("logger", required=False, default="")
@admin_options
def set_level(level: str, logger: str, admin: str | None, config: Path | None, as_json: bool) -> None:
    """Set LEVEL for LOGGER and all below it ("edge.link"; left out, for everything), or let it go back to default."""
    asked = {"logger": logger, "level": level}
    answer = ask(post_json, admin or admin_of(config), "/logs", asked)
    if as_json:
        print_json(answer)
        return
    click.echo(f"{answer['logger'] or 'everything'} logs from {answer['level']} on")
