"""`iop probe`: asks a running Edge or Node whether it is ready, for health checks of containers."""

from __future__ import annotations

import http.client

import click

from iop_fast.cli.admin_client import DEFAULT_ADMIN, AdminError, exchange
from iop_fast.cli.tables import plain

# A probe that hangs is a failed one; who runs probes has limits of seconds.
TIMEOUT_S = 3.0
TEXT_MAX = 200


@click.command()
@click.option("--live", is_flag=True, help="Ask whether it runs at all (/livez), not whether it is ready.")
@click.argument("address", envvar="IOP_PROBE", default=DEFAULT_ADMIN)
def probe(live: bool, address: str) -> None:
    """Ask a running Edge or Node whether it is ready.

    ADDRESS is admin.listen or observe.listen of its file: host:port or unix:/path, the Edge's default unless given here
    or by the variable IOP_PROBE. Exit code 0 when it is ready, 1 when it is not or does not answer.
    """
    path = "/livez" if live else "/readyz"
    try:
        status, body = exchange(address, "GET", path, None, TIMEOUT_S)
    except AdminError as error:
        raise click.ClickException(plain(f"{address}{path}: {error.__cause__ or error}")) from None
    said = plain(" ".join(body.decode(errors="replace").split())[:TEXT_MAX])
    if status != http.client.OK:
        raise click.ClickException(f"{address}{path}: {status} {said}")
    click.echo(said)
