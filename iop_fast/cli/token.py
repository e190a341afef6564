"""`iop token`: a secret for a Node or a caller, and the hash that stands in the configuration."""

from __future__ import annotations

import hashlib
import secrets
import sys

import click


@click.group(invoke_without_command=True)
@click.pass_context
def token(ctx: click.Context) -> None:
    """Make a token and the hash that the configuration takes.

    The token goes to the Node's environment (or to the caller), the hash into the Edge's file: as
    nodes[].token_hash_sha256 or openai.principal_tokens[].token_hash_sha256.
    """
    if ctx.invoked_subcommand is None:
        secret = f"iop-{secrets.token_urlsafe(32)}"
        click.echo(f"token:             {secret}")
        print_hash(secret)


@token.command("hash")
def hash_token() -> None:
    """Hash the token on the first line of standard input.

    A token never stands on a command line: every user of the machine can read those.
    """
    secret = sys.stdin.readline().rstrip("\r\n")
    if not secret:
        raise click.UsageError("a token expected on standard input, got an empty line")
    print_hash(secret)


def print_hash(secret: str) -> None:
    """Print the line of the configuration."""
    click.echo(f"token_hash_sha256: {hashlib.sha256(secret.encode()).hexdigest()}")
