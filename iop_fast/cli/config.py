"""`iop config`: what a configuration file comes to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import click

from iop_fast.config.effective import Value, effective_values
from iop_fast.config.kinds import Kind
from iop_fast.config.loader import Source, read_file
from iop_fast.errors import ConfigError

EXIT_REFUSED = 2


@click.group()
def config() -> None:
    """Show what a configuration file comes to."""


@config.command()
@click.option("-c", "--config", "file", type=click.Path(path_type=Path), required=True, help="The configuration file.")
@click.option("--kind", type=click.Choice(["edge", "node"]), help="What FILE is; left out, its keys tell.")
@click.option("--given", is_flag=True, help="Leave the defaults out.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for machines.")
def show(file: Path, kind: str | None, given: bool, as_json: bool) -> None:
    """Show every value with where it is from: a line of the file, a default, or an earlier form of the key (legacy).

    Secrets are masked. Exit code 2 when the file is refused.
    """
    try:
        source = Source.of(read_file(file), str(file))
        found = cast("Kind", kind or source.kind)
        loaded = source.load(found)
    except ConfigError as error:
        click.echo(str(error), err=True)
        raise SystemExit(EXIT_REFUSED) from None
    for warning in loaded.warnings:
        click.echo(str(warning), err=True)
    assert source.root is not None, "an accepted file has a tree"
    values = [value for value in effective_values(loaded.config, source.root) if not given or value.source != "default"]
    if as_json:
        rows = [{"path": one.path, "value": one.value, "source": one.source, "line": one.line} for one in values]
        click.echo(json.dumps({"kind": found, "sha256": loaded.sha256, "values": rows}, indent=2, ensure_ascii=False))
        return
    for value in values:
        click.echo(line_of(value))


def line_of(value: Value) -> str:
    """Write one value: path, value as JSON, where it is from."""
    shown = "(none)" if value.value is None else json.dumps(value.value, ensure_ascii=False)
    place = value.source if value.line is None else f"{value.source}, line {value.line}"
    return f"{value.path}: {shown}  # {place}"
