"""`iop check`: every finding in configuration files, with file, line and column."""

from __future__ import annotations

from pathlib import Path

import click

from iop_fast.config.loader import load_edge, load_node
from iop_fast.errors import ConfigError

EXIT_REFUSED = 2


@click.command()
@click.option("--kind", type=click.Choice(["edge", "node"]), default="edge", show_default=True, help="What FILES are.")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
def check(kind: str, files: tuple[Path, ...]) -> None:
    """Check configuration files and print every finding.

    Exit code 0 when all are accepted (warnings included), 2 when one is refused.
    """
    refused = False
    for file in files:
        try:
            warnings = load_edge(file).warnings if kind == "edge" else load_node(file).warnings
        except ConfigError as error:
            refused = True
            click.echo(str(error))
            continue
        for warning in warnings:
            click.echo(str(warning))
        click.echo(f"{file}: accepted as {kind} configuration")
    if refused:
        raise SystemExit(EXIT_REFUSED)
