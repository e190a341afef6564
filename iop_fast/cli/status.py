"""`iop status`: the Edge's snapshot as two tables and a line, or as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from iop_fast.cli.admin_options import admin_options, fetch, print_json
from iop_fast.cli.tables import say, table


@click.command()
@admin_options
def status(admin: str | None, config: Path | None, as_json: bool) -> None:
    """Show what runs where and what waits.

    The Edge is found by --admin, the variable IOP_ADMIN, admin.listen of the file named by -c, else 127.0.0.1:8082.
    Exit code 5 when no Edge answers.
    """
    snapshot = fetch(admin, config, "/status")
    if as_json:
        print_json(snapshot)
        return
    say(render(snapshot))


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
