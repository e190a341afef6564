"""`iop schema`: the JSON Schema of a configuration file, for editors and other tools."""

from __future__ import annotations

from typing import cast

import click

from iop_fast.config.json_schema import render
from iop_fast.config.kinds import Kind


@click.command()
@click.argument("kind", type=click.Choice(["edge", "node"]), default="edge")
def schema(kind: str) -> None:
    """Print the JSON Schema of a configuration file.

    KIND is edge (the default) or node. An editor that knows the YAML language server checks and completes a file whose
    first line is `# yaml-language-server: $schema=` and the name of this output.
    """
    click.echo(render(cast("Kind", kind)), nl=False)
