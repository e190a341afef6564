"""Speed of the body scan as ratios taken in one run, against their targets; exits 1 when one misses.

Each figure is the lowest of many short rounds, and the scan's rounds alternate with orjson's, so that a noisy machine
moves both sides alike. `time_*` lines hold an absolute time against its limit. Run from the top of the repository:
python -m benchmarks.scan_ratios
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from time import perf_counter_ns

import orjson

from benchmarks.scan_bodies import bodies, hostile_bodies
from iop_fast._core.scan import BodyScan

ROUNDS = 9
PIECE = 256 << 10

# How many times orjson's bytes/s the scan must do; a chat body is the one that counts.
SPEED_TARGETS = {
    "chat_1mib": 2.0,
    "code_1mib": 1.4,
    "korean_1mib": 0.8,
    "korean_escaped_1mib": 1.2,
    "short_messages_1mib": 1.4,
    "one_string_1mib": 2.0,
    "image_1mib": 2.0,
    "tools_1mib": 2.0,
    "tokens_1mib": 1.4,
    "agent_8kib": 1.1,
}
SMALL_BODY_NS = 2_000
PIECE_NS = 500_000
HOSTILE_PIECE_NS = 2_500_000  # half of what may block the loop


def scan(body: bytes) -> None:
    machine = BodyScan()
    machine.feed(body)
    machine.finish()


def best(subjects: dict[str, Callable[[], object]], count: int) -> dict[str, float]:
    """The lowest time of a call of each subject, in ns, over rounds of `count` calls taken in turn."""
    lowest = dict.fromkeys(subjects, float("inf"))
    for _ in range(ROUNDS):
        for name, call in subjects.items():
            begun = perf_counter_ns()
            for _ in range(count):
                call()
            lowest[name] = min(lowest[name], (perf_counter_ns() - begun) / count)
    return lowest


def piece_time(body: bytes) -> float:
    """Time of one feed of 256 KiB in the middle of a body, in ns."""
    before, piece = body[:PIECE], body[PIECE : 2 * PIECE]
    lowest = float("inf")
    for _ in range(ROUNDS * 3):
        machine = BodyScan()
        machine.feed(before)
        begun = perf_counter_ns()
        machine.feed(piece)
        lowest = min(lowest, float(perf_counter_ns() - begun))
    return lowest


def ratios() -> Iterator[tuple[str, float, float, bool]]:
    """Name, value, target and whether the target is an upper bound."""
    for name, body in bodies().items():
        calls = {"scan": lambda body=body: scan(body), "orjson": lambda body=body: orjson.loads(body)}
        times = best(calls, 5 if len(body) > 100_000 else 1_000)
        speed = len(body) / times["scan"]
        print(f"figure {name} {times['scan'] / 1000:.1f} us, {speed:.2f} GB/s", file=sys.stderr)
        if name in SPEED_TARGETS:
            yield f"scan_{name}_to_orjson", times["orjson"] / times["scan"], SPEED_TARGETS[name], False
        else:
            yield f"time_{name}_to_2us", times["scan"] / SMALL_BODY_NS, 1.0, True
        if len(body) > 2 * PIECE:
            yield f"time_{name}_piece_to_500us", piece_time(body) / PIECE_NS, 1.0, True
    for name, body in hostile_bodies(2 * PIECE + 64).items():
        yield f"time_hostile_{name}_piece_to_2500us", piece_time(body) / HOSTILE_PIECE_NS, 1.0, True


def main() -> int:
    missed = 0
    gc.collect()
    gc.freeze()
    for name, value, target, is_upper in ratios():
        missed += value > target if is_upper else value < target
        print(f"ratio {name} {value:.3f} target {'<=' if is_upper else '>='} {target}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
