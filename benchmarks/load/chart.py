"""The chart of a run: CPU per unit of every gateway by scenario, bars on a logarithmic axis, as SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any
from xml.sax.saxutils import escape

SHOWN = (
    "closed-1",
    "closed-32",
    "closed-128",
    "closed-512",
    "offered-1000",
    "offered-4000",
    "streams-64",
    "streams-256",
)
COLOURS = {
    "haproxy-bare": "#9ab8d8",
    "haproxy-same-work": "#4a7fb5",
    "nginx": "#6aa84f",
    "edge": "#d9822b",
    "edge + node": "#f0c090",
    "portkey": "#a678b0",
    "litellm": "#b04a4a",
}
LEFT, WIDTH, BAR, PAD, TOP = 150, 620, 13, 14, 64


def chart(results: Mapping[str, Any]) -> str:
    """The whole picture."""
    groups = [(name, bars(results["scenarios"][name])) for name in SHOWN if name in results["scenarios"]]
    groups = [(name, rows) for name, rows in groups if rows]
    values = [value for _, rows in groups for _, value in rows]
    low = 10 ** math.floor(math.log10(min(values))) if values else 1
    high = 10 ** math.ceil(math.log10(max(values) * 1.01)) if values else 10
    height = TOP + sum(len(rows) * BAR + PAD for _, rows in groups) + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 80}" height="{height}" '
        f'font-family="sans-serif" font-size="11">',
        f'<rect width="{LEFT + WIDTH + 80}" height="{height}" fill="white"/>',
        '<text x="10" y="20" font-size="14">CPU of the gateway, us per request or chunk (logarithmic)</text>',
        f'<text x="10" y="37" fill="#555">{escape(subtitle(results["run"]))}</text>',
        *grid(low, high, height),
    ]
    top = TOP
    for name, rows in groups:
        parts.append(f'<text x="10" y="{top + 10}" font-weight="bold">{escape(name)}</text>')
        for label, value in rows:
            length = max(1.0, place(value, low, high))
            parts.append(
                f'<rect x="{LEFT}" y="{top}" width="{length:.1f}" height="{BAR - 3}" fill="{COLOURS[label]}"/>'
                f'<text x="{LEFT + length + 4:.1f}" y="{top + 9}">{escape(label)} {shown(value)}</text>'
            )
            top += BAR
        top += PAD
    return "\n".join([*parts, "</svg>", ""])


def bars(scenario: Mapping[str, Any]) -> list[tuple[str, float]]:
    """What a scenario shows: each gateway, and the Edge with its Node."""
    rows = []
    for name in COLOURS:
        subject, figure = ("edge", "cpu_us_sum") if name == "edge + node" else (name, "cpu_us_gateway")
        value = scenario["subjects"].get(subject, {}).get(figure)
        if value:
            rows.append((name, value))
    return rows


def shown(value: float) -> str:
    """A value in three digits or more."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def subtitle(run: Mapping[str, Any]) -> str:
    """Where and when."""
    machine = run["machine"]
    return f"{machine['cores']} cores of {machine['processor']}, {run['at']}, medians of {run['rounds']}"


def place(value: float, low: float, high: float) -> float:
    """Where a value stands on the axis."""
    return WIDTH * (math.log10(value) - math.log10(low)) / (math.log10(high) - math.log10(low))


def grid(low: float, high: float, height: float) -> list[str]:
    """Lines of the powers of ten."""
    parts = []
    value = low
    while value <= high:
        x = LEFT + place(value, low, high)
        parts.append(f'<line x1="{x:.1f}" y1="{TOP - 6}" x2="{x:.1f}" y2="{height - 20}" stroke="#ddd"/>')
        parts.append(f'<text x="{x:.1f}" y="{TOP - 10}" text-anchor="middle" fill="#777">{value:g}</text>')
        value *= 10
    return parts
