"""Write what the recorded load run says into benchmarks/README.md and docs/sizing.md, between their marks.

The record is benchmarks/last_run.json (`python -m benchmarks.load.run --json benchmarks/last_run.json --chart
benchmarks/last_run.svg`). With --check it only says whether both pages are fresh (exit code 1 if not).
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.load.bench import Result
from benchmarks.load.report import table
from benchmarks.load.targets import figure
from scripts.generated import ROOT, write_or_check

RECORD = ROOT / "benchmarks" / "last_run.json"
BEGIN, END = "<!-- begin: from last_run.json by make docs -->", "<!-- end -->"

Run = Mapping[str, Any]
US_PER_S = 1_000_000


def record_section(run: Run) -> str:
    """The run in full: where and when, tables, targets."""
    tables = [f"{name}: {table(as_result(one), {})}" for name, one in in_order(run["scenarios"])]
    absent = [f"{name}: absent: {why}" for name, why in sorted(run["absent"].items())]
    rows = [f"| `{row['name']}` | {row['value']:.3f} | {row['target']} | {met(row)} |" for row in run["targets"]]
    return "\n".join(
        [about(run), "", "```", "\n\n".join([*tables, *absent]), "```", "", "| figure | value | target | |",
         "|---|---|---|---|", *rows]
    )  # fmt: skip


def in_order(scenarios: Run) -> list[tuple[str, Any]]:
    """Scenarios as the harness runs them; the file has them by name."""
    from benchmarks.load.run import SCENARIOS

    return [(name, scenarios[name]) for name in SCENARIOS if name in scenarios]


def as_result(one: Mapping[str, Any]) -> Result:
    """A scenario of the file as it was before it was written; subjects in the order of the tables."""
    from benchmarks.load.bench import NAMES

    order = {name: number for number, name in enumerate(NAMES)}
    subjects = dict(sorted(one["subjects"].items(), key=lambda pair: order.get(pair[0], len(order))))
    return Result(one["title"], one["unit"], subjects, one["ranges"], one["missing"], one["seconds"])


def about(run: Run) -> str:
    """One paragraph on where, when and with what."""
    told, machine = run["run"], run["run"]["machine"]
    versions = ", ".join(f"{name} {number}" for name, number in sorted(told["versions"].items()))
    load = ", ".join(f"{value:g}" for value in machine["load_before"])
    return (
        f"{told['at']}, commit {told['commit']}: {machine['cores']} cores of {machine['processor']}, "
        f"{machine['memory_gib']:g} GiB, {machine['system']}, Linux {machine['kernel']}; load average before the run "
        f"{load}; other programs took {told['others']:.2f} cores (median over all figures). {versions}.\n"
        f"`{told['command']}`, {told['rounds']} rounds, {told['took_s']} s."
        f"{told.get('note', '')}"
    )


def met(row: Mapping[str, Any]) -> str:
    """Words on a target; `bench-bound` where the core of client, upstream and Node was full."""
    words = {None: [], True: ["met"], False: ["**missed**"]}[row["met"]]
    return ", ".join(words + ["bench-bound"] * row.get("bench_bound", False))


def sizing_section(run: Run) -> str:
    """What one core carries, derived from the figures of CPU; memory as it was found."""
    scenarios = run["scenarios"]
    rows = [row(scenarios) for row in SIZES]
    return "\n".join(
        [about(run), "", "| load | an Edge's core carries | a Node's core carries |", "|---|---|---|",
         *(line for line in rows if line is not None), "", *memory_lines(scenarios)]
    )  # fmt: skip


def carried(what: str, scenario: str, unit: str, per_s: float = 1.0, scale: float = 1.0) -> Callable[[Run], str | None]:
    """A row: how many of something a core carries, each needing `per_s` units a second."""

    def row(scenarios: Run) -> str | None:
        edge = figure(scenarios, scenario, "edge", "cpu_us_gateway")
        node = figure(scenarios, scenario, "edge", "cpu_us_node")
        if edge is None or node is None:
            return None
        numbers = [f"{rounded(scale * US_PER_S / (cpu * per_s))} {unit} ({cpu:.0f} us each)" for cpu in (edge, node)]
        return f"| {what} | {numbers[0]} | {numbers[1]} |"

    return row


def streamed(scenario: str) -> Callable[[Run], str | None]:
    """A row for streams: how many of the run's rate a core carries."""

    def row(scenarios: Run) -> str | None:
        title = scenarios.get(scenario, {}).get("title", "")
        rate = re.search(r"(\d+) chunks/s", title)
        return carried(title, scenario, "streams", float(rate[1]))(scenarios) if rate else None

    return row


