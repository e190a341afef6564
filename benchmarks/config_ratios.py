"""Speed of reading a configuration of 2,000 providers, as CPU time and as a ratio; exits 1 when a target is missed.

The ratio is to plain YAML parsing of the same text (CSafeLoader, no checks); rounds alternate, so that a noisy machine
moves both sides alike. The worst files are broken ones. Run from the top of the repository:
python -m benchmarks.config_ratios
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import process_time

import yaml

from iop_fast.config.loader import load_edge_text
from iop_fast.errors import ConfigError
from tests.fixtures.fleets import large

PROVIDERS, NODES, ROUNDS = 2_000, 100, 7
LOAD_S = 1.5
BROKEN_S = 5.0
RATIO = 2.0


def refuse(text: str) -> None:
    """Read a file that is refused."""
    try:
        load_edge_text(text, "edge.yaml")
    except ConfigError:
        return
    raise AssertionError("a broken file was accepted")


def best(subjects: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The lowest CPU time of each subject in seconds, over rounds taken in turn."""
    lowest = dict.fromkeys(subjects, float("inf"))
    for _ in range(rounds):
        for name, call in subjects.items():
            begun = process_time()
            call()
            lowest[name] = min(lowest[name], process_time() - begun)
    return lowest


def ratios() -> Iterator[tuple[str, float, float]]:
    """Name, value and upper bound."""
    text = large(PROVIDERS, NODES)
    good = best(
        {
            "load": lambda: load_edge_text(text, "edge.yaml"),
            "yaml": lambda: yaml.load(text, Loader=yaml.CSafeLoader),
        },
        ROUNDS,
    )
    print(f"figure load {good['load']:.3f} s, plain yaml {good['yaml']:.3f} s, {len(text)} bytes")
    yield "config_load_seconds", good["load"], LOAD_S
    yield "config_load_to_yaml", good["load"] / good["yaml"], RATIO
    broken = {
        "unknown_key": text.replace("capacity:", "capacty:"),
        "unknown_provider": text.replace("id: provider-", "id: providr-"),
        "wrong_shape": "models: [" + "1," * 400_000 + "]",
    }
    worst = best({name: lambda it=it: refuse(it) for name, it in broken.items()}, 1)  # type: ignore[misc]
    for name, value in worst.items():
        yield f"config_{name}_seconds", value, BROKEN_S


def main() -> int:
    missed = 0
    for name, value, target in ratios():
        missed += value > target
        print(f"ratio {name} {value:.3f} target <= {target}")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
