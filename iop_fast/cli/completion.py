"""`iop completion`: a script by which a shell completes commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

VARIABLE = "_IOP_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print what makes SHELL complete the commands and options of iop.

    \b
    bash: iop completion bash > ~/.local/share/bash-completion/completions/iop
    zsh:  iop completion zsh  > a file _iop in a folder of $fpath
    fish: iop completion fish > ~/.config/fish/completions/iop.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None, "click knows the shells that it is asked for"
    click.echo(kind(context.find_root().command, {}, "iop", VARIABLE).source())
