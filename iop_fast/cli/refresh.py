"""`iop refresh`: apply the Edge's file to the running Edge, or show what that would do, as people read a difference."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from iop_fast.cli.admin_client import DEFAULT_ADMIN, post_json
from iop_fast.cli.admin_options import ask
from iop_fast.cli.tables import say
from iop_fast.errors import ConfigError

EXIT_FAILED, EXIT_INVALID, EXIT_RESTART, EXIT_PUSH = 1, 2, 3, 4
# An apply waits for the Nodes (edge.link.push_answer_ms, ten minutes at most), behind others that wait.
TIMEOUT_S = 3_600.0
# What the reports call a candidate that came with the request.
CANDIDATE = "candidate"

SIGNS = {"added": "+", "removed": "-", "changed": "~"}


@click.command()
@click.option("--dry-run", is_flag=True, help="Show what an apply would do, and do nothing.")
@click.option(
    "-c",
    "--candidate",
    type=click.Path(path_type=Path),
    help="Judge this file instead of the Edge's own (dry runs only).",
)
@click.option("--admin", envvar="IOP_ADMIN", help="The admin listener: host:port or unix:/path  [env: IOP_ADMIN].")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON, for machines.")
def refresh(dry_run: bool, candidate: Path | None, admin: str | None, as_json: bool) -> None:
    """Apply the Edge's file to the running Edge, or show what that would do.

    The Edge is found by --admin, the variable IOP_ADMIN, admin.listen of the candidate, else 127.0.0.1:8082.

    Exit code 0: applied, or nothing to do, or (dry run) it can be applied. 2: the file is invalid. 3: it needs a
    restart, nothing was applied. 4: applied, but some Node does not run it yet. 5: no Edge answers. 1: anything else.
    """
    if candidate is not None and not dry_run:
        raise click.UsageError(
            "-c goes with --dry-run: an apply reads the Edge's own file, so write the candidate there"
        )
    asked: dict[str, str] = {"mode": "dry_run" if dry_run else "apply"}
    if candidate is not None:
        asked["config"] = read_candidate(candidate)
    report = ask(post_json, admin or admin_of(candidate), "/refresh", asked, TIMEOUT_S)
    if not isinstance(report, dict) or "status" not in report:
        raise click.ClickException("the admin listener answered what is no report: is this an Edge?")
    if as_json:
        click.echo(json.dumps(report, indent=2))
    else:
        say(render(report, str(candidate) if candidate is not None else None))
    raise SystemExit(exit_code(report))


def read_candidate(path: Path) -> str:
    """Read a candidate as text; what is no text is the Edge's to judge."""
    from iop_fast.config.loader import read_file

    try:
        return read_file(path).decode("utf-8", "surrogateescape")
    except ConfigError as error:
        click.echo(str(error), err=True)
        raise SystemExit(EXIT_INVALID) from None


def admin_of(candidate: Path | None) -> str:
    """The admin address that a candidate names, or the default one where it names none or is not accepted."""
    if candidate is None:
        return DEFAULT_ADMIN
    from iop_fast.config.loader import load_edge

    try:
        return str(load_edge(candidate).config.admin.listen)
    except ConfigError:
        return DEFAULT_ADMIN


def exit_code(report: dict[str, Any]) -> int:
    """The exit code that a report means."""
    match report["status"]:
        case "invalid":
            return EXIT_INVALID
        case "restart_required":
            return EXIT_RESTART
        case "applied" | "no_change":
            is_open = report["mode"] == "apply" and any(push["status"] != "acked" for push in report["node_pushes"])
            return EXIT_PUSH if is_open else 0
    return EXIT_FAILED


def render(report: dict[str, Any], candidate: str | None = None) -> list[str]:
    """Lines for people: the findings, the difference, what it does to those who wait, the Nodes, the outcome."""
    lines = [finding_line(finding, candidate) for finding in [*report["errors"], *report["warnings"]]]
    lines += [change_line(change) for change in report["changed_paths"]]
    lines += impact_lines(report)
    lines += [push_line(push) for push in report["node_pushes"] if report["mode"] == "apply"]
    return [*lines, outcome(report)]


def finding_line(finding: dict[str, Any], candidate: str | None) -> str:
    """One finding with its place."""
    file = candidate if candidate is not None and finding["file"] == CANDIDATE else finding["file"]
    path = f"{finding['path']}: " if finding["path"] else ""
    return f"{file}:{finding['line']}:{finding['column']}: {finding['severity']}: {path}{finding['message']}"


def change_line(change: dict[str, Any]) -> str:
    """One changed path: its sign, what it was and is, and whether it needs a restart."""
    before, after = (None if value is None else json.dumps(value, ensure_ascii=False) for value in values_of(change))
    text = f"{SIGNS[change['kind']]} {change['path']}"
    if change["kind"] == "changed":
        text += ": changed" if before is None and after is None else f": {before or 'unset'} -> {after or 'unset'}"
    elif before is not None or after is not None:
        text += f": {before or after}"
    return f"{text}  (needs a restart)" if change["apply"] == "restart" else text


def values_of(change: dict[str, Any]) -> tuple[Any, Any]:
    """Before and after."""
    return change["before"], change["after"]


def impact_lines(report: dict[str, Any]) -> list[str]:
    """What the step does to those who wait and to those who run; a number of 0 is left out."""
    impact, is_dry = report["impact"], report["mode"] == "dry_run"
    start, end = ("would start", "would end") if is_dry else ("started", "ended")
    waiting = {
        f"{start}": impact["waiters_granted"],
        f"{end} with 504 queue_timeout": impact["waiters_evicted_timeout"],
        f"{end} with 503 provider_unavailable": impact["waiters_evicted_unavailable"],
    }
    running = {
        "above the new capacity": impact["leases_above_capacity"],
        "above the new long capacity": impact["long_leases_above_capacity"],
    }
    return counted("waiting requests", waiting) + counted("running requests, all of which finish", running)


def counted(title: str, counts: dict[str, int]) -> list[str]:
    """One line of what there is any of; none for nothing."""
    told = [f"{count} {what}" for what, count in counts.items() if count]
    return [f"{title}: {', '.join(told)}"] if told else []


def push_line(push: dict[str, Any]) -> str:
    """One Node whose payload changed."""
    reason = f": {push['reason']}" if push["reason"] else ""
    return f"node {push['node_id']}: {push['status']}{reason}"


def outcome(report: dict[str, Any]) -> str:
    """The last line."""
    is_dry = report["mode"] == "dry_run"
    count = len(report["changed_paths"])
    match report["status"]:
        case "applied":
            nodes = len(report["node_pushes"])
            did = "can be applied live" if is_dry else f"applied as revision {report['revision']}"
            return f"{did}: {plural(count, 'change')}, {plural(nodes, 'node')} concerned"
        case "no_change":
            return f"no change: revision {report['revision']} runs what the file says"
        case "restart_required":
            paths = len(report["restart_required_paths"])
            return f"restart required by {plural(paths, 'path')}: nothing {'would be' if is_dry else 'was'} applied"
        case "invalid":
            return (
                f"invalid: {plural(len(report['errors']), 'error')}, nothing {'would be' if is_dry else 'was'} applied"
            )
    return f"{report['status']}: nothing was applied"


def plural(count: int, noun: str) -> str:
    """A number with its noun."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