def shared(what: str, scenario: str, per_s: float) -> Callable[[Run], str | None]:
    """A row: which share of a core a rate takes."""

    def row(scenarios: Run) -> str | None:
        edge = figure(scenarios, scenario, "edge", "cpu_us_gateway")
        node = figure(scenarios, scenario, "edge", "cpu_us_node")
        if edge is None or node is None:
            return None
        shares = [f"{cpu * per_s / US_PER_S:.0%} of it ({cpu:.0f} us each)" for cpu in (edge, node)]
        return f"| {what} | {shares[0]} | {shares[1]} |"

    return row


SIZES = (
    shared("25 short requests/s", "calm-common", 25),
    shared("1,000 short requests/s", "offered-1000", 1000),
    shared("4,000 short requests/s", "offered-4000", 4000),
    carried("short requests, as many as it can (128 connections)", "closed-128", "requests/s"),
    carried("short requests, each on a new connection", "new-connections", "requests/s"),
    streamed("streams-64"),
    streamed("streams-256"),
    streamed("streams-1000-slow"),
    carried("answers of 64 KiB", "large-answers", "MiB/s", 1, 1 / 16),
    carried("request bodies of 1 MiB", "uploads", "MiB/s"),
)


def memory_lines(scenarios: Run) -> list[str]:
    """Sentences on memory."""
    found = {
        name: figure(scenarios, "memory", "edge", name)
        for name in (
            *("rss_before_mib", "node_rss_before_mib", "rss_kib_stream", "node_rss_kib_stream"),
            *("rss_kib_waiter", "rss_after_mib"),
        )
    }
    if any(value is None for value in found.values()):
        return []
    return [
        "| memory | |",
        "|---|---|",
        f"| an Edge at rest, one Node, five providers | {found['rss_before_mib']:.0f} MiB |",
        f"| a Node at rest | {found['node_rss_before_mib']:.0f} MiB |",
        f"| each open stream, in the Edge | {found['rss_kib_stream']:.1f} KiB |",
        f"| each open stream, in its Node | {found['node_rss_kib_stream']:.1f} KiB |",
        f"| each waiting request of 1 KiB, its connection included | {found['rss_kib_waiter']:.1f} KiB |",
        f"| the Edge after 1,000 streams and 1,000 waiters at once | {found['rss_after_mib']:.0f} MiB |",
    ]


def rounded(value: float) -> str:
    """Two significant digits: more would promise too much."""
    return f"{float(f'{value:.2g}'):,.0f}"


PAGES: dict[Path, Callable[[Run], str]] = {
    ROOT / "benchmarks" / "README.md": record_section,
    ROOT / "docs" / "sizing.md": sizing_section,
}


def rendered(page: str, section: str) -> str:
    """A page with its section replaced; raise ValueError where the marks are missing."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"a section between {BEGIN!r} and {END!r} expected")
    return f"{before}{BEGIN}\n{section}\n{END}{after}"


def pages(record: Run) -> dict[Path, str]:
    """The pages as the record gives them."""
    return {path: rendered(path.read_text(encoding="utf-8"), write(record)) for path, write in PAGES.items()}


def main(arguments: list[str]) -> int:
    """Write or check the pages."""
    return write_or_check(pages(json.loads(RECORD.read_text(encoding="utf-8"))), arguments)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
