"""`iop status`: the Edge's snapshot as two tables and a line, or as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from iop_fast.cli.admin_client import DEFAULT_ADMIN, AdminError, get_json
from iop_fast.errors import ConfigError

EXIT_REFUSED = 2


@click.command()
@click.option("--admin", envvar="IOP_ADMIN", help="The admin listener: host:port or unix:/path  [env: IOP_ADMIN].")
@click.option("-c", "--config", type=click.Path(path_type=Path), help="Take the address from this Edge file.")
@click.option("--json", "as_json", is_flag=True, help="Print the snapshot as JSON, for machines.")
def status(admin: str | None, config: Path | None, as_json: bool) -> None:
    """Show what runs where and what waits.

    The Edge is found by --admin, the variable IOP_ADMIN, admin.listen of the file named by -c, else 127.0.0.1:8082.
    Exit code 1 when no Edge answers.
    """
    try:
        snapshot = get_json(admin or admin_of(config), "/status")
    except AdminError as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        json.dump(snapshot, sys.stdout, indent=2)
        click.echo()
        return
    click.echo("\n".join(render(snapshot)))


def admin_of(config: Path | None) -> str:
    """The admin address that a file names, or the default one."""
    if config is None:
        return DEFAULT_ADMIN
    from iop_fast.config.loader import load_edge

    try:
        return str(load_edge(config).config.admin.listen)
    except ConfigError as error:
        click.echo(str(error), err=True)
        raise SystemExit(EXIT_REFUSED) from None


def render(snapshot: dict[str, Any]) -> list[str]:
    """Lines for people."""
    edge, queue = snapshot["edge"], snapshot["queue"]
    lines = [
        f"edge {edge['id']}{' (draining)' if edge['is_draining'] else ''}, {edge['software']},"
        f" up {edge['uptime_ms'] // 1000} s, revision {snapshot['config']['revision']}",
        f"queue {queue['waiting']} of {queue['max_queue']} waiting, timeout {queue['queue_timeout_ms']} ms",
    ]
    if snapshot["config"].get("disk", {}).get("differs"):
        lines.append(f"file {snapshot['config']['file']} differs from what runs: iop refresh --dry-run shows how")
    lines.append("")
    nodes = [[node["node_id"], node["link"], *session_cells(node["session"])] for node in snapshot["nodes"]]
    lines += table(["NODE", "LINK", "FROM", "RUNS", "HEARD"], nodes)
    lines.append("")
    providers = [provider_cells(row) for row in snapshot["providers"]]
    lines += table(["PROVIDER", "NODE", "TYPE", "RUNNING", "LONG", "QUEUED", "PRIORITY", "STATE"], providers)
    return lines


def session_cells(session: dict[str, Any] | None) -> list[str]:
    """Address, running requests and silence of a session."""
    if session is None:
        return ["-", "-", "-"]
    return [session["address"], str(session["runs"]), f"{session['silent_ms'] / 1000:.1f} s ago"]


def provider_cells(row: dict[str, Any]) -> list[str]:
    """One provider: what runs of what it may run, and why it takes nothing where it does not."""
    effective = row["effective"]
    return [
        row["provider_id"],
        row["node_id"],
        row["type"],
        f"{effective['in_flight']}/{effective['capacity']}",
        f"{effective['long_in_flight']}/{effective['long_capacity']}",
        str(effective["queued"]),
        str(row["priority"]),
        provider_state(row),
    ]


def provider_state(row: dict[str, Any]) -> str:
    """One word for a provider, with the reason where there is one."""
    if not row["enabled"]:
        return "disabled"
    if row["link"] != "ready":
        return f"node {row['link']}"
    health = row["health"]
    if not health["healthy"]:
        return f"down: {health['reason'] or health['reported']}"
    return "up"


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as their widest cell, two spaces apart."""
    widths = [max(len(row[column]) for row in [titles, *rows]) for column in range(len(titles))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in [titles, *rows])
    return [line.rstrip() for line in lines]
