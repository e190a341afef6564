"""Times of the body scan and, beside it, of a full parse by orjson.

python -m pytest benchmarks/bench_scan.py -o python_files='bench_*.py' --benchmark-group-by=param:name
"""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from benchmarks.scan_bodies import bodies, hostile_bodies
from iop_fast._core.json_string import block_readers, use_block_reader
from iop_fast._core.scan import BodyScan
from iop_fast.edge.splice import splice_model

BODIES = bodies()
HOSTILE = hostile_bodies(256 << 10)


def scan(body: bytes) -> BodyScan:
    machine = BodyScan()
    machine.feed(body)
    machine.finish()
    return machine


@pytest.mark.parametrize("name", BODIES)
def bench_scan(benchmark: Any, name: str) -> None:
    assert benchmark(scan, BODIES[name]).model is not None


@pytest.mark.parametrize("name", BODIES)
def bench_orjson(benchmark: Any, name: str) -> None:
    assert "model" in benchmark(orjson.loads, BODIES[name])


@pytest.mark.parametrize("name", ["chat_1mib", "code_1mib", "chat_1kib"])
def bench_scan_by_words(benchmark: Any, name: str) -> None:
    use_block_reader("words")
    try:
        assert benchmark(scan, BODIES[name]).model is not None
    finally:
        use_block_reader(block_readers()[0])


@pytest.mark.parametrize("name", HOSTILE)
def bench_hostile_piece(benchmark: Any, name: str) -> None:
    assert benchmark(scan, HOSTILE[name]).model == "m"


def bench_splice(benchmark: Any) -> None:
    body = bytearray(BODIES["chat_1mib"])
    span = scan(BODIES["chat_1mib"]).model_span
    pieces, length = benchmark(splice_model, body, span, "served-model")
    assert length == sum(map(len, pieces))
