"""What a run says: tables and ratio lines for people, JSON for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.load.bench import Result
from benchmarks.load.figures import is_bench_bound

# Columns by unit: (heading, figure, format). A figure that no subject has leaves its column out.
CPU = (
    ("gateway us", "cpu_us_gateway", ".1f"),
    ("node us", "cpu_us_node", ".1f"),
    ("sum us", "cpu_us_sum", ".1f"),
    ("client us", "cpu_us_client", ".1f"),
)
TIMES = (("p50 ms", "p50_ms", ".2f"), ("p99 ms", "p99_ms", ".2f"), ("max ms", "max_ms", ".1f"))
BUSY = (
    ("gw core", "busy_gateway", ".2f"),
    ("rest core", "busy_rest", ".2f"),
    ("lag ms", "lag_max_ms", ".0f"),
    ("others", "others", ".2f"),
)
TROUBLE = (("late", "unfinished", ".0f"), ("errors", "errors", ".0f"))
STRAIN = (
    ("of peak", "of_peak", ".3f"),
    ("overtaken", "overtaken", ".0f"),
    ("by ms", "overtaken_worst_ms", ".1f"),
    ("peak/s", "peak_per_s", ".0f"),
    ("goodput", "goodput_of_peak", ".3f"),
    ("refused p99", "refused_p99_ms", ".2f"),
    ("grown MiB", "rss_grown_mib", ".1f"),
    ("refreshes/s", "refreshes_per_s", ".0f"),
    ("stall run", "stalled_running", ".0f"),
    ("stall wait", "stalled_waiting", ".0f"),
)
COLUMNS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "request": (*CPU, ("requests/s", "per_s", ".0f"), *TIMES, *BUSY, *STRAIN, *TROUBLE),
    "chunk": (
        *CPU,
        ("chunks/s", "per_s", ".0f"),
        ("gap p50", "p50_ms", ".2f"),
        ("gap p99", "p99_ms", ".2f"),
        ("gap max", "max_ms", ".1f"),
        ("delay p99", "delay_p99_ms", ".2f"),
        ("short p50", "short_p50_ms", ".2f"),
        ("short p99", "short_p99_ms", ".2f"),
        *BUSY,
        *TROUBLE,
    ),
    "process": (
        ("idle MiB", "rss_before_mib", ".1f"),
        ("KiB/stream", "rss_kib_stream", ".1f"),
        ("KiB/waiter", "rss_kib_waiter", ".1f"),
        ("after MiB", "rss_after_mib", ".1f"),
        ("node idle MiB", "node_rss_before_mib", ".1f"),
        ("node KiB/stream", "node_rss_kib_stream", ".1f"),
        ("node KiB/waiter", "node_rss_kib_waiter", ".1f"),
    ),
    "soak": (
        ("requests", "requests", ".0f"),
        ("errors", "errors", ".0f"),
        ("RSS MiB", "rss_mib", ".1f"),
        ("KiB/min", "rss_slope_kib_min", ".1f"),
        ("node KiB/min", "node_rss_slope_kib_min", ".1f"),
        ("fds", "fds_grown", "+.0f"),
        ("node fds", "node_fds_grown", "+.0f"),
        ("node tasks", "node_tasks_grown", "+.0f"),
    ),
}


def table(result: Result, absent: Mapping[str, str]) -> str:
    """One scenario as text."""
    columns = [column for column in COLUMNS[result.unit] if any(column[1] in slot for slot in result.subjects.values())]
    heads = ["subject", *(heading for heading, _, _ in columns)]
    rows = [
        [name + "*" * is_bench_bound(slot), *(shown(slot, name_, style) for _, name_, style in columns)]
        for name, slot in result.subjects.items()
    ]
    widths = [max(len(row[number]) for row in (heads, *rows)) for number in range(len(heads))]
    lines = [
        "  ".join(
            cell.rjust(width) if at else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in (heads, *rows)
    ]
    lines += [f"{name:<{widths[0]}}  -  {why}" for name, why in {**absent, **result.missing}.items()]
    return "\n".join([result.title, *(line.rstrip() for line in lines)])


def shown(slot: Mapping[str, float], name: str, style: str) -> str:
    """One cell."""
    return format(slot[name], style) if name in slot else "-"


def ratio_lines(targets: Sequence[Mapping[str, Any]]) -> list[str]:
    """`ratio NAME VALUE target BOUND met` (or `missed`, or nothing without a bound), one line each.

    `bench-bound` follows where the core of client, upstream and Node was full, so that times are the bench's.
    """
    words = {True: " met", False: " missed", None: ""}
    return [
        f"ratio {row['name']} {row['value']:.3f} target {row['target']}{words[row['met']]}"
        f"{' bench-bound' if row['bench_bound'] else ''}"
        for row in targets
    ]


def as_json(result: Result) -> dict[str, Any]:
    """One scenario for the file; figures to six digits."""
    content = asdict(result)
    content["subjects"] = {
        name: {key: float(f"{value:.6g}") for key, value in slot.items()} for name, slot in result.subjects.items()
    }
    content["ranges"] = {
        name: {key: [float(f"{value:.6g}") for value in pair] for key, pair in ranges.items()}
        for name, ranges in result.ranges.items()
    }
    return content
