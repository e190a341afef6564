"""The end-to-end load runs: Edge and Node beside direct, HAProxy, nginx, LiteLLM and Portkey, all in one run.

`python -m benchmarks.load.run` runs everything; `--quick` a short form of it; `--scenarios` and `--subjects` name what
to run, separated by commas. Tables and `ratio` lines go to stdout; figures to build/load.json and a chart to
build/load.svg. benchmarks/README.md explains each number.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.load.bench import NAMES, STARTERS, Bench, Plan, Result, Unmeasured, machine, opened
from benchmarks.load.chart import chart
from benchmarks.load.endurance import ENDURANCE
from benchmarks.load.figures import median
from benchmarks.load.report import as_json, ratio_lines, table
from benchmarks.load.steady import STEADY
from benchmarks.load.strained import STRAINED
from benchmarks.load.targets import judged, with_bounds
from iop_fast.cli.admin_client import AdminError

ROOT = Path(__file__).resolve().parents[2]
# Memory first: it is to be read before any load.
SCENARIOS = {"memory": ENDURANCE["memory"], **STEADY, **STRAINED, "soak": ENDURANCE["soak"]}
NEED_EDGE = {"refresh-storm", "pools", "soak"}
LIBRARIES = ("grpcio", "protobuf", "uvloop", "httptools", "aiohttp")
REST_S = 0.5
# Turns of each subject: where one of the figures has a target, and elsewhere.
ROUNDS_JUDGED, ROUNDS = 5, 3
# Cores that other programs may take before the end of the run says so.
OTHERS_MAX = 0.1


async def run(options: argparse.Namespace) -> list[str]:
    """Run the scenarios, print as they end and keep what there is so far; return who has died."""
    plan = Plan(options.rounds, options.seconds, options.soak_minutes)
    end_by_signals()
    began = time.monotonic()
    scenarios: dict[str, Any] = {}
    results: dict[str, Any] = {"run": about(options), "scenarios": scenarios}
    async with opened(options.subjects, plan) as bench:
        results["run"]["versions"] |= {name: one.version for name, one in bench.subjects.items() if one.version}
        results["absent"] = bench.absent
        for name in options.scenarios:
            if name in NEED_EDGE and "edge" not in bench.subjects:
                continue
            scenarios[name] = await one_scenario(bench, name)
            results["targets"] = judged(scenarios)
            results["run"] |= {"took_s": round(time.monotonic() - began), "others": others_of(scenarios)}
            keep(options, results)
        dead = bench.dead()
    print("\n" + "\n".join(ratio_lines(judged(scenarios))), flush=True)
    print("".join(f"\n{one}: its figures are missing from there on" for one in dead))
    took, others = round(time.monotonic() - began), others_of(scenarios)
    disturbed = "" if others <= OTHERS_MAX else ": the machine was not quiet, and times are not the gateways'"
    print(f"\nwhole run: {took} s; others took {others:.2f} cores (median over all figures){disturbed}")
    print(f"wrote {options.json} and {options.chart}")
    return dead


def keep(options: argparse.Namespace, results: dict[str, Any]) -> None:
    """Write figures and chart."""
    for path, content in (
        (options.json, json.dumps(results, indent=1, sort_keys=True) + "\n"),
        (options.chart, chart(results)),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")


def others_of(scenarios: dict[str, Any]) -> float:
    """What other programs took from the machine, in cores: the median over all figures."""
    slots = [slot for one in scenarios.values() for slot in one["subjects"].values() if "others" in slot]
    return median([slot["others"] for slot in slots])


async def one_scenario(bench: Bench, name: str) -> dict[str, Any]:
    """Run and print one."""
    began = time.monotonic()
    bench.rounds = bench.plan.rounds or (ROUNDS_JUDGED if name in with_bounds(SCENARIOS) else ROUNDS)
    bench.warming = False
    try:
        result = await SCENARIOS[name](bench)
    except (OSError, TimeoutError, Unmeasured, AdminError) as why:  # the others are worth having without this one
        result = Result(name, "request", missing={"edge": f"{type(why).__name__}: {why}"})
    result.seconds = round(time.monotonic() - began, 1)
    print(f"\n{name} ({bench.rounds} rounds, {result.seconds:.0f} s): {table(result, bench.absent)}", flush=True)
    await asyncio.sleep(REST_S)
    return as_json(result)


def about(options: argparse.Namespace) -> dict[str, Any]:
    """When, of what and where."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    versions = {"python": sys.version.split()[0], **{name: version(name) for name in LIBRARIES}}
    return {
        "at": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": " ".join(["python -m benchmarks.load.run", *measuring(sys.argv[1:])]),
        "commit": commit,
        "rounds": options.rounds or f"{ROUNDS} or {ROUNDS_JUDGED}",
        "seconds": options.seconds,
        "nice": options.nice,
        "machine": machine(),
        "versions": versions,
    }


def measuring(arguments: list[str]) -> list[str]:
    """The options that have to do with what is measured: where it is written is nobody's business."""
    kept: list[str] = []
    words = iter(arguments)
    for word in words:
        if word in ("--json", "--chart"):
            next(words, None)
        elif not word.startswith(("--json=", "--chart=")):
            kept.append(word)
    return kept


def names_of(known: list[str]) -> Any:
    """Parse names separated by commas."""

    def parse(text: str) -> list[str]:
        chosen = [name for name in text.split(",") if name]
        unknown = [name for name in chosen if name not in known]
        if unknown or not chosen:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown) or 'nothing'} given, expected of {', '.join(known)}")
        return chosen

    return parse


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options, `--quick` filled in."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenarios", type=names_of(list(SCENARIOS)), default=list(SCENARIOS))
    parser.add_argument("--subjects", type=names_of(["direct", *STARTERS]), default=list(NAMES))
    parser.add_argument(
        "--rounds",
        type=int,
        help="turns of each subject that count (5 where there is a target, else 3; with --quick 1)",
    )
    parser.add_argument("--seconds", type=float, help="length of one turn (1.2 to 3, by scenario; with --quick 0.7)")
    parser.add_argument("--soak-minutes", type=float, help="length of the soak (2; with --quick 0.2)")
    parser.add_argument("--quick", action="store_true", help="a short form, to see that everything works")
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "load.json", help="where the figures go")
    parser.add_argument("--chart", type=Path, default=ROOT / "build" / "load.svg", help="where the chart goes")
    parser.add_argument("--nice", type=int, default=0, help="priority of all processes; -19 keeps others off (root)")
    options = parser.parse_args(arguments)
    rounds, seconds, soak = (1, 0.7, 0.2) if options.quick else (None, None, 2.0)
    options.rounds = options.rounds or rounds
    options.seconds = options.seconds or seconds
    options.soak_minutes = options.soak_minutes or soak
    return options


def end_by_signals() -> None:
    """Have the first signal unwind this task where it awaits next, and a second one end the process at once.

    The kernel ends the subjects of a process that has ended (`proc.start`).
    """
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None

    def on_signal(number: int, frame: object) -> None:
        if task.cancelling():
            os._exit(128 + number)
        task.cancel()
        loop.call_soon_threadsafe(lambda: None)  # wakes it

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)


def main() -> None:
    """Parse the arguments, run, print and store."""
    options = parsed()
    os.setpriority(os.PRIO_PROCESS, 0, options.nice)  # what is started inherits it
    try:
        dead = uvloop.run(run(options))
    except asyncio.CancelledError:
        raise SystemExit("load: ended by a signal") from None
    if dead:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
