"""`iop token`: a secret for a Node or a caller, and the hash that stands in the configuration."""

from __future__ import annotations

import hashlib
import secrets
import sys

import click


@click.command()
@click.option("--stdin", "from_stdin", is_flag=True, help="Hash the token on standard input instead of making one.")
def token(from_stdin: bool) -> None:
    """Make a token and the hash that the configuration takes.

    The token goes to the Node's environment (or to the caller), the hash into the Edge's file: as
    nodes[].token_hash_sha256 or openai.principal_tokens[].token_hash_sha256.
    """
    secret = sys.stdin.readline().rstrip("\r\n") if from_stdin else f"iop-{secrets.token_urlsafe(32)}"
    if not secret:
        raise click.UsageError("a token expected on standard input, got an empty line")
    if not from_stdin:
        click.echo(f"token:             {secret}")
    click.echo(f"token_hash_sha256: {hashlib.sha256(secret.encode()).hexdigest()}")
