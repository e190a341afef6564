"""`iop check`: every finding in configuration files, with file, line and column."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import click

from iop_fast.cli.tables import say
from iop_fast.config.kinds import Kind
from iop_fast.config.loader import Source, read_file
from iop_fast.errors import ConfigError, Finding

EXIT_WARNINGS, EXIT_REFUSED = 1, 2


@click.command()
@click.option("--kind", type=click.Choice(["edge", "node"]), help="What FILES are; left out, their keys tell.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for machines.")
@click.option("--strict", is_flag=True, help="Exit code 1 when there are warnings.")
@click.option(
    "-c", "--config", multiple=True, type=click.Path(path_type=Path), help="A file, as other commands take it."
)
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
def check(kind: str | None, as_json: bool, strict: bool, config: tuple[Path, ...], files: tuple[Path, ...]) -> None:
    """Check configuration files and print every finding.

    Exit code 0 when all are accepted, 1 when --strict is given and there are warnings, 2 when one is refused.
    """
    if not config and not files:
        raise click.UsageError("a configuration file expected, got none")
    results = [check_file(file, kind) for file in (*config, *files)]
    if as_json:
        click.echo(json.dumps(results_as_json(results), indent=2, ensure_ascii=False))
    else:
        for result in results:
            print_result(result)
    findings = [finding for result in results for finding in result["findings"]]
    if not all(result["accepted"] for result in results):
        raise SystemExit(EXIT_REFUSED)
    if strict and findings:
        raise SystemExit(EXIT_WARNINGS)


def check_file(file: Path, kind: str | None) -> dict[str, Any]:
    """Check one file: name, kind, whether it is accepted, findings."""
    found: Kind = cast("Kind", kind or "edge")
    try:
        source = Source.of(read_file(file), str(file))
        found = cast("Kind", kind or source.kind)
        findings, accepted = list(source.load(found).warnings), True
    except ConfigError as error:
        findings, accepted = error.findings, False
    return {"file": str(file), "kind": found, "accepted": accepted, "findings": findings}


def print_result(result: dict[str, Any]) -> None:
    """Print the findings in one file and what they come to."""
    for finding in result["findings"]:
        say([str(finding)])
    if result["accepted"]:
        click.echo(f"{result['file']}: accepted as {result['kind']} configuration")
        return
    errors = sum(finding.severity == "error" for finding in result["findings"])
    click.echo(f"{result['file']}: refused as {result['kind']} configuration, errors: {errors}")


def results_as_json(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Count findings and write them out."""
    severities = [finding.severity for result in results for finding in result["findings"]]
    files = [{**result, "findings": [finding_as_json(one) for one in result["findings"]]} for result in results]
    return {"errors": severities.count("error"), "warnings": severities.count("warning"), "files": files}


def finding_as_json(finding: Finding) -> dict[str, Any]:
    """One finding with its place."""
    return {
        "line": finding.line,
        "column": finding.column,
        "severity": finding.severity,
        "path": finding.path,
        "message": finding.message,
    }
