"""`iop top`: providers, queue and rates, live in a terminal; one frame of it anywhere else."""

from __future__ import annotations

import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from iop_fast.cli.admin_options import admin_options, fetch, print_json
from iop_fast.cli.status import provider_state
from iop_fast.cli.tables import plain, seconds

WAITERS = 10
BAR_CELLS = 20
# Lines of a frame that are neither a provider nor a waiter.
HEAD_LINES = 9
QUIT_KEYS = ("q", "Q", "\x03", "\x04", "")


class Sample(NamedTuple):
    """What one look at the Edge brought."""

    at_s: float
    status: Mapping[str, Any]
    queue: Mapping[str, Any]


@click.command()
@click.option(
    "--interval", type=click.FloatRange(0.2, 60), default=1.0, show_default=True, help="Seconds between two looks."
)
@admin_options
def top(interval: float, admin: str | None, config: Path | None, as_json: bool) -> None:
    """Watch providers, queue and rates; q or Ctrl-C ends it. Where the output is no terminal, print one frame."""

    def look() -> Sample:
        status = fetch(admin, config, "/status")
        return Sample(time.monotonic(), status, fetch(admin, config, "/queue", limit=WAITERS))

    first = look()
    if as_json:
        print_json({"status": first.status, "queue": first.queue})
    elif sys.stdout.isatty() and sys.stdin.isatty():
        watch(first, look, interval)
    else:
        Console(width=120).print(frame(first, None))


def watch(first: Sample, look: Callable[[], Sample], interval: float) -> None:
    """Show frame after frame until a key ends it."""
    before = first
    console = Console()
    with keys(), Live(frame(first, None, console.height), console=console, screen=True, auto_refresh=False) as live:
        while not quits(interval):
            now = look()
            live.update(frame(now, before, console.height), refresh=True)
            before = now


@contextmanager
def keys() -> Iterator[None]:
    """Have keys come one by one and unseen, Ctrl-C as one of them."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        changed = termios.tcgetattr(descriptor)
        changed[3] &= ~termios.ISIG
        termios.tcsetattr(descriptor, termios.TCSANOW, changed)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def quits(wait_s: float) -> bool:
    """Wait for the next look; True when a key ends the watching before."""
    deadline = time.monotonic() + wait_s
    while (left := deadline - time.monotonic()) > 0:
        ready, _, _ = select.select([sys.stdin], [], [], left)
        if ready and sys.stdin.read(1) in QUIT_KEYS:
            return True
    return False


def frame(now: Sample, before: Sample | None, height: int | None = None) -> RenderableType:
    """One frame, in so many lines if that is said: then it has the busiest providers.

    Without a look before there are no rates, and what has been since the start stands for them.
    """
    rows = list(now.status["providers"])
    room = len(rows) if height is None else max(1, height - HEAD_LINES - len(now.queue["waiters"]))
    if len(rows) > room:
        rows.sort(key=busyness, reverse=True)
    left = len(rows) - room
    more = [Text(f"{left} more providers", style="dim")] if left > 0 else []
    return Group(head(now, before), Text(), providers(rows[:room]), *more, Text(), waiters(now.queue))


def busyness(row: Mapping[str, Any]) -> tuple[int, int]:
    """What a provider is sorted by where there is no room for all."""
    return row["effective"]["queued"], row["effective"]["in_flight"]


def head(now: Sample, before: Sample | None) -> Text:
    """What the Edge is, what waits, and how much of what ends."""
    edge, queue = now.status["edge"], now.queue
    state = "draining" if edge["is_draining"] else "up"
    oldest = f", oldest {seconds(queue['oldest_ms'])}" if queue["waiting"] else ""
    running = sum(row["effective"]["in_flight"] for row in now.status["providers"])
    return Text.assemble(
        (plain(f"edge {edge['id']}"), "bold"),
        f"  {state} {seconds(edge['uptime_ms'])}  revision {now.status['config']['revision']}\n",
        f"running {running}  waiting {queue['waiting']} of {queue['max_queue']}{oldest}\n",
        rates(now, before),
    )


def rates(now: Sample, before: Sample | None) -> str:
    """Requests by outcome, and tokens: a second, or since the start."""
    outcomes = now.status["counters"]["requests"]
    tokens = tokens_of(now.status)
    if before is None:
        ended = {name: count for name, count in outcomes.items() if count}
        return f"since the start: {listed(ended, '{:d}')}  tokens {tokens}"
    passed_s = max(now.at_s - before.at_s, 0.001)
    earlier = before.status["counters"]["requests"]
    ended = {name: (count - earlier.get(name, 0)) / passed_s for name, count in outcomes.items()}
    ended = {name: count for name, count in ended.items() if count > 0}
    return f"a second: {listed(ended, '{:.1f}')}  tokens {(tokens - tokens_of(before.status)) / passed_s:.0f}"


def listed(counts: Mapping[str, float], form: str) -> str:
    """Counts by name, the largest first."""
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {form.format(count)}" for name, count in ordered) or "nothing"


def tokens_of(status: Mapping[str, Any]) -> int:
    """Tokens that providers have reported."""
    return sum(row["prompt_tokens"] + row["completion_tokens"] for row in status["usage"]["rows"])


def providers(rows: Sequence[dict[str, Any]]) -> Table:
    """Each provider with a bar of its slots."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title, justify in (("PROVIDER", "left"), ("NODE", "left"), ("SLOTS", "left"), ("RUNNING", "right")):
        table.add_column(title, justify=justify)  # type: ignore[arg-type]
    for title in ("LONG", "QUEUED"):
        table.add_column(title, justify="right")
    table.add_column("STATE")
    for row in rows:
        effective, state = row["effective"], provider_state(row)
        table.add_row(
            cell(row["provider_id"]),
            cell(row["node_id"]),
            bar(effective["in_flight"], row["configured"]["capacity"]),
            f"{effective['in_flight']}/{row['configured']['capacity']}",
            f"{effective['long_in_flight']}/{row['configured']['long_capacity']}",
            str(effective["queued"]),
            cell(state, style="green" if state == "up" else "red"),
        )
    return table


def cell(text: str, style: str = "") -> Text:
    """A text as it is: neither the terminal nor Rich reads anything into it."""
    return Text(plain(text), style=style)


def bar(used: int, capacity: int) -> Text:
    """A bar of slots, no wider than BAR_CELLS and never empty while one is used."""
    cells = min(capacity, BAR_CELLS)
    filled = min(cells, -(-used * cells // capacity)) if capacity else 0
    style = "red" if used >= capacity else "green"
    return Text.assemble(("█" * filled, style), ("·" * (cells - filled), "dim"))


def waiters(queue: Mapping[str, Any]) -> RenderableType:
    """Who waits."""
    if not queue["waiters"]:
        return Text("nobody waits", style="dim")
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("#", justify="right")
    for title in ("AGE", "MODEL", "CLASS", "PRINCIPAL", "PROVIDERS"):
        table.add_column(title)
    for row in queue["waiters"]:
        table.add_row(
            str(row["place"]),
            seconds(row["age_ms"]),
            *(cell(row[name]) for name in ("model", "class", "principal", "why")),
        )
    if len(queue["waiters"]) < queue["waiting"]:
        table.add_row("", f"{queue['waiting'] - len(queue['waiters'])} more")
    return table
