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
from iop_fast.edge.body import Body, ByteBudget, EditedBody
from iop_fast.edge.edits import model_edits

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


def bench_edit_model(benchmark: Any) -> None:
    content = BODIES["chat_1mib"]
    machine = scan(content)
    body = Body(ByteBudget(2 * len(content)), len(content), None)
    body.append(content)

    def read_pieces() -> int:
        edited = EditedBody(body, model_edits(machine, body.slice, b'"served-model"'))
        return sum(len(edited.piece(offset, 65_536)) for offset in range(0, edited.size, 65_536))

    start, end = machine.model_span
    assert benchmark(read_pieces) == len(content) - (end - start) + len(b'"served-model"')
